//! CRI log files: what a container writes, line by line, as
//! `2026-11-21T08:00:00.000000000Z stdout F text` (kubernetes/design-proposals, kubelet-cri-logging).
//! Owns the file and the unfinished line of each stream. Called by `monitor::event_loop`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A line longer than this is written in parts tagged P, as containerd does.
const MAX_LINE: usize = 16 * 1024;

/// Which of the two streams a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
}

/// The unfinished last line of one stream.
#[derive(Debug)]
pub(super) struct Lines {
    source: Source,
    partial: Vec<u8>,
}

impl Lines {
    pub(super) fn new(source: Source) -> Self {
        Self { source, partial: Vec::new() }
    }

    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// Adds bytes as they were read and returns what is to be written now.
    pub(super) fn feed(&mut self, bytes: &[u8], now_unix_nanos: i64) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() + 64);
        let stamp = timestamp(now_unix_nanos);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            while self.partial.len() > MAX_LINE
                && !(self.partial.len() == MAX_LINE + 1 && self.partial.ends_with(b"\n"))
            {
                let rest = self.partial.split_off(MAX_LINE);
                let full = std::mem::replace(&mut self.partial, rest);
                self.write(&mut out, &stamp, b"P", &full);
            }
            if self.partial.last() == Some(&b'\n') {
                self.partial.pop();
                // A terminal's line ends in both; containerd keeps neither.
                if self.partial.last() == Some(&b'\r') {
                    self.partial.pop();
                }
                let line = std::mem::take(&mut self.partial);
                self.write(&mut out, &stamp, b"F", &line);
            }
        }
        out
    }

    /// The end of the stream. A line without its newline is a part, as containerd has it: readers put no newline
    /// behind it, which a termination message from the log's end must not have.
    pub(super) fn finish(&mut self, now_unix_nanos: i64) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.partial.is_empty() {
            let line = std::mem::take(&mut self.partial);
            self.write(&mut out, &timestamp(now_unix_nanos), b"P", &line);
        }
        out
    }

    fn write(&self, out: &mut Vec<u8>, stamp: &str, tag: &[u8], line: &[u8]) {
        let source: &[u8] = match self.source {
            Source::Stdout => b"stdout",
            Source::Stderr => b"stderr",
        };
        for part in [stamp.as_bytes(), b" ", source, b" ", tag, b" ", line, b"\n"] {
            out.extend_from_slice(part);
        }
    }
}

/// An open log; writes go to its end whatever else happens to the file.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: Option<File>,
    complained: bool,
}

impl LogFile {
    /// Opens, and makes, the file; an empty path is a container without a log.
    pub(super) fn open(path: &str) -> io::Result<Self> {
        let file = if path.is_empty() { None } else { Some(create(Path::new(path))?) };
        Ok(Self { path: path.into(), file, complained: false })
    }

    /// Goes on in a new file at the same path, after somebody renamed the old one. When that can't be
    /// made, the old one stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            self.file = Some(create(&self.path)?);
        }
        Ok(())
    }

    /// Appends. A full disk loses these lines, not the container: its pipe must go on being read.
    /// Returns the error once for each spell of failing, for the monitor's own log.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Option<io::Error> {
        let file = self.file.as_mut()?;
        match file.write_all(bytes) {
            Ok(()) => {
                self.complained = false;
                None
            }
            Err(_) if self.complained => None,
            Err(error) => {
                self.complained = true;
                Some(error)
            }
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// RFC 3339 with nanoseconds, UTC. Days to civil date as in Howard Hinnant's "chrono-compatible
/// low-level date algorithms".
pub(super) fn timestamp(unix_nanos: i64) -> String {
    let (seconds, nanos) = (unix_nanos.div_euclid(1_000_000_000), unix_nanos.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (nanos, expected) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00.000000001Z"),
            (1_795_248_000_500_000_000, "2026-11-21T08:00:00.500000000Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
        ] {
            assert_eq!(timestamp(nanos), expected);
        }
    }

    #[test]
    fn a_line_is_written_when_it_is_whole_and_the_rest_at_the_end() {
        let mut lines = Lines::new(Source::Stdout);
        assert_eq!(text(&lines.feed(b"one\ntw", 0)), "1970-01-01T00:00:00.000000000Z stdout F one\n");
        assert_eq!(text(&lines.feed(b"o\n\n", 0)).lines().count(), 2);
        lines.feed(b"end", 0);
        assert!(text(&lines.finish(0)).ends_with(" stdout P end\n"));
        assert!(lines.finish(0).is_empty());
    }

    #[test]
    fn a_terminals_line_is_written_without_its_carriage_return() {
        let mut lines = Lines::new(Source::Stdout);
        assert!(text(&lines.feed(b"a\rb\r\n", 0)).ends_with(" F a\rb\n"));
        assert!(text(&lines.feed(b"\r\n", 0)).ends_with(" F \n"));
    }

    #[test]
    fn a_line_over_the_limit_comes_in_parts_and_one_at_the_limit_does_not() {
        let mut lines = Lines::new(Source::Stderr);
        let long = [vec![b'x'; MAX_LINE + 5], b"\n".to_vec()].concat();
        let out = text(&lines.feed(&long, 0));
        let tags: Vec<&str> = out.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
        assert_eq!(tags, ["P", "F"]);
        let exact = [vec![b'x'; MAX_LINE], b"\n".to_vec()].concat();
        assert_eq!(text(&lines.feed(&exact, 0)).lines().count(), 1);
    }
}

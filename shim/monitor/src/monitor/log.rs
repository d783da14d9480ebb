//! CRI log files: what a container writes, line by line, as
//! `2026-11-21T08:00:00.000000000Z stdout F text` (kubernetes/design-proposals, kubelet-cri-logging).
//! Owns the file and the unfinished line of each stream. Called by `monitor::event_loop`.
//!
//! On a disk that is full, lines are lost whole: what a write had begun is taken back, and a line of
//! several parts whose rest is lost is ended before the next one begins.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A line longer than this is written in parts tagged P, as containerd does.
const MAX_LINE: usize = 16 * 1024;

/// Which of the two streams a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStream {
    Stdout,
    Stderr,
}

/// The unfinished last line of one stream.
#[derive(Debug)]
pub(super) struct Lines {
    stream: LogStream,
    partial: Vec<u8>,
}

impl Lines {
    pub(super) fn new(source: LogStream) -> Self {
        Self { stream: source, partial: Vec::new() }
    }

    pub(super) fn source(&self) -> LogStream {
        self.stream
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
        let source: &[u8] = match self.stream {
            LogStream::Stdout => b"stdout",
            LogStream::Stderr => b"stderr",
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
    error_reported: bool,
    /// The file ends within a line that could not be taken back.
    torn: bool,
    stdout: LineParts,
    stderr: LineParts,
}

/// What the file has of a stream.
///
/// ```text
/// Whole ◀──part F── Open ──rest is lost──▶ Cut ──ended by an empty part──▶ Whole
///   └──part P written──▲
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineParts {
    /// Its last part ends a line.
    Whole,
    /// Its last part is one of a line that goes on.
    Open,
    /// As `Open`, and what came next is lost: a reader would glue on whatever follows.
    Cut,
}

impl LogFile {
    /// Opens, and makes, the file; an empty path is a container without a log. A link, pipe or socket in its place gives
    /// way.
    pub(super) fn open(path: &str) -> io::Result<Self> {
        let file = if path.is_empty() { None } else { Some(create(Path::new(path))?) };
        let torn = file.as_ref().is_some_and(ends_within_a_line);
        let (stdout, stderr) = (LineParts::Whole, LineParts::Whole);
        Ok(Self { path: path.into(), file, error_reported: false, torn, stdout, stderr })
    }

    /// Goes on in a new file at the same path, after somebody renamed the old one. When that can't be
    /// made, the old one stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            let file = create(&self.path)?;
            self.torn = ends_within_a_line(&file);
            self.file = Some(file);
        }
        Ok(())
    }

    /// Appends whole lines of one stream. A full disk loses these lines, not the container: its pipe must
    /// go on being read. Returns the error once for each spell of failing, for the monitor's own log.
    pub(super) fn append(&mut self, source: LogStream, lines: &[u8]) -> Option<io::Error> {
        let file = self.file.as_mut()?;
        let parts = match source {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr => &mut self.stderr,
        };
        let bytes = [with_lead(self.torn, *parts, lines), lines.to_vec()].concat();
        let (written, error) = write(file, &bytes);
        let begun = bytes.get(..written).unwrap_or_default();
        let whole = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if written > 0 {
            self.torn = whole < written && truncate_last(file, written - whole).is_err();
        }
        match last_line(begun.get(..whole).unwrap_or_default()).and_then(tag) {
            Some(b"P") => *parts = LineParts::Open,
            Some(_) => *parts = LineParts::Whole,
            None => {}
        }
        let Some(error) = error else {
            self.error_reported = false;
            return None;
        };
        if *parts == LineParts::Open {
            *parts = LineParts::Cut;
        }
        (!std::mem::replace(&mut self.error_reported, true)).then_some(error)
    }
}

/// What makes an end of what is broken off in the file.
fn with_lead(torn: bool, parts: LineParts, lines: &[u8]) -> Vec<u8> {
    let mut lead = Vec::new();
    if torn {
        lead.push(b'\n');
    }
    if parts == LineParts::Cut {
        // The time and stream of what follows.
        let mut fields = lines.split(|byte| *byte == b' ');
        for field in [fields.next(), fields.next()] {
            lead.extend_from_slice(field.unwrap_or_default());
            lead.push(b' ');
        }
        lead.extend_from_slice(b"F \n");
    }
    lead
}

/// As much as goes, and why not more.
fn write(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(bytes.get(written..).unwrap_or_default()) {
            Ok(0) => return (written, Some(ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Takes the last bytes off the file again: nobody else writes to it.
fn truncate_last(file: &File, count: usize) -> io::Result<()> {
    let length = file.metadata()?.len();
    file.set_len(length.saturating_sub(count as u64))
}

/// As a monitor leaves it that was killed while it wrote, or one on a full disk before this one.
fn ends_within_a_line(file: &File) -> bool {
    let mut last = [0];
    let end = file.metadata().map_or(0, |found| found.len()).checked_sub(1);
    // What can't be read can't be seen to be whole either; a file of no bytes is.
    end.is_some_and(|end| file.read_exact_at(&mut last, end).is_err() || last != *b"\n")
}

fn last_line(lines: &[u8]) -> Option<&[u8]> {
    lines.strip_suffix(b"\n")?.rsplit(|byte| *byte == b'\n').next()
}

fn tag(line: &[u8]) -> Option<&[u8]> {
    line.split(|byte| *byte == b' ').nth(2)
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // What stands there and is no file was planted by a pod that may write to the node's logs: it would lead a root
    // program to any file of the node, or hold up this thread for ever.
    if let Some(kind) = existing_type(path)?.filter(|kind| !kind.is_file()) {
        if !(kind.is_symlink() || kind.is_fifo() || kind.is_socket()) {
            return Err(no_file());
        }
        std::fs::remove_file(path)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(0o640);
    // Planted since then: it is opened without waiting, and refused.
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(no_file()) }
}

/// What is there, itself and not what it leads to.
fn existing_type(path: &Path) -> io::Result<Option<FileType>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found.file_type())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn no_file() -> io::Error {
    io::Error::other("what stands there is not a plain file")
}

/// RFC 3339 with nanoseconds, UTC. Days to civil date as in Howard Hinnant's "chrono-compatible
/// low-level date algorithms".
pub fn timestamp(unix_nanos: i64) -> String {
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
        let mut lines = Lines::new(LogStream::Stdout);
        assert_eq!(text(&lines.feed(b"one\ntw", 0)), "1970-01-01T00:00:00.000000000Z stdout F one\n");
        assert_eq!(text(&lines.feed(b"o\n\n", 0)).lines().count(), 2);
        lines.feed(b"end", 0);
        assert!(text(&lines.finish(0)).ends_with(" stdout P end\n"));
        assert!(lines.finish(0).is_empty());
    }

    #[test]
    fn a_terminals_line_is_written_without_its_carriage_return() {
        let mut lines = Lines::new(LogStream::Stdout);
        assert!(text(&lines.feed(b"a\rb\r\n", 0)).ends_with(" F a\rb\n"));
        assert!(text(&lines.feed(b"\r\n", 0)).ends_with(" F \n"));
    }

    #[test]
    fn a_line_over_the_limit_comes_in_parts_and_one_at_the_limit_does_not() {
        let mut lines = Lines::new(LogStream::Stderr);
        let long = [vec![b'x'; MAX_LINE + 5], b"\n".to_vec()].concat();
        let out = text(&lines.feed(&long, 0));
        let tags: Vec<&str> = out.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
        assert_eq!(tags, ["P", "F"]);
        let exact = [vec![b'x'; MAX_LINE], b"\n".to_vec()].concat();
        assert_eq!(text(&lines.feed(&exact, 0)).lines().count(), 1);
    }

    #[test]
    fn what_a_line_of_parts_has_lost_is_not_made_up_by_the_next_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let mut log = LogFile::open(path.to_str().unwrap()).unwrap();
        let part = b"2026-11-22T07:00:00.000000000Z stdout P begins\n";
        assert!(log.append(LogStream::Stdout, part).is_none());
        // What follows goes where there is never room.
        let file = log.file.replace(OpenOptions::new().append(true).open("/dev/full").unwrap());
        let rest = b"2026-11-22T07:00:00.000000000Z stdout F ends\n";
        assert!(log.append(LogStream::Stdout, rest).is_some(), "told once");
        assert!(log.append(LogStream::Stdout, rest).is_none(), "and not again");
        log.file = file;
        let other = b"2026-11-22T07:00:01.000000000Z stderr F other\n";
        let next = b"2026-11-22T07:00:02.000000000Z stdout F next\n";
        assert!(log.append(LogStream::Stderr, other).is_none());
        assert!(log.append(LogStream::Stdout, next).is_none());
        assert!(log.append(LogStream::Stdout, next).is_none());
        let expected = "2026-11-22T07:00:00.000000000Z stdout P begins\n\
            2026-11-22T07:00:01.000000000Z stderr F other\n\
            2026-11-22T07:00:02.000000000Z stdout F \n\
            2026-11-22T07:00:02.000000000Z stdout F next\n\
            2026-11-22T07:00:02.000000000Z stdout F next\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_line_that_a_dead_monitor_broke_off_is_not_glued_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        std::fs::write(&path, "2026-11-22T07:00:00.000000000Z stdout F who").unwrap();
        let mut log = LogFile::open(path.to_str().unwrap()).unwrap();
        let line = b"2026-11-22T07:00:01.000000000Z stdout F whole\n";
        assert!(log.append(LogStream::Stdout, line).is_none());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().nth(1).map(str::as_bytes), line.strip_suffix(b"\n"));
    }

    #[test]
    fn what_was_written_in_vain_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        std::fs::write(&path, "whole\nhal").unwrap();
        truncate_last(&create(&path).unwrap(), 3).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\n");
    }

    #[test]
    fn what_is_planted_in_a_logs_place_is_neither_followed_nor_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (other, path) = (at("other"), at("0.log"));
        std::fs::write(&other, "other's\n").unwrap();
        let plants: [&dyn Fn(); 4] = [
            &|| std::os::unix::fs::symlink(&other, &path).unwrap(),
            &|| std::os::unix::fs::symlink(at("none"), &path).unwrap(),
            &|| mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
            &|| mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap(),
        ];
        let line = b"2026-11-22T07:00:00.000000000Z stdout F own\n";
        let own = |log: &mut LogFile| {
            assert!(log.append(LogStream::Stdout, line).is_none());
            assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(std::fs::read(&path).unwrap(), line);
            std::fs::remove_file(&path).unwrap();
        };
        for plant in plants {
            plant();
            let mut log = LogFile::open(path.to_str().unwrap()).unwrap();
            own(&mut log);
            plant();
            log.reopen().unwrap();
            own(&mut log);
        }
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other's\n");
        assert!(!at("none").exists());
    }

    #[test]
    fn a_log_that_cannot_be_made_again_goes_on_in_its_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, renamed) = (folder.path().join("0.log"), folder.path().join("0.log.1"));
        let mut log = LogFile::open(path.to_str().unwrap()).unwrap();
        std::fs::rename(&path, &renamed).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(log.reopen().is_err());
        let line = b"2026-11-22T07:00:00.000000000Z stdout F goes on\n";
        assert!(log.append(LogStream::Stdout, line).is_none());
        assert_eq!(std::fs::read(&renamed).unwrap(), line);
    }

    #[test]
    fn lines_of_a_log_take_few_instructions() {
        let bytes = b"2026-11-29 10:00:00 INFO a line as a server writes it, of some eighty bytes in all\n"
            .repeat(100);
        let test = "monitor::log::tests::lines_of_a_log_take_few_instructions";
        gantry_instructions::hold(test, 929_788, || {
            let mut lines = Lines::new(LogStream::Stdout);
            assert_eq!(text(&lines.feed(&bytes, 0)).lines().count(), 100);
        });
    }
}

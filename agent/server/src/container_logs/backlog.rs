//! What a container has written so far, its rotated files first. Owns the files' order and finding
//! where the last lines begin; never waits for more, nor for who reads. Blocks on files: called by
//! [`super`] on a thread that may.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::Log;
use super::options::Options;
use super::writer::{Flow, Writer};
use gantry_base::open::beneath;

/// Read backwards in blocks of this size.
const BLOCK: u64 = 16 << 10;
/// A line feed must come within this many bytes; what is longer is cut.
const LONGEST: u64 = 1 << 20;

/// Where the newest file was left.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) file: File,
    /// The beginning of an entry whose end is yet to come.
    pub(super) begun: Vec<u8>,
}

/// Where the reading has come to. It stops whenever enough is gathered to be sent, so that no thread
/// waits for a client.
pub(super) struct Backlog {
    /// Older files whose lines are wanted, the oldest last, and how many of each are left out.
    older: Vec<(PathBuf, u64)>,
    /// The one of them that is being read.
    open: Option<Older>,
    newest: BufReader<File>,
    log: Log,
    follow: bool,
}

struct Older {
    reader: Box<dyn BufRead + Send>,
    path: PathBuf,
    skip: u64,
}

/// What comes next; the writer is to be flushed before.
pub(super) enum ReadOutcome {
    /// There is more to read.
    More(Backlog),
    /// Everything that is there was read.
    End(Rest),
    /// Nothing more is wanted.
    Enough,
}

/// What stopped the reading of a file.
enum Stop {
    Full,
    Enough,
    /// With the beginning of an entry that is not complete.
    End(Vec<u8>),
}

impl Backlog {
    /// Finds where to begin.
    pub(super) fn open(log: &Log, options: &Options) -> Result<Self, String> {
        let path = &log.path;
        let newest =
            beneath(&log.root, path).map_err(|error| format!("failed to open log file {path:?}: {error}"))?;
        let older =
            list_rotated(path).map_err(|error| format!("failed to list logs beside {path:?}: {error}"))?;
        let (older, mut want) = (since(older, options.since), options.tail);
        let mut newest = BufReader::new(newest);
        let begin = match want {
            Some(lines) => tail(newest.get_mut(), lines).map_err(|error| unreadable(path, &error))?,
            None => Begin { at: 0, missing: u64::MAX },
        };
        want = want.map(|_| begin.missing);
        // From the newest back, as long as lines are missing; they are read forwards.
        let mut plans = Vec::new();
        for file in older.into_iter().rev() {
            if want == Some(0) {
                break;
            }
            let skip = match want {
                None => 0,
                Some(lines) => {
                    let has = count(&log.root, &file).map_err(|error| unreadable(&file, &error))?;
                    want = Some(lines.saturating_sub(has));
                    has.saturating_sub(lines)
                }
            };
            plans.push((file, skip));
        }
        newest.seek(SeekFrom::Start(begin.at)).map_err(|error| unreadable(path, &error))?;
        let (log, follow) = (log.clone(), options.follow);
        Ok(Self { older: plans, open: None, newest, log, follow })
    }

    /// Reads until enough is gathered, or to the end.
    pub(super) fn step(mut self, writer: &mut Writer) -> Result<ReadOutcome, String> {
        loop {
            if let Some(Older { reader, path, skip }) = &mut self.open {
                match entries(reader, path, skip, writer)? {
                    Stop::Full => return Ok(ReadOutcome::More(self)),
                    Stop::Enough => return Ok(ReadOutcome::Enough),
                    Stop::End(_) => self.open = None,
                }
            }
            let Some((path, skip)) = self.older.pop() else { break };
            let reader = open(&self.log.root, &path).map_err(|error| unreadable(&path, &error))?;
            self.open = Some(Older { reader, path, skip });
        }
        match entries(&mut self.newest, &self.log.path, &mut 0, writer)? {
            Stop::Full => Ok(ReadOutcome::More(self)),
            Stop::Enough => Ok(ReadOutcome::Enough),
            Stop::End(begun) => {
                if !self.follow && !begun.is_empty() && writer.entry(&begun) == Flow::Enough {
                    return Ok(ReadOutcome::Enough);
                }
                Ok(ReadOutcome::End(Rest { file: self.newest.into_inner(), begun }))
            }
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("failed to read log file {path:?}: {error}")
}

/// Oldest first: their names end with the time of rotation. One that is being compressed is left out
/// in favour of what it is made from.
fn list_rotated(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_rotated = entry.file_name().to_str().is_some_and(|other| {
            other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.') && !rest.ends_with(".tmp"))
        });
        if is_rotated && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    // Compressed and not yet removed: the same lines twice.
    let plain = found.clone();
    found.retain(|path| {
        path.extension().is_none_or(|end| end != "gz") || !plain.contains(&path.with_extension(""))
    });
    Ok(found)
}

/// Without the files that were finished before.
fn since(files: Vec<PathBuf>, since: Option<i64>) -> Vec<PathBuf> {
    let Some(since) = since else { return files };
    let late = |path: &PathBuf| {
        let changed = std::fs::symlink_metadata(path).and_then(|data| data.modified());
        let nanos = changed.ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        nanos.is_none_or(|time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX) >= since)
    };
    files.into_iter().filter(late).collect()
}

fn open(root: &Path, path: &Path) -> std::io::Result<Box<dyn BufRead + Send>> {
    let file = beneath(root, path)?;
    Ok(match path.extension().is_some_and(|end| end == "gz") {
        true => Box::new(BufReader::new(MultiGzDecoder::new(BufReader::new(file)))),
        false => Box::new(BufReader::new(file)),
    })
}

fn count(root: &Path, path: &Path) -> std::io::Result<u64> {
    let (mut reader, mut lines) = (open(root, path)?, 0);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(lines);
        }
        lines += u64::try_from(buffer.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(0);
        let length = buffer.len();
        reader.consume(length);
    }
}

/// Writes entries until enough is gathered, or to the end.
fn entries(
    reader: &mut dyn BufRead,
    path: &Path,
    skip: &mut u64,
    writer: &mut Writer,
) -> Result<Stop, String> {
    loop {
        let mut entry = Vec::new();
        let read = reader.take(LONGEST).read_until(b'\n', &mut entry);
        read.map_err(|error| unreadable(path, &error))?;
        if entry.last() != Some(&b'\n') && u64::try_from(entry.len()).unwrap_or(0) < LONGEST {
            return Ok(Stop::End(entry));
        }
        entry.pop();
        if *skip > 0 {
            *skip -= 1;
            continue;
        }
        if writer.entry(&entry) == Flow::Enough {
            return Ok(Stop::Enough);
        }
        if writer.is_full() {
            return Ok(Stop::Full);
        }
    }
}

/// Where the last lines begin.
#[derive(Debug, PartialEq, Eq)]
struct Begin {
    at: u64,
    /// As many more would have been wanted.
    missing: u64,
}

fn tail(file: &mut File, lines: u64) -> std::io::Result<Begin> {
    let end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(Begin { at: end, missing: 0 });
    }
    let (mut at, mut left) = (end, lines);
    let mut block = vec![0; usize::try_from(BLOCK).unwrap_or(0)];
    // The line feed at the very end belongs to the last line, and so does what has none yet.
    let mut last = true;
    while at > 0 {
        let size = at.min(BLOCK);
        at -= size;
        file.seek(SeekFrom::Start(at))?;
        let part = block.get_mut(..usize::try_from(size).unwrap_or(0)).unwrap_or_default();
        file.read_exact(part)?;
        for (index, byte) in part.iter().enumerate().rev() {
            let ends_all = std::mem::take(&mut last);
            if *byte == b'\n' && !ends_all {
                left -= 1;
                if left == 0 {
                    return Ok(Begin { at: at + u64::try_from(index).unwrap_or(0) + 1, missing: 0 });
                }
            }
        }
    }
    let first = u64::from(end > 0);
    Ok(Begin { at: 0, missing: left - first.min(left) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use gantry_model::testing::fifo;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use tokio::sync::mpsc;

    fn lines(numbers: std::ops::Range<u32>) -> String {
        numbers.map(|number| format!("2026-01-01T00:00:{number:02}Z stdout F {number}\n")).collect()
    }

    fn log(path: &Path) -> Log {
        Log { root: path.parent().unwrap().to_owned(), path: path.to_owned() }
    }

    fn text_of(path: &Path, options: &Options) -> (String, bool) {
        let (sender, mut receiver) = mpsc::channel(64);
        let mut writer = Writer::new(options, sender);
        let mut backlog = Backlog::open(&log(path), options).unwrap();
        let ended = loop {
            let step = backlog.step(&mut writer).unwrap();
            assert_eq!(writer.flush().now_or_never(), Some(Flow::On));
            match step {
                ReadOutcome::More(more) => backlog = more,
                ReadOutcome::End(_) => break true,
                ReadOutcome::Enough => break false,
            }
        };
        let mut all = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            all.extend_from_slice(&piece);
        }
        (String::from_utf8(all).unwrap().replace('\n', " "), ended)
    }

    /// 0..3 compressed, 3..6 plain, 6..9 in the newest.
    fn three_files() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        std::fs::write(&path, lines(6..9)).unwrap();
        std::fs::write(folder.path().join("0.log.20260101-000100"), lines(3..6)).unwrap();
        let gz = File::create(folder.path().join("0.log.20260101-000000.gz")).unwrap();
        let mut gz = flate2::write::GzEncoder::new(gz, flate2::Compression::fast());
        gz.write_all(lines(0..3).as_bytes()).unwrap();
        gz.finish().unwrap();
        // Neither another container's life nor one that is being written.
        std::fs::write(folder.path().join("1.log"), lines(50..51)).unwrap();
        std::fs::write(folder.path().join("0.log.20260101-000100.gz"), b"half").unwrap();
        std::fs::write(folder.path().join("0.log.20260101-000100.gz.tmp"), b"half").unwrap();
        (folder, path)
    }

    #[test]
    fn rotated_files_come_first_and_once() {
        let (_folder, path) = three_files();
        let all = Options::default();
        assert_eq!(text_of(&path, &all).0, "0 1 2 3 4 5 6 7 8 ");
        let tail = |lines| text_of(&path, &Options { tail: Some(lines), ..all.clone() }).0;
        assert_eq!(tail(0), "");
        assert_eq!(tail(2), "7 8 ");
        assert_eq!(tail(3), "6 7 8 ");
        assert_eq!(tail(4), "5 6 7 8 ");
        assert_eq!(tail(7), "2 3 4 5 6 7 8 ");
        assert_eq!(tail(99), "0 1 2 3 4 5 6 7 8 ");
        let since = Options { since: super::super::options::nanos("2026-01-01T00:00:07Z"), ..all.clone() };
        assert_eq!(text_of(&path, &since).0, "7 8 ");
        assert_eq!(text_of(&path, &Options { limit: Some(5), ..all }), ("0 1 2".to_owned(), false));
    }

    #[test]
    fn an_entry_without_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        std::fs::write(&path, lines(0..1) + "2026-01-01T00:00:01Z stdout F ha").unwrap();
        assert_eq!(text_of(&path, &Options::default()).0, "0 ha ");
        assert_eq!(text_of(&path, &Options { follow: true, ..Options::default() }).0, "0 ");
        assert_eq!(text_of(&path, &Options { tail: Some(1), ..Options::default() }).0, "ha ");
        assert!(Backlog::open(&log(&folder.path().join("1.log")), &Options::default()).is_err());
    }

    #[test]
    fn what_was_planted_is_neither_followed_nor_waited_for() {
        let (folder, path) = three_files();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("secret"), lines(40..41)).unwrap();
        symlink(at("secret"), at("0.log.20260101-000050")).unwrap();
        fifo(&at("0.log.20260101-000055"));
        std::fs::create_dir(at("0.log.20260101-000056")).unwrap();
        assert_eq!(text_of(&path, &Options::default()).0, "0 1 2 3 4 5 6 7 8 ");
        symlink(at("secret"), at("2.log")).unwrap();
        fifo(&at("3.log"));
        std::fs::create_dir(at("inner")).unwrap();
        symlink(at("secret"), at("inner/0.log")).unwrap();
        symlink(folder.path(), at("inner/way")).unwrap();
        for other in ["2.log", "3.log", "inner/0.log", "inner/way/0.log"] {
            let log = Log { root: folder.path().to_owned(), path: at(other) };
            assert!(Backlog::open(&log, &Options::default()).is_err(), "{other}");
        }
        // Exchanged after the folder was listed.
        for other in ["2.log", "3.log"] {
            assert!(open(folder.path(), &at(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn a_tail_over_many_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let long = "x".repeat(10_000);
        let all: String = (0..9).map(|n| format!("2026-01-01T00:00:0{n}Z stdout F {n}{long}\n")).collect();
        std::fs::write(&path, &all).unwrap();
        let mut file = File::open(&path).unwrap();
        let one = u64::try_from(all.len()).unwrap() / 9;
        assert_eq!(tail(&mut file, 4).unwrap(), Begin { at: 5 * one, missing: 0 });
        assert_eq!(tail(&mut file, 9).unwrap(), Begin { at: 0, missing: 0 });
        assert_eq!(tail(&mut file, 11).unwrap(), Begin { at: 0, missing: 2 });
    }
}

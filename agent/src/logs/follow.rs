//! Reading a CRI log, once or as it grows. Owns the reader; never prints. Called by `gantry
//! logs` and `gantry run`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tokio::fs::File;
use tokio::io::AsyncReadExt;

use super::Error;
use gantry_base::open;
use gantry_model::log_line::{Line, parse};

/// A line feed must come within this many bytes (the runtime cuts lines at 16 KiB).
const MAX_ENTRY: usize = 1 << 20;

/// Reads entries as they are completed. A file that is not there yet is empty.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: Option<File>,
    pending: Vec<u8>,
}

impl LogReader {
    /// From the beginning of the file.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, pending: Vec::new() }
    }

    /// The next entries, none at the present end. Once opened, the file is read on even
    /// when it is removed.
    ///
    /// # Errors
    /// When the file cannot be opened or read.
    pub async fn next(&mut self) -> Result<Vec<Line>, Error> {
        let wrap = |source| Error::Read { path: self.path.clone(), source };
        if self.file.is_none() {
            let path = self.path.clone();
            let opened = tokio::task::spawn_blocking(move || open::plain(&path)).await;
            match opened.unwrap_or_else(|died| Err(died.into())) {
                Ok(file) => self.file = Some(File::from_std(file)),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(wrap(error)),
            }
        }
        let Some(file) = &mut self.file else {
            return Ok(Vec::new());
        };
        let mut chunk = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut chunk).await.map_err(wrap)?;
            if count == 0 {
                return Ok(Vec::new());
            }
            self.pending.extend_from_slice(chunk.get(..count).unwrap_or_default());
            let lines = take_lines(&mut self.pending, &self.path);
            if !lines.is_empty() {
                return Ok(lines);
            }
        }
    }
}

fn take_lines(pending: &mut Vec<u8>, path: &Path) -> Vec<Line> {
    let Some(end) = pending.iter().rposition(|b| *b == b'\n') else {
        if pending.len() > MAX_ENTRY {
            tracing::warn!(path = %path.display(), "skipped an endless line");
            pending.clear();
        }
        return Vec::new();
    };
    let rest = pending.split_off(end + 1);
    let complete = std::mem::replace(pending, rest);
    complete.split(|b| *b == b'\n').filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use gantry_base::error::chain;

    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn a_link_or_a_pipe_is_no_log() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("secret"), "t stdout F a\n").unwrap();
        std::os::unix::fs::symlink(at("secret"), at("0.log")).unwrap();
        gantry_model::testing::fifo(&at("1.log"));
        for name in ["0.log", "1.log"] {
            let error = LogReader::new(&at(name)).next().await.unwrap_err();
            assert!(chain(&error).contains("not a regular file"), "{}", chain(&error));
        }
    }

    #[tokio::test]
    async fn entries_come_when_they_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let mut reader = LogReader::new(&path);
        assert!(reader.next().await.unwrap().is_empty());
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"t stdout F a\nt stdout F hal").unwrap();
        let texts = |lines: Vec<Line>| lines.into_iter().map(|l| l.text).collect::<Vec<_>>();
        assert_eq!(texts(reader.next().await.unwrap()), [b"a"]);
        assert!(reader.next().await.unwrap().is_empty());
        file.write_all(b"f\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(texts(reader.next().await.unwrap()), [b"half"]);
    }
}

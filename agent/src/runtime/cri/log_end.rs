//! The end of a container's log, for the last words of one that left none elsewhere. Owns the limits
//! and the wording of a failure; never follows a link, and never waits on a pipe. Called by
//! [`super::CriRuntime`].

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use gantry_base::open;
use gantry_model::log_line as line;

/// MaxContainerTerminationMessageLogLength and …LogLines.
const MOST_OF_LOG: usize = 2048;
const MOST_LINES: usize = 80;
/// 80 lines need not be read from further back: only 2 KiB of them are kept, and a line's frame is
/// short.
const LOG_WINDOW: u64 = 64 << 10;
const FAILED: &str = "Error on reading termination message from logs";

/// The last 2 KiB of the last 80 lines; the error as the text that is shown.
pub(super) async fn read(path: &Path) -> String {
    let path = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || from_log(&path));
    reading.await.unwrap_or_else(|error| format!("{FAILED}: {error}"))
}

fn from_log(path: &Path) -> String {
    let bytes = match tail(path, LOG_WINDOW) {
        Ok(bytes) => bytes,
        Err(error) => return format!("{FAILED}: {error}"),
    };
    // The first entry may be cut; a whole file begins with a whole one.
    let lines: Vec<line::Line> = bytes.split(|b| *b == b'\n').filter_map(line::parse).collect();
    let mut text = Vec::new();
    for entry in lines.get(lines.len().saturating_sub(MOST_LINES)..).unwrap_or_default() {
        text.extend_from_slice(&entry.text);
        if !entry.partial {
            text.push(b'\n');
        }
    }
    let from = text.len().saturating_sub(MOST_OF_LOG);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
}

fn tail(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = open::plain(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_within_2_kib() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("0.log");
        let lines: String = (0..100).map(|n| format!("2026-01-01T00:00:00Z stderr F line {n}\n")).collect();
        fs::write(&log, lines).unwrap();
        let words = read(&log).await;
        assert!(words.starts_with("line 20\n") && words.ends_with("line 99\n"), "{words}");
        fs::write(&log, format!("2026-01-01T00:00:00Z stdout F {}end\n", "x".repeat(5000))).unwrap();
        let words = read(&log).await;
        assert_eq!((words.len(), words.ends_with("xend\n")), (2048, true));
    }

    #[tokio::test]
    async fn a_link_or_pipe_is_neither_followed_nor_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("0.log");
        std::os::unix::fs::symlink("/etc/hostname", &log).unwrap();
        let said = read(&log).await;
        assert!(said.starts_with(FAILED), "{said}");
        fs::remove_file(&log).unwrap();
        gantry_model::testing::fifo(&log);
        let said = tokio::time::timeout(Duration::from_secs(20), read(&log)).await.unwrap();
        assert!(said.contains("not a regular file"), "{said}");
    }
}

//! A container's last words: the file it was told to write them into, else the end of its log.
//! Owns the limits and the wording of a failure; never follows a link that a container may have
//! planted, and never waits on a pipe. Called by [`super::CriRuntime`].

use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gantry_proto::cri as wire;

use super::{NodeConfig, observe};
use crate::logs::line;
use crate::runtime::LastWords;

/// MaxContainerTerminationMessageLength.
const MOST_OF_FILE: u64 = 4096;
/// MaxContainerTerminationMessageLogLength and …LogLines.
const MOST_OF_LOG: usize = 2048;
const MOST_LINES: usize = 80;
/// 80 lines need not be read from further back: only 2 KiB of them are kept, and a line's frame is
/// short.
const LOG_WINDOW: u64 = 64 << 10;
/// A program that could not be started has no log.
const NEVER_RAN: [&str; 2] = ["ContainerCannotRun", "StartError"];

/// What it said.
pub(super) async fn read(status: wire::ContainerStatus, of: LastWords<'_>, node: &NodeConfig) -> String {
    let failed = status.exit_code != 0 && !NEVER_RAN.contains(&status.reason.as_str());
    let fallback = of.fallback_to_logs && failed;
    let log = observe::absolute(&status.log_path, node);
    let file =
        status.mounts.into_iter().find(|mount| mount.container_path == of.path).map(|mount| mount.host_path);
    let reading = tokio::task::spawn_blocking(move || {
        let words = file.map_or_else(|| Ok(String::new()), |file| from_file(Path::new(&file)));
        match words {
            Ok(words) if words.is_empty() && fallback && !log.is_empty() => from_log(Path::new(&log)),
            Ok(words) | Err(words) => words,
        }
    });
    reading.await.unwrap_or_else(|error| format!("Error on reading termination log: {error}"))
}

/// The last 4 KiB; the error as the text that is shown.
fn from_file(path: &Path) -> Result<String, String> {
    let wrap = |error: std::io::Error| {
        format!("Error on reading termination log {}: {error}", path.display())
    };
    match tail(path, MOST_OF_FILE) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(wrap(error)),
    }
}

fn from_log(path: &Path) -> String {
    let bytes = match tail(path, LOG_WINDOW) {
        Ok(bytes) => bytes,
        Err(error) => return format!("Error on reading termination message from logs: {error}"),
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

/// The container may have made the file anything: only a plain one is read, without waiting.
fn tail(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let custom = i32::try_from(flags.bits()).map_err(std::io::Error::other)?;
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(custom).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::dns::DnsConfig;

    fn node(root: &Path) -> NodeConfig {
        NodeConfig { pod_logs_dir: root.to_owned(), memory_capacity: 0, dns: DnsConfig::default() }
    }

    fn status(root: &Path, code: i32) -> wire::ContainerStatus {
        let mount = wire::Mount {
            container_path: "/dev/termination-log".into(),
            host_path: root.join("words").to_str().unwrap().into(),
            ..wire::Mount::default()
        };
        wire::ContainerStatus {
            exit_code: code,
            mounts: vec![mount],
            log_path: root.join("0.log").to_str().unwrap().into(),
            labels: HashMap::new(),
            ..wire::ContainerStatus::default()
        }
    }

    const ASK: LastWords<'static> =
        LastWords { id: "c", path: "/dev/termination-log", fallback_to_logs: true };

    #[tokio::test]
    async fn the_file_wins_and_its_end_counts() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("words"), format!("{}the end", "x".repeat(5000))).unwrap();
        let words = read(status(root.path(), 1), ASK, &node(root.path())).await;
        assert_eq!((words.len(), words.ends_with("xthe end")), (4096, true));
    }

    #[tokio::test]
    async fn the_log_speaks_for_a_failed_container_that_said_nothing() {
        let root = tempfile::tempdir().unwrap();
        let lines: String = (0..100).map(|n| format!("2026-01-01T00:00:00Z stderr F line {n}\n")).collect();
        fs::write(root.path().join("0.log"), lines).unwrap();
        fs::write(root.path().join("words"), "").unwrap();
        let words = read(status(root.path(), 1), ASK, &node(root.path())).await;
        assert!(words.starts_with("line 20\n") && words.ends_with("line 99\n"), "{words}");
        assert_eq!(read(status(root.path(), 0), ASK, &node(root.path())).await, "");
        let file_only = LastWords { fallback_to_logs: false, ..ASK };
        assert_eq!(read(status(root.path(), 1), file_only, &node(root.path())).await, "");
        let never = wire::ContainerStatus { reason: "StartError".into(), ..status(root.path(), 128) };
        assert_eq!(read(never, ASK, &node(root.path())).await, "");
    }

    #[tokio::test]
    async fn a_planted_link_or_pipe_is_neither_followed_nor_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let words = root.path().join("words");
        std::os::unix::fs::symlink("/etc/hostname", &words).unwrap();
        let said = read(status(root.path(), 1), ASK, &node(root.path())).await;
        assert!(said.starts_with("Error on reading termination log"), "{said}");
        fs::remove_file(&words).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &words, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let reading = read(status(root.path(), 1), ASK, &node(root.path()));
        let said = tokio::time::timeout(Duration::from_secs(20), reading).await.unwrap();
        assert!(said.contains("not a regular file"), "{said}");
    }
}

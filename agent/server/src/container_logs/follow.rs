//! A log as it grows, over rotations, until its container has ended. Owns the waiting; never reads
//! what was there before. Called by [`super`].

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;
use tonic::Code;

use super::Log;
use super::backlog::Rest;
use super::writer::{Flow, Writer};
use crate::cri::{Cri, said};
use gantry_base::open::beneath;

/// Looked again after so long, whatever was heard.
const AGAIN: Duration = Duration::from_secs(1);
/// The runtime is not asked more often, however much is written.
const ASK: Duration = Duration::from_millis(500);
/// The same when nothing can be heard.
const POLL: Duration = Duration::from_millis(200);
/// A line feed must come within this many bytes.
const LONGEST: usize = 1 << 20;

/// Writes what is added, until the container has ended and everything is written.
pub(super) async fn read(
    cri: &Cri,
    id: &str,
    log: &Log,
    rest: Rest,
    mut writer: Writer,
) -> Result<(), String> {
    let path = &log.path;
    let ear = path.parent().and_then(Ear::new);
    let (mut file, mut begun) = (File::from_std(rest.file), rest.begun);
    let (mut last_look, mut asked) = (false, None::<Instant>);
    loop {
        let more = append(&mut file, &mut begun, &mut writer)
            .await
            .map_err(|error| format!("failed to read log file {path:?}: {error}"))?;
        if more == Flow::Enough || writer.flush().await == Flow::Enough {
            return Ok(());
        }
        match reopen_if_replaced(&file, log).await {
            Ok(Some(next)) => {
                // Between the last look and the new file's birth the runtime may have added lines.
                append(&mut file, &mut begun, &mut writer)
                    .await
                    .map_err(|error| format!("failed to read log file {path:?}: {error}"))?;
                (file, begun) = (next, Vec::new());
                continue;
            }
            Ok(None) => {}
            Err(error) => return Err(format!("failed to open log file {path:?}: {error}")),
        }
        // The container had ended before the file was read to its end: that was all.
        if last_look {
            if !begun.is_empty() {
                writer.entry(&begun);
            }
            writer.flush().await;
            return Ok(());
        }
        if asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            asked = Some(Instant::now());
            if has_ended(cri, id).await? {
                last_look = true;
                continue;
            }
        }
        // All arms are cancel-safe: nothing is read by waiting.
        tokio::select! {
            () = writer.wait_closed() => return Ok(()),
            () = heard(ear.as_ref()) => {}
            () = tokio::time::sleep(if ear.is_some() { AGAIN } else { POLL }) => {}
        }
    }
}

async fn has_ended(cri: &Cri, id: &str) -> Result<bool, String> {
    match cri.log_status(id).await {
        Ok(logged) => Ok(!logged.running),
        // Containers run on without their runtime.
        Err(status) if status.code() == Code::Unavailable => Ok(false),
        Err(status) => Err(said(&status)),
    }
}

async fn append(file: &mut File, begun: &mut Vec<u8>, writer: &mut Writer) -> std::io::Result<Flow> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = file.read(&mut chunk).await?;
        if count == 0 {
            return Ok(Flow::On);
        }
        for part in chunk.get(..count).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            begun.extend_from_slice(part);
            if begun.last() == Some(&b'\n') {
                begun.pop();
            } else if begun.len() < LONGEST {
                continue;
            }
            if writer.entry(&std::mem::take(begun)) == Flow::Enough {
                writer.flush().await;
                return Ok(Flow::Enough);
            }
            if writer.is_full() && writer.flush().await == Flow::Enough {
                return Ok(Flow::Enough);
            }
        }
    }
}

/// The new file, when the name stands for another one now.
async fn reopen_if_replaced(file: &File, log: &Log) -> std::io::Result<Option<File>> {
    let there = match tokio::fs::symlink_metadata(&log.path).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let ours = file.metadata().await?;
    if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) {
        return Ok(None);
    }
    let log = log.clone();
    let opened = tokio::task::spawn_blocking(move || beneath(&log.root, &log.path)).await;
    match opened.unwrap_or_else(|died| Err(died.into())) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(|file| Some(File::from_std(file))),
    }
}

/// Hears when something is written in a folder.
struct Ear {
    events: pipe::Receiver,
}

impl Ear {
    /// `None` where the host has no more of them: then the file is looked at now and again.
    fn new(folder: &Path) -> Option<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let fd = inotify::init(flags).ok()?;
        let what = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&fd, folder, what).ok()?;
        // Not a pipe, but read like one: the kernel tells when there is something to read.
        Some(Self { events: pipe::Receiver::from_owned_fd_unchecked(fd).ok()? })
    }
}

async fn heard(ear: Option<&Ear>) {
    let Some(ear) = ear else { return std::future::pending().await };
    if ear.events.readable().await.is_err() {
        return std::future::pending().await;
    }
    let mut events = [0; 4096];
    while ear.events.try_read(&mut events).is_ok_and(|count| count > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::testing::fifo;
    use std::os::unix::fs::symlink;

    #[tokio::test]
    async fn what_was_planted_in_a_logs_place_is_not_read_on() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("0.log"), "").unwrap();
        std::fs::write(at("secret"), "").unwrap();
        let log = Log { root: folder.path().to_owned(), path: at("0.log") };
        let file = File::open(&log.path).await.unwrap();
        assert!(reopen_if_replaced(&file, &log).await.unwrap().is_none());
        std::fs::rename(&log.path, at("0.log.20260101-000000")).unwrap();
        assert!(reopen_if_replaced(&file, &log).await.unwrap().is_none(), "there will be another");
        symlink(at("secret"), &log.path).unwrap();
        assert!(reopen_if_replaced(&file, &log).await.is_err());
        // Not even to the file that was read before.
        std::fs::remove_file(&log.path).unwrap();
        symlink(at("0.log.20260101-000000"), &log.path).unwrap();
        assert!(reopen_if_replaced(&file, &log).await.is_err());
        std::fs::remove_file(&log.path).unwrap();
        fifo(&log.path);
        assert!(reopen_if_replaced(&file, &log).await.is_err());
        std::fs::remove_file(&log.path).unwrap();
        std::fs::write(&log.path, "").unwrap();
        assert!(reopen_if_replaced(&file, &log).await.unwrap().is_some());
    }
}

//! `--lock-file`: one kubelet at a time, and one that leaves when another wants to come. Owns the
//! file's lock; never what ends. Called by [`super::process`].

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

/// Waits for it, if need be; held until the process ends.
pub(super) async fn acquire(path: &str) -> Result<File> {
    let owned = path.to_owned();
    let locked = tokio::task::spawn_blocking(move || {
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(owned)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok::<_, std::io::Error>(file)
    });
    locked
        .await
        .context("wait for a lock")?
        .with_context(|| format!("unable to acquire file lock on {path:?}"))
}

/// Resolves when somebody else opens the file, or it goes.
pub(super) fn contention(path: &str) -> Result<oneshot::Receiver<()>> {
    let watcher = init(CreateFlags::CLOEXEC).context("watch the lock file")?;
    add_watch(&watcher, Path::new(path), WatchFlags::OPEN | WatchFlags::DELETE_SELF)
        .with_context(|| format!("watch the lock file {path}"))?;
    let (out, contended) = oneshot::channel();
    // It waits in read(2), for good: it ends with the process.
    std::thread::Builder::new()
        .name("lock-file".to_owned())
        .spawn(move || wait(&watcher, out))
        .context("start the thread that watches the lock file")?;
    Ok(contended)
}

fn wait(watcher: &OwnedFd, out: oneshot::Sender<()>) {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
    let mut reader = Reader::new(watcher, &mut buffer);
    match reader.next() {
        Ok(event) => tracing::info!(event = ?event.events(), "inotify event on the lock file: ending"),
        Err(error) => tracing::error!(err = %error, "inotify watcher error: ending"),
    }
    // Nobody listens any more: it ends anyway.
    let _ = out.send(());
}

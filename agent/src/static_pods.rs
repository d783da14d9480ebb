//! Static pods: a folder of manifests, followed as it changes. Owns the wait for changes; never
//! starts or ends a pod (it offers the whole set each time, the agent compares). Called by the
//! command line's wiring.
//!
//! read: [`folder`] · decide: [`choice`] (pure) by the [`rules`] (pure).

pub mod choice;
mod describe;
mod folder;
mod rules;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::{mpsc, watch};

use choice::{Choice, Found};

/// The kubelet's fileCheckFrequency.
pub const CHECK_EVERY: Duration = Duration::from_secs(20);

/// Follows `folder` until nobody listens any more. The first set is there when this returns.
pub async fn follow(
    folder: PathBuf,
    node_name: String,
    every: Duration,
) -> (watch::Receiver<Found>, tokio::task::JoinHandle<()>) {
    let mut choice = Choice::new(node_name);
    look(&mut choice, &folder).await;
    let (sender, receiver) = watch::channel(choice.found());
    let task = tokio::spawn(async move {
        let mut changes = changes_of(&folder);
        loop {
            // Both others are cancel-safe: nothing is read but "look again".
            tokio::select! {
                () = next(&mut changes) => {}
                () = tokio::time::sleep(every) => {}
                () = sender.closed() => return,
            }
            look(&mut choice, &folder).await;
            offer(&sender, choice.found());
        }
    });
    (receiver, task)
}

/// Only what is new: listeners wake for nothing else.
fn offer(sender: &watch::Sender<Found>, found: Found) {
    sender.send_if_modified(|old| {
        let new = *old != found;
        if new {
            *old = found;
        }
        new
    });
}

async fn look(choice: &mut Choice, folder: &Path) {
    let path = folder.to_owned();
    // A folder on a network disk may hang; nothing else must.
    match tokio::task::spawn_blocking(move || folder::read(&path)).await {
        Ok(Ok(readings)) => choice.take(readings, jiff::Timestamp::now()),
        Ok(Err(message)) => choice.cannot_read(folder, &message),
        Err(error) => choice.cannot_read(folder, &format!("reading died: {error}")),
    }
}

/// The ear at the folder; dropping it ends its thread.
struct Changes {
    heard: mpsc::Receiver<()>,
    _stop: OwnedFd,
}

/// Waits in a thread of its own: an inotify descriptor is no socket. None when that cannot be had;
/// then the folder is looked at from time to time only.
fn changes_of(folder: &Path) -> Option<Changes> {
    let (tell, heard) = mpsc::channel(1);
    let folder = folder.to_owned();
    let begin = || -> std::io::Result<OwnedFd> {
        let (stop, keep) = pipe_with(PipeFlags::CLOEXEC)?;
        std::thread::Builder::new()
            .name("static-pods".into())
            .spawn(move || listen(&folder, &stop, &tell))?;
        Ok(keep)
    };
    match begin() {
        Ok(keep) => Some(Changes { heard, _stop: keep }),
        Err(error) => {
            tracing::warn!(%error, "the manifest folder is looked at from time to time only");
            None
        }
    }
}

/// Cancel-safe: a message stays in the channel.
async fn next(changes: &mut Option<Changes>) {
    let heard = match changes {
        Some(changes) => changes.heard.recv().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Until the other end of `stop` is closed. A new watch each time: the folder may have been removed
/// and made again. It is made before anybody is told to look, so that no change falls between.
fn listen(folder: &Path, stop: &OwnedFd, tell: &mpsc::Sender<()>) {
    let again = Timespec { tv_sec: 1, tv_nsec: 0 };
    loop {
        let watch = watch_of(folder);
        if watch.is_ok() {
            // Full: somebody is about to look anyway.
            let _ = tell.try_send(());
        }
        let mut wait = vec![PollFd::new(stop, PollFlags::IN)];
        wait.extend(watch.as_ref().map(|watch| PollFd::new(watch, PollFlags::IN)));
        // A folder that is not there yet is tried again.
        match poll(&mut wait, watch.is_err().then_some(&again)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the manifest folder is looked at from time to time only");
                return;
            }
        }
        if wait.first().is_none_or(|stop| !stop.revents().is_empty()) {
            return;
        }
    }
}

fn watch_of(folder: &Path) -> rustix::io::Result<OwnedFd> {
    let what = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    let descriptor = init(CreateFlags::CLOEXEC)?;
    add_watch(&descriptor, folder, what)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests;

//! Static pods: a folder of manifests, followed as it changes. Owns the wait for changes; never
//! starts or ends a pod (it offers the whole set each time, the agent compares). Called by the
//! command line's wiring.
//!
//! read: [`folder`] · decide: [`choice`] (pure) by the [`rules`] (pure).

pub mod choice;
mod folder;
mod rules;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

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
        loop {
            // A new watch each time: the folder may have been removed and made again.
            let changes = changes_of(&folder);
            // Between reading the folder and watching it something may have changed.
            look(&mut choice, &folder).await;
            offer(&sender, choice.found());
            let awaited = async {
                match &changes {
                    Some(changes) => something(changes).await,
                    None => std::future::pending().await,
                }
            };
            // All three arms are cancel-safe: nothing is read but "look again".
            tokio::select! {
                () = awaited => {}
                () = tokio::time::sleep(every) => {}
                () = sender.closed() => return,
            }
        }
    });
    (receiver, task)
}

/// Only what is new: listeners wake for nothing else.
fn offer(sender: &watch::Sender<Found>, found: Found) {
    sender.send_if_modified(|old| {
        let new = *old != found;
        if new {
            for problem in found.problems.iter().filter(|problem| !old.problems.contains(problem)) {
                tracing::warn!(path = %problem.path.display(), message = problem.message, "static pod refused");
            }
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
        Ok(Err(message)) => choice.cannot_read(folder, message),
        Err(error) => choice.cannot_read(folder, format!("reading died: {error}")),
    }
}

/// None when it cannot be watched: then it is looked at from time to time.
fn changes_of(folder: &Path) -> Option<AsyncFd<OwnedFd>> {
    let what = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let watch = || -> std::io::Result<AsyncFd<OwnedFd>> {
        let descriptor = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        add_watch(&descriptor, folder, what)?;
        AsyncFd::register(descriptor)
    };
    match watch() {
        Ok(changes) => Some(changes),
        Err(error) => {
            tracing::debug!(folder = %folder.display(), %error, "cannot be watched, looked at from time to time");
            None
        }
    }
}

/// Which file does not matter: everything is read again.
async fn something(changes: &AsyncFd<OwnedFd>) {
    match changes.readable().await {
        Ok(mut ready) => ready.clear_ready(),
        Err(error) => {
            tracing::debug!(%error, "the watch broke");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests;

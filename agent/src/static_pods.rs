//! Static pods: a folder of manifests, followed as it changes. Owns the wait for changes; never
//! starts or ends a pod (it offers the whole set each time, the agent compares). Called by the
//! kubelet's assembly.
//!
//! hear: [`listen`] · read: [`folder`] · decide: [`choice`] (pure) by the [`rules`] (pure).

#![expect(clippy::disallowed_methods, reason = "the handle is the caller's, who ends it")]

pub(crate) mod choice;
mod describe;
mod folder;
mod listen;
pub(crate) mod rules;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use choice::{Choice, StaticPods};

/// The kubelet's fileCheckFrequency.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(20);

/// Follows `folder` until nobody listens any more. The first set is there when this returns.
pub(crate) async fn follow(
    folder: PathBuf,
    node_name: String,
    every: Duration,
) -> (watch::Receiver<StaticPods>, tokio::task::JoinHandle<()>) {
    let mut choice = Choice::new(node_name);
    look(&mut choice, &folder, &BTreeSet::new()).await;
    let (sender, receiver) = watch::channel(choice.static_pods());
    let task = tokio::spawn(async move {
        let mut changes = listen::begin(&folder);
        loop {
            // Both others are cancel-safe: what is heard stays until it is taken.
            let removed = tokio::select! {
                removed = listen::next(&mut changes) => removed,
                () = tokio::time::sleep(every) => BTreeSet::new(),
                () = sender.closed() => return,
            };
            look(&mut choice, &folder, &removed).await;
            offer(&sender, choice.static_pods());
        }
    });
    (receiver, task)
}

/// Only what is new: listeners wake for nothing else.
fn offer(sender: &watch::Sender<StaticPods>, found: StaticPods) {
    sender.send_if_modified(|old| {
        let new = *old != found;
        if new {
            *old = found;
        }
        new
    });
}

/// Which files were `removed` meanwhile is said by name: one may be there again.
async fn look(choice: &mut Choice, folder: &Path, removed: &BTreeSet<OsString>) {
    let path = folder.to_owned();
    // A folder on a network disk may hang; nothing else must.
    match tokio::task::spawn_blocking(move || folder::read(&path)).await {
        Ok(Ok(readings)) => {
            choice.lose(removed);
            choice.take(readings, jiff::Timestamp::now());
        }
        Ok(Err(message)) => choice.cannot_read(folder, &message),
        Err(error) => choice.cannot_read(folder, &format!("reading died: {error}")),
    }
}

#[cfg(test)]
mod tests;

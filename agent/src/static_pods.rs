//! Static pods: a folder of manifests, followed as it changes, and a URL, asked from time to time. Owns
//! the wait for changes; never starts or ends a pod (it offers the whole set each time, the agent
//! compares). Called by the kubelet's assembly.
//!
//! ```text
//! hear      read        decide (pure)
//! listen ─► folder ─► choice  ─┐
//!           url    ─► fetched ─┴─ rules
//! ```

#![expect(clippy::disallowed_methods, reason = "the handle is the caller's, who ends it")]

pub(crate) mod choice;
mod describe;
mod fetched;
mod folder;
mod listen;
pub(crate) mod rules;
pub(crate) mod url;

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

/// Follows the folder and the URL, those of them that there are. What the folder has is there when this
/// returns; what the URL has comes when it answers.
pub(crate) async fn follow_all(
    folder: Option<(PathBuf, Duration)>,
    address: Option<url::Address>,
    node_name: String,
) -> Option<watch::Receiver<StaticPods>> {
    let found = match folder {
        Some((path, every)) => Some(follow(path, node_name.clone(), every).await.0),
        None => None,
    };
    let Some(address) = address else { return found };
    let place = url::place(&address);
    let mut both = Both { folder: found, fetched: url::follow(address, node_name), place };
    let (sender, receiver) = watch::channel(both.look());
    tokio::spawn(async move {
        loop {
            tokio::select! {
                over = both.changed() => if over { return },
                () = sender.closed() => return,
            }
            offer(&sender, both.look());
        }
    });
    Some(receiver)
}

/// A folder, where there is one, and a URL.
struct Both {
    folder: Option<watch::Receiver<StaticPods>>,
    fetched: watch::Receiver<StaticPods>,
    /// The URL, for messages.
    place: PathBuf,
}

impl Both {
    fn look(&mut self) -> StaticPods {
        let none = StaticPods { read: true, ..StaticPods::default() };
        let folder = self.folder.as_mut().map_or(none, |folder| folder.borrow_and_update().clone());
        folder.join(&self.fetched.borrow_and_update(), &self.place)
    }

    /// Waits for a change; whether there will be none any more. Cancel-safe.
    async fn changed(&mut self) -> bool {
        let folder = async {
            match &mut self.folder {
                Some(folder) => folder.changed().await,
                None => std::future::pending().await,
            }
        };
        let over = tokio::select! {
            over = folder => over,
            over = self.fetched.changed() => over,
        };
        over.is_err()
    }
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

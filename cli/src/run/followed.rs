//! A folder of static pods beside `gantry run`: what it brings, and what is wrong in it. Owns the
//! telling; never decides which pods run. Called by run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gantry_agent::pod::spec::Pod;
use gantry_agent::static_pods::choice::Found;
use gantry_agent::static_pods::{CHECK_EVERY, follow};
use tokio::sync::watch;

use crate::output;

/// Where more pods come from.
pub(super) enum Followed {
    /// Files: what was read is all.
    Nothing,
    /// A folder.
    Folder {
        found: watch::Receiver<Found>,
        /// Problems that were told already.
        told: BTreeSet<String>,
    },
}

impl Followed {
    pub(super) async fn start(folder: PathBuf, node: &str) -> Self {
        // The task ends when the receiver is dropped.
        let (found, _) = follow(folder, node.to_owned(), CHECK_EVERY).await;
        let mut followed = Self::Folder { found, told: BTreeSet::new() };
        followed.tell();
        followed
    }

    /// Whether there may be more.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self, Self::Folder { .. })
    }

    /// Whether all of a folder was understood: what is not in it is not wanted.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Folder { found, .. } if found.borrow().problems.is_empty())
    }

    /// The pods that are there at once; none when it is not a folder.
    pub(super) fn first(&self) -> Option<Vec<Pod>> {
        match self {
            Self::Nothing => None,
            Self::Folder { found, .. } => Some(found.borrow().pods.clone()),
        }
    }

    /// The full set, when it has changed. Cancel-safe: a change stays marked until it is read.
    pub(super) async fn next(&mut self) -> Vec<Pod> {
        if let Self::Folder { found, .. } = self
            && found.changed().await.is_ok()
        {
            let pods = found.borrow_and_update().pods.clone();
            self.tell();
            return pods;
        }
        std::future::pending().await
    }

    /// Each problem once, and again when it comes back.
    fn tell(&mut self) {
        let Self::Folder { found, told } = self else { return };
        let now: BTreeSet<String> =
            found.borrow().problems.iter().map(|p| format!("{}: {}", p.path.display(), p.message)).collect();
        for problem in now.difference(told) {
            output::say(&format!("error: {problem}"));
        }
        *told = now;
    }
}

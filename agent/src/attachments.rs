//! Volumes that a controller attaches to this node: which ones the Node's status is to say that pods use, and which it says
//! are attached. Owns both; who uses a volume is its owner's to tell. Called by [`crate::csi`], [`crate::volumes`] and the
//! assembly, which connects it with the Node object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::timeout;

/// What `volumesInUse` is to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InUse {
    /// Volumes that are attached by a controller, and that pods want or have.
    pub(crate) sure: BTreeSet<String>,
    /// What an earlier kubelet has left: in use if that one has told so.
    pub(crate) perhaps: BTreeSet<String>,
    /// Something that it left could not be read: whatever was told stays.
    pub(crate) in_doubt: bool,
}

/// What the Node's status says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NodeSeen {
    in_use: BTreeSet<String>,
    attached: BTreeSet<String>,
}

impl NodeSeen {
    fn of(node: &Node) -> Self {
        let Some(status) = &node.status else { return Self::default() };
        Self {
            in_use: status.volumes_in_use.iter().flatten().cloned().collect(),
            attached: status.volumes_attached.iter().flatten().map(|volume| volume.name.clone()).collect(),
        }
    }
}

/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attachments(Arc<AttachmentParts>);

#[derive(Debug)]
struct AttachmentParts {
    /// By who tells.
    told: Mutex<BTreeMap<&'static str, InUse>>,
    in_use: watch::Sender<InUse>,
    seen: watch::Sender<NodeSeen>,
}

impl Default for AttachmentParts {
    fn default() -> Self {
        Self {
            told: Mutex::default(),
            in_use: watch::channel(InUse::default()).0,
            seen: watch::channel(NodeSeen::default()).0,
        }
    }
}

impl Attachments {
    /// Which volumes of that plugin are in use: all of them, each time.
    pub(crate) fn tell(&self, plugin: &'static str, new: InUse) {
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(plugin, new);
        let all = told.values().cloned().reduce(|mut all, InUse { sure, perhaps, in_doubt }| {
            all.sure.extend(sure);
            all.perhaps.extend(perhaps);
            all.in_doubt |= in_doubt;
            all
        });
        self.0.in_use.send_if_modified(|old| replace(old, all.unwrap_or_default()));
    }

    /// What the Node's status is to say.
    pub(crate) fn in_use(&self) -> watch::Receiver<InUse> {
        self.0.in_use.subscribe()
    }

    /// What it does say.
    pub(crate) fn see_node(&self, node: &Node) {
        self.0.seen.send_if_modified(|old| replace(old, NodeSeen::of(node)));
    }

    /// Waits until the Node's status says that the volume is in use and attached.
    ///
    /// # Errors
    /// In upstream's words, when it does not within that time.
    pub(crate) async fn attached(&self, volume: &str, patience: Duration) -> Result<(), &'static str> {
        let mut seen = self.0.seen.subscribe();
        let both = seen.wait_for(|seen| seen.in_use.contains(volume) && seen.attached.contains(volume));
        if matches!(timeout(patience, both).await, Ok(Ok(_))) {
            return Ok(());
        }
        Err(match self.0.seen.borrow().in_use.contains(volume) {
            false => "Volume has not been added to the list of VolumesInUse in the node's volume status",
            true => "Volume not attached according to node status",
        })
    }
}

fn replace<T: PartialEq>(old: &mut T, new: T) -> bool {
    let is_other = *old != new;
    *old = new;
    is_other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_plugins_tell_is_told_together_and_anew_when_it_is_other() {
        let attachments = Attachments::default();
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        let in_use = |sure: &[&str], perhaps: &[&str], in_doubt| InUse {
            sure: names(sure),
            perhaps: names(perhaps),
            in_doubt,
        };
        let mut told = attachments.in_use();
        attachments.tell("csi", in_use(&["a"], &["b"], false));
        attachments.tell("iscsi", in_use(&["c"], &[], true));
        assert_eq!(*told.borrow_and_update(), in_use(&["a", "c"], &["b"], true));
        attachments.tell("iscsi", in_use(&["c"], &[], true));
        assert!(!told.has_changed().unwrap());
        attachments.tell("iscsi", InUse::default());
        assert_eq!(*told.borrow_and_update(), in_use(&["a"], &["b"], false));
    }
}

//! Bytes and inodes of a container's writable layer, as CRI messages. Owns what is counted for whom; the
//! counting is `usage::walker`'s. Called by `stats`, `metrics` and ImageFsInfo.

use gantry_proto::cri;

use crate::node::Node;
use crate::store::{Container, ContainerState};
use gantry_base::timeline::unix_nanos;
use gantry_image::usage::walker::{Job, PATIENCE};

/// Has the writable layers of these containers measured where that is due, and waits for it, no longer than
/// half a second for all of them.
pub(crate) fn measure<'a>(node: &Node, containers: impl IntoIterator<Item = &'a Container>) {
    node.walker.ask(containers.into_iter().map(job), PATIENCE);
}

/// The writable layer of one container.
pub(crate) fn job(container: &Container) -> Job {
    Job {
        folder: container.folder.join("upper"),
        figure: container.writable.clone(),
        last: matches!(container.state(), ContainerState::Exited(_)),
    }
}

/// What the last count found; no numbers before the first one.
pub(crate) fn usage(node: &Node, container: &Container) -> cri::FilesystemUsage {
    let known = container.writable.last_count();
    let mountpoint = node.config.root.display().to_string();
    let number = |value| cri::UInt64Value { value };
    cri::FilesystemUsage {
        timestamp: known.map_or_else(unix_nanos, |known| known.unix),
        fs_id: Some(cri::FilesystemIdentifier { mountpoint }),
        used_bytes: known.map(|known| number(known.usage.bytes)),
        inodes_used: known.map(|known| number(known.usage.inodes)),
    }
}

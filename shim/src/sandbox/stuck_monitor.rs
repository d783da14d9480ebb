//! Monitors that SIGKILL does not end, because they hang in the kernel: a log on a disk that does not answer. The
//! pod's own processes are gone and its network is free by then, so the pod is stopped. What stays is the
//! monitor's cgroup, outside the pod's; it goes when the disk answers, and the monitor with it. Owns that waiting,
//! which a later runtime takes up. Called by `monitor_launch` and recovery.

#![expect(
    clippy::disallowed_methods,
    reason = "a monitor that does not die is waited for by nobody else; the marker's name is all it says"
)]

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;

use crate::cgroup::{self, Cgroup};
use crate::node::Node;

/// Ends the name of a file beside the sockets, by which a later runtime knows.
const SUFFIX: &str = ".stuck";

/// From one look to the next, at first and at last.
const FIRST: Duration = Duration::from_millis(200);
const LAST: Duration = Duration::from_secs(30);

/// Lets the cgroup of a monitor stay that does not end, and collects it later.
pub(super) fn leave_for_later(node: &Node, id: &str, cgroup: Cgroup, why: &cgroup::Error) {
    tracing::warn!(sandbox = id, "the monitor hangs in the kernel, its cgroup goes later: {}", chain(why));
    let marker = node.monitor_sockets().join(format!("{id}{SUFFIX}"));
    if let Err(error) = fs::write(&marker, "") {
        tracing::warn!(sandbox = id, "a later runtime will not know of it: {error}");
    }
    tokio::spawn(collect(cgroup, marker, id.to_owned()));
}

/// Goes on with what earlier runtimes left.
pub(crate) fn resume(node: &Arc<Node>) -> io::Result<()> {
    for entry in fs::read_dir(node.monitor_sockets())? {
        let marker = entry?.path();
        let name = marker.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(id) = name.strip_suffix(SUFFIX) else { continue };
        if let Ok(cgroup) = Cgroup::new(&node.layout, &node.monitor_cgroup(id)) {
            let id = id.to_owned();
            tokio::spawn(collect(cgroup, marker, id));
        }
    }
    Ok(())
}

async fn collect(cgroup: Cgroup, marker: PathBuf, id: String) {
    let mut pause = FIRST;
    loop {
        tokio::time::sleep(pause).await;
        let looked = cgroup.clone();
        let look = move || looked.remove_if_empty().map(|()| !looked.exists());
        match tokio::task::spawn_blocking(look).await {
            Ok(Ok(true)) => break,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(sandbox = id, "{}", chain(&error)),
            // The runtime is ending.
            Err(_) => return,
        }
        pause = (pause * 2).min(LAST);
    }
    tracing::info!(sandbox = id, "the monitor that hung has ended");
    if let Err(error) = fs::remove_file(&marker)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %marker.display(), "{error}");
    }
}

//! Starting a pod's monitor, and finding it again. Owns the socket's name and the monitor's command
//! line. Called by `sandbox::run` and recovery.

#![expect(clippy::disallowed_methods, reason = "runs our own monitor, and waits for it to the end")]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use gantry_failpoint::failpoint;
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;
use tokio::process::Command;

use super::stuck_monitor;
use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::monitor_client::MonitorClient;
use crate::node::Node;
use crate::store::record::Process;

/// Of the monitor itself, as containerd's shims: the last to be killed when the node runs out of
/// memory, right after the kubelet.
const OOM_SCORE: i32 = -998;

fn socket_name(id: &str) -> String {
    // Half an id is unique enough; sun_path has 108 bytes.
    format!("{}.sock", id.get(..32).unwrap_or(id))
}

/// Opens the folder of sockets: a path through its descriptor fits into sun_path however long the
/// state folder's name is (runtime-traps 2.14).
fn socket_folder(node: &Node) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(node.monitor_sockets(), flags, Mode::empty())?)
}

fn short(folder: &OwnedFd, id: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), socket_name(id)).into()
}

/// Connects to the monitor of a sandbox.
///
/// # Errors
/// `ECONNREFUSED` or `ENOENT` when there is none any more.
pub(crate) async fn reconnect(node: &Node, id: &str) -> io::Result<UnixStream> {
    let folder = socket_folder(node)?;
    UnixStream::connect(short(&folder, id)).await
}

/// Starts a monitor for the sandbox and greets it.
pub(super) async fn start(node: &Arc<Node>, id: &str) -> Result<(MonitorClient, Process), Error> {
    let _stage = node.store.sandbox(id)?.spans.stage("monitor");
    let (ours, theirs) = UnixStream::pair().map_err(|source| launch_error(node, source))?;
    let (preparing, owned) = (node.clone(), id.to_owned());
    let (listener, log, cgroup) = tokio::task::spawn_blocking(move || prepare(&preparing, &owned)).await??;
    let theirs = theirs.into_std().and_then(|stream| stream.set_nonblocking(false).map(|()| stream));
    let theirs = theirs.map_err(|source| launch_error(node, source))?;
    let mut command = Command::new(node.programs.monitor_path());
    command.arg0("gantry-monitor").args(["--oom-score-adj", &OOM_SCORE.to_string()]);
    for folder in cgroup.target().folders {
        command.args(["--cgroup", &folder]);
    }
    command.env_clear().current_dir("/");
    #[cfg(feature = "failpoints")]
    command.envs(gantry_failpoint::variable());
    command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(listener)).stderr(Stdio::from(log));
    let mut child = command.spawn().map_err(|source| launch_error(node, source))?;
    failpoint!("launch.spawned");
    // Reaped here while this runtime lives, by init afterwards.
    drop(command);
    let owned = id.to_owned();
    tokio::spawn(async move {
        let ended = child.wait().await;
        failpoint!("task.monitor-process");
        if let Ok(status) = ended
            && !status.success()
        {
            // A stop kills it where it does not end at once. A loss is told by whoever loses the connection.
            tracing::info!(sandbox = owned, %status, "the monitor ended");
        }
    });
    let (client, welcome) = MonitorClient::connect(ours, id, node.events.clone()).await?;
    let ticks = gantry_monitor::monitor::start_time_ticks(welcome.monitor_pid).map_err(|error| {
        Error::Process { id: id.to_owned(), pid: welcome.monitor_pid, source: error.source }
    })?;
    Ok((client, Process { pid: welcome.monitor_pid, start_time_ticks: ticks }))
}

fn launch_error(node: &Node, source: io::Error) -> Error {
    Error::Launch { path: node.programs.monitor_path(), source }
}

fn prepare(node: &Node, id: &str) -> Result<(UnixListener, fs::File, Cgroup), Error> {
    let path = node.monitor_sockets().join(socket_name(id));
    let bind = || -> io::Result<UnixListener> {
        let folder = socket_folder(node)?;
        UnixListener::bind(short(&folder, id))
    };
    let listener = bind().map_err(|source| Error::Files { what: "bind the socket", path, source })?;
    failpoint!("launch.bound"?);
    let path = node.sandbox_folder(id).join("monitor.log");
    let log = OpenOptions::new().create(true).append(true).open(&path).map_err(|source| Error::Files {
        what: "open",
        path,
        source,
    })?;
    let cgroup = Cgroup::new(&node.layout, &node.monitor_cgroup(id))?;
    cgroup.create()?;
    failpoint!("launch.cgroup"?);
    Ok((listener, log, cgroup))
}

/// What a monitor leaves: its socket and its cgroup. Kills it if it is stuck; one that even then does not end
/// keeps no pod from being stopped. Blocks.
pub(super) fn clean_up(node: &Node, id: &str) -> Result<(), Error> {
    let path = node.monitor_sockets().join(socket_name(id));
    let unlinked = match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| Error::Files { what: "remove", path, source }),
    };
    let cgroup = Cgroup::new(&node.layout, &node.monitor_cgroup(id))?;
    match cgroup.remove() {
        Err(error) if error.is_busy() => stuck_monitor::leave_for_later(node, id, cgroup, &error),
        removed => removed?,
    }
    unlinked
}

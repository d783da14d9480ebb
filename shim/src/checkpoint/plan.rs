//! What criu is asked for. Owns which mounts, namespaces and files of a container criu takes for the node's, to be
//! named and not to be dumped, as runc's checkpoint has it. Pure: what is so in /proc comes from `checkpoint::process`.
//!
//! criu looks a mount up by the place that the container sees it at, and puts the name beside it into its images.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use gantry_base::mountinfo::MountInfo;
use gantry_proto::monitor::{NamespaceMode, StartContainer};

use gantry_monitor::init::cgroups::View;

/// The images, below the work folder.
pub(super) const IMAGES: &str = "checkpoint";

/// criu's log, in the work folder.
pub(super) const LOG: &str = "dump.log";

/// File systems that criu makes anew. A tmpfs among them is the container's own only if nobody else has it.
const OWN: [&str; 7] = ["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"];

/// What /proc says of the container's first process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub pid: i32,
    pub mounts: Vec<MountInfo>,
    /// Devices of the file systems that the node has mounted.
    pub node_devices: Vec<String>,
    /// Inode of its network namespace; None for the one that criu runs in.
    pub network: Option<u64>,
    /// Inode of its pid namespace.
    pub pids: u64,
    /// Of stdin, stdout and stderr those with a name: mount ID and inode.
    pub files: Vec<(u64, u64)>,
}

/// Where things are on the node.
#[derive(Debug, Clone)]
pub(super) struct DumpPaths<'a> {
    pub work: &'a Path,
    /// The cgroup by which criu stops all processes at once; None where there is no freezer.
    pub freezer: Option<PathBuf>,
}

/// criu's arguments. Open TCP connections, locks and sockets of others are refused by criu, as with containerd; who
/// wants them writes so into criu's own configuration file.
pub(super) fn dump(start: &StartContainer, process: &ProcessInfo, places: &DumpPaths<'_>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["dump".into(), "--tree".into(), process.pid.to_string().into()];
    words.extend(["--images-dir".into(), places.work.join(IMAGES).into()]);
    words.extend(["--work-dir".into(), places.work.into(), "--log-file".into(), LOG.into(), "-v4".into()]);
    words.extend(["--leave-running", "--manage-cgroups=soft"].map(OsString::from));
    if let Some(root) = &start.rootfs {
        words.extend(["--root".into(), root.target.clone().into()]);
    }
    if let Some(freezer) = &places.freezer {
        words.extend(["--freeze-cgroup".into(), freezer.into()]);
    }
    for external in external(start, process) {
        words.extend(["--external".into(), external]);
    }
    words
}

fn external(start: &StartContainer, process: &ProcessInfo) -> Vec<OsString> {
    let mut all = Vec::new();
    // runc's names: it looks for them at a restore.
    if let Some(inode) = process.network {
        all.push(format!("net[{inode}]:extRootNetNS").into());
    }
    if matches!(start.pid(), NamespaceMode::Sandbox | NamespaceMode::Target) {
        all.push(format!("pid[{}]:extRootPidNS", process.pids).into());
    }
    for mount in process.mounts.iter().filter(|mount| is_external(mount, start, &process.node_devices)) {
        let point = mount.point.as_os_str().as_bytes();
        let name: &[u8] = if is_mask(mount, start) { b"/dev/null" } else { point };
        all.push(OsString::from_vec([b"mnt[", point, b"]:", name].concat()));
    }
    // The null device of the node, as a stream that nobody wants.
    let unknown = |id: &u64| !process.mounts.iter().any(|mount| mount.id == *id);
    let mut files: Vec<_> = process.files.iter().filter(|(id, _)| unknown(id)).collect();
    files.dedup();
    all.extend(files.into_iter().map(|(id, inode)| format!("file[{id:x}:{inode:x}]").into()));
    all
}

fn is_mask(mount: &MountInfo, start: &StartContainer) -> bool {
    mount.root != Path::new("/") && start.masked_paths.iter().any(|path| Path::new(path) == mount.point)
}

fn is_external(mount: &MountInfo, start: &StartContainer, node_devices: &[String]) -> bool {
    if mount.point == Path::new("/") {
        return false;
    }
    let kind = mount.kind.as_str();
    let cgroups_of_the_node = kind.starts_with("cgroup") && View::of(start) != View::Own;
    // Whatever leads there: a link in the image may have led a mount of the request elsewhere.
    let tmpfs_of_the_node = kind == "tmpfs" && node_devices.contains(&mount.device);
    let wanted = start.mounts.iter().map(|wanted| wanted.destination.as_str());
    let given = wanted.chain(start.devices.iter().map(|device| device.container_path.as_str()));
    let below = |place: &str| mount.point.starts_with(place);
    !OWN.contains(&kind)
        || cgroups_of_the_node
        || tmpfs_of_the_node
        || is_mask(mount, start)
        || given.chain(["/dev/shm"]).any(below)
}

/// The last errors of criu's log, or of what a program has said, for a message.
pub(super) fn errors(log: &str) -> Option<String> {
    let error = |line: &&str| line.contains("Error (");
    let stamped = |line: &str| match line.split_once(") ") {
        Some((stamp, rest)) if stamp.starts_with('(') => rest.trim().to_owned(),
        _ => line.trim().to_owned(),
    };
    let mut last: Vec<String> = log.lines().rev().filter(error).take(3).map(stamped).collect();
    last.reverse();
    let text: String = last.join("; ").chars().take(1024).collect();
    (!text.is_empty()).then_some(text)
}

/// criu's own number of a version: 3.17.1 is 31701.
pub(super) fn version(said: &str) -> Option<u64> {
    let text = said.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
    let mut parts = text.split(['.', '-']).map(|part| part.parse::<u64>().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    Some(major * 10_000 + minor * 100 + parts.next().flatten().unwrap_or(0))
}

#[cfg(test)]
mod tests;

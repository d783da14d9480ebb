//! What `gantry doctor` looks at. Owns reading the machine; never judges it. Everything that cannot
//! be read is told as such.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_base::mountinfo::{self, MountInfo};
use gantry_cni::chain::Conflist;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::args::DoctorFlags;

/// For a registry's whole answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Enough of an answer to see its status line.
const ANSWER: usize = 512;

/// The machine, as far as pods care.
#[derive(Debug, Clone)]
pub(super) struct HostFacts {
    pub(super) root: bool,
    /// `6.1.0-18-cloud-amd64`.
    pub(super) kernel: String,
    /// Names under /proc/self/ns.
    pub(super) namespaces: BTreeSet<String>,
    /// Names in /proc/filesystems.
    pub(super) filesystems: BTreeSet<String>,
    /// Names of the modules that are installed for this kernel; it loads a file system's own at the first mount.
    pub(super) modules: BTreeSet<String>,
    /// Controllers by the version of the hierarchy they are on.
    pub(super) v1: BTreeSet<String>,
    pub(super) v2: BTreeSet<String>,
    /// Bit n is capability number n.
    pub(super) capabilities: u64,
    /// Actions that the kernel's seccomp knows; empty without seccomp.
    pub(super) seccomp: String,
    pub(super) apparmor: AppArmor,
    /// Whether netfilter is there.
    pub(super) netfilter: bool,
    pub(super) ip_forward: Option<bool>,
    /// Devices in use as swap.
    pub(super) swaps: usize,
    /// Programs that stand beside this one, of those that must.
    pub(super) programs: Vec<(PathBuf, bool)>,
    /// Which mounts volumes of NFS servers.
    pub(super) nfs_helper: Option<PathBuf>,
    /// Which logs into iSCSI targets.
    pub(super) iscsiadm: Option<PathBuf>,
    pub(super) network: CniNetwork,
    pub(super) folders: Vec<DataFolder>,
}

/// As the runtime finds it.
#[derive(Debug, Clone, Copy)]
pub(super) enum AppArmor {
    /// The kernel has it not, or it is turned off.
    Off,
    On,
    /// Nothing can load a profile.
    WithoutParser,
}

/// What the CNI folder holds.
#[derive(Debug, Clone)]
pub(crate) enum CniNetwork {
    /// No configuration.
    None(PathBuf),
    /// The first configuration by name; plugins that are neither built in nor in the folder.
    List { name: String, origin: String, missing: Vec<String> },
    /// It cannot be used.
    Broken(String),
}

/// A folder that grows.
#[derive(Debug, Clone)]
pub(super) struct DataFolder {
    pub(super) flag: &'static str,
    pub(super) path: PathBuf,
    /// Bytes free for us and in all, of the file system that it is or will be on.
    pub(super) space: Result<(u64, u64), String>,
}

/// Installed beside this one.
const PROGRAMS: [&str; 3] = ["gantry-monitor", "gantry-pause", "gantry-unpack"];
/// Where mount(8) looks for it.
const NFS_HELPERS: [&str; 3] = ["/sbin/mount.nfs", "/sbin/fs.d/mount.nfs", "/sbin/fs/mount.nfs"];
/// Where a kubelet finds it by its name.
const ISCSIADM: [&str; 4] =
    ["/usr/local/sbin/iscsiadm", "/usr/sbin/iscsiadm", "/sbin/iscsiadm", "/usr/bin/iscsiadm"];
const BUILT_IN: [&str; 5] = ["bridge", "ptp", "loopback", "host-local", "portmap"];

pub(super) fn machine(flags: &DoctorFlags) -> HostFacts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mounts = mountinfo::own().unwrap_or_default();
    let status = read("/proc/self/status");
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    HostFacts {
        root: status
            .lines()
            .any(|l| l.strip_prefix("Uid:").is_some_and(|l| l.split_whitespace().nth(1) == Some("0"))),
        modules: modules(&read(&format!("/lib/modules/{kernel}/modules.dep"))),
        kernel,
        namespaces: names("/proc/self/ns"),
        filesystems: read("/proc/filesystems")
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .map(str::to_owned)
            .collect(),
        v1: v1_controllers(&mounts),
        v2: v2_controllers(&mounts),
        capabilities: status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0),
        seccomp: read("/proc/sys/kernel/seccomp/actions_avail").trim().to_owned(),
        apparmor: match read("/sys/module/apparmor/parameters/enabled").starts_with('Y') {
            false => AppArmor::Off,
            true if Path::new("/sbin/apparmor_parser").exists() => AppArmor::On,
            true => AppArmor::WithoutParser,
        },
        netfilter: Path::new("/proc/sys/net/netfilter").exists(),
        ip_forward: match read("/proc/sys/net/ipv4/ip_forward").trim() {
            "" => None,
            text => Some(text != "0"),
        },
        swaps: swaps(Path::new("/proc/swaps")),
        programs: programs(flags.programs_dir.as_deref()),
        iscsiadm: ISCSIADM.iter().map(PathBuf::from).find(|path| path.exists()),
        nfs_helper: NFS_HELPERS.iter().map(PathBuf::from).find(|path| path.exists()),
        network: network(&flags.cni_conf_dir, &flags.cni_bin_dir, flags.cni_external),
        folders: vec![folder("--root", &flags.root), folder("--state", &flags.state)],
    }
}

/// Names of a table of modprobe's, as in `kernel/fs/overlayfs/overlay.ko.xz: kernel/…` (modules.dep(5)).
fn modules(table: &str) -> BTreeSet<String> {
    let paths = table.lines().filter_map(|line| line.split(':').next());
    let files = paths.filter_map(|path| path.rsplit('/').next());
    files.filter_map(|file| file.split_once(".ko")).map(|(name, _)| name.to_owned()).collect()
}

/// Devices in use, after a line of titles.
pub(super) fn swaps(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().skip(1).count()
}

fn names(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn v1_controllers(mounts: &[MountInfo]) -> BTreeSet<String> {
    let known = ["cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "hugetlb"];
    let of_v1 = mounts.iter().filter(|mount| mount.kind == "cgroup");
    let has = |mount: &MountInfo| known.into_iter().filter(|name| mount.has_option(name)).collect::<Vec<_>>();
    of_v1.flat_map(has).map(str::to_owned).collect()
}

fn v2_controllers(mounts: &[MountInfo]) -> BTreeSet<String> {
    let Some(mount) = mounts.iter().find(|mount| mount.kind == "cgroup2") else { return BTreeSet::new() };
    let text = std::fs::read_to_string(mount.point.join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

fn programs(folder: Option<&Path>) -> Vec<(PathBuf, bool)> {
    let own = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let folder = folder.map(Path::to_owned).or(own).unwrap_or_default();
    PROGRAMS
        .iter()
        .map(|name| folder.join(name))
        .map(|path| {
            let there = path.is_file();
            (path, there)
        })
        .collect()
}

/// The configuration in `folder`; with `external` even built-in plugins are programs in `programs`.
pub(super) fn network(folder: &Path, programs: &Path, external: bool) -> CniNetwork {
    match Conflist::load(folder) {
        Ok(None) => CniNetwork::None(folder.to_owned()),
        Ok(Some(list)) => CniNetwork::List {
            name: list.name().to_owned(),
            origin: list.origin().to_owned(),
            missing: list
                .plugins()
                .map(|(plugin, _)| plugin)
                .filter(|plugin| external || !BUILT_IN.contains(plugin))
                .filter(|plugin| !programs.join(plugin).is_file())
                .map(str::to_owned)
                .collect(),
        },
        Err(error) => CniNetwork::Broken(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Of the folder, or of the nearest one above it that is there.
fn folder(flag: &'static str, path: &Path) -> DataFolder {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let space = rustix::fs::statvfs(there)
        .map(|stat| {
            (stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_blocks.saturating_mul(stat.f_frsize))
        })
        .map_err(|error| error.to_string());
    DataFolder { flag, path: path.to_owned(), space }
}

/// The first line of a registry's answer to `GET /v2/`, for one on this machine; that a connection
/// can be made, for others: what they say needs TLS and their certificates, which `gantry pull` shows.
pub(super) async fn registry(host: &str) -> Result<String, String> {
    let local = host.split(':').next().is_some_and(|name| name == "localhost" || name.starts_with("127."));
    let address =
        if host.contains(':') { host.to_owned() } else { format!("{host}:{}", if local { 80 } else { 443 }) };
    let ask = async {
        let mut stream = TcpStream::connect(&address).await.map_err(|error| error.to_string())?;
        if !local {
            return Ok("accepts connections".to_owned());
        }
        let question = format!("GET /v2/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await.map_err(|error| error.to_string())?;
        let mut answer = [0; ANSWER];
        let read = stream.read(&mut answer).await.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(answer.get(..read).unwrap_or_default()).into_owned();
        Ok(text.lines().next().unwrap_or("answered nothing").to_owned())
    };
    match tokio::time::timeout(PATIENCE, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_found_by_mount_not_by_folder() {
        let mounts = mountinfo::parse(
            b"\
30 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
31 24 0:28 / /sys/fs/cgroup/whatever rw - cgroup cgroup rw,cpu,cpuacct
32 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 24 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
",
        );
        let found: Vec<String> = v1_controllers(&mounts).into_iter().collect();
        assert_eq!(found, ["cpu", "cpuacct", "memory"]);
        assert!(v2_controllers(&mountinfo::parse(b"31 24 0:28 / /x rw - cgroup cgroup rw,cpu\n")).is_empty());
    }

    #[test]
    fn modules_are_named_without_their_folders_and_endings() {
        let table = "kernel/fs/overlayfs/overlay.ko.xz:\nkernel/net/nf_nat.ko: kernel/net/nf_conntrack.ko\n";
        assert_eq!(modules(table), BTreeSet::from(["overlay".to_owned(), "nf_nat".to_owned()]));
        assert!(modules("").is_empty());
    }

    #[tokio::test]
    async fn a_closed_port_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(registry(&host).await.unwrap_err().contains("refused"));
    }
}

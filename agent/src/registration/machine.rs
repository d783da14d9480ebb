//! What the machine is: identity, size, addresses. Owns the reading of /proc, /sys and /etc, and of
//! which addresses are the machine's own; never decides what a node says of it. Called by
//! [`super`], once at start.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gantry_cgroup::Layout;

use super::devices::{self, Devices};
use crate::volumes;

/// Read once: none of it changes while the machine is up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MachineInfo {
    /// Cores.
    pub cores: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes; 0 without swap.
    pub swap: i64,
    /// What is kept in memory may be swapped to the disk, secrets too.
    pub swaps_tmpfs: bool,
    /// Bytes of the file system of the root folder.
    pub ephemeral: i64,
    /// Bytes by size of a page, in KiB.
    pub huge_pages: BTreeMap<i64, i64>,
    /// Whose extended resources a node that is there already has.
    pub devices: Devices,
    /// machine-id(5).
    pub machine_id: String,
    /// Of the firmware; the machine ID where there is none.
    pub system_uuid: String,
    /// Of the kernel that runs.
    pub boot_id: String,
    /// uname(2).
    pub kernel: String,
    /// os-release(5), PRETTY_NAME.
    pub os_image: String,
    /// As Go names it.
    pub architecture: String,
    /// Controllers are on cgroup v1.
    pub cgroup_v1: bool,
    /// Processes and threads at most; none when the kernel does not say.
    pub pids: Option<i64>,
    /// When it was booted, in Unix nanoseconds; 0 when the kernel does not say.
    pub booted_at: i64,
}

/// What cannot be done without.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} has no line MemTotal", path.display())]
    NoMemTotal { path: PathBuf },
    #[error("ask how many processors there are")]
    Cpus(#[source] std::io::Error),
    #[error("ask for the size of the file system of {}", path.display())]
    Space {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Reads it; `root_dir` is where pods' volumes are.
///
/// # Errors
/// When the kernel does not tell sizes. What identifies the machine may be missing.
pub(crate) fn read(root_dir: &Path) -> Result<MachineInfo, Error> {
    let path = PathBuf::from("/proc/meminfo");
    let text = fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let memory = kibibytes(&text, "MemTotal:").ok_or(Error::NoMemTotal { path })?;
    let swap = kibibytes(&text, "SwapTotal:").unwrap_or(0);
    let there = root_dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let space = rustix::fs::statvfs(there)
        .map_err(|errno| Error::Space { path: there.to_owned(), source: errno.into() })?;
    let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    let system_uuid = first(&[
        "/sys/class/dmi/id/product_uuid",
        "/proc/device-tree/system-id",
        "/proc/device-tree/vm,uuid",
        "/etc/machine-id",
    ]);
    let (kernel, os_image) = of_system();
    Ok(MachineInfo {
        cores: cores()?,
        memory,
        swap,
        swaps_tmpfs: swap > 0 && !volumes::keeps_out_of_swap(),
        ephemeral: i64::try_from(space.f_blocks.saturating_mul(space.f_frsize)).unwrap_or(i64::MAX),
        huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
        devices: devices::read(root_dir),
        machine_id,
        system_uuid,
        boot_id: first(&["/proc/sys/kernel/random/boot_id"]),
        kernel,
        os_image,
        architecture: architecture().to_owned(),
        cgroup_v1: !Layout::detect().is_ok_and(|layout| layout.is_unified()),
        pids: ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
            .iter()
            .filter_map(|path| first(&[path]).trim().parse().ok())
            .min(),
        booted_at: booted_at(&first(&["/proc/uptime"]), SystemTime::now()),
    })
}

/// Kernel and operating system, by their names.
pub(crate) fn of_system() -> (String, String) {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    (kernel, os_image(&first(&["/etc/os-release", "/usr/lib/os-release"])))
}

/// From proc_uptime(5).
fn booted_at(uptime: &str, now: SystemTime) -> i64 {
    let up = uptime.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    let up = up.and_then(|up| Duration::try_from_secs_f64(up).ok());
    let since = up.and_then(|up| now.duration_since(UNIX_EPOCH).ok()?.checked_sub(up));
    since.and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `0-3,8`, as the kernel lists processors that are online: an affinity of the agent's own says
/// nothing of the machine.
fn processors(list: &str) -> Option<i64> {
    let mut count = 0;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (i64, i64) = (first.parse().ok()?, last.parse().ok()?);
        count += (last - first + 1).max(0);
    }
    (count > 0).then_some(count)
}

fn cores() -> Result<i64, Error> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    match online.and_then(|list| processors(&list)) {
        Some(count) => Ok(count),
        None => {
            let count = std::thread::available_parallelism().map_err(Error::Cpus)?;
            Ok(i64::try_from(count.get()).unwrap_or(i64::MAX))
        }
    }
}

/// Of the first file that has any text.
fn first(paths: &[&str]) -> String {
    let texts = paths.iter().filter_map(|path| fs::read_to_string(path).ok());
    // Device trees end their strings with a zero.
    let trimmed = texts.map(|text| text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned());
    trimmed.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

fn kibibytes(meminfo: &str, name: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let number: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// `hugepages-2048kB/nr_hugepages`.
fn huge_pages(folder: &Path) -> BTreeMap<i64, i64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name();
        let size: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages: i64 = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        Some((size, size.checked_mul(1024)?.checked_mul(pages)?))
    });
    sizes.collect()
}

fn os_image(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches(['"', '\'']).to_owned())
}

/// Which addresses the node has.
pub(crate) trait Addresses: Send + Sync + std::fmt::Debug {
    /// Why it cannot be the node's; none when it can.
    fn problem(&self, ip: IpAddr) -> Option<String>;
    /// What the name stands for, as the resolver says.
    fn of_name(&self, name: &str) -> Vec<IpAddr>;
    /// That of the interface of the default route.
    fn default_route(&self, v6: bool) -> Option<IpAddr>;
}

/// This machine's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostAddresses;

impl Addresses for HostAddresses {
    fn problem(&self, ip: IpAddr) -> Option<String> {
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        let problem = match ip {
            _ if ip.is_loopback() => "nodeIP can't be loopback address".to_owned(),
            _ if ip.is_multicast() => "nodeIP can't be a multicast address".to_owned(),
            _ if link_local => "nodeIP can't be a link-local unicast address".to_owned(),
            _ if ip.is_unspecified() => "nodeIP can't be an all zeros address".to_owned(),
            // Only an address of the machine can be bound.
            _ if UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok() => return None,
            _ => format!("node IP: {:?} not found in the host's network interfaces", ip.to_string()),
        };
        Some(problem)
    }

    fn of_name(&self, name: &str) -> Vec<IpAddr> {
        use std::net::ToSocketAddrs;
        (name, 0).to_socket_addrs().map(|all| all.map(|at| at.ip()).collect()).unwrap_or_default()
    }

    /// Nothing is sent: connecting a UDP socket only looks up the route.
    fn default_route(&self, v6: bool) -> Option<IpAddr> {
        let (any, far): (&str, &str) = if v6 { ("::", "2001:db8::1") } else { ("0.0.0.0", "192.0.2.1") };
        let socket = UdpSocket::bind((any.parse::<IpAddr>().ok()?, 0)).ok()?;
        socket.connect((far.parse::<IpAddr>().ok()?, 9)).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_what_it_is() {
        let machine = read(Path::new("/no/such/root")).unwrap();
        assert!(machine.cores > 0 && machine.memory > 0 && machine.ephemeral > 0, "{machine:?}");
        assert!(!machine.boot_id.is_empty() && !machine.kernel.is_empty(), "{machine:?}");
    }

    #[test]
    fn names_and_sizes_are_read_as_written() {
        assert_eq!(
            os_image("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!((processors("0-3,8\n"), processors("0"), processors("")), (Some(5), Some(1), None));
        assert_eq!(os_image(""), "Linux");
        assert_eq!(kibibytes("MemTotal: 16 kB\nSwapTotal:  2 kB\n", "SwapTotal:"), Some(2048));
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("hugepages-2048kB");
        fs::create_dir(&pages).unwrap();
        fs::write(pages.join("nr_hugepages"), "3\n").unwrap();
        assert_eq!(huge_pages(folder.path()), BTreeMap::from([(2048, 3 << 21)]));
    }

    #[test]
    fn addresses_that_are_not_the_machines_are_named() {
        let problem = |ip: &str| HostAddresses.problem(ip.parse().unwrap()).unwrap();
        assert_eq!(problem("127.0.0.1"), "nodeIP can't be loopback address");
        assert_eq!(problem("0.0.0.0"), "nodeIP can't be an all zeros address");
        assert_eq!(
            problem("192.0.2.77"),
            "node IP: \"192.0.2.77\" not found in the host's network interfaces"
        );
    }
}

//! The machine itself: its processors, memory, processes, network, and its cgroups, v1 or v2. Owns the
//! reading of `/proc`, `/sys` and the cgroup file systems; never keeps a number. Called by
//! [`super::Stats`] and [`crate::scrape`]. Blocks.

use std::fs;
use std::path::{Path, PathBuf};

use gantry_cgroup::Layout;

use super::now;
use super::summary::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, PsiData, PsiStats,
    RlimitStats, SwapStats,
};

/// A v1 limit beyond this is none.
pub(super) const NO_LIMIT: u64 = 1 << 62;

/// Ticks in a second as the kernel tells them to programs.
pub(super) const USER_HZ: f64 = 100.0;

/// The name that upstream looks for, whatever the routes say.
const DEFAULT_INTERFACE: &str = "eth0";

/// What could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not as expected", path.display())]
    Form { path: PathBuf },
    #[error(transparent)]
    Cgroups(#[from] gantry_cgroup::Error),
}

/// This machine.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(super) layout: Layout,
    /// Logical processors.
    pub cpus: usize,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub swap: u64,
}

/// What one cgroup uses.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) cpu: Option<CpuStats>,
    pub(super) memory: Option<MemoryStats>,
    pub(super) io: Option<IoStats>,
    pub(super) swap: Option<SwapStats>,
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// A number after a word at the start of a line.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let rest = |line: &str| line.strip_prefix(name).map(str::to_owned);
    let rest = text.lines().find_map(|line| rest(line).filter(|rest| rest.starts_with([' ', ':', '\t'])))?;
    rest.trim_start_matches([':', ' ', '\t']).split_ascii_whitespace().next()?.parse().ok()
}

fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name).map(|kilobytes| kilobytes << 10)
}

impl Machine {
    pub(crate) fn new() -> Result<Self, Error> {
        let layout = Layout::detect()?;
        let path = Path::new("/proc/meminfo");
        let meminfo = read(path)?;
        let memory = kilobytes(&meminfo, "MemTotal").ok_or_else(|| Error::Form { path: path.to_owned() })?;
        let swap = kilobytes(&meminfo, "SwapTotal").unwrap_or_default();
        let cpuinfo = read(Path::new("/proc/cpuinfo"))?;
        let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        Ok(Self { layout, cpus, memory, swap })
    }

    /// Where a container is in a pod that is a slice: `cri-containerd-ID.scope` as containerd has it, or a folder of the
    /// pod's one scope as Gantry's runtime has it.
    pub(crate) fn in_scope(&self, slice: &str, id: &str) -> Option<String> {
        if !slice.ends_with(".slice") || id.is_empty() {
            return None;
        }
        let mount = self.layout.mount_of("memory")?;
        let folder = mount.join(slice.trim_matches('/'));
        let scopes = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.file_name());
        scopes.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".scope")).find_map(
            |name| match name.contains(id) {
                true => Some(format!("{slice}/{name}")),
                false => folder.join(&name).join(id).is_dir().then(|| format!("{slice}/{name}/{id}")),
            },
        )
    }

    /// A file of a cgroup, of the hierarchy that has the controller.
    pub(super) fn file(&self, controller: &str, path: &str, name: &str) -> Option<String> {
        let mount = self.layout.mount_of(controller)?;
        fs::read_to_string(mount.join(path.trim_matches('/')).join(name)).ok()
    }

    pub(super) fn number(&self, controller: &str, path: &str, name: &str) -> Option<u64> {
        self.file(controller, path, name)?.trim().parse().ok()
    }

    /// Whether cgroup v2 holds the controllers.
    pub(crate) fn is_unified(&self) -> bool {
        self.layout.is_unified()
    }

    /// Whether cgroups tell pressure.
    pub(crate) fn tells_pressure(&self) -> bool {
        self.is_unified() && self.file("cpu", "/", "cpu.pressure").is_some()
    }

    /// The whole machine.
    pub(super) fn root(&self) -> Result<Group, Error> {
        let mut group = self.usage("/");
        let time = now();
        let meminfo = read(Path::new("/proc/meminfo"))?;
        if let Some(memory) = &mut group.memory {
            if self.is_unified() {
                // The root of v2 does not say what it uses.
                let free = kilobytes(&meminfo, "MemFree").unwrap_or_default();
                let used = self.memory.saturating_sub(free);
                let idle =
                    self.file("memory", "/", "memory.stat").and_then(|stat| field(&stat, "inactive_file"));
                memory.usage_bytes = Some(used);
                memory.working_set_bytes = Some(used.saturating_sub(idle.unwrap_or_default()));
            }
            memory.available_bytes = memory.working_set_bytes.map(|used| self.memory.saturating_sub(used));
        }
        let free = kilobytes(&meminfo, "SwapFree").unwrap_or_default();
        group.swap = Some(SwapStats {
            time,
            swap_available_bytes: Some(free),
            swap_usage_bytes: Some(self.swap.saturating_sub(free)),
        });
        if self.is_unified() {
            let pressure = |what: &str| {
                fs::read_to_string(format!("/proc/pressure/{what}")).ok().as_deref().and_then(psi)
            };
            group.cpu.iter_mut().for_each(|cpu| cpu.psi = pressure("cpu"));
            group.memory.iter_mut().for_each(|memory| memory.psi = pressure("memory"));
            group.io = pressure("io").map(|psi| IoStats { time, psi: Some(psi) });
        }
        Ok(group)
    }

    /// One cgroup below the root; nothing when it is not there.
    pub(crate) fn group(&self, name: &str, path: &str) -> Option<ContainerStats> {
        let Group { cpu, memory, io, swap } = self.usage(path);
        (cpu.is_some() || memory.is_some()).then(|| ContainerStats {
            name: name.to_owned(),
            cpu,
            memory,
            io,
            swap,
            start_time: self.creation_time(path),
            ..ContainerStats::default()
        })
    }

    fn creation_time(&self, path: &str) -> i64 {
        let mount = self.layout.mount_of("memory");
        let data = mount.and_then(|mount| fs::metadata(mount.join(path.trim_matches('/'))).ok());
        let changed = data.and_then(|data| data.modified().ok());
        let since = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        since.and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or_default()
    }

    fn usage(&self, path: &str) -> Group {
        let time = now();
        let used = if self.is_unified() {
            let stat = self.file("cpu", path, "cpu.stat");
            stat.and_then(|stat| field(&stat, "usage_usec")).map(|micros| micros.saturating_mul(1000))
        } else {
            self.number("cpuacct", path, "cpuacct.usage")
        };
        let cpu =
            used.map(|used| CpuStats { time, usage_core_nano_seconds: Some(used), ..CpuStats::default() });
        let memory = self.file("memory", path, "memory.stat").map(|stat| self.memory_of(path, &stat, time));
        let swap = self.swap_of(path, time);
        let mut group = Group { cpu, memory, io: None, swap };
        if self.is_unified() {
            let pressure =
                |what: &str| self.file(what, path, &format!("{what}.pressure")).as_deref().and_then(psi);
            group.cpu.iter_mut().for_each(|cpu| cpu.psi = pressure("cpu"));
            group.memory.iter_mut().for_each(|memory| memory.psi = pressure("memory"));
            group.io = pressure("io").map(|psi| IoStats { time, psi: Some(psi) });
        }
        group
    }

    fn memory_of(&self, path: &str, stat: &str, time: i64) -> MemoryStats {
        let unified = self.is_unified();
        let names = if unified {
            ["memory.current", "memory.max", "inactive_file", "anon", "pgfault", "pgmajfault"]
        } else {
            let limit = "memory.limit_in_bytes";
            [
                "memory.usage_in_bytes",
                limit,
                "total_inactive_file",
                "total_rss",
                // Its own, without those below it, as cAdvisor.
                "pgfault",
                "pgmajfault",
            ]
        };
        let [usage, limit, idle, rss, faults, major] = names;
        let usage = self.number("memory", path, usage);
        let idle = field(stat, idle).unwrap_or_default();
        let working = usage.map(|usage| usage.saturating_sub(idle));
        let limit = self.number("memory", path, limit).filter(|limit| *limit < NO_LIMIT);
        let available = limit.zip(working).map(|(limit, working)| limit.saturating_sub(working));
        MemoryStats {
            time,
            available_bytes: available,
            usage_bytes: usage,
            working_set_bytes: working,
            rss_bytes: field(stat, rss),
            page_faults: field(stat, faults),
            major_page_faults: field(stat, major),
            psi: None,
        }
    }

    fn swap_of(&self, path: &str, time: i64) -> Option<SwapStats> {
        let used = if self.is_unified() {
            self.number("memory", path, "memory.swap.current")
        } else {
            self.file("memory", path, "memory.stat").and_then(|stat| field(&stat, "total_swap"))
        };
        used.map(|used| SwapStats { time, swap_available_bytes: None, swap_usage_bytes: Some(used) })
    }

    /// The cgroup this process is in; empty when it is in none.
    pub(super) fn own(&self) -> String {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let found = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let wanted = if self.is_unified() { controllers.is_empty() } else { controllers == "memory" };
            wanted.then(|| path.to_owned())
        });
        found.unwrap_or_default()
    }

    /// The host's interfaces; `eth0` is the default one, and there is none when it has another name.
    pub(super) fn network(&self) -> Option<NetworkStats> {
        let interfaces = interfaces(&fs::read_to_string("/proc/net/dev").ok()?);
        let default = interfaces.iter().find(|found| found.name == DEFAULT_INTERFACE).cloned();
        let default = default.unwrap_or_default();
        Some(NetworkStats { time: now(), default, interfaces })
    }

    /// How many processes there are and may be.
    pub(super) fn processes(&self) -> Option<RlimitStats> {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
        let most = number("/proc/sys/kernel/pid_max")?;
        let threads = number("/proc/sys/kernel/threads-max").unwrap_or(i64::MAX);
        let load = fs::read_to_string("/proc/loadavg").ok()?;
        let processes = load.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok();
        Some(RlimitStats { time: now(), max_pid: Some(most.min(threads)), processes })
    }

    /// Unix nanoseconds.
    pub(super) fn boot_time(&self) -> i64 {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let seconds = field(&stat, "btime").and_then(|seconds| i64::try_from(seconds).ok());
        seconds.unwrap_or_default().saturating_mul(1_000_000_000)
    }

    /// How often a cgroup was held back: periods, those held back, seconds.
    pub(crate) fn throttling(&self, path: &str) -> Option<(u64, u64, f64)> {
        let stat = self.file("cpu", path, "cpu.stat")?;
        #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
        let seconds = match self.is_unified() {
            true => field(&stat, "throttled_usec")? as f64 / 1e6,
            false => field(&stat, "throttled_time")? as f64 / 1e9,
        };
        Some((field(&stat, "nr_periods")?, field(&stat, "nr_throttled")?, seconds))
    }

    /// Cores, and sockets.
    pub(crate) fn cores(&self) -> (usize, usize) {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let values = |name: &str| -> Vec<String> {
            let line = |line: &str| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            };
            cpuinfo.lines().filter_map(line).collect()
        };
        let (sockets, cores) = (values("physical id"), values("core id"));
        let mut pairs: Vec<_> = sockets.iter().zip(&cores).collect();
        pairs.sort();
        pairs.dedup();
        let mut sockets = sockets.clone();
        sockets.sort();
        sockets.dedup();
        (if pairs.is_empty() { self.cpus } else { pairs.len() }, sockets.len().max(1))
    }
}

pub(super) fn interfaces(dev: &str) -> Vec<InterfaceStats> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect();
        Some(InterfaceStats {
            name: name.trim().to_owned(),
            rx_bytes: numbers.first().copied(),
            rx_errors: numbers.get(2).copied(),
            tx_bytes: numbers.get(8).copied(),
            tx_errors: numbers.get(10).copied(),
            rx_packets: numbers.get(1).copied(),
            rx_dropped: numbers.get(3).copied(),
            tx_packets: numbers.get(9).copied(),
            tx_dropped: numbers.get(11).copied(),
        })
    };
    // As cAdvisor: loopback, bridges' ends and the like are not the machine's network.
    let ignored =
        |name: &str| ["lo", "veth", "docker", "nerdctl"].iter().any(|known| name.starts_with(known));
    dev.lines().filter_map(line).filter(|interface| !ignored(&interface.name)).collect()
}

fn psi(text: &str) -> Option<PsiStats> {
    let line = |kind: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let value = |name: &str| rest.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
        let average = |name: &str| value(name).and_then(|value| value.parse().ok()).unwrap_or_default();
        Some(PsiData {
            total: value("total=")?.parse().ok()?,
            avg10: average("avg10="),
            avg60: average("avg60="),
            avg300: average("avg300="),
        })
    };
    // Some kernels have no full line for processors.
    Some(PsiStats { some: line("some ")?, full: line("full ").unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_read() {
        let machine = Machine::new().unwrap();
        let root = machine.root().unwrap();
        assert!(machine.cpus > 0 && machine.memory > 1 << 20);
        let memory = root.memory.unwrap();
        assert!(memory.working_set_bytes.unwrap() > 0 && memory.available_bytes.unwrap() < machine.memory);
        assert!(root.cpu.unwrap().usage_core_nano_seconds.unwrap() > 0);
        assert!(machine.processes().unwrap().processes.unwrap() > 1);
        assert!(machine.boot_time() > 0);
        assert_eq!(machine.group("x", "/no/such/group"), None);
        let (cores, sockets) = machine.cores();
        assert!(cores >= sockets && sockets > 0);
    }

    #[test]
    fn words_of_the_kernel() {
        let dev = "Inter-|   Receive\n face |bytes\n  eth0: 10 1 2 0 0 0 0 0 20 3 4 0 0 0 0 0\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0\n";
        let found = interfaces(dev);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rx_bytes, found[0].rx_errors), (Some(10), Some(2)));
        assert_eq!((found[0].tx_bytes, found[0].tx_errors), (Some(20), Some(4)));
        assert_eq!((found[0].rx_packets, found[0].rx_dropped), (Some(1), Some(0)));
        assert_eq!((found[0].tx_packets, found[0].tx_dropped), (Some(3), Some(0)));
        let pressure = psi(
            "some avg10=0.50 avg60=0.25 avg300=0.00 total=123\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=7\n",
        );
        let pressure = pressure.unwrap();
        assert_eq!((pressure.some.total, pressure.full.total), (123, 7));
        assert!((pressure.some.avg10 - 0.5).abs() < 1e-9);
        assert_eq!(field("inactive_file 5\nanon 7\n", "anon"), Some(7));
        assert_eq!(field("total_rss_huge 1\ntotal_rss 2\n", "total_rss"), Some(2));
    }
}

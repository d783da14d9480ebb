//! What is written into the cgroups of pods and classes, by the kubelet's arithmetic. Pure: owns the
//! numbers for v1 and v2; never writes one. Called by `cgroups::tree` and the CRI mapping.

use std::collections::BTreeMap;

use super::{Reserved, Together};
use crate::pod::qos::{Qos, peak, qos};
use crate::pod::{Pod, Resources};
use crate::quantity::{parse_milli, parse_units};
use crate::requests::requests;

/// Microseconds in which a quota is used up, unless a node has other rules.
const PERIOD: i64 = 100_000;
/// The kernel refuses less than a millisecond of quota.
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;

/// By what a node holds its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// cpuCFSQuota: limits of CPU are held, not only weighed.
    pub quota: bool,
    /// cpuCFSQuotaPeriod, in microseconds.
    pub period: i64,
    /// podPidsLimit: processes and threads of one pod.
    pub pids: Option<i64>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { quota: true, period: PERIOD, pids: None }
    }
}

impl Rules {
    /// Period and quota of a container with that limit in thousandths of a core; none of either where
    /// limits are not held.
    #[must_use]
    pub fn cpu(&self, milli: i64) -> (i64, i64) {
        if self.quota { (self.period, quota(milli, self.period)) } else { (0, 0) }
    }
}

/// Of one cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// In the words of v1: 1024 is one core's worth.
    pub cpu_shares: i64,
    /// Microseconds in each period; -1 lifts what was there.
    pub cpu_quota: Option<i64>,
    /// Microseconds.
    pub cpu_period: i64,
    /// Bytes.
    pub memory: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
}

/// A pod's; quota and memory only when each of its containers has a limit, or it has one itself. What
/// its sandbox needs besides comes on top.
#[must_use]
pub fn of_pod(pod: &Pod, rules: &Rules) -> Limits {
    let amount = |list: &BTreeMap<String, String>, name: &str| {
        let text = list.get(name)?;
        if name == "cpu" { parse_milli(text).ok() } else { parse_units(text).ok() }
    };
    let limited = |name: &str, of: fn(&Resources) -> Option<i64>| {
        let own = pod.resources.as_ref().and_then(|own| amount(&own.limits, name)).filter(|n| *n > 0);
        let all = pod.all_containers().all(|c| of(&c.resources).is_some_and(|limit| limit > 0));
        let limit = own.or_else(|| all.then(|| peak(pod, of)))?;
        Some(limit.saturating_add(amount(&pod.overhead, name).unwrap_or(0)))
    };
    match qos(pod) {
        Qos::BestEffort => Limits { pids: rules.pids, ..BEST_EFFORT },
        Qos::Burstable | Qos::Guaranteed => Limits {
            cpu_shares: shares(requests(pod).get("cpu").copied().unwrap_or(0)),
            cpu_quota: limited("cpu", |r| r.cpu_limit)
                .map(|milli| if rules.quota { quota(milli, rules.period) } else { -1 }),
            cpu_period: rules.period,
            memory: limited("memory", |r| r.memory_limit),
            pids: rules.pids,
        },
    }
}

/// Of the best-effort class: what the others leave.
pub const BEST_EFFORT: Limits =
    Limits { cpu_shares: MIN_SHARES, cpu_quota: None, cpu_period: PERIOD, memory: None, pids: None };

/// Thousandths of a core as shares.
#[must_use]
pub fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Thousandths of a core as microseconds in each period; 0 is no limit.
fn quota(milli: i64, period: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period) / 1000).max(MIN_QUOTA) }
}

/// v1 shares as v2 weight 1…10000, as the kubelet has it for what it makes itself: linear (KEP-2254). The runtime has
/// runc's curve for containers.
#[must_use]
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// Back from it: the fewest that have this weight, so that a class of one pod weighs what the pod does.
#[must_use]
pub fn shares_of(weight: i64) -> i64 {
    let parts = (weight.clamp(1, 10_000) - 1) * (MAX_SHARES - MIN_SHARES);
    (parts + 9998) / 9999 + MIN_SHARES
}

/// Controller, file, value.
pub type Setting = (&'static str, &'static str, String);

/// What systemd counts quotas in: a whole percent of a core.
const PERCENT: i64 = 10_000;
const SECOND: i64 = 1_000_000;

impl Limits {
    /// With the quota that systemd can be told, rounded up: what is written by hand and by systemd is the same then,
    /// whoever writes last.
    #[must_use]
    pub fn in_percents(self) -> Self {
        let rounded = |quota: i64| {
            let percents = quota.saturating_mul(SECOND / PERCENT).checked_div(self.cpu_period).unwrap_or(0);
            let is_whole = percents.saturating_mul(self.cpu_period) == quota.saturating_mul(SECOND / PERCENT);
            if quota <= 0 || is_whole {
                quota
            } else {
                (percents + 1).saturating_mul(self.cpu_period) / (SECOND / PERCENT)
            }
        };
        Self { cpu_quota: self.cpu_quota.map(rounded), ..self }
    }

    /// The files of v1.
    #[must_use]
    pub fn v1(&self) -> Vec<Setting> {
        let mut files = vec![("cpu", "cpu.shares", self.cpu_shares.to_string())];
        if let Some(quota) = self.cpu_quota {
            files.push(("cpu", "cpu.cfs_period_us", self.cpu_period.to_string()));
            files.push(("cpu", "cpu.cfs_quota_us", quota.to_string()));
        }
        if let Some(memory) = self.memory {
            files.push(("memory", "memory.limit_in_bytes", memory.to_string()));
        }
        files.extend(self.pids());
        files
    }

    /// The files of v2.
    #[must_use]
    pub fn v2(&self) -> Vec<Setting> {
        let mut files = vec![("cpu", "cpu.weight", weight(self.cpu_shares).to_string())];
        if let Some(quota) = self.cpu_quota {
            let quota = if quota < 0 { "max".to_owned() } else { quota.to_string() };
            files.push(("cpu", "cpu.max", format!("{quota} {}", self.cpu_period)));
        }
        if let Some(memory) = self.memory {
            files.push(("memory", "memory.max", memory.to_string()));
        }
        files.extend(self.pids());
        files
    }

    fn pids(&self) -> Option<Setting> {
        self.pids.map(|pids| ("pids", "pids.max", pids.to_string()))
    }
}

/// As the kernel names files by the size of a page, in KiB.
#[must_use]
pub fn page(size: i64) -> String {
    match size {
        size if size % (1 << 20) == 0 => format!("{}GB", size >> 20),
        size if size % (1 << 10) == 0 => format!("{}MB", size >> 10),
        size => format!("{size}KB"),
    }
}

/// As Kubernetes names the resource by the same.
#[must_use]
pub fn huge_page_resource(size: i64) -> String {
    match size {
        size if size % (1 << 20) == 0 => format!("hugepages-{}Gi", size >> 20),
        size if size % (1 << 10) == 0 => format!("hugepages-{}Mi", size >> 10),
        size => format!("hugepages-{size}Ki"),
    }
}

/// A pod gets the huge pages that it asks for, of each size that the machine has. Pages that are only
/// reserved count as used where the kernel can tell them.
#[must_use]
pub fn huge_pages(pod: &Pod, sizes: &[i64], unified: bool) -> Vec<CgroupFile> {
    let asked = requests(pod);
    let files: [&str; 2] =
        if unified { ["max", "rsvd.max"] } else { ["limit_in_bytes", "rsvd.limit_in_bytes"] };
    let held = |(size, file): (&i64, &str)| CgroupFile {
        controller: "hugetlb",
        file: format!("hugetlb.{}.{file}", page(*size)),
        value: asked.get(&huge_page_resource(*size)).copied().unwrap_or(0).to_string(),
    };
    sizes.iter().flat_map(|size| files.map(|file| (size, file))).map(held).collect()
}

impl Together {
    fn common(&self, cpu: Setting, memory_file: &str, huge_file: &str) -> Vec<CgroupFile> {
        let required =
            |(controller, file, value): Setting| CgroupFile { controller, file: file.to_owned(), value };
        let held =
            |controller, file: String, value: i64| CgroupFile { controller, file, value: value.to_string() };
        let memory = self.memory.map(|bytes| held("memory", memory_file.to_owned(), bytes));
        let pids = self.pids.map(|pids| held("pids", "pids.max".to_owned(), pids));
        let huge = self
            .huge_pages
            .iter()
            .map(|(size, bytes)| held("hugetlb", format!("hugetlb.{}.{huge_file}", page(*size)), *bytes));
        [required(cpu)].into_iter().chain(memory).chain(pids).chain(huge).collect()
    }

    /// The files of v1.
    #[must_use]
    pub fn v1(&self) -> Vec<CgroupFile> {
        let cpu = ("cpu", "cpu.shares", shares(self.cpu).to_string());
        self.common(cpu, "memory.limit_in_bytes", "limit_in_bytes")
    }

    /// The files of v2.
    #[must_use]
    pub fn v2(&self) -> Vec<CgroupFile> {
        let cpu = ("cpu", "cpu.weight", weight(shares(self.cpu)).to_string());
        self.common(cpu, "memory.max", "max")
    }
}

impl Reserved {
    /// As libcontainer reads it: no bytes are no limit, and one process is the least that systemd can say.
    #[must_use]
    pub fn held_to(&self) -> Self {
        Self {
            memory: self.memory.filter(|bytes| *bytes != 0),
            pids: self.pids.map(|pids| pids.max(1)),
            ..*self
        }
    }

    fn files(&self, cpu: Option<Setting>, memory_file: &'static str) -> Vec<CgroupFile> {
        let Self { memory, pids, .. } = self.held_to();
        let memory = memory.map(|bytes| ("memory", memory_file, bytes.to_string()));
        let pids = pids.map(|pids| ("pids", "pids.max", pids.to_string()));
        let file =
            |(controller, file, value): Setting| CgroupFile { controller, file: file.to_owned(), value };
        cpu.into_iter().chain(memory).chain(pids).map(file).collect()
    }

    /// The files of v1.
    #[must_use]
    pub fn v1(&self) -> Vec<CgroupFile> {
        let cpu = self.cpu.map(|milli| ("cpu", "cpu.shares", shares(milli).to_string()));
        self.files(cpu, "memory.limit_in_bytes")
    }

    /// The files of v2.
    #[must_use]
    pub fn v2(&self) -> Vec<CgroupFile> {
        let cpu = self.cpu.map(|milli| ("cpu", "cpu.weight", weight(shares(milli)).to_string()));
        self.files(cpu, "memory.max")
    }
}

/// One file of the cgroup that holds all pods, or of one for daemons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupFile {
    /// Whose file it is.
    pub controller: &'static str,
    /// Its name.
    pub file: String,
    /// What is written into it.
    pub value: String,
}

impl CgroupFile {
    /// As upstream: a kernel without these holds nobody to them.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        matches!(self.controller, "pids" | "hugetlb")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Container;
    use crate::testing::{container, pod};

    fn with(list: &[Resources]) -> Pod {
        let make = |(index, resources): (usize, &Resources)| Container {
            resources: *resources,
            ..container(&format!("c{index}"))
        };
        Pod { containers: list.iter().enumerate().map(make).collect(), ..pod() }
    }

    #[test]
    fn daemons_are_held_to_what_is_reserved_for_them_and_to_nothing_else() {
        let of = |files: Vec<CgroupFile>| -> Vec<String> {
            files.into_iter().map(|held| format!("{}={}", held.file, held.value)).collect()
        };
        let all = Reserved { cpu: Some(500), memory: Some(1 << 30), pids: Some(100) };
        assert_eq!(of(all.v1()), ["cpu.shares=512", "memory.limit_in_bytes=1073741824", "pids.max=100"]);
        assert_eq!(of(all.v2()), ["cpu.weight=20", "memory.max=1073741824", "pids.max=100"]);
        assert_eq!(of(Reserved { memory: None, pids: None, ..all }.v2()), ["cpu.weight=20"]);
        assert_eq!(of(Reserved::default().v2()), Vec::<String>::new());
        let nothing = Reserved { cpu: Some(0), memory: Some(0), pids: Some(0) };
        assert_eq!(of(nothing.v1()), ["cpu.shares=2", "pids.max=1"], "nobody could live in no memory");
    }

    #[test]
    fn a_pod_is_held_to_the_huge_pages_that_it_asks_for() {
        let mut asks = container("a");
        asks.written.requests.insert("hugepages-2Mi".to_owned(), "4Mi".to_owned());
        let pod = Pod { containers: vec![asks, container("b")], ..pod() };
        let of = |sizes: &[i64], unified| -> Vec<(String, String)> {
            huge_pages(&pod, sizes, unified).into_iter().map(|held| (held.file, held.value)).collect()
        };
        let pairs = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(file, value)| ((*file).to_owned(), (*value).to_owned())).collect()
        };
        let v2 = [
            ("hugetlb.2MB.max", "4194304"),
            ("hugetlb.2MB.rsvd.max", "4194304"),
            ("hugetlb.1GB.max", "0"),
            ("hugetlb.1GB.rsvd.max", "0"),
        ];
        assert_eq!(of(&[2048, 1 << 20], true), pairs(&v2));
        let v1 = [("hugetlb.64KB.limit_in_bytes", "0"), ("hugetlb.64KB.rsvd.limit_in_bytes", "0")];
        assert_eq!(of(&[64], false), pairs(&v1));
        assert_eq!(of(&[], false), []);
    }

    #[test]
    fn the_pods_own_limits_win_and_overhead_comes_on_top() {
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let own = crate::pod::Requirements {
            requests: text(&[("cpu", "500m")]),
            limits: text(&[("cpu", "1"), ("memory", "1Mi")]),
        };
        let overhead = text(&[("cpu", "250m"), ("memory", "1Mi")]);
        let pod = Pod { resources: Some(own), overhead, ..with(&[Resources::default()]) };
        let wanted =
            Limits { cpu_shares: 768, cpu_quota: Some(125_000), memory: Some(2 << 20), ..BEST_EFFORT };
        assert_eq!(of_pod(&pod, &Rules::default()), wanted);
    }

    #[test]
    fn all_pods_are_held_by_the_files_of_either_version() {
        let huge_pages = BTreeMap::from([(2048, 4 << 20), (1 << 20, 1 << 30), (64, 0)]);
        let all = Together { cpu: 1500, memory: Some(7), pids: Some(9), huge_pages };
        let text = |list: Vec<CgroupFile>| -> Vec<String> {
            list.into_iter().map(|held| format!("{}={}", held.file, held.value)).collect()
        };
        assert_eq!(
            text(all.v1()),
            [
                "cpu.shares=1536",
                "memory.limit_in_bytes=7",
                "pids.max=9",
                "hugetlb.64KB.limit_in_bytes=0",
                "hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb.1GB.limit_in_bytes=1073741824"
            ]
        );
        let v2 = text(all.v2());
        assert_eq!((v2[1].as_str(), v2[4].as_str()), ("memory.max=7", "hugetlb.2MB.max=4194304"));
        let weight_alone = Together { cpu: 1000, ..Together::default() };
        assert_eq!(text(weight_alone.v2()), ["cpu.weight=39"]);
    }

    #[test]
    fn a_pod_is_limited_only_when_each_container_is() {
        let full = Resources {
            cpu_request: Some(250),
            cpu_limit: Some(500),
            memory_request: Some(10),
            memory_limit: Some(20),
            ..Resources::default()
        };
        let of_pod = |pod: &Pod| super::of_pod(pod, &Rules::default());
        assert_eq!(of_pod(&with(&[Resources::default()])), BEST_EFFORT);
        assert_eq!(
            of_pod(&with(&[full, full])),
            Limits { cpu_shares: 512, cpu_quota: Some(100_000), memory: Some(40), ..BEST_EFFORT }
        );
        let part = Resources { memory_limit: None, ..full };
        assert_eq!(
            of_pod(&with(&[full, part])),
            Limits { cpu_shares: 512, cpu_quota: Some(100_000), ..BEST_EFFORT }
        );
        assert_eq!(of_pod(&with(&[full, Resources::default()])).cpu_quota, None);
    }

    #[test]
    fn numbers_are_the_kubelets_and_runcs() {
        assert_eq!([shares(0), shares(1), shares(250), shares(1_000_000)], [2, 2, 256, 262_144]);
        assert_eq!([0, 1, 500].map(|milli| quota(milli, PERIOD)), [0, 1000, 50_000]);
        // Of 100m, 250m, 1, 2, 4 and 16 CPUs between the ends.
        let known = [
            (2, 1),
            (102, 4),
            (256, 10),
            (1024, 39),
            (2048, 79),
            (4096, 157),
            (16_384, 625),
            (262_144, 10_000),
        ];
        for (shares, expected) in known {
            assert_eq!(weight(shares), expected, "{shares}");
        }
        assert_eq!([1, 39, 10_000].map(shares_of), [2, 999, 262_144]);
        assert!((1..=10_000).all(|known| weight(shares_of(known)) == known));
        let limits = Limits {
            cpu_shares: 1024,
            cpu_quota: Some(50_000),
            memory: Some(7),
            pids: Some(9),
            ..BEST_EFFORT
        };
        let text = |list: Vec<Setting>| -> Vec<String> {
            list.into_iter().map(|(_, file, value)| format!("{file}={value}")).collect()
        };
        assert_eq!(
            text(limits.v1()),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=7",
                "pids.max=9"
            ]
        );
        assert_eq!(
            text(limits.v2()),
            ["cpu.weight=39", "cpu.max=50000 100000", "memory.max=7", "pids.max=9"]
        );
    }

    #[test]
    fn quotas_that_systemd_cannot_be_told_are_rounded_up_as_libcontainer_does() {
        let rounded = |cpu_quota, cpu_period| {
            Limits { cpu_quota: Some(cpu_quota), cpu_period, ..BEST_EFFORT }.in_percents().cpu_quota
        };
        for (quota, period, expected) in [
            (12_345, 100_000, 13_000),
            (13_000, 100_000, 13_000),
            (1000, 100_000, 1000),
            (1001, 100_000, 2000),
            (12_345, 20_000, 12_400),
            (-1, 100_000, -1),
            (0, 100_000, 0),
        ] {
            assert_eq!(rounded(quota, period), Some(expected), "{quota} {period}");
        }
        assert_eq!(BEST_EFFORT.in_percents(), BEST_EFFORT);
    }

    #[test]
    fn a_node_has_its_own_rules() {
        let full = Resources { cpu_limit: Some(500), memory_limit: Some(20), ..Resources::default() };
        let of = |rules: &Rules, resources: Resources| -> Vec<String> {
            let limits = of_pod(&with(&[resources]), rules);
            let (v1, v2) = (limits.v1(), limits.v2());
            let files =
                v1.into_iter().chain(v2).filter(|(_, file, _)| file.contains("cfs") || file.contains("max"));
            files.map(|(_, file, value)| format!("{file}={value}")).collect()
        };
        let rules = Rules { period: 20_000, pids: Some(64), ..Rules::default() };
        assert_eq!(rules.cpu(500), (20_000, 10_000));
        assert_eq!(
            of(&rules, full),
            [
                "cpu.cfs_period_us=20000",
                "cpu.cfs_quota_us=10000",
                "pids.max=64",
                "cpu.max=10000 20000",
                "memory.max=20",
                "pids.max=64"
            ]
        );
        assert_eq!(of(&rules, Resources::default()), ["pids.max=64", "pids.max=64"], "best effort");
        let free = Rules { quota: false, ..Rules::default() };
        assert_eq!(free.cpu(500), (0, 0));
        let lifted = of(&free, full);
        assert_eq!(lifted[1], "cpu.cfs_quota_us=-1");
        assert_eq!(lifted[2], "cpu.max=max 100000");
    }
}

//! Limits as the files and values that set them, on v1 and v2. Pure. The conversions are those of
//! runc 1.5 (opencontainers/cgroups), which every peer's numbers come from.

use std::collections::BTreeMap;

use super::Error;

/// Limits of one container or pod; zero and empty mean unset, as in CRI's LinuxContainerResources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// CFS period in microseconds.
    pub cpu_period: i64,
    /// CFS quota in microseconds per period; -1 for none.
    pub cpu_quota: i64,
    /// v1 CPU shares.
    pub cpu_shares: i64,
    /// Bytes.
    pub memory_limit: i64,
    /// Bytes of memory and swap together.
    pub memory_swap_limit: i64,
    /// CPU list.
    pub cpuset_cpus: String,
    /// Memory node list.
    pub cpuset_mems: String,
    /// Hugepage size ("2MB") to bytes.
    pub hugepages: BTreeMap<String, u64>,
    /// v2 files by name.
    pub unified: BTreeMap<String, String>,
}

/// Files whose order of writing matters, or that a node may lack.
pub(super) const MEMORY_V1: &str = "memory.limit_in_bytes";
pub(super) const MEMSW_V1: &str = "memory.memsw.limit_in_bytes";
pub(super) const MEMORY_V2: &str = "memory.max";
pub(super) const SWAP_V2: &str = "memory.swap.max";
pub(super) const PERIOD_V1: &str = "cpu.cfs_period_us";
pub(super) const QUOTA_V1: &str = "cpu.cfs_quota_us";

pub(super) const HUGETLB: &str = "hugetlb";

/// Controller, file, value.
pub(super) type FileValue = (&'static str, String, String);

impl Resources {
    /// Refuses what could not be written on this node.
    ///
    /// # Errors
    /// The name.
    pub fn check(&self, unified: bool) -> Result<(), Error> {
        self.files(unified).map(drop)
    }

    /// The writes in order: controller, file, value.
    pub(super) fn files(&self, unified: bool) -> Result<Vec<FileValue>, Error> {
        // They become file names: one with a slash would be any file of the node.
        let names = self.unified.keys().chain(self.hugepages.keys());
        for name in names {
            if name.is_empty() || name == ".." || name.contains(['/', '\0']) {
                return Err(Error::BadName(name.clone()));
            }
        }
        if unified { Ok(self.v2()) } else { self.v1() }
    }

    fn v1(&self) -> Result<Vec<FileValue>, Error> {
        if let Some(key) = self.unified.keys().next() {
            return Err(Error::NeedsV2(key.clone()));
        }
        let mut files = Vec::new();
        let mut add = |controller, file: &str, value: i64| {
            if value != 0 {
                files.push((controller, file.to_owned(), value.to_string()));
            }
        };
        add("memory", MEMORY_V1, self.memory_limit);
        add("memory", MEMSW_V1, self.swap_and_memory());
        add("cpu", "cpu.shares", self.cpu_shares);
        add("cpu", PERIOD_V1, self.cpu_period);
        add("cpu", QUOTA_V1, self.cpu_quota);
        for (size, limit) in &self.hugepages {
            for file in
                [format!("hugetlb.{size}.limit_in_bytes"), format!("hugetlb.{size}.rsvd.limit_in_bytes")]
            {
                files.push((HUGETLB, file, limit.to_string()));
            }
        }
        self.cpuset(&mut files);
        Ok(files)
    }

    fn v2(&self) -> Vec<FileValue> {
        let mut files = Vec::new();
        if self.memory_limit != 0 {
            files.push(("memory", MEMORY_V2.to_owned(), max_or(self.memory_limit)));
        }
        match (self.swap_and_memory(), self.memory_limit) {
            (0, _) => {}
            (..0, _) => files.push(("memory", SWAP_V2.to_owned(), "max".to_owned())),
            (both, memory @ 1..) => {
                let swap = both.saturating_sub(memory).max(0);
                files.push(("memory", SWAP_V2.to_owned(), swap.to_string()));
            }
            // A sum without its other part says nothing about swap.
            (1.., _) => {}
        }
        if let Some(weight) = weight(self.cpu_shares) {
            files.push(("cpu", "cpu.weight".to_owned(), weight.to_string()));
        }
        if self.cpu_quota != 0 || self.cpu_period != 0 {
            let period = if self.cpu_period == 0 { 100_000 } else { self.cpu_period };
            let quota = if self.cpu_quota > 0 { self.cpu_quota.to_string() } else { "max".to_owned() };
            files.push(("cpu", "cpu.max".to_owned(), format!("{quota} {period}")));
        }
        for (size, limit) in &self.hugepages {
            for file in [format!("hugetlb.{size}.max"), format!("hugetlb.{size}.rsvd.max")] {
                files.push((HUGETLB, file, limit.to_string()));
            }
        }
        self.cpuset(&mut files);
        for (file, value) in &self.unified {
            files.push(("unified", file.clone(), value.clone()));
        }
        files
    }

    /// Limit of memory and swap together. A memory limit alone means no swap, as containerd has it.
    fn swap_and_memory(&self) -> i64 {
        if self.memory_swap_limit == 0 { self.memory_limit } else { self.memory_swap_limit }
    }

    fn cpuset(&self, files: &mut Vec<FileValue>) {
        for (file, value) in [("cpuset.cpus", &self.cpuset_cpus), ("cpuset.mems", &self.cpuset_mems)] {
            if !value.is_empty() {
                files.push(("cpuset", file.to_owned(), value.clone()));
            }
        }
    }
}

fn max_or(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.to_string() }
}

/// v1 shares 2…262144 as v2 weight 1…10000, so that 1024 shares give the default 100 and small
/// containers keep their distance (KEP-2254's follow-up in opencontainers/cgroups#20).
fn weight(shares: i64) -> Option<u64> {
    match shares {
        ..=0 => None,
        1..=2 => Some(1),
        262_144.. => Some(10_000),
        _ => {
            let shares = i32::try_from(shares).map_or(262_144.0, f64::from);
            let log = shares.log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 1 and 10000"
            )]
            Some(10f64.powf(exponent).ceil() as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_runc() {
        for (shares, expected) in
            [(0, None), (2, Some(1)), (102, Some(17)), (1024, Some(100)), (262_144, Some(10_000))]
        {
            assert_eq!(weight(shares), expected, "{shares}");
        }
    }

    #[test]
    fn limits_become_the_files_of_each_version() {
        let limits = Resources {
            memory_limit: 64 << 20,
            cpu_quota: 50_000,
            cpu_period: 100_000,
            cpu_shares: 1024,
            ..Resources::default()
        };
        let names = |unified| -> Vec<String> {
            limits
                .files(unified)
                .unwrap()
                .into_iter()
                .map(|(_, file, value)| format!("{file}={value}"))
                .collect()
        };
        assert_eq!(
            names(false),
            [
                "memory.limit_in_bytes=67108864",
                "memory.memsw.limit_in_bytes=67108864",
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000"
            ]
        );
        assert_eq!(
            names(true),
            ["memory.max=67108864", "memory.swap.max=0", "cpu.weight=100", "cpu.max=50000 100000"]
        );
    }

    #[test]
    fn swap_is_off_under_a_memory_limit_unless_asked_for() {
        let swap = |memory_limit, memory_swap_limit| -> Option<String> {
            let limits = Resources { memory_limit, memory_swap_limit, ..Resources::default() };
            limits.files(true).unwrap().into_iter().find(|(_, file, _)| file == SWAP_V2).map(|file| file.2)
        };
        assert_eq!(swap(100, 0).as_deref(), Some("0"));
        assert_eq!(swap(100, 150).as_deref(), Some("50"));
        assert_eq!(swap(100, -1).as_deref(), Some("max"));
        assert_eq!(swap(-1, 0).as_deref(), Some("max"));
        assert_eq!(swap(0, 0), None);
    }

    #[test]
    fn a_name_that_leads_out_of_the_cgroup_is_refused() {
        for name in ["../../../etc/x", "/etc/x", "..", ""] {
            let unified = BTreeMap::from([(name.to_owned(), "1".to_owned())]);
            let limits = Resources { unified, ..Resources::default() };
            assert!(matches!(limits.files(true), Err(Error::BadName(_))), "{name:?}");
        }
    }

    #[test]
    fn v2_files_are_refused_on_v1_by_name() {
        let unified = BTreeMap::from([("memory.oom.group".to_owned(), "1".to_owned())]);
        let limits = Resources { unified, ..Resources::default() };
        assert!(matches!(limits.files(false), Err(Error::NeedsV2(name)) if name == "memory.oom.group"));
        assert_eq!(limits.files(true).unwrap().len(), 1);
    }
}

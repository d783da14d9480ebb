//! What the kernel says of one cgroup beyond what a runtime passes on: the parts of its processor time
//! and memory, its limits, its kills. Owns the names of both versions' files; never keeps a number.
//! Called by [`crate::scrape`]. Blocks.

use super::machine::{Machine, NO_LIMIT, USER_HZ, field};

/// One cgroup; what its kernel does not say is missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    pub user_seconds: Option<f64>,
    pub system_seconds: Option<f64>,
    pub cache: Option<u64>,
    pub mapped: Option<u64>,
    pub kernel: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    pub swap: Option<u64>,
    pub most: Option<u64>,
    pub failures: Option<u64>,
    pub kills: Option<u64>,
    pub memory_limit: Option<u64>,
    pub reservation: Option<u64>,
    pub swap_limit: Option<u64>,
    pub shares: Option<u64>,
    pub period: Option<u64>,
    pub quota: Option<u64>,
    pub threads: Option<u64>,
    pub threads_most: Option<u64>,
}

/// No limit is 0, as cAdvisor says it.
fn limit(text: Option<String>) -> Option<u64> {
    let text = text?;
    match text.trim() {
        "max" => Some(0),
        number => number.parse().ok().map(|limit: u64| if limit >= NO_LIMIT { 0 } else { limit }),
    }
}

impl Machine {
    /// Of the cgroup at this path; all missing when it is not there.
    pub(crate) fn detail(&self, path: &str) -> Detail {
        if self.is_unified() { self.read_unified(path) } else { self.legacy(path) }
    }

    #[expect(clippy::cast_precision_loss, reason = "times in seconds")]
    fn legacy(&self, path: &str) -> Detail {
        let memory = |name: &str| self.number("memory", path, name);
        let time = self.file("cpuacct", path, "cpuacct.stat").unwrap_or_default();
        let stat = self.file("memory", path, "memory.stat").unwrap_or_default();
        let ticks = |name: &str| field(&time, name).map(|ticks| ticks as f64 / USER_HZ);
        let quota = self.file("cpu", path, "cpu.cfs_quota_us");
        Detail {
            user_seconds: ticks("user"),
            system_seconds: ticks("system"),
            cache: field(&stat, "total_cache"),
            mapped: field(&stat, "total_mapped_file"),
            kernel: memory("memory.kmem.usage_in_bytes"),
            active_file: field(&stat, "total_active_file"),
            inactive_file: field(&stat, "total_inactive_file"),
            // Counted only where the kernel counts swap.
            swap: field(&stat, "total_swap"),
            most: memory("memory.max_usage_in_bytes"),
            failures: memory("memory.failcnt"),
            kills: self.file("memory", path, "memory.oom_control").and_then(|text| field(&text, "oom_kill")),
            memory_limit: limit(self.file("memory", path, "memory.limit_in_bytes")),
            reservation: limit(self.file("memory", path, "memory.soft_limit_in_bytes")),
            swap_limit: limit(self.file("memory", path, "memory.memsw.limit_in_bytes")),
            shares: self.number("cpu", path, "cpu.shares"),
            period: self.number("cpu", path, "cpu.cfs_period_us"),
            // -1 is none.
            quota: quota.and_then(|quota| quota.trim().parse().ok()),
            threads: self.number("pids", path, "pids.current"),
            threads_most: limit(self.file("pids", path, "pids.max")),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "times in seconds")]
    fn read_unified(&self, path: &str) -> Detail {
        let file = |name: &str| self.file("", path, name);
        let (time, stat) = (file("cpu.stat").unwrap_or_default(), file("memory.stat").unwrap_or_default());
        let events = file("memory.events").unwrap_or_default();
        let micros = |name: &str| field(&time, name).map(|micros| micros as f64 / 1e6);
        let weight = file("cpu.weight").and_then(|weight| weight.trim().parse::<u64>().ok());
        let (quota, period) = file("cpu.max").and_then(|text| bandwidth(&text)).unwrap_or_default();
        Detail {
            user_seconds: micros("user_usec"),
            system_seconds: micros("system_usec"),
            cache: field(&stat, "file"),
            mapped: field(&stat, "file_mapped"),
            // The first is of Linux 5.18.
            kernel: field(&stat, "kernel").or_else(|| field(&stat, "kernel_stack")),
            active_file: field(&stat, "active_file"),
            inactive_file: field(&stat, "inactive_file"),
            swap: self.number("", path, "memory.swap.current"),
            most: self.number("", path, "memory.peak"),
            failures: field(&events, "max"),
            kills: field(&events, "oom_kill"),
            memory_limit: limit(file("memory.max")),
            reservation: limit(file("memory.min")),
            swap_limit: limit(file("memory.swap.max")),
            // Back from the weight that shares were turned into.
            shares: weight.map(|weight| weight.saturating_sub(1) * 262_142 / 9_999 + 2),
            period,
            quota,
            threads: self.number("", path, "pids.current"),
            threads_most: limit(file("pids.max")),
        }
    }
}

/// Quota, if there is one, and period.
fn bandwidth(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((quota.parse().ok(), period.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_cadvisor_says_them() {
        let of = |text: &str| limit(Some(text.to_owned()));
        assert_eq!(of("max\n"), Some(0));
        assert_eq!(of("9223372036854771712\n"), Some(0));
        assert_eq!(of("4096\n"), Some(4096));
        assert_eq!(limit(None), None);
        assert_eq!(bandwidth("max 100000\n"), Some((None, Some(100_000))));
        assert_eq!(bandwidth("50000 100000\n"), Some((Some(50_000), Some(100_000))));
    }

    #[test]
    fn this_machine_and_what_is_not_there() {
        let machine = Machine::new().unwrap();
        assert_eq!(machine.detail("/no/such/group"), Detail::default());
        let own = machine.detail("/");
        assert!(own.user_seconds.is_some_and(|seconds| seconds > 0.0), "{own:?}");
        assert!(own.cache.is_some(), "{own:?}");
        assert!(own.active_file.is_some() && own.inactive_file.is_some(), "{own:?}");
    }
}

//! Changing and adding up resources of CRI. Pure. Called by `container::update` and the sandbox
//! operations.

use gantry_proto::cri::LinuxContainerResources;

/// `old` with what `new` sets: zero and empty leave a value as it is.
#[must_use]
pub(crate) fn merge(old: &LinuxContainerResources, new: &LinuxContainerResources) -> LinuxContainerResources {
    let number = |old: i64, new: i64| if new == 0 { old } else { new };
    let text = |old: &String, new: &String| if new.is_empty() { old.clone() } else { new.clone() };
    let mut hugepage_limits = old.hugepage_limits.clone();
    for page in &new.hugepage_limits {
        match hugepage_limits.iter_mut().find(|known| known.page_size == page.page_size) {
            Some(known) => known.limit = page.limit,
            None => hugepage_limits.push(page.clone()),
        }
    }
    let mut unified = old.unified.clone();
    unified.extend(new.unified.clone());
    LinuxContainerResources {
        cpu_period: number(old.cpu_period, new.cpu_period),
        cpu_quota: number(old.cpu_quota, new.cpu_quota),
        cpu_shares: number(old.cpu_shares, new.cpu_shares),
        memory_limit_in_bytes: number(old.memory_limit_in_bytes, new.memory_limit_in_bytes),
        // A new memory limit without one for swap means no swap, whatever was before.
        memory_swap_limit_in_bytes: match (new.memory_limit_in_bytes, new.memory_swap_limit_in_bytes) {
            (0, 0) => old.memory_swap_limit_in_bytes,
            (_, swap) => swap,
        },
        // Belongs to processes that have begun, and to their children that may have changed it.
        oom_score_adj: old.oom_score_adj,
        cpuset_cpus: text(&old.cpuset_cpus, &new.cpuset_cpus),
        cpuset_mems: text(&old.cpuset_mems, &new.cpuset_mems),
        hugepage_limits,
        unified,
    }
}

/// A pod's limits: those of its containers and what the sandbox costs on top. A limit that either side
/// leaves open is open.
#[must_use]
pub(crate) fn with_overhead(
    pod: &LinuxContainerResources,
    overhead: &LinuxContainerResources,
) -> LinuxContainerResources {
    let sum = |pod: i64, overhead: i64| if pod > 0 { pod.saturating_add(overhead.max(0)) } else { pod };
    LinuxContainerResources {
        cpu_quota: sum(pod.cpu_quota, overhead.cpu_quota),
        cpu_shares: sum(pod.cpu_shares, overhead.cpu_shares),
        memory_limit_in_bytes: sum(pod.memory_limit_in_bytes, overhead.memory_limit_in_bytes),
        memory_swap_limit_in_bytes: sum(pod.memory_swap_limit_in_bytes, overhead.memory_limit_in_bytes),
        ..pod.clone()
    }
}

#[cfg(test)]
mod tests {
    use gantry_proto::cri::HugepageLimit;

    use super::*;

    fn pages(size: &str, limit: u64) -> Vec<HugepageLimit> {
        vec![HugepageLimit { page_size: size.into(), limit }]
    }

    #[test]
    fn what_is_unset_stays_and_a_new_memory_limit_takes_the_old_swap_limit_along() {
        let old = LinuxContainerResources {
            cpu_shares: 100,
            memory_limit_in_bytes: 64,
            memory_swap_limit_in_bytes: 128,
            oom_score_adj: 5,
            cpuset_cpus: "0".into(),
            hugepage_limits: pages("2MB", 1),
            unified: [("memory.high".to_owned(), "9".to_owned())].into(),
            ..LinuxContainerResources::default()
        };
        let new = LinuxContainerResources {
            cpu_quota: 5,
            hugepage_limits: pages("2MB", 2),
            ..LinuxContainerResources::default()
        };
        let merged = merge(&old, &new);
        assert_eq!((merged.cpu_shares, merged.cpu_quota, merged.memory_swap_limit_in_bytes), (100, 5, 128));
        assert_eq!((merged.hugepage_limits, merged.cpuset_cpus.as_str()), (pages("2MB", 2), "0"));
        assert_eq!(merged.unified.len(), 1);
        let smaller =
            LinuxContainerResources { memory_limit_in_bytes: 32, ..LinuxContainerResources::default() };
        let merged = merge(&old, &smaller);
        assert_eq!((merged.memory_limit_in_bytes, merged.memory_swap_limit_in_bytes), (32, 0));
    }

    #[test]
    fn overhead_adds_to_limits_and_makes_none() {
        let pod = LinuxContainerResources {
            memory_limit_in_bytes: 100,
            cpu_quota: -1,
            ..LinuxContainerResources::default()
        };
        let overhead = LinuxContainerResources {
            memory_limit_in_bytes: 10,
            cpu_quota: 7,
            cpu_shares: 2,
            ..LinuxContainerResources::default()
        };
        let sum = with_overhead(&pod, &overhead);
        assert_eq!((sum.memory_limit_in_bytes, sum.cpu_quota, sum.cpu_shares), (110, -1, 0));
    }
}

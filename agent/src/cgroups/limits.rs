//! What is written into the cgroups of pods and classes, by the kubelet's arithmetic. Pure: owns the
//! numbers for v1 and v2; never writes one. Called by [`super::tree`] and the CRI mapping.

use std::collections::BTreeMap;

use crate::admission::requests;
use crate::manifest::quantity::{parse_milli, parse_units};
use crate::pod::spec::qos::{Qos, peak, qos};
use crate::pod::spec::{Pod, Resources};

/// Microseconds in which a quota is used up.
pub const PERIOD: i64 = 100_000;
/// The kernel refuses less than a millisecond of quota.
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;

/// Of one cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In the words of v1: 1024 is one core's worth.
    pub(crate) cpu_shares: i64,
    /// Microseconds in each period.
    pub(crate) cpu_quota: Option<i64>,
    /// Bytes.
    pub(crate) memory: Option<i64>,
}

/// A pod's; quota and memory only when each of its containers has a limit, or it has one itself. What
/// its sandbox needs besides comes on top.
pub(crate) fn of_pod(pod: &Pod) -> Limits {
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
        Qos::BestEffort => Limits { cpu_shares: MIN_SHARES, ..Limits::default() },
        Qos::Burstable | Qos::Guaranteed => Limits {
            cpu_shares: shares(requests(pod).get("cpu").copied().unwrap_or(0)),
            cpu_quota: limited("cpu", |r| r.cpu_limit).map(quota),
            memory: limited("memory", |r| r.memory_limit),
        },
    }
}

/// Of the best-effort class: what the others leave.
pub(super) const BEST_EFFORT: Limits = Limits { cpu_shares: MIN_SHARES, cpu_quota: None, memory: None };

/// Thousandths of a core as shares.
#[must_use]
pub fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Thousandths of a core as microseconds in each period; 0 is no limit.
#[must_use]
pub fn quota(milli: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA) }
}

/// v1 shares as v2 weight 1…10000: 1024 shares give the default 100, and small ones keep their
/// distance (opencontainers/cgroups#20).
pub(super) fn weight(shares: i64) -> i64 {
    match shares {
        ..=2 => 1,
        MAX_SHARES.. => 10_000,
        _ => {
            let log = i32::try_from(shares).map_or(18.0, |s| f64::from(s).log2());
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            #[expect(clippy::cast_possible_truncation, reason = "between 1 and 10000")]
            let weight = 10_f64.powf(exponent).ceil() as i64;
            weight
        }
    }
}

/// The fewest shares that have this weight.
pub(super) fn shares_of(wanted: i64) -> i64 {
    let (mut low, mut high) = (MIN_SHARES, MAX_SHARES);
    while low < high {
        let middle = low + (high - low) / 2;
        if weight(middle) < wanted { low = middle + 1 } else { high = middle }
    }
    low
}

/// Controller, file, value.
pub(super) type Setting = (&'static str, &'static str, String);

impl Limits {
    pub(super) fn v1(&self) -> Vec<Setting> {
        let mut files = vec![("cpu", "cpu.shares", self.cpu_shares.to_string())];
        if let Some(quota) = self.cpu_quota {
            files.push(("cpu", "cpu.cfs_period_us", PERIOD.to_string()));
            files.push(("cpu", "cpu.cfs_quota_us", quota.to_string()));
        }
        if let Some(memory) = self.memory {
            files.push(("memory", "memory.limit_in_bytes", memory.to_string()));
        }
        files
    }

    pub(super) fn v2(&self) -> Vec<Setting> {
        let mut files = vec![("cpu", "cpu.weight", weight(self.cpu_shares).to_string())];
        if let Some(quota) = self.cpu_quota {
            files.push(("cpu", "cpu.max", format!("{quota} {PERIOD}")));
        }
        if let Some(memory) = self.memory {
            files.push(("memory", "memory.max", memory.to_string()));
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::spec::Container;
    use crate::pod::tests::{container, pod};

    fn with(list: &[Resources]) -> Pod {
        let make = |(index, resources): (usize, &Resources)| Container {
            resources: *resources,
            ..container(&format!("c{index}"))
        };
        Pod { containers: list.iter().enumerate().map(make).collect(), ..pod() }
    }

    #[test]
    fn the_pods_own_limits_win_and_overhead_comes_on_top() {
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let own = crate::pod::spec::Requirements {
            requests: text(&[("cpu", "500m")]),
            limits: text(&[("cpu", "1"), ("memory", "1Mi")]),
        };
        let overhead = text(&[("cpu", "250m"), ("memory", "1Mi")]);
        let pod = Pod { resources: Some(own), overhead, ..with(&[Resources::default()]) };
        assert_eq!(of_pod(&pod), Limits { cpu_shares: 768, cpu_quota: Some(125_000), memory: Some(2 << 20) });
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
        assert_eq!(of_pod(&with(&[Resources::default()])), BEST_EFFORT);
        assert_eq!(
            of_pod(&with(&[full, full])),
            Limits { cpu_shares: 512, cpu_quota: Some(100_000), memory: Some(40) }
        );
        let part = Resources { memory_limit: None, ..full };
        assert_eq!(
            of_pod(&with(&[full, part])),
            Limits { cpu_shares: 512, cpu_quota: Some(100_000), memory: None }
        );
        assert_eq!(of_pod(&with(&[full, Resources::default()])).cpu_quota, None);
    }

    #[test]
    fn numbers_are_the_kubelets_and_runcs() {
        assert_eq!([shares(0), shares(1), shares(250), shares(1_000_000)], [2, 2, 256, 262_144]);
        assert_eq!([quota(0), quota(1), quota(500)], [0, 1000, 50_000]);
        for (shares, expected) in [(2, 1), (102, 17), (1024, 100), (262_144, 10_000)] {
            assert_eq!(weight(shares), expected, "{shares}");
            assert_eq!(weight(shares_of(expected)), expected, "{shares}");
        }
        let limits = Limits { cpu_shares: 1024, cpu_quota: Some(50_000), memory: Some(7) };
        let text = |list: Vec<Setting>| -> Vec<String> {
            list.into_iter().map(|(_, file, value)| format!("{file}={value}")).collect()
        };
        assert_eq!(
            text(limits.v1()),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=7"
            ]
        );
        assert_eq!(text(limits.v2()), ["cpu.weight=100", "cpu.max=50000 100000", "memory.max=7"]);
    }
}

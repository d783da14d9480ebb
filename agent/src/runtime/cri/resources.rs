//! Requests and limits as cgroup values and OOM scores. Pure: owns the kubelet's
//! arithmetic; never reads a cgroup. Called by [`super::container_config`].

use gantry_proto::cri::LinuxContainerResources;

use crate::pod::spec::{Pod, Resources};

const PERIOD: i64 = 100_000;
/// The kernel refuses less than a millisecond of quota.
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;

/// A container's resources as CRI wants them.
pub(super) fn linux(pod: &Pod, resources: &Resources, memory_capacity: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: quota(resources.cpu_limit),
        cpu_shares: shares(resources.cpu_request),
        memory_limit_in_bytes: resources.memory_limit.unwrap_or(0),
        oom_score_adj: oom_score_adj(pod, resources, memory_capacity),
        ..LinuxContainerResources::default()
    }
}

fn shares(milli: Option<i64>) -> i64 {
    milli.map_or(MIN_SHARES, |m| (m.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES))
}

/// 0 is no limit.
fn quota(milli: Option<i64>) -> i64 {
    match milli {
        None | Some(0) => 0,
        Some(m) => (m.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA),
    }
}

/// Guaranteed: each container's limits are there and are its requests. Best effort: nobody
/// asks for anything. Between the two: the larger the request, the later it is killed.
fn oom_score_adj(pod: &Pod, resources: &Resources, capacity: i64) -> i64 {
    let exact = |request: Option<i64>, limit: Option<i64>| limit.is_some_and(|l| l > 0) && request == limit;
    let all = |test: &dyn Fn(&Resources) -> bool| pod.containers.iter().all(|c| test(&c.resources));
    if all(&|r| exact(r.cpu_request, r.cpu_limit) && exact(r.memory_request, r.memory_limit)) {
        return GUARANTEED;
    }
    let none = |value: Option<i64>| value.unwrap_or(0) == 0;
    if all(&|r| none(r.cpu_request) && none(r.memory_request) && none(r.cpu_limit) && none(r.memory_limit)) {
        return BEST_EFFORT;
    }
    let share = 1000_i128 * i128::from(resources.memory_request.unwrap_or(0)) / i128::from(capacity.max(1));
    let score = 1000 - i64::try_from(share).unwrap_or(i64::MAX);
    score.clamp(1000 + GUARANTEED, BEST_EFFORT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::{container, pod};

    fn score(resources: Resources) -> i64 {
        let pod = crate::pod::spec::Pod {
            containers: vec![crate::pod::spec::Container { resources, ..container("a") }],
            ..pod()
        };
        oom_score_adj(&pod, &resources, 1000 << 20)
    }

    #[test]
    fn shares_and_quota_as_the_kubelet_counts() {
        assert_eq!(
            [shares(None), shares(Some(1)), shares(Some(250)), shares(Some(1_000_000))],
            [2, 2, 256, 262_144]
        );
        assert_eq!([quota(None), quota(Some(1)), quota(Some(500)), quota(Some(0))], [0, 1000, 50_000, 0]);
    }

    #[test]
    fn oom_scores_follow_the_qos_class() {
        assert_eq!(score(Resources::default()), 1000);
        let all = Some(100 << 20);
        let guaranteed = Resources {
            cpu_request: Some(5),
            cpu_limit: Some(5),
            memory_request: all,
            memory_limit: all,
            ..Resources::default()
        };
        assert_eq!(score(guaranteed), -997);
        assert_eq!(score(Resources { cpu_limit: Some(6), ..guaranteed }), 900);
        assert_eq!(score(Resources { memory_request: Some(1), ..Resources::default() }), 999);
        assert_eq!(score(Resources { memory_request: Some(1000 << 20), ..Resources::default() }), 3);
        assert_eq!(score(Resources { cpu_request: Some(5), ..Resources::default() }), 999);
    }
}

//! Requests and limits as cgroup values and OOM scores. Pure: owns the kubelet's
//! arithmetic; never reads a cgroup. Called by [`super::container_config`].

use std::collections::BTreeMap;

use gantry_proto::cri::LinuxContainerResources;

use super::NodeConfig;
use crate::cgroups::limits::{PERIOD, quota, shares};
use crate::pod::spec::qos::{Qos, qos};
use crate::pod::spec::{Container, Origin, Pod, Role};

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;
const NODE_CRITICAL: &str = "system-node-critical";

/// A container's resources as CRI wants them.
pub(super) fn linux(pod: &Pod, container: &Container, node: &NodeConfig) -> LinuxContainerResources {
    let resources = &container.resources;
    let mut unified = BTreeMap::new();
    if node.cgroup_v2 {
        // All processes of the container die together, as the kubelet has it since 1.28.
        unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    // The kubelet's NoSwap: on v1 the limit of memory and swap together is that of memory alone.
    let mut memory_swap_limit_in_bytes = 0;
    match (node.swap, node.cgroup_v2) {
        (false, _) => {}
        (true, true) => drop(unified.insert("memory.swap.max".to_owned(), "0".to_owned())),
        (true, false) => memory_swap_limit_in_bytes = resources.memory_limit.unwrap_or(0),
    }
    LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: quota(resources.cpu_limit.unwrap_or(0)),
        cpu_shares: shares(resources.cpu_request.unwrap_or(0)),
        memory_limit_in_bytes: resources.memory_limit.unwrap_or(0),
        memory_swap_limit_in_bytes,
        oom_score_adj: oom_score_adj(pod, container, node.memory_capacity),
        unified,
        ..LinuxContainerResources::default()
    }
}

/// The larger the request of a burstable container, the later it is killed; a sidecar not before
/// the regular containers.
fn oom_score_adj(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    // Static pods count as critical; others would need a priority, which only an API server gives.
    if pod.origin == Origin::Static && pod.shown.priority_class == NODE_CRITICAL {
        return GUARANTEED;
    }
    match qos(pod) {
        Qos::Guaranteed => return GUARANTEED,
        Qos::BestEffort => return BEST_EFFORT,
        Qos::Burstable => {}
    }
    let score = |request: Option<i64>| {
        let share = 1000_i128 * i128::from(request.unwrap_or(0)) / i128::from(capacity.max(1));
        1000 - i64::try_from(share).unwrap_or(i64::MAX)
    };
    let mut own = score(container.resources.memory_request);
    if container.role == Role::Sidecar {
        let least = pod.containers.iter().map(|c| c.resources.memory_request.unwrap_or(0)).min();
        own = own.min(score(least));
    }
    own.clamp(1000 + GUARANTEED, BEST_EFFORT - 1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::node;
    use super::*;
    use crate::pod::spec::{Resources, Shown};
    use crate::pod::tests::{container, pod};

    fn score(resources: Resources) -> i64 {
        let own = Container { resources, ..container("a") };
        oom_score_adj(&Pod { containers: vec![own.clone()], ..pod() }, &own, 1000 << 20)
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

    #[test]
    fn a_static_pod_that_is_node_critical_is_killed_last() {
        let shown = Shown { priority_class: NODE_CRITICAL.into(), ..Shown::default() };
        let of = |origin| oom_score_adj(&Pod { origin, shown: shown.clone(), ..pod() }, &container("a"), 1);
        assert_eq!((of(Origin::Static), of(Origin::Run)), (-997, 1000));
    }

    #[test]
    fn containers_get_no_swap() {
        let resources = Resources { memory_limit: Some(64 << 20), ..Resources::default() };
        let own = Container { resources, ..container("a") };
        let of = |cgroup_v2, swap| linux(&pod(), &own, &NodeConfig { cgroup_v2, swap, ..node() });
        let file = |of: &LinuxContainerResources| of.unified.get("memory.swap.max").cloned();
        let v1 = of(false, true);
        assert_eq!((v1.memory_swap_limit_in_bytes, file(&v1)), (64 << 20, None));
        let v2 = of(true, true);
        assert_eq!((v2.memory_swap_limit_in_bytes, file(&v2).as_deref()), (0, Some("0")));
        // A node that cannot count swap would refuse both.
        let without = of(true, false);
        assert_eq!((without.memory_swap_limit_in_bytes, file(&without)), (0, None));
        assert_eq!(of(false, false).memory_swap_limit_in_bytes, 0);
    }

    #[test]
    fn a_sidecar_is_not_killed_before_the_regular_containers() {
        let with = |request| Resources { memory_request: Some(request), ..Resources::default() };
        let sidecar = Container { resources: with(1), role: Role::Sidecar, ..container("s") };
        let regular = Container { resources: with(500 << 20), ..container("a") };
        let pod = Pod { init_containers: vec![sidecar.clone()], containers: vec![regular], ..pod() };
        assert_eq!(oom_score_adj(&pod, &sidecar, 1000 << 20), 500);
    }
}

//! Requests and limits as cgroup values and OOM scores. Pure: owns the kubelet's
//! arithmetic; never reads a cgroup. Called by [`super::container_config`] and [`super::CriRuntime`].

use std::collections::BTreeMap;

use gantry_model::cgroup::limits::{self, Rules, shares};
use gantry_model::pod::qos::{Qos, peak, qos};
use gantry_model::pod::{Container, Origin, Pod, Resources, Role};
use gantry_model::quantity::{parse_milli, parse_units};
use gantry_model::requests::requests;
use gantry_numa::affinity::Affinity;
use gantry_proto::cri::{
    HugepageLimit, LinuxContainerResources, UpdateContainerResourcesRequest, UpdatePodSandboxResourcesRequest,
};

use super::NodeConfig;
use crate::admission;
use crate::admission::may_swap;

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;
const NODE_CRITICAL: &str = "system-node-critical";

/// The container's own limits, where it has none those of the pod as a whole.
fn held_to(pod: &Pod, container: &Container) -> Resources {
    let own = container.resources;
    let Some(of_pod) = &pod.resources else { return own };
    let limit = |name: &str| of_pod.limits.get(name);
    Resources {
        cpu_limit: own.cpu_limit.or_else(|| parse_milli(limit("cpu")?).ok()),
        memory_limit: own.memory_limit.or_else(|| parse_units(limit("memory")?).ok()),
        ..own
    }
}

/// A container's resources as CRI wants them.
pub(super) fn linux(pod: &Pod, container: &Container, node: &NodeConfig) -> LinuxContainerResources {
    let resources = &held_to(pod, container);
    let mut unified = BTreeMap::new();
    if node.cgroup_v2 {
        // All processes of the container die together, as the kubelet has it since 1.28.
        unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    // With the kubelet's NoSwap there is none: on v1 the limit of memory and swap together is that of memory alone.
    let mut memory_swap_limit_in_bytes = 0;
    match (node.swap, node.cgroup_v2) {
        (false, _) => {}
        (true, true) => {
            let share = swap_share(pod, container, node).unwrap_or(0);
            unified.insert("memory.swap.max".to_owned(), share.to_string());
        }
        (true, false) => memory_swap_limit_in_bytes = resources.memory_limit.unwrap_or(0),
    }
    let (cpu_period, cpu_quota) = node.rules.cpu(resources.cpu_limit.unwrap_or(0));
    LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares: shares(resources.cpu_request.unwrap_or(0)),
        memory_limit_in_bytes: resources.memory_limit.unwrap_or(0),
        memory_swap_limit_in_bytes,
        oom_score_adj: oom_score_adj(pod, container, node.memory_capacity),
        hugepage_limits: huge_pages(pod, container, &node.page_sizes),
        unified,
        ..LinuxContainerResources::default()
    }
}

/// A container's resources for the container that runs.
pub(super) fn container_update(
    id: &str,
    pod: &Pod,
    container: &Container,
    (node, affinity): (&NodeConfig, &Affinity),
) -> UpdateContainerResourcesRequest {
    let mut linux = linux(pod, container, node);
    hold(&mut linux, affinity, node);
    UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(linux),
        ..UpdateContainerResourcesRequest::default()
    }
}

/// Where a container may run. On CPUs of its own nothing but these holds it, as `DisableCPUQuotaWithExclusiveCPUs` has it.
pub(super) fn hold(linux: &mut LinuxContainerResources, affinity: &Affinity, node: &NodeConfig) {
    let Affinity { cpus, memory_nodes, has_own_cpus } = affinity;
    linux.cpuset_cpus.clone_from(cpus);
    linux.cpuset_mems.clone_from(memory_nodes);
    if *has_own_cpus && node.rules.quota {
        linux.cpu_quota = -1;
    }
}

/// The CPUs alone: what is not said stays.
pub(super) fn cpus_update(id: &str, cpus: &str) -> UpdateContainerResourcesRequest {
    UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(LinuxContainerResources {
            cpuset_cpus: cpus.to_owned(),
            ..LinuxContainerResources::default()
        }),
        ..UpdateContainerResourcesRequest::default()
    }
}

/// The pod's, for the sandbox that is there.
pub(super) fn sandbox_update(id: &str, pod: &Pod, rules: &Rules) -> UpdatePodSandboxResourcesRequest {
    UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.to_owned(),
        overhead: overhead(pod, rules),
        resources: of_sandbox(pod, rules),
    }
}

/// Of the node's swap the part that the container's memory request is of the node's memory. Who asks for more than
/// there is gets none.
fn swap_share(pod: &Pod, container: &Container, node: &NodeConfig) -> Option<i64> {
    let swap = node.limited_swap.filter(|_| may_swap(pod, container))?;
    let request = container.resources.memory_request.filter(|request| *request <= node.memory_capacity)?;
    let share = i128::from(request) * i128::from(swap) / i128::from(node.memory_capacity.max(1));
    i64::try_from(share).ok()
}

/// What the pod's containers may use together, for runtimes that size a machine by it.
pub(super) fn of_sandbox(pod: &Pod, rules: &Rules) -> Option<LinuxContainerResources> {
    if pod.origin != Origin::Api {
        return None;
    }
    let without = Pod { overhead: BTreeMap::new(), ..pod.clone() };
    let requests = requests(&without);
    let limited = limits::of_pod(&without, rules);
    let (cpu_period, cpu_quota) =
        if rules.quota { (rules.period, limited.cpu_quota.unwrap_or(0)) } else { (0, 0) };
    Some(LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares: shares(requests.get("cpu").copied().unwrap_or(0)),
        memory_limit_in_bytes: limited.memory.unwrap_or(0),
        ..LinuxContainerResources::default()
    })
}

/// Of the RuntimeClass: request and limit at once.
pub(super) fn overhead(pod: &Pod, rules: &Rules) -> Option<LinuxContainerResources> {
    if pod.origin != Origin::Api {
        return None;
    }
    if pod.overhead.is_empty() {
        return Some(LinuxContainerResources::default());
    }
    let amount = |name: &str| pod.overhead.get(name).map(String::as_str).unwrap_or("0");
    let cpu = parse_milli(amount("cpu")).unwrap_or(0);
    let (cpu_period, cpu_quota) = rules.cpu(cpu);
    Some(LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares: shares(cpu),
        memory_limit_in_bytes: parse_units(amount("memory")).unwrap_or(0),
        ..LinuxContainerResources::default()
    })
}

/// Pages of each size that the machine has: what neither a container nor its pod asks for it doesn't get. A container
/// that names no pages of a size may have those of its pod.
fn huge_pages(pod: &Pod, container: &Container, sizes: &[i64]) -> Vec<HugepageLimit> {
    let asked = |size: i64| {
        let name = limits::huge_page_resource(size);
        let of_pod = || pod.resources.as_ref()?.limits.get(&name);
        parse_units(container.written.limits.get(&name).or_else(of_pod)?).ok()
    };
    let limit = |size: &i64| HugepageLimit {
        page_size: limits::page(*size),
        limit: asked(*size).and_then(|limit| u64::try_from(limit).ok()).unwrap_or(0),
    };
    sizes.iter().map(limit).collect()
}

/// The larger the request of a burstable container, the later it is killed; a sidecar not before
/// the regular containers.
fn oom_score_adj(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    if admission::is_critical(pod) && pod.shown.priority_class == NODE_CRITICAL {
        return GUARANTEED;
    }
    match qos(pod) {
        Qos::Guaranteed => return GUARANTEED,
        Qos::BestEffort => return BEST_EFFORT,
        Qos::Burstable => {}
    }
    let rest = pod_memory_share(pod);
    let score = |request: Option<i64>| {
        let request = i128::from(request.unwrap_or(0)) + i128::from(rest);
        let share = 1000 * request / i128::from(capacity.max(1));
        1000 - i64::try_from(share).unwrap_or(i64::MAX)
    };
    let mut own = score(container.resources.memory_request);
    if container.role == Role::Sidecar {
        let least = pod.containers.iter().map(|c| c.resources.memory_request.unwrap_or(0)).min();
        own = own.min(score(least));
    }
    own.clamp(1000 + GUARANTEED, BEST_EFFORT - 1)
}

/// Each container's part of the memory that the pod as a whole asks for and none of them does.
fn pod_memory_share(pod: &Pod) -> i64 {
    let own = pod.resources.as_ref().and_then(|own| parse_units(own.requests.get("memory")?).ok());
    let Some(own) = own.filter(|own| *own != 0) else { return 0 };
    let all = i64::try_from(pod.containers.len() + pod.init_containers.len()).unwrap_or(i64::MAX);
    own.saturating_sub(peak(pod, |r| r.memory_request)) / all.max(1)
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::{Requirements, Shown};

    use super::super::tests::node;
    use super::*;
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
    fn limits_of_cpu_are_held_by_the_nodes_rules() {
        let resources = Resources { cpu_limit: Some(500), ..Resources::default() };
        let own = Container { resources, ..container("a") };
        let of = |rules| {
            let linux = linux(&pod(), &own, &NodeConfig { rules, ..node() });
            (linux.cpu_period, linux.cpu_quota)
        };
        assert_eq!(of(Rules::default()), (100_000, 50_000));
        assert_eq!(of(Rules { period: 20_000, ..Rules::default() }), (20_000, 10_000));
        assert_eq!(of(Rules { quota: false, ..Rules::default() }), (0, 0));
        let held_by = |rules, has_own_cpus| {
            let affinity = Affinity { cpus: "1-2".to_owned(), memory_nodes: "0".to_owned(), has_own_cpus };
            let node = NodeConfig { rules, ..node() };
            let linux = container_update("id", &pod(), &own, (&node, &affinity)).linux.unwrap();
            (linux.cpuset_cpus, linux.cpuset_mems, linux.cpu_quota)
        };
        let on = |quota| ("1-2".to_owned(), "0".to_owned(), quota);
        assert_eq!(held_by(Rules::default(), true), on(-1), "CPUs of its own hold it");
        assert_eq!(held_by(Rules::default(), false), on(50_000));
        assert_eq!(held_by(Rules { quota: false, ..Rules::default() }, true), on(0));
        let alone = cpus_update("id", "3").linux.unwrap();
        assert_eq!(
            alone,
            LinuxContainerResources { cpuset_cpus: "3".to_owned(), ..LinuxContainerResources::default() }
        );
        let whole = Pod { origin: Origin::Api, containers: vec![own.clone()], ..pod() };
        let free = of_sandbox(&whole, &Rules { quota: false, ..Rules::default() }).unwrap();
        assert_eq!((free.cpu_period, free.cpu_quota), (0, 0));
    }

    #[test]
    fn an_update_says_what_a_new_container_would_be_told() {
        let resources = Resources {
            cpu_request: Some(200),
            cpu_limit: Some(500),
            memory_limit: Some(64 << 20),
            ..Resources::default()
        };
        let own = Container { resources, ..container("a") };
        let whole = Pod { origin: Origin::Api, containers: vec![own.clone()], ..pod() };
        let node = NodeConfig { swap: true, ..node() };
        let asked = container_update("c1", &whole, &own, (&node, &Affinity::default()));
        let told = asked.linux.unwrap();
        assert_eq!(asked.container_id, "c1");
        assert_eq!((told.cpu_shares, told.cpu_quota, told.cpu_period), (204, 50_000, 100_000));
        // On v1 both limits go together: one that is above the other is refused by the kernel (#102884).
        assert_eq!((told.memory_limit_in_bytes, told.memory_swap_limit_in_bytes), (64 << 20, 64 << 20));
        let asked = sandbox_update("s1", &whole, &node.rules);
        let told = asked.resources.unwrap();
        assert_eq!((asked.pod_sandbox_id.as_str(), asked.overhead.unwrap().cpu_shares), ("s1", 0));
        assert_eq!((told.cpu_shares, told.cpu_quota, told.memory_limit_in_bytes), (204, 50_000, 64 << 20));
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
    fn burstable_containers_get_a_share_of_the_swap_by_their_memory_request() {
        let swap = |origin, priority, request, limit| {
            let resources =
                Resources { memory_request: request, memory_limit: limit, ..Resources::default() };
            let own = Container { resources, ..container("a") };
            let mut pod = Pod { origin, containers: vec![own.clone()], ..pod() };
            pod.placement.priority = priority;
            let node = NodeConfig { cgroup_v2: true, swap: true, limited_swap: Some(2 << 30), ..node() };
            linux(&pod, &own, &node).unified.get("memory.swap.max").cloned()
        };
        let mib = |count: i64| Some(count << 20);
        let share = |bytes: i64| Some(bytes.to_string());
        let api = || Origin::Api;
        // A quarter of the gibibyte that the node has.
        assert_eq!(swap(api(), None, mib(256), None), share(512 << 20));
        assert_eq!(swap(api(), None, mib(256), mib(512)), share(512 << 20));
        for (priority, request, limit, why) in [
            (None, None, None, "nothing is asked for"),
            (None, None, mib(256), "the same, with a limit"),
            (None, mib(256), mib(256), "request and limit are one"),
            (Some(2_000_000_000), mib(256), None, "it is critical"),
            (None, mib(2048), None, "more than the node has"),
        ] {
            assert_eq!(swap(api(), priority, request, limit), share(0), "{why}");
        }
        assert_eq!(swap(Origin::Static, None, mib(256), None), share(0), "static pods are critical");
        let without = NodeConfig { cgroup_v2: true, swap: true, ..node() };
        let own = Container {
            resources: Resources { memory_request: mib(256), ..Resources::default() },
            ..container("a")
        };
        let pod = Pod { containers: vec![own.clone()], ..pod() };
        assert_eq!(linux(&pod, &own, &without).unified.get("memory.swap.max").cloned(), share(0));
        let v1 = NodeConfig { cgroup_v2: false, limited_swap: Some(2 << 30), ..without };
        assert!(!linux(&pod, &own, &v1).unified.contains_key("memory.swap.max"), "v2 alone");
    }

    #[test]
    fn a_sidecar_is_not_killed_before_the_regular_containers() {
        let with = |request| Resources { memory_request: Some(request), ..Resources::default() };
        let sidecar = Container { resources: with(1), role: Role::Sidecar, ..container("s") };
        let regular = Container { resources: with(500 << 20), ..container("a") };
        let pod = Pod { init_containers: vec![sidecar.clone()], containers: vec![regular], ..pod() };
        assert_eq!(oom_score_adj(&pod, &sidecar, 1000 << 20), 500);
    }

    #[test]
    fn the_memory_that_only_the_pod_asks_for_counts_for_each_of_its_containers() {
        let own = Requirements {
            requests: BTreeMap::from([("memory".to_owned(), "700Mi".to_owned())]),
            ..Requirements::default()
        };
        let of = |pod: &Pod, name: &str| oom_score_adj(pod, &container(name), 1000 << 20);
        let alone = Pod { containers: vec![container("a"), container("b")], resources: Some(own), ..pod() };
        assert_eq!([of(&alone, "a"), of(&alone, "b")], [650, 650]);
        // What a container asks for itself is its own.
        let resources = Resources { memory_request: Some(100 << 20), ..Resources::default() };
        let first = Container { resources, ..container("a") };
        let mixed = Pod { containers: vec![first.clone(), container("b")], ..alone };
        assert_eq!([oom_score_adj(&mixed, &first, 1000 << 20), of(&mixed, "b")], [600, 700]);
    }

    #[test]
    fn a_container_gets_no_huge_pages_that_neither_it_nor_its_pod_asks_for() {
        let limited = |size: &str, amount: &str| Requirements {
            limits: BTreeMap::from([(format!("hugepages-{size}"), amount.to_owned())]),
            ..Requirements::default()
        };
        let asks = Container { written: limited("2Mi", "4Mi"), ..container("a") };
        let node = NodeConfig { page_sizes: vec![64, 2048, 1 << 20], ..node() };
        let within = |pod: &Pod, container: &Container| -> Vec<(String, u64)> {
            let pages = linux(pod, container, &node).hugepage_limits;
            pages.into_iter().map(|page| (page.page_size, page.limit)).collect()
        };
        let of = |container: &Container| within(&pod(), container);
        let all = |of_2mb| [("64KB".to_owned(), 0), ("2MB".to_owned(), of_2mb), ("1GB".to_owned(), 0)];
        assert_eq!(of(&container("b")), all(0));
        assert_eq!(of(&asks), all(4 << 20));
        let shared = Pod { resources: Some(limited("2Mi", "6Mi")), ..pod() };
        assert_eq!(within(&shared, &container("b")), all(6 << 20), "the pod's, where a container names none");
        assert_eq!(within(&shared, &asks), all(4 << 20));
    }
}

//! The steps by which a running pod comes from the resources that it is held to, to those that it was allocated. Pure:
//! owns their order and what counts as a difference; never writes a cgroup. Called by the pod's planner.
//!
//! ```text
//! pod's cgroup grows ──▶ containers shrink ──▶ containers grow, or start again ──▶ pod's cgroup shrinks
//! ```
//! A container is never promised more than its pod has, whichever step fails.

use crate::allocation::{Allocation, amount, is_resizable, resources};
use crate::cgroup::limits::{Limits, Rules, of_pod, shares};
use crate::pod::{Container, Pod, Requirements};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The pod's cgroup gets these limits; those that are none stay.
    HoldPod(Limits),
    /// The container of this name runs on, held to what it was allocated.
    Update(String),
    /// It ends, and is made again with what it was allocated.
    Restart(String),
}

/// What the kernel holds a container to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    shares: i64,
    quota: i64,
    memory: i64,
}

impl Held {
    fn of(amounts: &Requirements, rules: &Rules) -> Self {
        let resources = resources(amounts);
        Self {
            shares: shares(resources.cpu_request.unwrap_or(0)),
            quota: rules.cpu(resources.cpu_limit.unwrap_or(0)).1,
            memory: resources.memory_limit.unwrap_or(0),
        }
    }

    /// Whether nothing of it is more than before; no limit is more than any.
    fn shrinks(&self, from: &Self) -> bool {
        let limit = |bound: i64| if bound == 0 { i64::MAX } else { bound };
        self.shares <= from.shares
            && limit(self.quota) <= limit(from.quota)
            && limit(self.memory) <= limit(from.memory)
    }
}

/// From what its containers are held to and what its cgroup is, to what the pod is allocated; none when the kernel would
/// see no difference. The memory that is asked for is nothing to the kernel, but a container may want to start again for
/// it. What does not run is made with what is allocated, and needs no step.
#[must_use]
pub fn steps(
    containers: &Allocation,
    cgroup: &Limits,
    allocated: &Pod,
    runs: impl Fn(&str) -> bool,
    rules: &Rules,
) -> Vec<Step> {
    let to = of_pod(allocated, rules);
    let widest = widest(cgroup, &to);
    let mut all = Vec::new();
    if *cgroup != widest {
        all.push(Step::HoldPod(widest));
    }
    let (mut shrink, mut rest) = (Vec::new(), Vec::new());
    let held = Allocation::held(allocated);
    for container in allocated.all_containers().filter(|c| is_resizable(c) && runs(&c.name)) {
        let pair = containers.containers.get(&container.name).zip(held.containers.get(&container.name));
        match pair.and_then(|(old, new)| step(container, old, new, rules)) {
            Some((step, true)) => shrink.push(step),
            Some((step, false)) => rest.push(step),
            None => {}
        }
    }
    all.extend(shrink.into_iter().chain(rest));
    if widest != to {
        all.push(Step::HoldPod(to));
    }
    all
}

/// With it, whether the container only shrinks.
fn step(
    container: &Container,
    old: &Requirements,
    new: &Requirements,
    rules: &Rules,
) -> Option<(Step, bool)> {
    let other = |resource: &str| {
        let get = |list: &Requirements, limit: bool| {
            let list = if limit { &list.limits } else { &list.requests };
            list.get(resource).map_or(0, |text| amount(resource, text))
        };
        [false, true].into_iter().any(|limit| get(old, limit) != get(new, limit))
    };
    let policy = container.resize;
    if policy.cpu_restarts && other("cpu") || policy.memory_restarts && other("memory") {
        return Some((Step::Restart(container.name.clone()), false));
    }
    let (from, to) = (Held::of(old, rules), Held::of(new, rules));
    (from != to).then(|| (Step::Update(container.name.clone()), to.shrinks(&from)))
}

/// Room for both. What one of them does not limit is not written: it is not limited yet, or stays as it is.
fn widest(from: &Limits, to: &Limits) -> Limits {
    let quota = |(a, b): (i64, i64)| if a < 0 || b < 0 { -1 } else { a.max(b) };
    Limits {
        cpu_shares: from.cpu_shares.max(to.cpu_shares),
        cpu_quota: from.cpu_quota.zip(to.cpu_quota).map(quota),
        cpu_period: to.cpu_period,
        memory: from.memory.zip(to.memory).map(|(a, b)| a.max(b)),
        pids: to.pids,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pod::{ResizePolicy, Role};
    use crate::testing::{container, in_role, pod};

    const MIB: i64 = 1 << 20;

    fn texts(cpu: Option<&str>, memory: Option<&str>) -> BTreeMap<String, String> {
        let pairs = [("cpu", cpu), ("memory", memory)];
        pairs.iter().filter_map(|(name, text)| Some(((*name).to_owned(), (*text)?.to_owned()))).collect()
    }

    /// Requests, and limits.
    fn amounts(requests: (Option<&str>, Option<&str>), limits: (Option<&str>, Option<&str>)) -> Requirements {
        Requirements { requests: texts(requests.0, requests.1), limits: texts(limits.0, limits.1) }
    }

    fn sized(cpu: &str, memory: &str) -> Requirements {
        amounts((Some(cpu), Some(memory)), (Some(cpu), Some(memory)))
    }

    /// `again` starts again for either resource.
    fn sizing(container: Container, written: Requirements) -> Container {
        let restarts = container.name == "again";
        let resize = ResizePolicy { cpu_restarts: restarts, memory_restarts: restarts };
        Container { resources: resources(&written), written, resize, ..container }
    }

    fn of(containers: &[(&str, Requirements)]) -> Pod {
        let one = |(name, written): &(&str, Requirements)| sizing(container(name), written.clone());
        Pod { containers: containers.iter().map(one).collect(), ..pod() }
    }

    /// All run but `idle`.
    fn between(from: &Pod, to: &Pod) -> Vec<Step> {
        let rules = Rules::default();
        steps(&Allocation::held(from), &of_pod(from, &rules), to, |name| name != "idle", &rules)
    }

    fn update(name: &str) -> Step {
        Step::Update(name.to_owned())
    }

    #[test]
    fn a_pod_grows_before_its_containers_and_shrinks_after_them() {
        let (small, large) = (of(&[("a", sized("100m", "64Mi"))]), of(&[("a", sized("200m", "128Mi"))]));
        let held = |pod: &Pod| Step::HoldPod(of_pod(pod, &Rules::default()));
        assert_eq!(between(&small, &large), [held(&large), update("a")]);
        assert_eq!(between(&large, &small), [update("a"), held(&small)]);
        assert_eq!(between(&large, &large), []);
    }

    #[test]
    fn what_one_container_gives_another_is_given_back_first() {
        let (small, large) = (sized("100m", "64Mi"), sized("300m", "128Mi"));
        let from = of(&[("a", small.clone()), ("b", large.clone())]);
        let to = of(&[("a", large), ("b", small)]);
        assert_eq!(between(&from, &to), [update("b"), update("a")]);
    }

    #[test]
    fn a_pod_that_gains_cpu_and_loses_memory_has_room_for_both_meanwhile() {
        let (from, to) = (of(&[("a", sized("100m", "128Mi"))]), of(&[("a", sized("200m", "64Mi"))]));
        let all = between(&from, &to);
        let [Step::HoldPod(first), Step::Update(_), Step::HoldPod(last)] = &all[..] else {
            panic!("{all:?}")
        };
        assert_eq!((first.cpu_quota, first.memory), (Some(20_000), Some(128 * MIB)));
        assert_eq!((last.cpu_quota, last.memory), (Some(20_000), Some(64 * MIB)));
    }

    /// #125559: a change of the memory request alone stayed in progress for ever.
    #[test]
    fn memory_that_is_only_asked_for_is_nothing_to_the_kernel() {
        let asks = |memory| amounts((Some("100m"), Some(memory)), (Some("100m"), Some("64Mi")));
        let (least, more) = (asks("16Mi"), asks("32Mi"));
        assert_eq!(between(&of(&[("a", least.clone())]), &of(&[("a", more.clone())])), []);
        let again = Step::Restart("again".to_owned());
        assert_eq!(between(&of(&[("again", least)]), &of(&[("again", more)])), [again]);
    }

    /// #126388, #128977: pods without limits or requests were stuck.
    #[test]
    fn limits_and_requests_may_be_absent() {
        let asks = |cpu, limit| amounts((cpu, None), (limit, None));
        let from = of(&[("a", asks(Some("100m"), None)), ("b", asks(None, None))]);
        let to = of(&[("a", asks(Some("200m"), None)), ("b", asks(None, None))]);
        let all = between(&from, &to);
        let [Step::HoldPod(first), second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.cpu_shares, first.cpu_quota, first.memory), (204, None, None));
        assert_eq!(second, &update("a"));
        // A limit where none was is less than before: the container first.
        let limited = asks(Some("100m"), Some("500m"));
        let all = between(&of(&[("a", asks(Some("100m"), None))]), &of(&[("a", limited)]));
        let [first, Step::HoldPod(last)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first, last.cpu_quota), (&update("a"), Some(50_000)));
    }

    #[test]
    fn amounts_that_the_kernel_cannot_tell_apart_are_equal() {
        let cpu = |request, limit| of(&[("a", amounts((Some(request), None), (Some(limit), Some("64Mi"))))]);
        // Fewer than two shares, and less than a millisecond of quota.
        assert_eq!(between(&cpu("1m", "5m"), &cpu("2m", "10m")), []);
        assert_ne!(between(&cpu("1m", "5m"), &cpu("3m", "10m")), []);
        assert_ne!(between(&cpu("1m", "5m"), &cpu("2m", "11m")), []);
    }

    #[test]
    fn only_what_runs_is_updated_and_policies_decide_how() {
        let pod = |size: Requirements| {
            let sidecar = sizing(in_role("sidecar", Role::Sidecar), size.clone());
            let init = sizing(in_role("init", Role::Init), size.clone());
            let init_containers = vec![init, sidecar];
            Pod { init_containers, ..of(&[("again", size.clone()), ("idle", size)]) }
        };
        let all = between(&pod(sized("100m", "64Mi")), &pod(sized("50m", "64Mi")));
        let [steps @ .., Step::HoldPod(_)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(steps, [update("init"), update("sidecar"), Step::Restart("again".to_owned())]);
    }

    #[test]
    fn a_limit_of_the_pod_is_one_of_its_containers_without_their_own() {
        let with = |limit: &str| {
            let own = amounts((None, None), (Some(limit), None));
            Pod { resources: Some(own), ..of(&[("a", amounts((Some("100m"), None), (None, None)))]) }
        };
        let all = between(&with("1"), &with("2"));
        let [Step::HoldPod(first), second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.cpu_quota, second), (Some(200_000), &update("a")));
    }
}

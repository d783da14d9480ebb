//! The steps by which a running pod comes from the resources that it is held to, to those that it was allocated. Pure:
//! owns their order and what counts as a difference; never writes a cgroup. Called by nothing yet: until a resize is
//! admitted, a pod keeps what it was admitted with ([`crate::admitted`]).
//!
//! ```text
//! pod's cgroup grows ──▶ containers shrink ──▶ containers grow, or start again ──▶ pod's cgroup shrinks
//! ```
//! A container is never promised more than its pod has, whichever step fails.

use crate::cgroup::limits::{Limits, Rules, of_pod, shares};
use crate::pod::{Container, Pod, Resources};

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

/// What a container's resizePolicy says of each resource: whether it starts again. NotRequired when it is silent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restarts {
    pub cpu: bool,
    pub memory: bool,
}

/// What is asked of the containers.
pub trait Containers {
    /// Whether it runs; one that does not is made with what was allocated, and needs no step.
    fn runs(&self, name: &str) -> bool;
    /// By its resizePolicy.
    fn restarts(&self, name: &str) -> Restarts;
}

/// What the kernel holds a container to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    shares: i64,
    quota: i64,
    memory: i64,
}

impl Held {
    fn of(resources: &Resources, rules: &Rules) -> Self {
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

/// From what was actuated to what is allocated; none when the kernel would see no difference. The memory that is
/// asked for is nothing to the kernel, but a container may want to start again for it.
#[must_use]
pub fn steps(actuated: &Pod, allocated: &Pod, containers: &impl Containers, rules: &Rules) -> Vec<Step> {
    let (from, to) = (of_pod(actuated, rules), of_pod(allocated, rules));
    let widest = widest(&from, &to);
    let mut all = Vec::new();
    if widest != from {
        all.push(Step::HoldPod(widest));
    }
    let (mut shrink, mut rest) = (Vec::new(), Vec::new());
    for new in allocated.all_containers().filter(|c| containers.runs(&c.name)) {
        let Some(old) = actuated.container(&new.name) else { continue };
        match step(old, new, containers.restarts(&new.name), rules) {
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
fn step(old: &Container, new: &Container, restarts: Restarts, rules: &Rules) -> Option<(Step, bool)> {
    let (from, to) = (Held::of(&old.resources, rules), Held::of(&new.resources, rules));
    let cpu = (from.shares, from.quota) != (to.shares, to.quota);
    let memory = from.memory != to.memory;
    let asked = old.resources.memory_request != new.resources.memory_request;
    if restarts.cpu && cpu || restarts.memory && (memory || asked) {
        return Some((Step::Restart(new.name.clone()), false));
    }
    (cpu || memory).then(|| (Step::Update(new.name.clone()), to.shrinks(&from)))
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
    use super::*;
    use crate::pod::Role;
    use crate::testing::{container, in_role, pod};

    const MIB: i64 = 1 << 20;

    /// All run but `idle`; `again` starts again for either resource.
    struct All;

    impl Containers for All {
        fn runs(&self, name: &str) -> bool {
            name != "idle"
        }

        fn restarts(&self, name: &str) -> Restarts {
            Restarts { cpu: name == "again", memory: name == "again" }
        }
    }

    fn sized(cpu: i64, memory: i64) -> Resources {
        Resources {
            cpu_request: Some(cpu),
            cpu_limit: Some(cpu),
            memory_request: Some(memory * MIB),
            memory_limit: Some(memory * MIB),
            ..Resources::default()
        }
    }

    fn of(containers: &[(&str, Resources)]) -> Pod {
        let one =
            |(name, resources): &(&str, Resources)| Container { resources: *resources, ..container(name) };
        Pod { containers: containers.iter().map(one).collect(), ..pod() }
    }

    fn between(from: &Pod, to: &Pod) -> Vec<Step> {
        steps(from, to, &All, &Rules::default())
    }

    fn update(name: &str) -> Step {
        Step::Update(name.to_owned())
    }

    #[test]
    fn a_pod_grows_before_its_containers_and_shrinks_after_them() {
        let (small, large) = (of(&[("a", sized(100, 64))]), of(&[("a", sized(200, 128))]));
        let held = |pod: &Pod| Step::HoldPod(of_pod(pod, &Rules::default()));
        assert_eq!(between(&small, &large), [held(&large), update("a")]);
        assert_eq!(between(&large, &small), [update("a"), held(&small)]);
        assert_eq!(between(&large, &large), []);
    }

    #[test]
    fn what_one_container_gives_another_is_given_back_first() {
        let from = of(&[("a", sized(100, 64)), ("b", sized(300, 128))]);
        let to = of(&[("a", sized(300, 128)), ("b", sized(100, 64))]);
        assert_eq!(between(&from, &to), [update("b"), update("a")]);
    }

    #[test]
    fn a_pod_that_gains_cpu_and_loses_memory_has_room_for_both_meanwhile() {
        let (from, to) = (of(&[("a", sized(100, 128))]), of(&[("a", sized(200, 64))]));
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
        let more = Resources { memory_request: Some(32 * MIB), ..sized(100, 64) };
        let least = Resources { memory_request: Some(16 * MIB), ..sized(100, 64) };
        assert_eq!(between(&of(&[("a", least)]), &of(&[("a", more)])), []);
        let again = Step::Restart("again".to_owned());
        assert_eq!(between(&of(&[("again", least)]), &of(&[("again", more)])), [again]);
    }

    /// #126388, #128977: pods without limits or requests were stuck.
    #[test]
    fn limits_and_requests_may_be_absent() {
        let asks = |cpu| Resources { cpu_request: Some(cpu), ..Resources::default() };
        let (from, to) = (of(&[("a", asks(100)), ("b", asks(0))]), of(&[("a", asks(200)), ("b", asks(0))]));
        let all = between(&from, &to);
        let [Step::HoldPod(first), second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.cpu_shares, first.cpu_quota, first.memory), (204, None, None));
        assert_eq!(second, &update("a"));
        // A limit where none was is less than before: the container first.
        let limited = Resources { cpu_limit: Some(500), ..asks(100) };
        let all = between(&of(&[("a", asks(100))]), &of(&[("a", limited)]));
        let [first, Step::HoldPod(last)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first, last.cpu_quota), (&update("a"), Some(50_000)));
    }

    #[test]
    fn amounts_that_the_kernel_cannot_tell_apart_are_equal() {
        let cpu = |request, limit| {
            of(&[("a", Resources { cpu_request: Some(request), cpu_limit: Some(limit), ..sized(0, 64) })])
        };
        // Fewer than two shares, and less than a millisecond of quota.
        assert_eq!(between(&cpu(1, 5), &cpu(2, 10)), []);
        assert_ne!(between(&cpu(1, 5), &cpu(3, 10)), []);
        assert_ne!(between(&cpu(1, 5), &cpu(2, 11)), []);
    }

    #[test]
    fn only_what_runs_is_updated_and_policies_decide_how() {
        let pod = |size: Resources| {
            let sidecar = Container { resources: size, ..in_role("sidecar", Role::Sidecar) };
            Pod { init_containers: vec![sidecar], ..of(&[("again", size), ("idle", size)]) }
        };
        let all = between(&pod(sized(100, 64)), &pod(sized(50, 64)));
        let [first, second, Step::HoldPod(_)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first, second), (&update("sidecar"), &Step::Restart("again".to_owned())));
    }
}

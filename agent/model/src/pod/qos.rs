//! A pod's class of service and the sums of its requests and limits, by the kubelet's arithmetic.
//! Pure: owns the rules; never a cgroup. Called by `cgroups`, the CRI mapping and status.

use std::collections::BTreeMap;
use std::fmt;

use super::{Container, Pod, Requirements, Resources, Role};
use crate::quantity::{parse_milli, parse_units};

/// Who is killed first when memory runs out: the lower ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Qos {
    /// Asks for nothing.
    #[default]
    BestEffort,
    /// Anything between.
    Burstable,
    /// Each container's limits of cpu and memory are there and are its requests.
    Guaranteed,
}

impl fmt::Display for Qos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BestEffort => "BestEffort",
            Self::Burstable => "Burstable",
            Self::Guaranteed => "Guaranteed",
        })
    }
}

/// The class of the pod, init containers counted; by its own numbers alone, where it has any.
#[must_use]
pub fn qos(pod: &Pod) -> Qos {
    if let Some(own) = &pod.resources
        && pod.has_own_amounts()
    {
        return of_requirements(own);
    }
    let set = |value: Option<i64>| value.is_some_and(|v| v > 0);
    let asks = |r: &Resources| {
        set(r.cpu_request) || set(r.cpu_limit) || set(r.memory_request) || set(r.memory_limit)
    };
    if !pod.all_containers().any(|c| asks(&c.resources)) {
        return Qos::BestEffort;
    }
    let limited = pod.all_containers().all(|c| set(c.resources.cpu_limit) && set(c.resources.memory_limit));
    // The sums are compared, as upstream does.
    let sum = |of: &dyn Fn(&Resources) -> Option<i64>| {
        pod.all_containers().filter_map(|c| of(&c.resources)).fold(0_i64, i64::saturating_add)
    };
    let equal = sum(&|r| r.cpu_request) == sum(&|r| r.cpu_limit)
        && sum(&|r| r.memory_request) == sum(&|r| r.memory_limit);
    if limited && equal { Qos::Guaranteed } else { Qos::Burstable }
}

fn of_requirements(own: &Requirements) -> Qos {
    let amount = |list: &BTreeMap<String, String>, name: &str| {
        let text = list.get(name)?;
        let parsed = if name == "cpu" { parse_milli(text) } else { parse_units(text) };
        parsed.ok().filter(|amount| *amount > 0)
    };
    let pairs = ["cpu", "memory"].map(|name| {
        let limit = amount(&own.limits, name);
        (amount(&own.requests, name).or(limit), limit)
    });
    match pairs {
        pairs if pairs.iter().all(|(request, limit)| request.is_none() && limit.is_none()) => Qos::BestEffort,
        pairs if pairs.iter().all(|(request, limit)| limit.is_some() && request == limit) => Qos::Guaranteed,
        _ => Qos::Burstable,
    }
}

/// What the pod needs at most at any moment of its life, of one kind of resource: the regular
/// containers and sidecars together, or an init container with the sidecars before it.
#[must_use]
pub fn peak(pod: &Pod, of: impl Fn(&Resources) -> Option<i64>) -> i64 {
    let amount = |container: &Container| of(&container.resources).unwrap_or(0);
    let (mut sidecars, mut highest) = (0_i64, 0_i64);
    for container in &pod.init_containers {
        let need = sidecars.saturating_add(amount(container));
        highest = highest.max(need);
        if container.role == Role::Sidecar {
            sidecars = need;
        }
    }
    let regular = pod.containers.iter().map(amount).fold(sidecars, i64::saturating_add);
    highest.max(regular)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{container, pod};

    fn with(list: &[(Role, Resources)]) -> Pod {
        let make = |(index, (role, resources)): (usize, &(Role, Resources))| Container {
            role: *role,
            resources: *resources,
            ..container(&format!("c{index}"))
        };
        let (init, containers) =
            list.iter().enumerate().map(make).partition(|c: &Container| c.role != Role::Regular);
        Pod { init_containers: init, containers, ..pod() }
    }

    fn cpu(request: i64, limit: Option<i64>) -> Resources {
        Resources { cpu_request: Some(request), cpu_limit: limit, ..Resources::default() }
    }

    #[test]
    fn classes_follow_requests_and_limits_of_all_containers() {
        let exact = Resources {
            cpu_request: Some(5),
            cpu_limit: Some(5),
            memory_request: Some(7),
            memory_limit: Some(7),
            ..Resources::default()
        };
        use Role::{Init, Regular};
        for (list, expected) in [
            (vec![(Regular, Resources::default())], Qos::BestEffort),
            (
                vec![(Regular, Resources { ephemeral_request: Some(1), ..Resources::default() })],
                Qos::BestEffort,
            ),
            (vec![(Regular, exact)], Qos::Guaranteed),
            (vec![(Regular, exact), (Init, Resources::default())], Qos::Burstable),
            (vec![(Regular, exact), (Init, exact)], Qos::Guaranteed),
            (vec![(Regular, Resources { memory_request: Some(6), ..exact })], Qos::Burstable),
            (vec![(Regular, Resources { cpu_limit: Some(0), ..exact })], Qos::Burstable),
        ] {
            assert_eq!(qos(&with(&list)), expected, "{list:?}");
        }
    }

    #[test]
    fn the_peak_counts_sidecars_with_what_comes_after_them() {
        use Role::{Init, Regular, Sidecar};
        let need = |list: &[(Role, Resources)]| peak(&with(list), |r| r.cpu_request);
        assert_eq!(need(&[(Regular, cpu(1, None)), (Regular, cpu(2, None))]), 3);
        assert_eq!(need(&[(Init, cpu(10, None)), (Regular, cpu(2, None))]), 10);
        assert_eq!(need(&[(Sidecar, cpu(4, None)), (Init, cpu(10, None)), (Regular, cpu(2, None))]), 14);
        assert_eq!(need(&[(Init, cpu(3, None)), (Sidecar, cpu(4, None)), (Regular, cpu(2, None))]), 6);
    }
}

//! What a pod was allocated, which it keeps until it is allocated something else; and in the same form what it is held
//! to. Pure: owns the record and its comparison; never decides when one is taken. Called by `pod_workers` and the pod's
//! worker; kept by `checkpoint`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pod::{Container, Pod, Requirements, Resources, Role};
use super::quantity::{parse_milli, parse_units};

/// Amounts of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Of the pod as a whole.
    pub pod: Option<Requirements>,
    /// By name.
    pub containers: BTreeMap<String, Requirements>,
}

impl Allocation {
    /// As the pod is described. Ephemeral containers are allocated nothing.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let one = |container: &Container| (container.name.clone(), container.written.clone());
        Self { pod: pod.resources.clone(), containers: pod.all_containers().map(one).collect() }
    }

    /// What its containers are held to once they are: with the pod's own limits where they have none.
    #[must_use]
    pub fn held(pod: &Pod) -> Self {
        let one = |container: &Container| (container.name.clone(), held(pod, container));
        Self { pod: pod.resources.clone(), containers: pod.all_containers().map(one).collect() }
    }

    /// `described`, with these amounts; itself where it has them. A container that is not known here stays as it is.
    #[must_use]
    pub fn apply(&self, described: Arc<Pod>) -> Arc<Pod> {
        let same_pod = same_or_none(self.pod.as_ref(), described.resources.as_ref());
        let moved =
            |new: &Container| self.containers.get(&new.name).is_some_and(|own| !same(own, &new.written));
        if same_pod && !described.all_containers().any(moved) {
            return described;
        }
        let mut pod = (*described).clone();
        if !same_pod {
            pod.resources.clone_from(&self.pod);
        }
        for new in pod.init_containers.iter_mut().chain(&mut pod.containers) {
            let Some(own) = self.containers.get(&new.name).filter(|own| !same(own, &new.written)) else {
                continue;
            };
            new.resources = resources(own);
            new.written.clone_from(own);
        }
        Arc::new(pod)
    }

    /// Whether a container's CPU and memory, or the pod's, are others there.
    #[must_use]
    pub fn differs(&self, to: &Self, runs: impl Fn(&str) -> bool) -> bool {
        let of = |(name, new): (&String, &Requirements)| {
            runs(name) && self.containers.get(name).is_some_and(|own| !same_compute(own, new))
        };
        let (own, new) = (self.pod.clone().unwrap_or_default(), to.pod.clone().unwrap_or_default());
        !same_compute(&own, &new) || to.containers.iter().any(of)
    }
}

/// A container's own amounts, and the pod's limits where it has none.
#[must_use]
pub fn held(pod: &Pod, container: &Container) -> Requirements {
    let mut all = container.written.clone();
    for name in ["cpu", "memory"] {
        let of_pod = pod.resources.as_ref().and_then(|own| own.limits.get(name));
        if let Some(limit) = of_pod.filter(|_| !all.limits.contains_key(name)) {
            all.limits.insert(name.to_owned(), limit.clone());
        }
    }
    all
}

/// Whether a resize reaches the container while it runs. Ephemeral containers are allocated nothing.
#[must_use]
pub fn is_resizable(container: &Container) -> bool {
    container.role != Role::Ephemeral
}

/// The containers' requests of both, the larger of each: what a pod uses while it comes from one to the other.
#[must_use]
pub fn larger(old: &Pod, new: &Pod) -> Pod {
    let mut both = new.clone();
    for container in both.init_containers.iter_mut().chain(&mut both.containers) {
        let Some(before) = old.container(&container.name) else { continue };
        let (own, before) = (&mut container.resources, before.resources);
        own.cpu_request = own.cpu_request.max(before.cpu_request);
        own.memory_request = own.memory_request.max(before.memory_request);
    }
    if let (Some(own), Some(before)) = (&mut both.resources, &old.resources) {
        for (name, text) in &before.requests {
            let less = own.requests.get(name).is_none_or(|own| amount(name, own) < amount(name, text));
            if less {
                own.requests.insert(name.clone(), text.clone());
            }
        }
    }
    both
}

/// In numbers: a request that is not written is its limit. Texts that are none count as nothing: of an API server there
/// are none.
#[must_use]
pub fn resources(of: &Requirements) -> Resources {
    let get = |list: &BTreeMap<String, String>, name: &str| list.get(name).map(|text| amount(name, text));
    let limit = |name: &str| get(&of.limits, name);
    let request = |name: &str| get(&of.requests, name).or_else(|| limit(name));
    Resources {
        cpu_request: request("cpu"),
        cpu_limit: limit("cpu"),
        memory_request: request("memory"),
        memory_limit: limit("memory"),
        ephemeral_request: request("ephemeral-storage"),
        ephemeral_limit: limit("ephemeral-storage"),
    }
}

/// cpu in thousandths, the rest in its unit.
#[must_use]
pub fn amount(name: &str, text: &str) -> i64 {
    let parsed = if name == "cpu" { parse_milli(text) } else { parse_units(text) };
    parsed.unwrap_or(0)
}

/// By what they mean, however they are written.
#[must_use]
pub fn same(a: &Requirements, b: &Requirements) -> bool {
    same_list(&a.requests, &b.requests) && same_list(&a.limits, &b.limits)
}

fn same_or_none(a: Option<&Requirements>, b: Option<&Requirements>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => same(a, b),
        _ => false,
    }
}

fn same_list(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> bool {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().all(|name| match (a.get(name), b.get(name)) {
        (Some(a), Some(b)) => a == b || amount(name, a) == amount(name, b),
        _ => false,
    })
}

/// CPU and memory alone, and none is zero.
fn same_compute(a: &Requirements, b: &Requirements) -> bool {
    let get =
        |list: &BTreeMap<String, String>, name: &str| list.get(name).map_or(0, |text| amount(name, text));
    ["cpu", "memory"].iter().all(|name| {
        get(&a.requests, name) == get(&b.requests, name) && get(&a.limits, name) == get(&b.limits, name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{container, pod};

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn sized(cpu: &str, memory: &str) -> Container {
        let written =
            Requirements { requests: texts(&[("cpu", cpu), ("memory", memory)]), ..Default::default() };
        Container { resources: resources(&written), written, ..container("a") }
    }

    #[test]
    fn a_pod_keeps_what_it_was_allocated_and_takes_the_rest() {
        let allocated = Pod { containers: vec![sized("100m", "1Gi")], ..pod() };
        let mut wanted = Pod { containers: vec![sized("500m", "1Gi")], generation: 2, ..pod() };
        wanted.containers[0].image = "new".into();
        let kept = Allocation::of(&allocated).apply(Arc::new(wanted));
        assert_eq!(kept.containers[0].resources, allocated.containers[0].resources);
        assert_eq!(kept.containers[0].written, allocated.containers[0].written);
        assert_eq!((kept.containers[0].image.as_str(), kept.generation), ("new", 2));
        // The pod as a whole, too.
        let own = Requirements { limits: texts(&[("cpu", "1")]), ..Default::default() };
        let wanted = Pod { resources: Some(own), ..allocated.clone() };
        assert_eq!(Allocation::of(&allocated).apply(Arc::new(wanted)).resources, None);
    }

    #[test]
    fn what_means_the_same_is_no_resize() {
        let allocated = Pod { containers: vec![sized("1", "1Gi")], ..pod() };
        let wanted = Arc::new(Pod { containers: vec![sized("1000m", "1024Mi")], ..pod() });
        assert!(Arc::ptr_eq(&Allocation::of(&allocated).apply(wanted.clone()), &wanted));
        // An ephemeral container that is new was allocated nothing.
        let more = Arc::new(Pod { ephemeral_containers: vec![container("debug")], ..allocated.clone() });
        assert!(Arc::ptr_eq(&Allocation::of(&allocated).apply(more.clone()), &more));
    }

    #[test]
    fn only_what_runs_differs_and_only_by_cpu_and_memory() {
        let of = |one: Container| Allocation::held(&Pod { containers: vec![one], ..pod() });
        let (small, large) = (of(sized("100m", "1Gi")), of(sized("100m", "2Gi")));
        assert!(small.differs(&large, |_| true));
        assert!(!small.differs(&large, |_| false));
        let mut other = sized("100m", "1Gi");
        other.written.requests.insert("ephemeral-storage".to_owned(), "1Gi".to_owned());
        assert!(!small.differs(&of(other), |_| true));
    }

    #[test]
    fn a_container_without_a_limit_is_held_to_the_pods() {
        let own = Requirements { limits: texts(&[("cpu", "1")]), ..Default::default() };
        let pod = Pod { resources: Some(own), containers: vec![sized("100m", "1Gi")], ..pod() };
        let held = Allocation::held(&pod);
        assert_eq!(held.containers["a"].limits, texts(&[("cpu", "1")]));
        assert_eq!(Allocation::of(&pod).containers["a"].limits, texts(&[]));
    }

    #[test]
    fn between_two_sizes_a_pod_uses_the_larger_of_each() {
        let of = |one: Container| Pod { containers: vec![one], ..pod() };
        let both = larger(&of(sized("1", "1Gi")), &of(sized("500m", "2Gi")));
        let own = both.containers[0].resources;
        assert_eq!((own.cpu_request, own.memory_request), (Some(1000), Some(2 << 30)));
    }
}

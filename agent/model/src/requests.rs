//! What a pod asks for, by PodRequests. Pure: owns the sums; never holds them against a node. Called by the admission,
//! the cgroups' arithmetic, the eviction and the metrics.

use std::collections::{BTreeMap, BTreeSet};

use super::pod::{Container, Pod, Resources, Role};
use super::quantity;

/// What a pod asks for by resource: cpu in thousandths, the others in their unit. By PodRequests: the
/// peak over its life, the pod's own numbers where it has any, and its overhead.
#[must_use]
pub fn requests(pod: &Pod) -> BTreeMap<String, i64> {
    let mut names: BTreeSet<&str> = BTreeSet::from(["cpu", "memory", "ephemeral-storage"]);
    names.extend(pod.all_containers().flat_map(|c| c.written.requests.keys()).map(String::as_str));
    names.extend(pod.overhead.keys().map(String::as_str));
    let own = pod.resources.as_ref().map(|r| &r.requests);
    names.extend(own.into_iter().flat_map(BTreeMap::keys).map(String::as_str).filter(|name| of_pod(name)));
    let sum = |name: &str| {
        let needed = match own.and_then(|own| own.get(name)).filter(|_| of_pod(name)) {
            Some(text) => amount(name, text),
            None => peak(pod, |container| {
                // What a DRA driver gives is held against its claim.
                let claimed = pod.resource_claims.gives(&container.name, name);
                if claimed { 0 } else { of_container(container, name) }
            }),
        };
        needed.saturating_add(pod.overhead.get(name).map_or(0, |text| amount(name, text)))
    };
    names.into_iter().map(|name| (name.to_owned(), sum(name))).filter(|(_, n)| *n > 0).collect()
}

/// What the API lets a pod as a whole ask for.
fn of_pod(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn amount(name: &str, text: &str) -> i64 {
    let parsed = if name == "cpu" { quantity::parse_milli(text) } else { quantity::parse_units(text) };
    // An API server lets no other text through; of files the reader has refused it.
    parsed.unwrap_or(0)
}

fn of_container(container: &Container, name: &str) -> i64 {
    let Resources { cpu_request, memory_request, ephemeral_request, .. } = container.resources;
    match name {
        "cpu" => cpu_request.unwrap_or(0),
        "memory" => memory_request.unwrap_or(0),
        "ephemeral-storage" => ephemeral_request.unwrap_or(0),
        name => container.written.requests.get(name).map_or(0, |text| amount(name, text)),
    }
}

/// The most that a pod needs at any moment of its life, by what each container needs: its sidecars and one init
/// container, or its sidecars and all others. In the unit of the parts.
#[must_use]
pub fn peak(pod: &Pod, of: impl Fn(&Container) -> i64) -> i64 {
    let (mut sidecars, mut highest) = (0_i64, 0_i64);
    for container in &pod.init_containers {
        let need = sidecars.saturating_add(of(container));
        highest = highest.max(need);
        if container.role == Role::Sidecar {
            sidecars = need;
        }
    }
    let regular = pod.containers.iter().map(of).fold(sidecars, i64::saturating_add);
    highest.max(regular)
}

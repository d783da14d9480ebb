//! Quantities as Kubernetes prints them, and the sums of a pod. Pure. Called by [`super::status`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::admission;
use crate::manifest::quantity::{parse_milli, parse_units};
use crate::pod::spec::{Container, Pod, Role};

pub(super) fn as_written(list: &BTreeMap<String, String>) -> BTreeMap<String, Quantity> {
    list.iter().map(|(name, text)| (name.clone(), Quantity(text.clone()))).collect()
}

/// cpu in thousandths, the rest in its unit. Texts of an API server are right.
pub(super) fn parse(name: &str, text: &str) -> i64 {
    let parsed = if name == "cpu" { parse_milli(text) } else { parse_units(text) };
    parsed.unwrap_or(0)
}

/// `250m`, `2`, `10k`.
pub(super) fn milli(amount: i64) -> String {
    if amount % 1000 == 0 {
        scaled(amount / 1000, 1000, &["", "k", "M", "G", "T", "P", "E"])
    } else {
        format!("{amount}m")
    }
}

/// `64Mi`, `1000`.
pub(super) fn bytes(amount: i64) -> String {
    scaled(amount, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// The largest unit that leaves a whole number.
fn scaled(mut amount: i64, step: i64, units: &[&str]) -> String {
    let mut units = units.iter().copied().peekable();
    let mut unit = units.next().unwrap_or_default();
    while amount != 0 && amount % step == 0 {
        let Some(next) = units.next() else { break };
        amount /= step;
        unit = next;
    }
    format!("{amount}{unit}")
}

/// A sum in the form of the numbers it is made of: binary when one of them is.
fn printed(name: &str, amount: i64, binary: bool) -> Quantity {
    Quantity(match (name, binary) {
        ("cpu", _) => milli(amount),
        (_, true) => bytes(amount),
        (_, false) => scaled(amount, 1000, &["", "k", "M", "G", "T", "P", "E"]),
    })
}

/// What the whole pod asks for.
pub(super) fn requests(pod: &Pod) -> BTreeMap<String, Quantity> {
    let texts = |name: &str| {
        let of = pod.all_containers().filter_map(|c| c.written.requests.get(name));
        let own = pod.resources.iter().filter_map(|own| own.requests.get(name));
        let more = pod.overhead.get(name);
        of.chain(own).chain(more).any(|text| text.ends_with('i'))
    };
    let all = admission::requests(pod).into_iter();
    all.map(|(name, amount)| {
        let amount = printed(&name, amount, texts(&name));
        (name, amount)
    })
    .collect()
}

/// What it is held to: the pod's own numbers where it has any, else those of its containers together,
/// of each resource that all of them limit.
fn limits(pod: &Pod) -> BTreeMap<String, Quantity> {
    let mut found = BTreeMap::new();
    let names =
        pod.all_containers().flat_map(|c| c.written.limits.keys()).collect::<std::collections::BTreeSet<_>>();
    for name in names {
        let of = |c: &Container| c.written.limits.get(name).map_or(0, |text| parse(name, text));
        let (mut sidecars, mut highest) = (0_i64, 0_i64);
        for container in &pod.init_containers {
            let need = sidecars.saturating_add(of(container));
            highest = highest.max(need);
            if container.role == Role::Sidecar {
                sidecars = need;
            }
        }
        let together = pod.containers.iter().map(of).fold(sidecars, i64::saturating_add).max(highest);
        let binary =
            pod.all_containers().filter_map(|c| c.written.limits.get(name)).any(|t| t.ends_with('i'));
        found.insert(name.clone(), printed(name, together, binary));
    }
    if let Some(own) = &pod.resources {
        found.extend(as_written(&own.limits));
    }
    found
}

/// Its resources as the status of the whole pod shows them.
pub(super) fn of_pod(pod: &Pod) -> api::ResourceRequirements {
    let list = |list: BTreeMap<String, Quantity>| Some(list).filter(|list| !list.is_empty());
    api::ResourceRequirements { claims: None, limits: list(limits(pod)), requests: list(requests(pod)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_printed_as_go_prints_them() {
        assert_eq!([milli(250), milli(2000), milli(0), milli(1_000_000)], ["250m", "2", "0", "1k"]);
        assert_eq!([bytes(64 << 20), bytes(1000), bytes(0), bytes(3 << 29)], ["64Mi", "1000", "0", "1536Mi"]);
    }
}

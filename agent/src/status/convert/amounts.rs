//! Quantities as Kubernetes prints them, and the sums of a pod. Pure. Called by [`super::status`].

use std::collections::BTreeMap;

use gantry_model::cgroup::limits::{Limits, Rules, of_pod as cgroup_of};
use gantry_model::pod::{Container, Pod, Role};
use gantry_model::quantity::{parse_milli, parse_units};
use gantry_model::requests;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(super) fn as_written(list: &BTreeMap<String, String>) -> BTreeMap<String, Quantity> {
    list.iter().map(|(name, text)| (name.clone(), Quantity(text.clone()))).collect()
}

/// cpu in thousandths, the rest in its unit. Texts of an API server are right.
pub(super) fn parse(name: &str, text: &str) -> i64 {
    let parsed = if name == "cpu" { parse_milli(text) } else { parse_units(text) };
    parsed.unwrap_or(0)
}

/// Thousandths of a core below which the kernel has one value for all.
pub(super) const LEAST_REQUEST: i64 = 2;
/// The same of limits.
pub(super) const LEAST_LIMIT: i64 = 10;

/// `250m`, `2`, `10k`.
pub(super) fn milli(amount: i64) -> String {
    if amount % 1000 == 0 {
        scale_down(amount / 1000, 1000, &["", "k", "M", "G", "T", "P", "E"])
    } else {
        format!("{amount}m")
    }
}

/// `64Mi`, `1000`.
pub(super) fn bytes(amount: i64) -> String {
    scale_down(amount, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// The largest unit that leaves a whole number.
fn scale_down(mut amount: i64, step: i64, units: &[&str]) -> String {
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
fn format_quantity(name: &str, amount: i64, binary: bool) -> Quantity {
    Quantity(match (name, binary) {
        ("cpu", _) => milli(amount),
        (_, true) => bytes(amount),
        (_, false) => scale_down(amount, 1000, &["", "k", "M", "G", "T", "P", "E"]),
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
    // The pod's own number comes back as it was written, thousandths of a byte, too.
    let own = |name: &str| {
        let text = pod.resources.as_ref()?.requests.get(name)?;
        (!pod.overhead.contains_key(name)).then(|| Quantity(text.clone()))
    };
    let all = requests::requests(pod).into_iter();
    all.map(|(name, amount)| {
        let amount = own(&name).unwrap_or_else(|| format_quantity(&name, amount, texts(&name)));
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
        found.insert(name.clone(), format_quantity(name, together, binary));
    }
    if let Some(own) = &pod.resources {
        found.extend(as_written(&own.limits));
    }
    found
}

/// Its resources as the status of the whole pod shows them: of one that runs, what its cgroup holds it
/// to, as it was last written.
pub(super) fn of_pod(pod: &Pod, running: bool, cgroup: Option<&Limits>) -> api::ResourceRequirements {
    let list = |list: BTreeMap<String, Quantity>| Some(list).filter(|list| !list.is_empty());
    let (limits, requests) = if running { actual_amounts(pod, cgroup) } else { (limits(pod), requests(pod)) };
    api::ResourceRequirements { claims: None, limits: list(limits), requests: list(requests) }
}

/// Limits and requests by the numbers in its cgroup; what the kernel cannot tell apart is not shown.
fn actual_amounts(
    pod: &Pod,
    cgroup: Option<&Limits>,
) -> (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>) {
    let own = pod.resources.clone().unwrap_or_default();
    let (mut limits, mut requests) = (as_written(&own.limits), as_written(&own.requests));
    let cgroup = cgroup.copied().unwrap_or_else(|| cgroup_of(pod, &Rules::default()));
    let described = |list: &BTreeMap<String, String>| list.get("cpu").map_or(0, |text| parse("cpu", text));
    let share = (cgroup.cpu_shares.saturating_mul(1000).saturating_add(1023)) / 1024;
    if share > LEAST_REQUEST || described(&own.requests) > LEAST_REQUEST {
        requests.insert("cpu".to_owned(), Quantity(milli(share)));
    }
    if let Some(memory) = self::requests(pod).remove("memory") {
        requests.entry("memory".to_owned()).or_insert(memory);
    }
    let quota = cgroup.cpu_quota.map(|quota| quota.saturating_mul(1000) / cgroup.cpu_period);
    if let Some(quota) = quota.filter(|quota| *quota > LEAST_LIMIT || described(&own.limits) > LEAST_LIMIT) {
        limits.insert("cpu".to_owned(), Quantity(milli(quota)));
    }
    if let Some(memory) = cgroup.memory {
        limits.insert("memory".to_owned(), Quantity(bytes(memory)));
    }
    (limits, requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_runs_shows_what_its_cgroup_holds_it_to() {
        use gantry_model::pod::{Requirements, Resources};

        use crate::pod::tests::{container, pod};
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let limited = Container {
            resources: Resources {
                cpu_request: Some(250),
                memory_request: Some(64 << 20),
                memory_limit: Some(64 << 20),
                ..Resources::default()
            },
            written: Requirements {
                requests: text(&[("cpu", "250m"), ("memory", "64Mi")]),
                limits: text(&[("memory", "64Mi")]),
            },
            ..container("a")
        };
        let of = |containers: Vec<Container>, running| {
            serde_json::to_value(of_pod(&Pod { containers, ..pod() }, running, None)).unwrap()
        };
        let json =
            serde_json::json!({"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}});
        assert_eq!(of(vec![limited.clone()], true), json);
        assert_eq!(of(vec![limited.clone()], false), json);
        // A pod is limited only when each of its containers is.
        let both = vec![limited, container("b")];
        assert_eq!(of(both.clone(), true).get("limits"), None);
        assert_eq!(of(both, false)["limits"]["memory"], "64Mi");
        assert_eq!(of(vec![container("a")], true), serde_json::json!({}));
    }

    #[test]
    fn what_a_pod_asks_for_itself_is_told_as_it_was_written() {
        use gantry_model::pod::Requirements;

        let own = |text: &str| Requirements {
            requests: BTreeMap::from([("memory".to_owned(), text.to_owned())]),
            ..Requirements::default()
        };
        let of = |text, overhead: &[(&str, &str)]| {
            let overhead = overhead.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            requests(&Pod { resources: Some(own(text)), overhead, ..crate::pod::tests::pod() })
                .remove("memory")
        };
        assert_eq!(of("10m", &[]), Some(Quantity("10m".to_owned())));
        assert_eq!(of("1Ki", &[("memory", "1Ki")]), Some(Quantity("2Ki".to_owned())));
    }

    #[test]
    fn quantities_are_printed_as_go_prints_them() {
        assert_eq!([milli(250), milli(2000), milli(0), milli(1_000_000)], ["250m", "2", "0", "1k"]);
        assert_eq!([bytes(64 << 20), bytes(1000), bytes(0), bytes(3 << 29)], ["64Mi", "1000", "0", "1536Mi"]);
    }
}

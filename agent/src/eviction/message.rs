//! What is said of a pod that is ended for pressure, in upstream's words. Pure: owns the texts. Called by
//! [`super::run`].

use std::collections::BTreeMap;

use gantry_model::pod::Pod;
use gantry_model::quantity;
use gantry_model::signal::{Signal, Starved};

use crate::config::eviction::Rule;
use gantry_model::observation::{ContainerUse, PodUse, Readings};

/// Of the pod's status, its event, and what brought it about.
pub(crate) const REASON: &str = "Evicted";

/// The message, and the event's annotations.
#[must_use]
pub(crate) fn words(
    pod: &Pod,
    used: Option<&PodUse>,
    starved: &[Rule],
    readings: &Readings,
) -> (String, BTreeMap<String, String>) {
    let Some(resource) = starved.first().map(|rule| rule.signal.resource()) else {
        return (String::new(), BTreeMap::new());
    };
    let mut message = format!("The node was low on resource: {resource}. ");
    let met = starved.iter().filter(|rule| rule.signal.resource() == resource);
    let told = met.filter_map(|rule| Some((rule, readings.get(&rule.signal)?))).next();
    if let Some((rule, reading)) = told {
        let (threshold, left) = (rule.shown(reading.capacity), shown(rule.signal, reading.available));
        message.push_str(&format!("Threshold quantity: {threshold}, available: {left}. "));
    }
    let mut annotations = BTreeMap::new();
    let Some(used) = used else { return (message, annotations) };
    let own = pod.resources.as_ref().and_then(|own| own.requests.get(resource.as_str()));
    if let Some(asked) = own.filter(|_| resource == Starved::Memory) {
        let used = binary(used.memory);
        message.push_str(&larger("Pod", &pod.name, &used, asked, resource));
        annotations.insert("offending_pod".to_owned(), pod.name.clone());
        annotations.insert("offending_pod_usage".to_owned(), used);
    }
    let offending = offending(pod, used, resource);
    for (name, used, asked) in &offending {
        message.push_str(&larger("Container", name, used, asked, resource));
    }
    let list =
        |of: fn(&(String, String, String)) -> &str| offending.iter().map(of).collect::<Vec<_>>().join(",");
    annotations.insert("offending_containers".to_owned(), list(|one| &one.0));
    annotations.insert("offending_containers_usage".to_owned(), list(|one| &one.1));
    annotations.insert("starved_resource".to_owned(), resource.to_string());
    (message, annotations)
}

fn larger(what: &str, name: &str, used: &str, asked: &str, resource: Starved) -> String {
    format!("{what} {name} was using {used}, request is {asked}, has larger consumption of {resource}. ")
}

/// Name, use and request of each container that uses more than it asked for.
fn offending(pod: &Pod, used: &PodUse, resource: Starved) -> Vec<(String, String, String)> {
    let one = |container: &ContainerUse| {
        let spec = pod.all_containers().find(|spec| spec.name == container.name)?;
        let used = amount(container, resource)?;
        let (asked, text) = match spec.written.requests.get(resource.as_str()) {
            Some(text) => (quantity::parse_units(text).unwrap_or(0), text.clone()),
            None => (0, "0".to_owned()),
        };
        (i128::from(used) > i128::from(asked)).then(|| (container.name.clone(), binary(used), text))
    };
    used.containers.iter().filter_map(one).collect()
}

fn amount(container: &ContainerUse, resource: Starved) -> Option<u64> {
    match resource {
        Starved::Memory => container.memory,
        Starved::Storage => Some(container.layer?.bytes.saturating_add(container.logs?.bytes)),
        Starved::Inodes | Starved::Pids => None,
    }
}

fn binary(bytes: u64) -> String {
    quantity::binary(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// An amount of what the signal is about.
#[must_use]
pub(crate) fn shown(signal: Signal, amount: i64) -> String {
    match signal.resource() {
        Starved::Memory | Starved::Storage => quantity::binary(amount),
        Starved::Inodes | Starved::Pids => quantity::plain(amount),
    }
}

#[cfg(test)]
mod tests;

//! Whether the node has what a pod asks for, and whom a critical pod displaces. Pure: owns the
//! scheduler's sums and the kubelet's choice of victims. Called by [`super::admit`].

use std::collections::BTreeMap;

use gantry_model::names::is_qualified_name;
use gantry_model::pod::Pod;
use gantry_model::pod::qos::{Qos, qos};
use gantry_model::requests::requests;

use super::{Node, Rejection, is_critical};

/// One kind of resource that does not suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    pub(super) fn rejection(&self) -> Rejection {
        let Self { resource, requested, used, capacity } = self;
        Rejection::new(
            &format!("OutOf{resource}"),
            format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        )
    }

    fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// In upstream's order: the number of pods, cpu, memory, storage, the rest by name.
pub(super) fn shortages(pod: &Pod, others: &[&Pod], node: &Node) -> Vec<Shortage> {
    let capacity = |name: &str| node.allocatable.get(name).copied().unwrap_or(0);
    let mut found = Vec::new();
    let running = i64::try_from(others.len()).unwrap_or(i64::MAX);
    if running >= capacity("pods") {
        let resource = "pods".to_owned();
        found.push(Shortage { resource, requested: 1, used: running, capacity: capacity("pods") });
    }
    let wanted = requests(pod);
    let rank = |name: &str| match name {
        "cpu" => 0,
        "memory" => 1,
        "ephemeral-storage" => 2,
        _ => 3,
    };
    let mut names: Vec<&String> = wanted.keys().collect();
    names.sort_by_key(|name| (rank(name), name.as_str()));
    for name in names {
        let requested = wanted.get(name).copied().unwrap_or(0);
        // An extended resource that the node does not know is the cluster's to count.
        if is_extended(name) && !node.allocatable.contains_key(name) {
            continue;
        }
        let of = |other: &&Pod| requests(other).get(name).copied().unwrap_or(0);
        let used = others.iter().map(of).fold(0_i64, i64::saturating_add);
        if requested > capacity(name).saturating_sub(used) {
            let (resource, capacity) = (name.clone(), capacity(name));
            found.push(Shortage { resource, requested, used, capacity });
        }
    }
    found
}

/// By IsExtendedResourceName: a domain that is not Kubernetes' own.
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// The whole of it: a name, too, that a quota could have.
pub(crate) fn is_extended_resource(name: &str) -> bool {
    is_extended(name) && is_qualified_name(&format!("requests.{name}"))
}

/// Whom to end so that `pod` fits: as few of value as possible. By getPodsToPreempt: guaranteed pods
/// only for what the others cannot give, and so on down the classes.
pub(super) fn victims<'a>(
    pod: &Pod,
    others: &[&'a Pod],
    missing: &[Shortage],
) -> Result<Vec<&'a Pod>, String> {
    let mut classes: BTreeMap<Qos, Vec<&'a Pod>> = BTreeMap::new();
    for other in others.iter().filter(|other| preempts(pod, other)) {
        classes.entry(qos(other)).or_default().push(other);
    }
    let class = |of: Qos| classes.get(&of).cloned().unwrap_or_default();
    let all: Vec<&Pod> = classes.values().flatten().copied().collect();
    let lacking = left(missing, &all);
    if !lacking.is_empty() {
        let text: Vec<String> =
            lacking.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
        return Err(format!(
            "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{}]",
            text.concat()
        ));
    }
    let (best_effort, burstable) = (class(Qos::BestEffort), class(Qos::Burstable));
    let mut chosen = fewest(&class(Qos::Guaranteed), left(missing, &[&*best_effort, &*burstable].concat()));
    let after_guaranteed = fewest(&burstable, left(missing, &[&*best_effort, &*chosen].concat()));
    chosen.extend(after_guaranteed);
    let last = fewest(&best_effort, left(missing, &chosen));
    chosen.extend(last);
    Ok(chosen)
}

/// As Preemptable: a critical pod displaces others, and a higher priority a lower one.
fn preempts(pod: &Pod, other: &Pod) -> bool {
    let higher = || match (pod.placement.priority, other.placement.priority) {
        (Some(own), Some(others)) => own > others,
        _ => false,
    };
    (is_critical(pod) && !is_critical(other)) || higher()
}

/// What is still missing once those are gone.
fn left(missing: &[Shortage], gone: &[&Pod]) -> BTreeMap<String, i64> {
    let freed = |name: &str| gone.iter().map(|pod| gives(pod, name)).fold(0_i64, i64::saturating_add);
    let after = |s: &Shortage| (s.resource.clone(), s.missing().saturating_sub(freed(&s.resource)));
    missing.iter().map(after).filter(|(_, amount)| *amount > 0).collect()
}

/// The pods that come closest to what is needed, one after the other; of equals the smaller.
fn fewest<'a>(from: &[&'a Pod], mut needed: BTreeMap<String, i64>) -> Vec<&'a Pod> {
    let mut from = from.to_vec();
    let mut chosen = Vec::new();
    while !needed.is_empty() {
        let size = |pod: &Pod| (gives(pod, "memory"), gives(pod, "cpu"));
        let best = from.iter().enumerate().min_by(|(_, a), (_, b)| {
            distance(&needed, a).total_cmp(&distance(&needed, b)).then_with(|| size(a).cmp(&size(b)))
        });
        let Some((at, _)) = best else { break };
        let pod = from.remove(at);
        needed = needed
            .into_iter()
            .map(|(name, wanted)| {
                let rest = wanted - gives(pod, &name);
                (name, rest)
            })
            .filter(|(_, wanted)| *wanted > 0)
            .collect();
        chosen.push(pod);
    }
    chosen
}

fn gives(pod: &Pod, name: &str) -> i64 {
    if name == "pods" { 1 } else { requests(pod).get(name).copied().unwrap_or(0) }
}

/// How much of each need the pod would leave open.
fn distance(needed: &BTreeMap<String, i64>, pod: &Pod) -> f64 {
    let one = |(name, wanted): (&String, &i64)| {
        let open = (*wanted - gives(pod, name)).max(0);
        #[expect(clippy::cast_precision_loss, reason = "a ratio, for comparison")]
        let part = open as f64 / (*wanted).max(1) as f64;
        part * part
    };
    needed.iter().map(one).sum()
}

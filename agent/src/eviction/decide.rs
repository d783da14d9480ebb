//! Which thresholds are crossed, for how long, and which conditions that makes of the node. Pure: owns what was seen
//! when; time and readings come in, nobody is ended here. Called by [`super::run`].

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::signal::{Pressure, Pressures, Signal};

use crate::config::eviction::{Policy, Rule, Threshold};
use gantry_model::observation::{Disks, Observation, Reading, Readings};

/// What is remembered from one look to the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    /// Crossed, with their grace over, and not resolved.
    met: Vec<Rule>,
    /// Crossed, since when.
    first: Vec<(Rule, Duration)>,
    /// When a condition had a cause last.
    caused: BTreeMap<Pressure, Duration>,
    last: Readings,
}

/// What a look comes to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pass {
    /// Of the node.
    pub pressures: Pressures,
    /// Something must be done about these; the first one now.
    pub starved: Vec<Rule>,
}

impl Memory {
    /// Takes in a look; `now` is monotonic.
    pub(crate) fn pass(&mut self, policy: &Policy, look: &Observation, now: Duration) -> Pass {
        let rules = rules(&policy.rules, look.disks);
        let mut crossed = met(&rules, &look.readings, false);
        for unresolved in met(&self.met, &look.readings, true) {
            if !crossed.contains(&unresolved) {
                crossed.push(unresolved);
            }
        }
        let before = std::mem::take(&mut self.first);
        let since = |rule: &Rule| before.iter().find(|(old, _)| old == rule).map_or(now, |(_, at)| *at);
        self.first = crossed.iter().map(|rule| (rule.clone(), since(rule))).collect();
        self.caused.extend(crossed.iter().map(|rule| (rule.signal.pressure(), now)));
        let recent = |at: &Duration| now.saturating_sub(*at) < policy.transition;
        let held = self.caused.iter().filter(|(_, at)| recent(at)).map(|(pressure, _)| *pressure);
        let due = |at: &Duration, rule: &Rule| now.saturating_sub(*at) >= rule.grace;
        self.met =
            self.first.iter().filter(|(rule, at)| due(at, rule)).map(|(rule, _)| rule.clone()).collect();
        let mut starved = self.met.clone();
        starved.retain(|rule| is_new(rule, &look.readings, &self.last));
        // Stable: of one signal the hard one comes first.
        starved.sort_by_key(|rule| rule.signal);
        let pressures = held.collect();
        self.last.clone_from(&look.readings);
        Pass { pressures, starved }
    }
}

/// A reading that is no newer than the one before tells nothing of what was done since.
fn is_new(rule: &Rule, readings: &Readings, last: &Readings) -> bool {
    let Some(reading) = readings.get(&rule.signal) else { return false };
    reading.at == 0 || last.get(&rule.signal).is_none_or(|last| reading.at > last.at)
}

/// Whether nothing is short any more, the minimum reclaim counted: what was freed was enough.
#[must_use]
pub(crate) fn is_enough(rule: &Rule, look: &Observation) -> bool {
    met(std::slice::from_ref(rule), &look.readings, true).is_empty()
}

/// Those that are crossed; with `reclaim` until so much more is free.
fn met(rules: &[Rule], readings: &Readings, reclaim: bool) -> Vec<Rule> {
    let crossed = |rule: &&Rule| {
        let Some(Reading { available, capacity, .. }) = readings.get(&rule.signal).copied() else {
            return false;
        };
        let more = if reclaim { rule.reclaim.of(capacity) } else { 0 };
        rule.quantity(capacity).saturating_add(more) > available
    };
    rules.iter().filter(crossed).cloned().collect()
}

/// Writable layers have no thresholds of their own: they follow the file system that they share, whatever is written.
fn rules(given: &[Rule], disks: Disks) -> Vec<Rule> {
    use Signal::{ContainerFs, ContainerFsInodes, ImageFs, ImageFsInodes, NodeFs, NodeFsInodes};
    let (room, inodes) = match disks {
        Disks { images_apart: true, layers_apart: false } => (ImageFs, ImageFsInodes),
        _ => (NodeFs, NodeFsInodes),
    };
    let own = |rule: &&Rule| !matches!(rule.signal, ContainerFs | ContainerFsInodes);
    let mut rules: Vec<Rule> = given.iter().filter(own).cloned().collect();
    let of = |signal| if signal == room { ContainerFs } else { ContainerFsInodes };
    let followed = rules.iter().filter(|rule| rule.signal == room || rule.signal == inodes);
    let more: Vec<Rule> = followed.map(|rule| Rule { signal: of(rule.signal), ..rule.clone() }).collect();
    rules.extend(more);
    rules
}

/// What gives back some of what a signal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relief {
    /// Containers of pods that have ended.
    pub containers: bool,
    /// Images that no container stands on.
    pub images: bool,
}

/// What helps depends on which file systems are one, as upstream.
#[must_use]
pub(crate) fn relief(signal: Signal, disks: Disks) -> Relief {
    let of_node = matches!(signal, Signal::NodeFs | Signal::NodeFsInodes);
    let of_images = matches!(signal, Signal::ImageFs | Signal::ImageFsInodes);
    match disks {
        Disks { images_apart: true, layers_apart: true } => {
            Relief { containers: !of_images, images: of_images }
        }
        Disks { images_apart: true, layers_apart: false } => {
            Relief { containers: !of_node, images: !of_node }
        }
        Disks { images_apart: false, .. } => Relief { containers: true, images: true },
    }
}

/// Thresholds that the operator wrote for writable layers, which nobody looks at.
#[must_use]
pub(crate) fn passed_over(policy: &Policy) -> Vec<Signal> {
    let layers = [Signal::ContainerFs, Signal::ContainerFsInodes];
    let mut found: Vec<Signal> = policy
        .rules
        .iter()
        .filter(|rule| layers.contains(&rule.signal) && rule.value != Threshold::None)
        .map(|rule| rule.signal)
        .collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;

//! How long pods may take when the machine goes down, by priority, and what upstream refuses of it in its words. Pure:
//! owns the periods; never ends a pod. Read by [`super::validate`] and [`crate::shutdown`].

use std::time::Duration;

use gantry_model::go_duration::Span;
use gantry_model::pod::placement::SYSTEM_CRITICAL;
use serde::{Deserialize, Serialize};

use super::fields::KubeletConfiguration;
use super::gates::Gates;

/// The gate of the whole.
const GATE: &str = "GracefulNodeShutdown";
/// The gate of periods by priority, and of the metrics.
const BY_PRIORITY: &str = "GracefulNodeShutdownBasedOnPodPriority";

/// What pods of a priority, and of those up to the next period's, get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ShutdownPeriod {
    /// Of the pods.
    pub priority: i32,
    /// All of them together.
    #[serde(rename = "shutdownGracePeriodSeconds")]
    pub seconds: i64,
}

impl ShutdownPeriod {
    /// None below zero.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.seconds.try_into().unwrap_or_default())
    }
}

/// The node's shutdown waits for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownPolicy {
    /// Lowest priority first; never empty.
    pub periods: Vec<ShutdownPeriod>,
    /// Begin and end are kept and counted.
    pub recorded: bool,
}

/// None where a shutdown waits for nobody.
#[must_use]
pub fn policy(config: &KubeletConfiguration, gates: &Gates) -> Option<ShutdownPolicy> {
    let open = |gate| gates.enabled(gate, &config.feature_gates);
    if !open(GATE) {
        return None;
    }
    let recorded = open(BY_PRIORITY);
    let mut periods = match config.shutdown_grace_period_by_pod_priority.as_slice() {
        given @ [_, ..] if recorded => given.to_vec(),
        _ => both(config.shutdown_grace_period, config.shutdown_grace_period_critical_pods),
    };
    periods.sort_by_key(|period| period.priority);
    (!periods.is_empty()).then_some(ShutdownPolicy { periods, recorded })
}

/// The two fields of before as periods: critical pods come last, with what was kept for them.
fn both(all: Span, critical: Span) -> Vec<ShutdownPeriod> {
    let (all, critical) = (all.duration(), critical.duration());
    if all.is_zero() || critical > all {
        return Vec::new();
    }
    let period = |priority, time: Duration| ShutdownPeriod {
        priority,
        seconds: time.as_secs().try_into().unwrap_or(i64::MAX),
    };
    vec![period(0, all.saturating_sub(critical)), period(SYSTEM_CRITICAL, critical)]
}

/// What is wrong.
pub(super) fn problems(config: &KubeletConfiguration, gates: &Gates) -> Vec<String> {
    let open = |gate| gates.enabled(gate, &config.feature_gates);
    let (all, critical) = (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
    let any = all > Span::default() || critical > Span::default();
    let by_priority = !config.shutdown_grace_period_by_pod_priority.is_empty();
    let mut found = Vec::new();
    if open(GATE) {
        if critical > all {
            found.push(format!(
                "shutdownGracePeriodCriticalPods {{{critical}}} must be <= shutdownGracePeriod {{{all}}}"
            ));
        }
        for (name, span) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
            if span != Span::default() && span < Span::seconds(1) {
                found.push(format!("{name} {{{span}}} must be either zero or otherwise >= 1 sec"));
            }
        }
    } else if any {
        found.push(format!(
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate {GATE}"
        ));
    }
    match open(BY_PRIORITY) {
        true if by_priority && any => found.push(
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"
                .to_owned(),
        ),
        false if by_priority => found
            .push(format!("Specifying shutdownGracePeriodByPodPriority requires feature gate {BY_PRIORITY}")),
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests;

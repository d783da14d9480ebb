//! How a pod comes from what it is held to, to what it was allocated. Pure: owns when its steps are due; their order is
//! [`gantry_model::resize`]'s. Called by [`super::plan`] once cgroup and sandbox are there.
//!
//! One [`Action::Resize`] for all that leaves containers running; then those end that must start again, one observation
//! later; the pod's cgroup shrinks when all of them are made anew.

use std::collections::BTreeMap;

use gantry_model::allocation::{Allocation, is_resizable};
use gantry_model::pod::Container;
use gantry_model::resize::{Step, steps};

use super::{Action, Draft, Op, PlanInputs};
use crate::runtime::{Instance, InstanceState, Sandbox};

/// What is left of it.
#[derive(Debug, Default)]
pub(super) struct Resize {
    /// The pod is not held to what it was allocated.
    pub(super) differs: bool,
    /// IDs of containers that are to start again.
    pub(super) restarts: Vec<String>,
}

/// The next step, if one is due.
pub(super) fn plan(facts: PlanInputs<'_>, draft: &mut Draft, sandbox: Option<&Sandbox>) -> Resize {
    let resizing = &facts.history.resizing;
    let running = |name: &str| running(facts, name);
    let runs = |name: &str| facts.pod.container(name).is_some_and(is_resizable) && running(name).is_some();
    let held = Allocation::held(facts.pod);
    // Between its end and its next start, too.
    let starts_again = |name: &str| {
        facts.observed.newest(name).is_some_and(|newest| resizing.restarts.contains_key(&newest.id))
    };
    let mut actuated = resizing.actuated.clone();
    if resizing.cgroup.is_none() {
        // What the pod as a whole is held to is not known before its cgroup is made.
        actuated.pod.clone_from(&held.pod);
    }
    let differs = actuated.differs(&held, runs)
        || facts.pod.all_containers().any(|container| starts_again(&container.name));
    let Some((sandbox, cgroup)) = sandbox.zip(resizing.cgroup) else {
        return Resize { differs, restarts: Vec::new() };
    };
    let all = steps(&actuated, &cgroup, facts.pod, runs, &resizing.rules);
    let ids_of = |container: &Container| {
        let instance = running(&container.name).filter(|_| is_resizable(container))?;
        Some((container.name.clone(), instance.id.clone()))
    };
    let ends = |name: &String| all.contains(&Step::Restart(name.clone()));
    let (restarts, ids): (BTreeMap<_, _>, BTreeMap<_, _>) =
        facts.pod.all_containers().filter_map(ids_of).partition(|(name, _)| ends(name));
    let steps = due(all);
    if !steps.is_empty() || actuated.differs(&held, |name| ids.contains_key(name)) {
        let (sandbox, before) = (sandbox.id.clone(), actuated);
        draft.act(facts, Action::Resize { sandbox, steps, ids, before, cgroup });
        return Resize { differs, restarts: Vec::new() };
    }
    let waits = facts.history.flights.contains_key(&Op::Resize);
    let fresh = |id: &String| !resizing.restarts.contains_key(id);
    let restarts: Vec<String> = restarts.into_values().filter(|id| !waits && fresh(id)).collect();
    if !restarts.is_empty() {
        draft.wake_at(facts.now);
    }
    Resize { differs, restarts }
}

/// Those that leave containers running; the pod's cgroup shrinks after the last that starts again.
fn due(all: Vec<Step>) -> Vec<Step> {
    let first = all.iter().position(|step| matches!(step, Step::Restart(_)));
    let before_restarts = |(at, step): (usize, Step)| match step {
        Step::Restart(_) => None,
        Step::HoldPod(_) if first.is_some_and(|first| at > first) => None,
        step => Some(step),
    };
    all.into_iter().enumerate().filter_map(before_restarts).collect()
}

fn running<'a>(facts: PlanInputs<'a>, name: &str) -> Option<&'a Instance> {
    let newest = facts.observed.newest(name)?;
    matches!(newest.state, InstanceState::Running { .. }).then_some(newest)
}

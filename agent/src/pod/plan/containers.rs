//! One container: its image, its creation, its start, its back-off. Pure. Called by [`super::plan`]
//! and [`super::init`] when it is the container's turn.

use gantry_model::pod::{Container, Role};

use super::{Action, Draft, Op, PlanInputs, SandboxRef, Wait, ended};
use crate::pod::plan::UNKNOWN_CODE;
use crate::pod::restart::{crash_key, pull_key, starts_again};
use crate::runtime::{Instance, InstanceState};

/// What its last record asks for.
enum Next {
    Nothing,
    Start {
        attempt: u32,
        id: String,
    },
    /// `ended`: when the one before was seen to have ended.
    Another {
        ended: Option<std::time::Duration>,
    },
}

/// The next step towards a running container.
pub(super) fn bring_up(
    facts: PlanInputs<'_>,
    draft: &mut Draft,
    container: &Container,
    place: Option<&SandboxRef>,
) {
    let name = &container.name;
    if facts.history.flights.contains_key(&Op::Container(name.clone())) {
        return;
    }
    let ended = match next(facts, draft, container, place) {
        Next::Nothing => return,
        Next::Start { attempt, id } => {
            return draft.act(facts, Action::StartContainer { container: name.clone(), attempt, id });
        }
        // Two of one container would write to the same volumes.
        Next::Another { .. } if is_lost(facts, container) => return,
        Next::Another { ended } => ended,
    };
    let attempt = facts.history.attempts.next(name);
    let image = match facts.history.containers.images.get(name) {
        Some((for_attempt, image)) if *for_attempt == attempt => image.clone(),
        _ => return ensure_image(facts, draft, container, attempt),
    };
    if let Some(place) = place {
        let target = facts.observed.newest(&container.target).map(|t| t.id.clone()).unwrap_or_default();
        let (container, place) = (name.clone(), SandboxRef { target, ..place.clone() });
        draft.act(facts, Action::CreateContainer { container, attempt, place, image, ended });
    }
}

/// Gets the image of a container whose turn has not come: that takes longest, and needs nothing
/// else.
pub(super) fn fetch_ahead(facts: PlanInputs<'_>, draft: &mut Draft, container: &Container) {
    let name = &container.name;
    let attempt = facts.history.attempts.next(name);
    let there =
        facts.history.containers.images.get(name).is_some_and(|(for_attempt, _)| *for_attempt == attempt);
    let busy = facts.history.flights.contains_key(&Op::Container(name.clone()));
    // One that has run before waits for its turn: it may have ended for good.
    if !there && !busy && facts.record(container).is_none() {
        ensure_image(facts, draft, container, attempt);
    }
}

/// Whether those after it in the list wait for its postStart hook: while it is on its way to it, not
/// while it waits after a failure.
pub(super) fn holds_the_next(facts: PlanInputs<'_>, draft: &Draft, container: &Container) -> bool {
    let name = &container.name;
    let newest = facts.observed.newest(name).map(|newest| &newest.id);
    let is_its = |op: &Op| match op {
        Op::Container(of) | Op::Image(of) => of == name,
        Op::PostStart(id) => Some(id) == newest,
        _ => false,
    };
    container.lifecycle.post_start.is_some()
        && (facts.history.flights.keys().any(is_its)
            || draft.actions.iter().any(|action| is_its(&action.op()))
            || newest.is_some_and(|id| facts.history.containers.hooks.is_pending(id)))
}

/// The record that counts: one of another sandbox says nothing about an init container.
fn record<'a>(
    facts: PlanInputs<'a>,
    container: &Container,
    place: Option<&SandboxRef>,
) -> Option<&'a Instance> {
    match (container.role, place) {
        (Role::Regular | Role::Ephemeral, _) | (_, None) => facts.record(container),
        (Role::Init | Role::Sidecar, Some(place)) => facts.record_in(container, &place.sandbox),
    }
}

fn next(facts: PlanInputs<'_>, draft: &mut Draft, container: &Container, place: Option<&SandboxRef>) -> Next {
    let Some(instance) = record(facts, container, place) else {
        return Next::Another { ended: None };
    };
    match &instance.state {
        InstanceState::Running { .. } => {
            post_start(facts, draft, container);
            Next::Nothing
        }
        InstanceState::Created if place.is_some_and(|p| p.sandbox == instance.sandbox) => {
            // Made by a call whose answer was lost, or by an agent that is gone.
            Next::Start { attempt: instance.attempt, id: instance.id.clone() }
        }
        InstanceState::Created if container.role == Role::Ephemeral => Next::Nothing,
        InstanceState::Created => Next::Another { ended: None },
        InstanceState::Exited(_) | InstanceState::Unknown if !again(facts, container, instance) => {
            Next::Nothing
        }
        InstanceState::Exited(_) | InstanceState::Unknown => {
            let seen = facts.history.containers.exits.get(&instance.id).copied().unwrap_or(facts.now);
            let key = crash_key(facts.pod, container);
            match facts.history.backoffs.crash.blocked_since_event(&key, seen, facts.now) {
                Some(until) => {
                    draft.wake_at(until);
                    draft.waits.push(Wait { container: container.name.clone(), image: false, until });
                    Next::Nothing
                }
                None => Next::Another { ended: Some(seen) },
            }
        }
    }
}

/// Whether the runtime has one of it that may run or not.
fn is_lost(facts: PlanInputs<'_>, container: &Container) -> bool {
    let mut own = facts.observed.containers.iter().filter(|c| c.name == container.name);
    own.any(|c| c.state == InstanceState::Unknown)
}

/// Whether one that has ended so is started again.
fn again(facts: PlanInputs<'_>, container: &Container, instance: &Instance) -> bool {
    if facts.history.makes_anew(&instance.id) {
        return true;
    }
    let code = match &instance.state {
        InstanceState::Exited(exit) => exit.code,
        _ => UNKNOWN_CODE,
    };
    match container.role {
        Role::Sidecar => true,
        Role::Regular => starts_again(container, code),
        Role::Init => ended::failure(instance).is_some_and(|code| starts_again(container, code)),
        // What people looked into is left as it is.
        Role::Ephemeral => false,
    }
}

/// The hook of one that this agent has started.
fn post_start(facts: PlanInputs<'_>, draft: &mut Draft, container: &Container) {
    let running = facts
        .observed
        .newest(&container.name)
        .filter(|instance| matches!(instance.state, InstanceState::Running { .. }))
        .filter(|instance| facts.history.containers.hooks.is_pending(&instance.id));
    if let Some(instance) = running {
        let (container, id) = (container.name.clone(), instance.id.clone());
        draft.act(facts, Action::PostStart { container, id, address: super::address(facts) });
    }
}

/// Of one image at most one fetch is under way: whoever asks next finds it there.
fn ensure_image(facts: PlanInputs<'_>, draft: &mut Draft, container: &Container, attempt: u32) {
    let same = |name: &String| {
        *name != container.name && facts.pod.container(name).is_some_and(|c| c.image == container.image)
    };
    let under_way = facts.history.flights.keys().any(|op| matches!(op, Op::Image(name) if same(name)));
    let begins =
        draft.actions.iter().any(|a| matches!(a, Action::EnsureImage { container, .. } if same(container)));
    if under_way || begins {
        return;
    }
    match facts.history.backoffs.pull.blocked_until(&pull_key(facts.pod, container), facts.now) {
        Some(until) => {
            draft.wake_at(until);
            if facts.history.containers.troubles.contains_key(&container.name) {
                draft.waits.push(Wait { container: container.name.clone(), image: true, until });
            }
        }
        None => draft.act(facts, Action::EnsureImage { container: container.name.clone(), attempt }),
    }
}

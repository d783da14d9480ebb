//! What is said of a pod, computed from what is observed and remembered, with the
//! kubelet's reasons and messages. Pure: no clock, no I/O. Called by the publisher.

mod column;
mod conditions;
mod container;

use std::time::Duration;

use gantry_model::pod::qos::qos;
use gantry_model::pod::{Container, Pod, Role};

use super::last::LastEnd;
use super::plan::restart_all::RESTARTING_ALL;
use super::plan::{Ended, UNKNOWN_CODE, unknown_exit};
use super::restart;
use super::status::{ContainerState, ContainerStatus, Phase, PodStatus};
use super::worker_state::WorkerState;
use super::{Life, Orders, PodFailure, StopStep};
use crate::admission::Rejection;
use crate::node::NodeInfo;
use crate::runtime::{Exit, Observed};
use container::View;

/// MaxPodTerminationMessageLogLength, divided among the containers.
const MOST_WORDS: usize = 12 << 10;
const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Everything a status is made from.
#[derive(Debug, Clone, Copy)]
pub struct StatusInputs<'a> {
    /// What should run.
    pub pod: &'a Pod,
    /// What was asked for.
    pub orders: &'a Orders,
    /// Where it is.
    pub life: Life,
    /// What runs.
    pub observed: &'a Observed,
    /// What is remembered.
    pub history: &'a WorkerState,
    /// On the monotonic clock.
    pub now: Duration,
    /// What pods learn of their node.
    pub node: &'a NodeInfo,
}

/// Everything but the stages, the events and the times, which the publisher knows.
#[must_use]
pub fn status(seen: StatusInputs<'_>) -> PodStatus {
    let StatusInputs { pod, orders, life, observed, history, now, node } = seen;
    let going_on = orders.kill.is_none() && history.stage.ended().is_none();
    let view = View { pod, observed, history, now, going_on };
    let of = |list: &[Container]| list.iter().map(|c| view.container(c)).collect::<Vec<_>>();
    let (mut init_containers, mut containers) = (of(&pod.init_containers), of(&pod.containers));
    let ephemeral_containers = of(&pod.ephemeral_containers);
    let over = is_over(life);
    if over {
        close(pod, &mut init_containers, &mut containers);
    }
    let end = end_of(orders, history, over);
    let phase = match &end {
        Some(end) => end.phase,
        None => phase(&view, over, view.has_begun(), &init_containers, &containers),
    };
    let mut conditions = conditions::all(&view, phase, &init_containers, &containers);
    if matches!(history.stage.ended(), Some((Ended::Refused, _))) && observed.containers.is_empty() {
        // Nothing of it ever was: upstream says no more than why.
        (init_containers, containers, conditions) = (Vec::new(), Vec::new(), Vec::new());
    }
    let (api_reason, api_message) = end.map(|end| (end.reason, end.message)).unwrap_or_default();
    let limit = MOST_WORDS / (init_containers.len() + containers.len()).max(1);
    init_containers.iter_mut().chain(&mut containers).for_each(|status| shorten(status, limit));
    let ips = view.ips();
    PodStatus {
        life,
        phase,
        reason: column::reason(column::ColumnInputs {
            phase,
            api_reason: &api_reason,
            killed: orders.kill.is_some(),
            conditions: &conditions,
            init_containers: &init_containers,
            containers: &containers,
        }),
        message: match api_message.as_str() {
            "" => view.message(&init_containers, &containers),
            message => message.to_owned(),
        },
        api_reason,
        api_message,
        disrupted: orders.verdict.as_ref().and_then(|v| v.disrupted.clone()).filter(|_| over),
        observed_generation: pod.generation,
        runtime: node.runtime_name.clone(),
        recursive_read_only: node.recursive_read_only,
        ip: ips.first().cloned().unwrap_or_default(),
        ips,
        host_ips: node.ips.now(),
        qos: qos(pod),
        cgroup: history.resizing.cgroup,
        conditions,
        killed: orders.kill.is_some() && history.stage.ended().is_none(),
        init_containers,
        containers,
        ephemeral_containers,
        ..PodStatus::default()
    }
}

/// What the pod has come to, other than by its containers. A phase that the API has as terminal is
/// told from the first moment on (trap 3), every other when nothing runs any more.
fn end_of(orders: &Orders, history: &WorkerState, over: bool) -> Option<LastEnd> {
    let failed = |reason: &str, message: String| {
        Some(LastEnd { phase: Phase::Failed, reason: reason.to_owned(), message })
    };
    match (history.stage.ended(), &orders.verdict) {
        (Some((Ended::Before, _)), _) => history.api.last.end.clone(),
        _ if !over => None,
        (Some((Ended::Refused, _)), _) => {
            let Rejection { reason, message } = history.api.refused.as_ref()?;
            failed(reason, format!("Pod was rejected: {message}"))
        }
        (Some((Ended::DeadlineExceeded, _)), _) => failed("DeadlineExceeded", DEADLINE_MESSAGE.to_owned()),
        (_, Some(PodFailure { reason, message, .. })) => failed(reason, message.clone()),
        (Some((Ended::Finished, _)) | None, None) => None,
    }
}

/// Whether nothing runs any more and nothing will.
fn is_over(life: Life) -> bool {
    match life {
        Life::Stopped | Life::Gone => true,
        Life::Stopping { step, .. } => step != StopStep::Containers,
        Life::Waiting | Life::Starting | Life::Running => false,
    }
}

/// The end leaves no container waiting, as the kubelet's TerminatePod: what is missing once the pod
/// was initialized counts as failed, and so do init containers before the last that left a trace.
fn close(pod: &Pod, init_containers: &mut [ContainerStatus], containers: &mut [ContainerStatus]) {
    if pod.containers.is_empty() {
        return;
    }
    let trace = |status: &ContainerStatus| {
        status.last_exit.is_some() || !matches!(status.state, ContainerState::Waiting { .. })
    };
    let succeeded = |status: &ContainerStatus| match status.role {
        Role::Sidecar => status.started,
        _ => matches!(&status.state, ContainerState::Terminated(exit) if exit.initialized()),
    };
    let initialized = init_containers.is_empty()
        || containers.iter().any(trace)
        || init_containers.last().is_some_and(succeeded);
    let reached = init_containers.iter().rposition(trace).map_or(1, |at| at + 1);
    let missing = init_containers.iter_mut().take(reached);
    for status in missing.chain(containers.iter_mut().filter(|_| initialized)) {
        if matches!(status.state, ContainerState::Waiting { .. }) {
            status.state = ContainerState::Terminated(unknown_exit());
        }
    }
}

fn shorten(status: &mut ContainerStatus, limit: usize) {
    let state = match &mut status.state {
        ContainerState::Terminated(exit) => Some(exit),
        _ => None,
    };
    for exit in state.into_iter().chain(&mut status.last_exit) {
        if exit.message.len() > limit {
            let at = exit.message.floor_char_boundary(limit);
            exit.message.truncate(at);
        }
    }
}

/// Whether a container that has ended with this code is to be started again.
fn starts_again(container: &Container, exit: &Exit) -> bool {
    match container.role {
        Role::Sidecar => true,
        Role::Init => !exit.initialized() && restart::starts_again(container, failure_of(exit)),
        Role::Regular => restart::starts_again(container, exit.code),
        Role::Ephemeral => false,
    }
}

/// The same, for an end that may be no more than a part of starting all containers anew.
fn is_restartable(container: &Container, exit: &Exit) -> bool {
    exit.reason == RESTARTING_ALL || restart::starts_again(container, failure_of(exit))
}

/// The code of an init container that has failed, never 0.
fn failure_of(exit: &Exit) -> i32 {
    if exit.code == 0 { UNKNOWN_CODE } else { exit.code }
}

/// As the kubelet's getPhase. `begun`: a regular container was made in the present sandbox. A pod
/// whose end is complete is never Pending or Running.
fn phase(
    view: &View<'_>,
    over: bool,
    begun: bool,
    init_containers: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Phase {
    let init = InitTally::of(view.pod, init_containers);
    let tally = Tally::of(view, containers);
    let succeeded = tally.waiting == 0 && tally.running == 0 && tally.stopped == tally.succeeded;
    if over {
        let all = init.failed == 0 && init.pending == 0 && succeeded;
        return if all { Phase::Succeeded } else { Phase::Failed };
    }
    if init.failed > 0 {
        return Phase::Failed;
    }
    if init.pending > 0 || (init.pending_sidecars > 0 && !begun) || tally.waiting + init.waiting > 0 {
        return Phase::Pending;
    }
    if tally.running + init.running > 0 {
        return Phase::Running;
    }
    match () {
        () if tally.stopped == 0 => Phase::Pending,
        () if tally.stopped != tally.for_good => Phase::Running,
        () if tally.stopped == tally.succeeded => Phase::Succeeded,
        () => Phase::Failed,
    }
}

/// Init containers and sidecars, counted as getPhase does.
#[derive(Default)]
struct InitTally {
    pending: usize,
    failed: usize,
    pending_sidecars: usize,
    waiting: usize,
    running: usize,
}

impl InitTally {
    fn of(pod: &Pod, statuses: &[ContainerStatus]) -> Self {
        let mut tally = Self::default();
        for (container, status) in pod.init_containers.iter().zip(statuses) {
            match container.role {
                Role::Sidecar => tally.sidecar(status),
                Role::Init | Role::Regular | Role::Ephemeral => tally.init(container, status),
            }
        }
        tally
    }

    fn sidecar(&mut self, status: &ContainerStatus) {
        match &status.state {
            ContainerState::Running { .. } => {
                self.pending_sidecars += usize::from(!status.started);
                self.running += 1;
            }
            ContainerState::Waiting { .. } if status.last_exit.is_none() => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            ContainerState::Waiting { .. } | ContainerState::Terminated(_) => {}
        }
    }

    fn init(&mut self, container: &Container, status: &ContainerStatus) {
        let exit = match &status.state {
            ContainerState::Terminated(exit) => Some(exit),
            ContainerState::Waiting { .. } => status.last_exit.as_ref(),
            ContainerState::Running { .. } => None,
        };
        match exit {
            None => self.pending += 1,
            Some(exit) if exit.initialized() => {}
            Some(exit) if is_restartable(container, exit) => {}
            Some(_) => self.failed += 1,
        }
    }
}

/// Regular containers, counted as getPhase does.
#[derive(Default)]
struct Tally {
    waiting: usize,
    running: usize,
    stopped: usize,
    for_good: usize,
    succeeded: usize,
}

impl Tally {
    fn of(view: &View<'_>, statuses: &[ContainerStatus]) -> Self {
        let mut tally = Self::default();
        for (container, status) in view.pod.containers.iter().zip(statuses) {
            let anew = view.going_on && view.history.makes_anew(&status.id);
            match (&status.state, &status.last_exit) {
                (ContainerState::Running { .. }, _) => tally.running += 1,
                (ContainerState::Waiting { .. }, None) => tally.waiting += 1,
                (ContainerState::Waiting { .. }, Some(exit)) => {
                    tally.stop(container, exit, anew, false);
                }
                (ContainerState::Terminated(exit), _) => tally.stop(container, exit, anew, true),
            }
        }
        tally
    }

    /// `anew`: whatever its code, it is started again.
    fn stop(&mut self, container: &Container, exit: &Exit, anew: bool, now: bool) {
        self.stopped += 1;
        let again = anew || exit.reason == RESTARTING_ALL || restart::starts_again(container, exit.code);
        self.for_good += usize::from(!again);
        self.succeeded += usize::from(now && exit.code == 0);
    }
}

#[cfg(test)]
mod tests;

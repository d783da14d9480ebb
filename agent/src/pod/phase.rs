//! What is said of a pod, computed from what is observed and remembered, with the
//! kubelet's reasons and messages. Pure: no clock, no I/O. Called by the publisher.

use std::sync::Arc;
use std::time::Duration;

use super::history::{History, Trouble};
use super::plan::{Op, UNKNOWN_CODE};
use super::restart::{crash_key, go_duration, pull_key, restarts};
use super::spec::{Container, Pod, RestartPolicy};
use super::status::{ContainerState, ContainerStatus, Phase, PodStatus};
use super::{Life, Orders};
use crate::runtime::{Exit, Instance, InstanceState, Observed};

/// A failure is shown as what failed for this long, then as the back-off it led to.
const FRESH: Duration = Duration::from_secs(1);

/// Everything but the stages and the time the pod was taken up, which the publisher knows.
#[must_use]
pub fn status(
    pod: &Pod,
    orders: &Orders,
    life: Life,
    observed: &Observed,
    history: &History,
    now: Duration,
) -> PodStatus {
    let going_on = orders.kill.is_none() && !history.finished;
    let view = View { pod, observed, history, now, going_on };
    let containers: Vec<ContainerStatus> = pod.containers.iter().map(|c| view.container(c)).collect();
    let phase = phase(pod.restart_policy, life, &containers);
    let ip = observed.newest_sandbox().filter(|s| s.ready).map(|s| s.ip.clone()).unwrap_or_default();
    PodStatus {
        life,
        phase,
        reason: reason(life, phase, orders, &containers),
        message: message(history, &containers),
        ip,
        started_at: 0,
        killed: orders.kill.is_some() && !history.finished,
        containers,
        spans: Arc::from([]),
    }
}

struct View<'a> {
    pod: &'a Pod,
    observed: &'a Observed,
    history: &'a History,
    now: Duration,
    going_on: bool,
}

impl View<'_> {
    fn container(&self, container: &Container) -> ContainerStatus {
        let name = &container.name;
        let newest = self.observed.newest(name).or_else(|| self.history.last.get(name));
        let mut state = newest.map_or_else(creating, |instance| self.plain(instance));
        let mut last_exit = newest.and_then(|n| self.exit_before(n));
        if let Some(waiting) = self.waiting(container, &state) {
            if let ContainerState::Terminated(exit) = state {
                last_exit = Some(exit);
            }
            state = waiting;
        }
        let log_of = |n: &Instance| !matches!(n.state, InstanceState::Created) && !n.log_path.is_empty();
        let log = newest.filter(|n| log_of(n)).or_else(|| newest.and_then(|n| self.before(n)));
        ContainerStatus {
            name: name.clone(),
            id: newest.map(|n| n.id.clone()).unwrap_or_default(),
            image: container.image.clone(),
            ready: matches!(state, ContainerState::Running { .. }),
            state,
            last_exit,
            restart_count: newest.map_or(0, |n| n.attempt),
            log_path: log.map(|n| n.log_path.clone()).unwrap_or_default(),
        }
    }

    fn plain(&self, instance: &Instance) -> ContainerState {
        match &instance.state {
            InstanceState::Created => creating(),
            InstanceState::Running { started_at } => ContainerState::Running { started_at: *started_at },
            InstanceState::Exited(exit) => ContainerState::Terminated(exit.clone()),
            InstanceState::Unknown => ContainerState::Terminated(Exit {
                code: UNKNOWN_CODE,
                reason: "ContainerStatusUnknown".to_owned(),
                message: "The container could not be located when the pod was terminated".to_owned(),
                started_at: 0,
                finished_at: 0,
            }),
        }
    }

    /// The waiting state that hides the plain one of a container that is to be started.
    fn waiting(&self, container: &Container, plain: &ContainerState) -> Option<ContainerState> {
        let to_start = match plain {
            ContainerState::Running { .. } => false,
            ContainerState::Waiting { .. } => true,
            ContainerState::Terminated(exit) => self.going_on && restarts(self.pod.restart_policy, exit.code),
        };
        if !to_start {
            return None;
        }
        let trouble = self.history.troubles.get(&container.name);
        let fresh = trouble.is_some_and(|(_, since)| self.now < *since + FRESH);
        let crashed =
            matches!(plain, ContainerState::Terminated(_)).then(|| self.crash_loop(container)).flatten();
        match (trouble, crashed) {
            (Some((trouble, _)), None) => Some(self.trouble(container, trouble, fresh)),
            (Some((trouble, _)), Some(_)) if fresh => Some(self.trouble(container, trouble, fresh)),
            (_, crashed) => crashed,
        }
    }

    fn trouble(&self, container: &Container, trouble: &Trouble, fresh: bool) -> ContainerState {
        let key = pull_key(self.pod, container);
        let backing_off = self.going_on && !fresh && self.history.pull.blocked(&key, self.now).is_some();
        if trouble.reason == "ErrImagePull" && backing_off {
            return ContainerState::Waiting {
                reason: "ImagePullBackOff".to_owned(),
                message: format!(
                    "Back-off pulling image {:?}: ErrImagePull: {}",
                    container.image, trouble.message
                ),
            };
        }
        ContainerState::Waiting { reason: trouble.reason.clone(), message: trouble.message.clone() }
    }

    fn crash_loop(&self, container: &Container) -> Option<ContainerState> {
        let newest = self.observed.newest(&container.name)?;
        let seen = self.history.exits.get(&newest.id)?;
        let key = crash_key(self.pod, container);
        let busy = self.history.flights.contains_key(&Op::Container(container.name.clone()));
        self.history.crash.blocked_since_event(&key, *seen, self.now).filter(|_| !busy)?;
        Some(ContainerState::Waiting {
            reason: "CrashLoopBackOff".to_owned(),
            message: format!(
                "back-off {} restarting failed container={} pod={}",
                go_duration(self.history.crash.delay(&key)),
                container.name,
                self.pod.formatted()
            ),
        })
    }

    /// The attempt before this one, if its record is still there.
    fn before(&self, instance: &Instance) -> Option<&Instance> {
        let older =
            self.observed.containers.iter().filter(|c| c.name == instance.name && c.id != instance.id);
        older.max_by_key(|c| (c.attempt, c.created_at))
    }

    fn exit_before(&self, instance: &Instance) -> Option<Exit> {
        self.before(instance).and_then(Instance::exit).cloned()
    }
}

fn creating() -> ContainerState {
    ContainerState::Waiting { reason: "ContainerCreating".to_owned(), message: String::new() }
}

/// As the kubelet's getPhase. A pod whose end is complete is never Pending or Running.
fn phase(policy: RestartPolicy, life: Life, containers: &[ContainerStatus]) -> Phase {
    let (mut waiting, mut running, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for container in containers {
        match &container.state {
            ContainerState::Running { .. } => running += 1,
            ContainerState::Waiting { .. } if container.last_exit.is_some() => stopped += 1,
            ContainerState::Waiting { .. } => waiting += 1,
            ContainerState::Terminated(exit) => {
                stopped += 1;
                succeeded += usize::from(exit.code == 0);
            }
        }
    }
    let all_succeeded = waiting == 0 && running == 0 && stopped == succeeded;
    if matches!(life, Life::Stopped | Life::Gone) {
        return if all_succeeded { Phase::Succeeded } else { Phase::Failed };
    }
    if waiting > 0 {
        return Phase::Pending;
    }
    if running > 0 {
        return Phase::Running;
    }
    match policy {
        RestartPolicy::Always => Phase::Running,
        _ if all_succeeded => Phase::Succeeded,
        RestartPolicy::Never => Phase::Failed,
        RestartPolicy::OnFailure => Phase::Running,
    }
}

/// As the table of `kubectl get pods`: the first container with something to say wins.
fn reason(life: Life, phase: Phase, orders: &Orders, containers: &[ContainerStatus]) -> String {
    if orders.kill.is_some() && !matches!(life, Life::Stopped | Life::Gone) {
        return "Terminating".to_owned();
    }
    let mut reason = phase.as_str().to_owned();
    let mut any_runs = false;
    for container in containers.iter().rev() {
        match &container.state {
            ContainerState::Waiting { reason: why, .. } => reason.clone_from(why),
            ContainerState::Terminated(exit) if !exit.reason.is_empty() => reason.clone_from(&exit.reason),
            ContainerState::Terminated(exit) => reason = format!("ExitCode:{}", exit.code),
            ContainerState::Running { .. } => any_runs = true,
        }
    }
    if reason == "Completed" && any_runs { "Running".to_owned() } else { reason }
}

/// The pod's own trouble first, then the first container's.
fn message(history: &History, containers: &[ContainerStatus]) -> String {
    let of_container = || {
        containers.iter().find_map(|container| match &container.state {
            ContainerState::Waiting { message, .. } if !message.is_empty() => {
                Some(format!("container {}: {message}", container.name))
            }
            ContainerState::Terminated(exit) if !exit.message.is_empty() => {
                Some(format!("container {}: {}", container.name, exit.message))
            }
            _ => None,
        })
    };
    history.pod_trouble.clone().or_else(of_container).unwrap_or_default()
}

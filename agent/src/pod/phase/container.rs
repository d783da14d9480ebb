//! The status of one container, and what of a pod's status needs the same facts. Pure. Called by
//! [`super::status`].

use std::time::Duration;

use gantry_model::go_duration::go_duration;
use gantry_model::pod::{Container, Pod, Role};

use super::starts_again;
use crate::pod::plan::restart_all::{REMOVED, RESTARTING_ALL};
use crate::pod::plan::{Op, unknown_exit, vanished_exit};
use crate::pod::restart::{crash_key, pull_key};
use crate::pod::status::{ContainerState, ContainerStatus};
use crate::pod::worker_state::{WaitReason, WorkerState};
use crate::runtime::{Exit, Instance, InstanceState, Observed, Sandbox};

/// A failure is shown as what failed for this long, then as the back-off it led to.
const FRESH: Duration = Duration::from_secs(1);
const NO_RECORD: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";

/// The facts.
pub(super) struct View<'a> {
    pub(super) pod: &'a Pod,
    pub(super) observed: &'a Observed,
    pub(super) history: &'a WorkerState,
    pub(super) now: Duration,
    pub(super) going_on: bool,
}

impl View<'_> {
    pub(super) fn container(&self, container: &Container) -> ContainerStatus {
        let name = &container.name;
        let newest = self.observed.newest(name).or_else(|| self.history.containers.last.get(name));
        let mut state = newest.map_or_else(|| self.absent_state(container), |instance| self.plain(instance));
        let api = self.history.api.last.containers.get(name);
        let before = newest.and_then(|n| self.before(n));
        let mut last_exit = before.and_then(|n| self.exit(n)).or_else(|| self.exit_before(container, newest));
        let mut last_id = before.map(|n| n.id.clone()).unwrap_or_default();
        if let Some(waiting) = self.waiting(container, &state) {
            if let ContainerState::Terminated(exit) = state {
                last_exit = Some(exit);
                last_id = newest.map(|n| n.id.clone()).unwrap_or_default();
            }
            state = waiting;
        }
        let log_of = |n: &Instance| !matches!(n.state, InstanceState::Created) && !n.log_path.is_empty();
        let log = newest.filter(|n| log_of(n)).or_else(|| newest.and_then(|n| self.before(n)));
        let ended_before = matches!(state, ContainerState::Terminated(_)).then_some(api).flatten();
        let id = newest.map(|n| n.id.clone()).or_else(|| ended_before.map(|api| api.id.clone()));
        let id = id.unwrap_or_default();
        let started = matches!(state, ContainerState::Running { .. })
            && self.history.containers.hooks.is_done(&id)
            && self.history.probing.is_started(container, &id);
        let ready = match container.role {
            Role::Init => matches!(&state, ContainerState::Terminated(exit) if exit.initialized()),
            Role::Regular | Role::Sidecar => started && self.history.probing.ready(container, &id),
            Role::Ephemeral => false,
        };
        let image = newest.map(|n| (&n.image, &n.image_id));
        let (image, image_id) = image.or_else(|| ended_before.map(|api| (&api.image, &api.image_id))).unzip();
        let runs = matches!(state, ContainerState::Running { .. });
        ContainerStatus {
            name: name.clone(),
            role: container.role,
            id,
            image: image.filter(|name| !name.is_empty()).unwrap_or(&container.image).clone(),
            image_id: image_id.cloned().unwrap_or_default(),
            started,
            ready,
            state,
            last_exit,
            last_id,
            user: newest.and_then(|n| n.user.clone()),
            actual: newest.and_then(|n| n.actual).filter(|_| runs),
            memory_request: self.memory_request(name).filter(|_| runs),
            restart_count: self.restart_count(container, newest),
            log_path: log.map(|n| n.log_path.clone()).unwrap_or_default(),
        }
    }

    /// The runtime is told none: what was last actuated.
    fn memory_request(&self, name: &str) -> Option<String> {
        self.history.resizing.actuated.containers.get(name)?.requests.get("memory").cloned()
    }

    /// Never falls: what the runtime has forgotten the API may remember (trap 8).
    fn restart_count(&self, container: &Container, newest: Option<&Instance>) -> u32 {
        let api = self.history.api.last.containers.get(&container.name).map_or(0, |api| api.restart_count);
        match newest {
            Some(instance) => instance.attempt.max(api),
            // It ran, and is nowhere to be found: that counts as a restart, unless the pod ends.
            None => api + u32::from(self.has_vanished(container) && self.going_on),
        }
    }

    /// The API says that it runs, and the runtime does not know it.
    fn has_vanished(&self, container: &Container) -> bool {
        let api = self.history.api.last.containers.get(&container.name);
        let ran = api.is_some_and(|api| matches!(api.state, ContainerState::Running { .. }));
        ran && !self.observed.containers.iter().any(|c| c.name == container.name)
            && !self.history.containers.last.contains_key(&container.name)
    }

    /// How the attempt before the newest ended, of which the runtime has no record any more.
    fn exit_before(&self, container: &Container, newest: Option<&Instance>) -> Option<Exit> {
        if let Some(exit) = self.history.containers.removed.get(&container.name) {
            return Some(exit.clone());
        }
        let api = self.history.api.last.containers.get(&container.name)?;
        match (&api.state, newest) {
            (ContainerState::Terminated(exit), Some(newest)) if newest.id != api.id => Some(exit.clone()),
            (ContainerState::Running { .. }, None)
                if api.last_exit.is_none() && self.has_vanished(container) =>
            {
                Some(vanished_exit(0))
            }
            _ => api.last_exit.clone(),
        }
    }

    /// Of a container that has no record.
    fn absent_state(&self, container: &Container) -> ContainerState {
        if self.history.stage.is_restarting_all() && container.role != Role::Ephemeral {
            let reason = RESTARTING_ALL.to_owned();
            return ContainerState::Waiting { reason, message: REMOVED.to_owned() };
        }
        let api = self.history.api.last.containers.get(&container.name);
        if let Some(ContainerState::Terminated(exit)) = api.map(|api| &api.state)
            && (!self.going_on || !starts_again(container, exit))
        {
            return ContainerState::Terminated(exit.clone());
        }
        if container.role == Role::Init && self.has_begun() {
            let exit = Exit {
                code: 0,
                reason: "Completed".to_owned(),
                message: NO_RECORD.to_owned(),
                ..unknown_exit()
            };
            return ContainerState::Terminated(exit);
        }
        self.creating()
    }

    /// Whether a regular container was made in the present sandbox.
    pub(super) fn has_begun(&self) -> bool {
        let Some(sandbox) = self.observed.newest_sandbox() else { return false };
        let regular = |name: &String| self.pod.containers.iter().any(|c| c.name == *name);
        let mut here = self.observed.containers.iter().chain(self.history.containers.last.values());
        here.any(|c| c.sandbox == sandbox.id && regular(&c.name))
    }

    fn creating(&self) -> ContainerState {
        let reason =
            if self.pod.init_containers.is_empty() { "ContainerCreating" } else { "PodInitializing" };
        ContainerState::Waiting { reason: reason.to_owned(), message: String::new() }
    }

    fn plain(&self, instance: &Instance) -> ContainerState {
        match &instance.state {
            InstanceState::Created => self.creating(),
            // Running is told once its hook is done, as upstream.
            InstanceState::Running { .. } if self.history.containers.hooks.is_pending(&instance.id) => {
                self.creating()
            }
            InstanceState::Running { started_at } => ContainerState::Running { started_at: *started_at },
            InstanceState::Exited(_) | InstanceState::Unknown => {
                ContainerState::Terminated(self.exit(instance).unwrap_or_else(unknown_exit))
            }
        }
    }

    /// With what it left to say.
    fn exit(&self, instance: &Instance) -> Option<Exit> {
        let mut exit = instance.exit()?.clone();
        if let Some(words) = self.history.containers.words.get(&instance.id).filter(|words| !words.is_empty())
        {
            let colon = if exit.message.is_empty() { "" } else { ": " };
            exit.message = format!("{}{colon}{words}", exit.message);
        }
        Some(exit)
    }

    /// The waiting state that hides the plain one of a container that is to be started.
    fn waiting(&self, container: &Container, plain: &ContainerState) -> Option<ContainerState> {
        let to_start = match plain {
            ContainerState::Running { .. } => self.has_failed_hook(container),
            ContainerState::Waiting { .. } => true,
            ContainerState::Terminated(exit) => self.going_on && self.starts_again(container, exit),
        };
        if !to_start || !self.is_turn(container) {
            return None;
        }
        let trouble = self.history.containers.troubles.get(&container.name);
        let fresh = trouble.is_some_and(|(_, since)| self.now < *since + FRESH);
        let crashed =
            matches!(plain, ContainerState::Terminated(_)).then(|| self.crash_loop(container)).flatten();
        match (trouble, crashed) {
            (Some((trouble, _)), None) => Some(self.trouble(container, trouble, fresh)),
            (Some((trouble, _)), Some(_)) if fresh => Some(self.trouble(container, trouble, fresh)),
            // Between its end and its next start: the API takes no end back of what is not restarted.
            (None, None)
                if matches!(plain, ContainerState::Terminated(_)) && self.is_made_anew(container) =>
            {
                Some(self.creating())
            }
            (_, crashed) => crashed,
        }
    }

    /// One that was ended to be made anew is, whatever its code.
    fn starts_again(&self, container: &Container, exit: &Exit) -> bool {
        starts_again(container, exit) || self.is_made_anew(container)
    }

    fn is_made_anew(&self, container: &Container) -> bool {
        self.observed.newest(&container.name).is_some_and(|newest| self.history.makes_anew(&newest.id))
    }

    fn has_failed_hook(&self, container: &Container) -> bool {
        let newest = self.observed.newest(&container.name);
        newest.is_some_and(|instance| self.history.containers.hooks.is_failed(&instance.id))
    }

    /// A regular container's image may be fetched ahead; what goes wrong with it is told when it is
    /// its turn.
    fn is_turn(&self, container: &Container) -> bool {
        container.role != Role::Regular || self.has_begun() || self.is_init_done()
    }

    fn is_init_done(&self) -> bool {
        self.pod.init_containers.iter().all(|container| {
            let newest = self.observed.newest(&container.name);
            newest.is_some_and(|instance| match container.role {
                Role::Sidecar => {
                    matches!(instance.state, InstanceState::Running { .. })
                        && self.history.containers.hooks.is_done(&instance.id)
                        && self.history.probing.is_started(container, &instance.id)
                }
                Role::Init | Role::Regular | Role::Ephemeral => {
                    instance.exit().is_some_and(Exit::initialized)
                }
            })
        })
    }

    fn trouble(&self, container: &Container, trouble: &WaitReason, fresh: bool) -> ContainerState {
        let key = pull_key(self.pod, container);
        let backing_off =
            self.going_on && !fresh && self.history.backoffs.pull.blocked_until(&key, self.now).is_some();
        if trouble.is_of_pull() && backing_off {
            return ContainerState::Waiting {
                reason: "ImagePullBackOff".to_owned(),
                message: format!(
                    "Back-off pulling image {:?}: {}: {}",
                    trouble.image_or(&container.image),
                    trouble.reason,
                    trouble.message
                ),
            };
        }
        ContainerState::Waiting { reason: trouble.reason.clone(), message: trouble.message.clone() }
    }

    fn crash_loop(&self, container: &Container) -> Option<ContainerState> {
        let newest = self.observed.newest(&container.name)?;
        let seen = self.history.containers.exits.get(&newest.id)?;
        let key = crash_key(self.pod, container);
        let busy = self.history.flights.contains_key(&Op::Container(container.name.clone()));
        self.history.backoffs.crash.blocked_since_event(&key, *seen, self.now).filter(|_| !busy)?;
        Some(ContainerState::Waiting {
            reason: "CrashLoopBackOff".to_owned(),
            message: format!(
                "back-off {} restarting failed container={} pod={}",
                go_duration(self.history.backoffs.crash.delay(&key)),
                container.name,
                self.pod.formatted()
            ),
        })
    }

    /// The attempt before this one, if its record is still there.
    fn before(&self, instance: &Instance) -> Option<&Instance> {
        let all = self.observed.containers.iter().chain(self.history.containers.lost.values());
        let older = all.filter(|c| c.name == instance.name && c.id != instance.id);
        older.max_by_key(|c| (c.attempt, c.created_at))
    }

    /// The sandbox that serves the pod, if there is no reason to make another.
    pub(super) fn serving(&self) -> Option<&Sandbox> {
        let ready = self.observed.sandboxes.iter().filter(|s| s.ready).count();
        let serves = |s: &&Sandbox| s.serves(self.pod.namespaces.host_network);
        self.observed.newest_sandbox().filter(serves).filter(|_| ready == 1)
    }

    pub(super) fn ips(&self) -> Vec<String> {
        match self.observed.newest_sandbox().filter(|s| s.ready) {
            Some(sandbox) => sandbox.ips.clone(),
            None => Vec::new(),
        }
    }

    /// The pod's own trouble first, then the first container's.
    pub(super) fn message(&self, init: &[ContainerStatus], containers: &[ContainerStatus]) -> String {
        let of_container = || {
            init.iter().chain(containers).find_map(|container| match &container.state {
                ContainerState::Waiting { message, .. } if !message.is_empty() => {
                    Some(format!("container {}: {message}", container.name))
                }
                ContainerState::Terminated(exit) if exit.code != 0 && !exit.message.is_empty() => {
                    Some(format!("container {}: {}", container.name, exit.message))
                }
                _ => None,
            })
        };
        self.history.pod_trouble.clone().or_else(of_container).unwrap_or_default()
    }
}

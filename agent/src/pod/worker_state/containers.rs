//! What is remembered of a pod's containers: troubles, images, ends, last records, hooks. Pure: owns the bookkeeping; time
//! is an argument. A part of [`super::WorkerState`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::{Pod, RestartPolicy, Role};

use super::hooks::Hooks;
use super::{WaitReason, age};
use crate::pod::plan::{UNKNOWN_CODE, restart_all, vanished_exit};
use crate::pod::probing::{ProbeKind, Probing, Runner};
use crate::runtime::{Exit, Image, Instance, InstanceState, Observed};

/// A container when it was first seen running.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    at: Duration,
    /// How old it was.
    age: Duration,
    adopted: bool,
}

/// By name or by ID.
#[derive(Debug, Clone, Default)]
pub struct ContainerMemory {
    /// Troubles by container, with when they began.
    pub troubles: BTreeMap<String, (WaitReason, Duration)>,
    /// Container name → attempt it was fetched for, image.
    pub images: BTreeMap<String, (u32, Image)>,
    /// Container ID → when its end was first seen.
    pub exits: BTreeMap<String, Duration>,
    /// Container ID → what it left to say.
    pub words: BTreeMap<String, String>,
    /// Container IDs whose end was begun and told.
    pub killing: BTreeSet<String>,
    /// The newest record ever seen of each container.
    pub last: BTreeMap<String, Instance>,
    /// Of containers.
    pub hooks: Hooks,
    /// Container ID → since when its description is another than it was made from.
    pub redefined: BTreeMap<String, Duration>,
    /// The newest of each that somebody else has removed.
    pub lost: BTreeMap<String, Instance>,
    /// How those ended that were removed to start all anew, by name.
    pub removed: BTreeMap<String, Exit>,
    /// Those that a probe has found bad and whose policy starts them again: they are ended to be
    /// made anew, whatever code they end with.
    condemned: BTreeSet<String>,
    running: BTreeMap<String, Sighting>,
}

impl ContainerMemory {
    /// Whether this start of a container is ended to be made anew, whatever code it ends with.
    #[must_use]
    pub fn makes_anew(&self, id: &str) -> bool {
        self.redefined.contains_key(id) || self.condemned.contains(id)
    }

    /// Takes in what was observed of containers as they are.
    /// `own`: what is gone, this agent has removed.
    pub(super) fn absorb(&mut self, pod: &Pod, observed: &Observed, now: Duration, own: bool) {
        for instance in observed.containers.iter().filter(|instance| instance.exit().is_some()) {
            self.exits.entry(instance.id.clone()).or_insert(now);
        }
        let there: BTreeSet<&str> = observed.containers.iter().map(|c| c.id.as_str()).collect();
        self.killing.retain(|id| there.contains(id.as_str()));
        self.hooks.retain(|id| there.contains(id));
        let names: BTreeSet<&str> = observed.containers.iter().map(|c| c.name.as_str()).collect();
        for newest in names.into_iter().filter_map(|name| observed.newest(name)) {
            if matches!(newest.state, InstanceState::Running { .. }) && !self.hooks.is_failed(&newest.id) {
                self.troubles.remove(&newest.name);
            }
            self.last.insert(newest.name.clone(), newest.clone());
        }
        self.absorb_losses(&there, now, own);
        let mut kept: BTreeSet<&str> =
            self.last.values().chain(self.lost.values()).map(|c| c.id.as_str()).collect();
        kept.extend(there);
        self.exits.retain(|id, _| kept.contains(id.as_str()));
        self.words.retain(|id, _| kept.contains(id.as_str()));
        self.absorb_definitions(pod, observed, now);
    }

    /// Somebody has removed what ran or was to run: the one has ended, the other never was.
    fn absorb_losses(&mut self, there: &BTreeSet<&str>, now: Duration, own: bool) {
        let is_there = |last: &Instance| there.contains(last.id.as_str());
        self.last.retain(|_, last| is_there(last) || last.state != InstanceState::Created);
        for last in self.last.values_mut().filter(|last| !is_there(last)) {
            if let InstanceState::Running { started_at } = last.state {
                self.exits.insert(last.id.clone(), now);
                last.state = InstanceState::Exited(vanished_exit(started_at));
            }
            if !own {
                self.lost.insert(last.name.clone(), last.clone());
            }
        }
    }

    /// Only what runs is ended for it; an init container has done its work.
    fn absorb_definitions(&mut self, pod: &Pod, observed: &Observed, now: Duration) {
        self.redefined.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        for container in pod.containers.iter().chain(&pod.init_containers) {
            let Some(newest) = observed.newest(&container.name) else { continue };
            let runs = matches!(newest.state, InstanceState::Running { .. });
            let other = !newest.hash.is_empty() && newest.hash != container.hash;
            if runs && other && container.role != Role::Init {
                self.redefined.entry(newest.id.clone()).or_insert(now);
            }
        }
    }

    /// While the verdict is still there: a probe is forgotten with what it asked.
    pub(super) fn absorb_verdicts(&mut self, pod: &Pod, observed: &Observed, probing: &Probing) {
        self.condemned.retain(|id| observed.containers.iter().any(|c| c.id == *id));
        for container in pod.containers.iter().filter(|c| c.restart_policy != RestartPolicy::Never) {
            let Some(newest) = observed.newest(&container.name) else { continue };
            let bad = |kind| probing.bad(container, kind, &newest.id).is_some();
            if bad(ProbeKind::Liveness) || bad(ProbeKind::Startup) {
                self.condemned.insert(newest.id.clone());
            }
        }
    }

    /// Those that run and may be probed. `adopted`: what runs now, an earlier agent has started.
    pub(super) fn runners<'a>(
        &mut self,
        pod: &'a Pod,
        observed: &'a Observed,
        now: Duration,
        wall: i64,
        adopted: bool,
    ) -> Vec<Runner<'a>> {
        let newest = pod.all_containers().filter_map(|c| Some((c, observed.newest(&c.name)?)));
        let running: Vec<_> = newest
            .filter_map(|(container, instance)| match instance.state {
                InstanceState::Running { started_at } => Some((container, instance, started_at)),
                _ => None,
            })
            .collect();
        self.running.retain(|id, _| running.iter().any(|(_, instance, _)| instance.id == *id));
        let mut runners = Vec::with_capacity(running.len());
        for (container, instance, started_at) in running {
            let first = Sighting { at: now, age: age(started_at, wall), adopted };
            let seen = *self.running.entry(instance.id.clone()).or_insert(first);
            // Nothing is asked of a container before its own hook is done.
            if self.hooks.is_done(&instance.id) {
                let Sighting { at, age, adopted } = seen;
                runners.push(Runner { container, id: &instance.id, since: at, age, adopted });
            }
        }
        runners
    }

    /// Started by this agent.
    pub(super) fn note_start(&mut self, container: &str, id: &str, now: Duration) {
        self.troubles.remove(container);
        // Its age is known without asking the wall clock.
        self.running.insert(id.to_owned(), Sighting { at: now, age: Duration::ZERO, adopted: false });
    }

    /// Its image is another from now on.
    pub(super) fn forget_image(&mut self, container: &str) {
        self.images.remove(container);
        self.troubles.remove(container);
    }

    /// All containers begin anew, as in a new sandbox; what they were stays for the status.
    pub(super) fn forget_records(&mut self) {
        self.last.clear();
        self.images.clear();
    }

    /// How those end that are removed to start all containers anew: the one that was why by itself.
    pub(super) fn note_removal(&mut self, pod: &Pod, id: &str) {
        let Some(instance) = self.last.values().find(|last| last.id == id) else { return };
        let own = instance.exit().filter(|_| restart_all::is_source_of(pod, instance));
        let exit = own.cloned().unwrap_or_else(|| Exit {
            code: UNKNOWN_CODE,
            reason: restart_all::RESTARTING_ALL.to_owned(),
            message: restart_all::REMOVED.to_owned(),
            started_at: 0,
            finished_at: 0,
        });
        self.removed.insert(instance.name.clone(), exit);
    }

    /// The image whose pull a container waits for: its own, or that of a volume that it has mounted.
    /// None when it was not pulled: of such a wait upstream says nothing.
    pub(crate) fn image_of(&self, pod: &Pod, container: &str) -> Option<String> {
        let own = pod.container(container).map(|c| c.image.as_str()).unwrap_or_default();
        let trouble = self.troubles.get(container).map(|(trouble, _)| trouble);
        let image = match trouble {
            Some(trouble) if trouble.is_of_image() && !trouble.is_of_pull() => return None,
            Some(trouble) => trouble.image_or(own),
            None => own,
        };
        Some(image.to_owned())
    }
}

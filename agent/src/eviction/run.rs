//! The loop: looks, frees, ends. Owns its task, who was ended and the waiting for it; never decides who or why
//! ([`super::decide`], [`super::rank`]). Started by the kubelet's wiring.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::pod::{Pod, PodUid};
use gantry_model::signal::{Pressures, Signal, Starved};
use tokio::sync::watch;

use super::decide::{self, Memory};
use super::limits;
use super::message::{self, REASON};
use super::observe::Gauge;
use super::rank::rank;
use crate::admission;
use crate::config::eviction::{Policy, Rule};
use crate::events::sink::Recorder;
use crate::events::{Kind, NodeNote, Note};
use crate::gc::images::Reclaimer;
use crate::pod::worker::PodHandle;
use crate::pod::{Life, PodFailure};
use gantry_model::drain::DrainWatcher;
use gantry_model::observation::{Observation, Usage};

/// How often it is looked.
pub(crate) const EVERY: Duration = Duration::from_secs(10);
/// A pod's end takes at least so long before nobody waits for it any more.
const SHORTEST_WAIT: Duration = Duration::from_secs(10);
/// How long its volumes and cgroup may take after that.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// What a pod gets to end: nothing at all would be force.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What the loop stands on.
#[derive(Debug)]
pub(crate) struct World {
    /// Measures.
    pub gauge: Arc<dyn Gauge>,
    /// Whom it may end.
    pub pods: watch::Receiver<Arc<[PodHandle]>>,
    /// Frees what nobody needs.
    pub images: Reclaimer,
    /// Hears of it.
    pub recorder: Recorder,
    /// Counts it.
    pub metrics: Arc<Metrics>,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// Where the node's conditions and admission learn what it is short of.
    pub pressures: watch::Sender<Pressures>,
}

/// What is told of a pod that is ended.
struct EvictionNotice {
    message: String,
    /// Of its event.
    annotations: BTreeMap<String, String>,
    /// It makes room for others: its condition DisruptionTarget says so.
    disrupts: bool,
}

/// The loop.
#[derive(Debug)]
pub(crate) struct Evictor {
    policy: Policy,
    world: World,
    memory: Memory,
    /// Ended by this; one that hangs is not chosen again and again.
    ended: BTreeSet<PodUid>,
}

impl Evictor {
    /// Has looked at nothing yet.
    #[must_use]
    pub(crate) fn new(policy: Policy, world: World) -> Self {
        Self { policy, world, memory: Memory::default(), ended: BTreeSet::new() }
    }

    /// Until the drain.
    pub(crate) async fn run(mut self, mut drain: DrainWatcher) {
        if self.policy.rules.is_empty() {
            tracing::info!("no eviction threshold is set: pods are never ended for pressure");
            if !self.policy.local_limits {
                return;
            }
        }
        for signal in decide::passed_over(&self.policy) {
            tracing::error!(%signal, "eviction manager: found conflicting containerfs eviction. Ignoring.");
        }
        loop {
            let work = async {
                let victims = self.pass().await;
                if victims.is_empty() {
                    tokio::time::sleep(EVERY).await;
                } else {
                    // At once after that: one may not have been enough.
                    join_all(victims.iter().map(wait_gone)).await;
                }
            };
            tokio::select! {
                () = drain.wait_started() => return,
                () = work => {}
            }
        }
    }

    /// One look, and what follows. Returns who was ended, with what grace.
    async fn pass(&mut self) -> Vec<(PodHandle, Duration)> {
        let Some(look) = self.look().await else { return Vec::new() };
        let pass = self.memory.pass(&self.policy, &look, self.world.clock.mono());
        self.tell(pass.pressures);
        let above = self.end_above_limits(look.disks.images_apart).await;
        match above.is_empty() {
            false => above,
            true => self.relieve(&pass.starved, look).await.into_iter().collect(),
        }
    }

    /// Ends each pod that keeps more on the node's disk than it may.
    async fn end_above_limits(&mut self, images_apart: bool) -> Vec<(PodHandle, Duration)> {
        if !self.policy.local_limits {
            return Vec::new();
        }
        let mut limited = self.candidates();
        limited.retain(|handle| limits::is_limited(&handle.pod));
        if limited.is_empty() {
            return Vec::new();
        }
        let Some(usage) = self.usage().await else { return Vec::new() };
        let mut ended = Vec::new();
        for handle in limited {
            let used = usage.get(&handle.pod.uid);
            let Some(above) = used.and_then(|used| limits::find_exceeded(&handle.pod, used, images_apart))
            else {
                continue;
            };
            let end =
                EvictionNotice { message: above.message, annotations: BTreeMap::new(), disrupts: false };
            self.end(&handle, end, AT_ONCE, above.signal);
            ended.push((handle, AT_ONCE));
        }
        ended
    }

    /// Frees what nobody needs; ends one pod where that is not enough.
    async fn relieve(&mut self, starved: &[Rule], look: Observation) -> Option<(PodHandle, Duration)> {
        let first = starved.first()?.clone();
        let resource = first.signal.resource();
        tracing::warn!(%resource, signal = %first.signal, "eviction manager: attempting to reclaim");
        let note = format!("Attempting to reclaim {resource}");
        let kind = Kind::Warning;
        self.world.recorder.node(NodeNote { kind, reason: "EvictionThresholdMet", message: note });
        let look = match self.free(first.signal, &look).await {
            true => self.look().await?,
            false => look,
        };
        // Measured anew after anything was freed: an innocent is not ended for what is no more (#41032).
        if decide::is_enough(&first, &look) {
            tracing::info!(%resource, "eviction manager: able to reduce resource pressure without evicting pods.");
            return None;
        }
        self.end_one(starved, &look).await
    }

    async fn usage(&self) -> Option<Usage> {
        match self.world.gauge.usage().await {
            Ok(usage) => Some(usage),
            Err(error) => {
                tracing::error!(error, "eviction manager: failed to get summary stats");
                None
            }
        }
    }

    async fn look(&self) -> Option<Observation> {
        match self.world.gauge.look().await {
            Ok(look) => Some(look),
            Err(error) => {
                tracing::error!(error, "eviction manager: failed to get summary stats");
                None
            }
        }
    }

    fn tell(&self, pressures: Pressures) {
        self.world.pressures.send_if_modified(|old| {
            let new = *old != pressures;
            if new {
                tracing::warn!(?pressures, before = ?old, "the node's pressures change");
                *old = pressures;
            }
            new
        });
    }

    /// Frees what nobody needs where that may help; whether it was tried.
    async fn free(&self, signal: Signal, look: &Observation) -> bool {
        if !matches!(signal.resource(), Starved::Storage | Starved::Inodes) {
            return false;
        }
        let relief = decide::relief(signal, look.disks);
        if relief.containers {
            self.free_containers().await;
        }
        if relief.images {
            self.free_images(signal).await;
        }
        relief.containers || relief.images
    }

    /// Pods that have ended give back their containers, and what those have written; first of all, since an image that one
    /// of them stands on is not unused.
    async fn free_containers(&self) {
        tracing::info!("Attempting to delete unused containers");
        let all = self.world.pods.borrow().clone();
        let over = all.iter().filter(|handle| handle.status.borrow().is_over());
        join_all(over.map(|handle| async move {
            handle.free();
            let freed = handle.wait(|status| status.held == 0);
            if tokio::time::timeout(CLEAN_UP, freed).await.is_err() {
                let pod = handle.pod.full_name();
                tracing::warn!(pod, "eviction manager: timed out waiting for containers to be deleted");
            }
        }))
        .await;
    }

    async fn free_images(&self, signal: Signal) {
        if let Err(error) = self.world.images.remove_unused().await {
            tracing::warn!(
                %signal,
                error,
                "eviction manager: unexpected error when attempting to reduce resource pressure"
            );
        }
    }

    async fn end_one(&mut self, starved: &[Rule], look: &Observation) -> Option<(PodHandle, Duration)> {
        let first = starved.first()?;
        let usage = self.usage().await?;
        let mut victims = self.candidates();
        rank(&mut victims, |handle| &handle.pod, &usage, first.signal, look.disks);
        let Some(victim) = victims.into_iter().next() else {
            tracing::error!(signal = %first.signal, "eviction manager: unable to evict any pods from the node");
            return None;
        };
        self.count(starved, look);
        let grace = self.grace(first, &victim.pod);
        let used = usage.get(&victim.pod.uid);
        let (message, annotations) = message::words(&victim.pod, used, starved, &look.readings);
        let end = EvictionNotice { message, annotations, disrupts: true };
        self.end(&victim, end, grace, first.signal.as_str());
        Some((victim, grace))
    }

    /// Pods that use anything, but none that the node cannot do without.
    fn candidates(&mut self) -> Vec<PodHandle> {
        let all = self.world.pods.borrow().clone();
        self.ended.retain(|uid| all.iter().any(|handle| handle.pod.uid == *uid));
        let may = |handle: &&PodHandle| {
            handle.is_active()
                && !admission::is_critical(&handle.pod)
                && !self.ended.contains(&handle.pod.uid)
        };
        all.iter().filter(may).cloned().collect()
    }

    fn grace(&self, rule: &Rule, pod: &Pod) -> Duration {
        match rule.is_hard() {
            true => AT_ONCE,
            false => self.policy.longest_grace.min(pod.grace).max(AT_ONCE),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an age in seconds")]
    fn count(&self, starved: &[Rule], look: &Observation) {
        let now = self.world.clock.wall_nanos();
        for rule in starved {
            let at = look.readings.get(&rule.signal).map_or(0, |reading| reading.at);
            if at > 0 {
                let age = now.saturating_sub(at).max(0) as f64 / 1e9;
                self.world.metrics.eviction_stats_age.observe([rule.signal.as_str()], age);
            }
        }
    }

    fn end(&mut self, victim: &PodHandle, end: EvictionNotice, grace: Duration, signal: &'static str) {
        let EvictionNotice { message, annotations, disrupts } = end;
        let pod = &victim.pod;
        tracing::warn!(pod = pod.full_name(), uid = %pod.uid, message, ?grace, "evicting pod");
        let note = Note::pod(Kind::Warning, REASON, message.clone());
        victim.tell(Note { annotations, ..note });
        let disrupted = disrupts.then(|| message.clone());
        victim.evict(PodFailure { reason: REASON.to_owned(), message, disrupted }, Some(grace));
        self.ended.insert(pod.uid.clone());
        self.world.metrics.evictions.inc([signal]);
    }
}

/// Waits until nothing of the pod is left that takes room, so that the next look tells what its end has brought
/// (#43590); not for ever.
async fn wait_gone((victim, grace): &(PodHandle, Duration)) {
    let most = (*grace + *grace / 2).max(SHORTEST_WAIT) + CLEAN_UP;
    let over = victim.wait(|status| matches!(status.life, Life::Stopped | Life::Gone));
    let pod = victim.pod.full_name();
    match tokio::time::timeout(most, over).await {
        Ok(_) => tracing::info!(pod, "eviction manager: pods successfully cleaned up"),
        Err(_) => tracing::warn!(pod, "eviction manager: timed out waiting for pods to be cleaned up"),
    }
}

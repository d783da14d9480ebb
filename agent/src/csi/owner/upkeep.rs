//! What volumes need while their pods run: a driver that shows what changes is asked again and again
//! (`requiresRepublish` of its CSIDriver), and a claim that has become larger is looked at. Owns when; the pod's worker
//! has it done. Started by [`super::CsiVolumes::begin`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::join_all;
use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::{Pod, PodUid};
use tokio::time::timeout;

use super::{CsiVolumes, OwnerParts, Slot};
use crate::csi::expand::Expansion;
use crate::csi::expander::Expander;
use crate::csi::files::DevicePlace;
use crate::csi::steps::{EXPAND_IN_USE, PUBLISH, StepError, WantedVolume};
use crate::csi::volume::Volume;

/// Upstream asks at each sync of the pod, which is about once a minute.
const EVERY: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 60_000 });

/// A driver and the API server have so long to say what a look wants to know.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });

/// Until the process ends. Pods come one after the other, so that a driver is not asked for all of them at once.
pub(super) async fn run(volumes: CsiVolumes) {
    loop {
        volumes.read_again().await;
        let mut pods = volumes.republished().await;
        pods.extend(volumes.growing().await);
        let pause = EVERY / u32::try_from(pods.len()).unwrap_or(u32::MAX).saturating_add(1);
        for pod in pods {
            tokio::time::sleep(pause).await;
            volumes.shared.api.refresh(&pod);
        }
        tokio::time::sleep(pause).await;
    }
}

impl CsiVolumes {
    /// How full a pod's volume is, by the name of its folder; none where its driver does not tell.
    ///
    /// # Errors
    /// In upstream's words.
    pub(crate) async fn usage(&self, pod: &PodUid, name: &str) -> Result<Option<VolumeUsage>, String> {
        let of_pod = |slot: &&Slot| slot.pods.get(pod).is_some_and(|of| of == name);
        let Some(Slot { driver, handle, place, .. }) = self.slots().values().find(of_pod).cloned() else {
            return Ok(None);
        };
        let target = match place {
            DevicePlace::Folder(_) => self.shared.places.target(pod, name),
            DevicePlace::Block(block) => block.map(pod).point(),
        };
        // Nothing is mounted there yet, or any more.
        if !self
            .shared
            .mounts
            .is_mounted(&target)
            .map_err(|error| format!("read the mount table: {error}"))?
        {
            return Ok(None);
        }
        let driver = self.shared.drivers.get(&driver)?;
        driver.usage(&handle, &target).await.map_err(|error| error.why().to_owned())
    }

    /// Reads once more what could not be read: its pod may have its volume anew, or have gone.
    pub(super) async fn read_again(&self) {
        let unread = || self.shared.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread().is_empty() {
            return;
        }
        let (places, mounts) = (self.shared.places.clone(), self.shared.mounts.clone());
        let read = tokio::task::spawn_blocking(move || {
            let mut found = places.find();
            // What is being staged is not to be removed.
            found.doubt_leftovers(mounts.as_ref());
            drop(Slot::all(&mut found));
            found.unread
        });
        match read.await {
            Ok(found) => {
                *unread() = found;
                self.tell();
            }
            Err(error) => tracing::error!(%error, "the look at volumes of an earlier kubelet died"),
        }
    }

    /// Pods with volumes that are to be published again.
    async fn republished(&self) -> BTreeSet<PodUid> {
        let mut by_driver: BTreeMap<String, BTreeSet<PodUid>> = BTreeMap::new();
        for slot in self.slots().values() {
            by_driver.entry(slot.driver.clone()).or_default().extend(slot.pods.keys().cloned());
        }
        let mut found = BTreeSet::new();
        for (driver, pods) in by_driver {
            match self.steps().driver_object(&driver, PUBLISH).await {
                Ok(object) if object.as_ref().is_some_and(|object| object.republish) => found.extend(pods),
                Ok(_) => {}
                Err(error) => tracing::warn!(driver, error = error.why, "a CSIDriver cannot be read"),
            }
        }
        found
    }
}

impl CsiVolumes {
    /// One pod of each volume whose claim waits for this node.
    pub(super) async fn growing(&self) -> BTreeSet<PodUid> {
        let all: Vec<Slot> = self.slots().values().cloned().collect();
        // Side by side: a driver that does not answer holds up its own volumes alone.
        let looked = join_all(all.into_iter().map(|slot| timeout(LOOK, self.grows(slot)))).await;
        looked.into_iter().filter_map(Result::ok).flatten().collect()
    }

    /// A pod of the volume, when its claim waits for this node.
    async fn grows(&self, Slot { driver, claim, pods, turn, .. }: Slot) -> Option<PodUid> {
        let ((namespace, name), pod) = (claim?, pods.into_keys().next()?);
        if turn.try_lock().is_ok_and(|volume| volume.growth.keeps_size) {
            return None;
        }
        // One that does not answer is asked again, and told of by whoever needs it.
        self.shared.drivers.get(&driver).ok()?.capabilities().await.ok().filter(|can| can.expand)?;
        match self.shared.api.claim(&namespace, &name).await {
            Ok(claim) => claim.filter(|claim| Expansion::may_wait(&claim.size)).map(|_| pod),
            Err(error) => {
                tracing::debug!(name, error = error.message, "a claim cannot be read");
                None
            }
        }
    }
}

impl CsiVolumes {
    /// Makes a volume larger whose claim waits for that. A pod that starts waits for it; one that runs goes on.
    pub(super) async fn grow(
        &self,
        volume: &mut Volume,
        wanted: &WantedVolume,
        pod: &Pod,
        is_new: bool,
    ) -> Result<(), StepError> {
        let Some(claim) = &wanted.claim else { return Ok(()) };
        let OwnerParts { api, notes, node, .. } = &*self.shared;
        let expander = Expander::new(api.clone(), notes.clone(), node);
        if wanted.read_only {
            if is_new {
                expander.refuse(claim, &wanted.name, &pod.uid);
            }
            return Ok(());
        }
        let Some(expansion) = &claim.expansion else { return Ok(()) };
        let steps = self.steps();
        let by_driver = steps.expand(wanted, pod, expansion.bytes);
        let grown = expander.expand((claim, &wanted.name), &pod.uid, &mut volume.growth, by_driver).await;
        if is_new && grown.is_err() {
            // As upstream: a pod that has just got the volume does not run before it is large enough, and gets it anew.
            volume.doubt(&pod.uid);
        }
        let step = if is_new { wanted.expand_step() } else { EXPAND_IN_USE };
        grown.map_err(|why| StepError::before(step, why))
    }
}

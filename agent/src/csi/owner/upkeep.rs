//! What volumes need while their pods run: a driver that shows what changes is asked again and again
//! (`requiresRepublish` of its CSIDriver), and a claim that has become larger is looked at. Owns when; the pod's worker
//! has it done. Started by [`super::CsiVolumes::begin`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::join_all;
use gantry_failpoint::failpoint;
use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::{Pod, PodUid};
use tokio::time::timeout;

use super::{CsiVolumes, Slot};
use crate::csi::expand::{Expansion, GrowthFailure};
use crate::csi::files::DevicePlace;
use crate::csi::steps::{PUBLISH, StepError, WantedClaim, WantedVolume};
use crate::csi::volume::Volume;
use crate::events::{ClaimIdentity, Kind, Note};

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
        if turn.try_lock().is_ok_and(|volume| volume.keeps_size) {
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
    /// Tells of a volume that would have grown if the pod could write to it. Upstream looks when the pod gets it.
    pub(super) fn refuse_growth(&self, wanted: &WantedVolume, pod: &PodUid, is_new: bool) {
        let Some(claim) = wanted.claim.as_ref().filter(|claim| is_new && claim.outgrown) else { return };
        let message = format!(
            "MountVolume.NodeExpandVolume failed for volume {:?} requested read-only file system",
            wanted.name
        );
        self.tell_growth(pod, claim, Kind::Warning, ("FileSystemResizeFailed", message));
    }

    /// Of the pod and of its claim.
    fn tell_growth(
        &self,
        pod: &PodUid,
        claim: &WantedClaim,
        kind: Kind,
        (reason, message): (&'static str, String),
    ) {
        let WantedClaim { namespace, name, uid, .. } = claim.clone();
        self.shared.notes.add_of_claim(
            pod,
            ClaimIdentity { namespace, name, uid },
            Note::pod(kind, reason, message),
        );
    }

    /// Makes a volume larger whose claim waits for that. A pod that starts waits for it; one that runs goes on.
    pub(super) async fn expand(
        &self,
        volume: &mut Volume,
        wanted: &WantedVolume,
        pod: &Pod,
        step: &'static str,
    ) -> Result<(), StepError> {
        let Some(claim) = wanted.claim.as_ref().filter(|_| !volume.keeps_size) else { return Ok(()) };
        let Some(expansion) = &claim.expansion else { return Ok(()) };
        let api = &self.shared.api;
        let patch = async |words: &str, patch| {
            let told = api.patch_claim_status(&expansion.namespace, &expansion.claim, patch).await;
            let failed = format!("{words}patchPVCStatus failed to patch PVC {:?}: ", expansion.claim);
            told.map_err(|error| StepError::before(step, format!("{failed}{}", error.message)))
        };
        if let Some(progress) = expansion.progress(&claim.size) {
            patch("", progress).await?;
            failpoint!("csi.growth-begun");
        }
        let grown = self.steps().expand(wanted, pod, expansion.bytes).await;
        failpoint!("csi.grown");
        let Err(error) = grown else {
            volume.growth_failed = false;
            let message = format!(
                "MountVolume.NodeExpandVolume succeeded for volume {:?} {}",
                wanted.name, self.shared.node
            );
            self.tell_growth(&pod.uid, claim, Kind::Normal, ("FileSystemResizeSuccessful", message));
            let words = match expansion.is_tracked() {
                true => "mountVolume.NodeExpandVolume update pvc status failed: ",
                false => "mountVolume.NodeExpandVolume update PVC status failed : ",
            };
            patch(words, expansion.success()).await?;
            failpoint!("csi.growth-told");
            return Ok(());
        };
        if expansion.is_tracked() && error.failure != GrowthFailure::Away {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let failure = expansion.failure(&error, volume.growth_failed, &now);
            volume.growth_failed = true;
            if let Err(StepError { why, .. }) = patch("", failure).await {
                tracing::error!(claim = expansion.claim, why, "a claim is not told that it cannot grow");
            }
        }
        match error.failure {
            GrowthFailure::InUse => {
                volume.keeps_size = true;
                let (claim, why) = (&expansion.claim, error.why);
                tracing::warn!(claim, why, "a volume does not grow while it is in use");
                Ok(())
            }
            // As upstream: an older resizer waits for no node whose driver cannot.
            GrowthFailure::Unsupported if !expansion.is_tracked() => Ok(()),
            _ => Err(StepError::before(step, error.why)),
        }
    }
}

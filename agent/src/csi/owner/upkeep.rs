//! What volumes need while their pods run: a driver that shows what changes is asked again and again
//! (`requiresRepublish` of its CSIDriver). Owns when; the pod's worker has it done. Started by [`super::CsiVolumes::begin`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::PodUid;
use gantry_model::pod::usage::VolumeUsage;

use super::{CsiVolumes, Slot};
use crate::csi::steps::PUBLISH;

/// Upstream asks at each sync of the pod, which is about once a minute.
const EVERY: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 60_000 });

/// Until the process ends. Pods come one after the other, so that a driver is not asked for all of them at once.
pub(super) async fn run(volumes: CsiVolumes) {
    loop {
        let pods = volumes.republished().await;
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
        let Some(Slot { driver, handle, .. }) = self.slots().values().find(of_pod).cloned() else {
            return Ok(None);
        };
        let target = self.shared.places.target(pod, name);
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

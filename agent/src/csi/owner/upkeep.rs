//! What volumes need while their pods run: a driver that shows what changes is asked again and again
//! (`requiresRepublish` of its CSIDriver). Owns when; the pod's worker has it done. Started by [`super::CsiVolumes::begin`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::PodUid;

use super::CsiVolumes;
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

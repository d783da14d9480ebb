//! Growth of `local` volumes: the file system of a disk is made as large as the disk, and the claim is told. A folder and a
//! raw device have the room already, and their claims are told alone, as upstream. Owns when claims are looked at, and which
//! volumes could not grow. Called by [`super::local`] and [`super::block`].

#![expect(clippy::disallowed_methods, reason = "it looks at claims until the process ends, and owns nothing")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gantry_model::pod::{Pod, PodUid};

use super::super::claim::{LocalVolume, VolumeBacking};
use super::HostVolumes;
use super::claims::Failed;
use crate::csi::expand::{Expansion, GrowthError, GrowthFailure, GrowthHistory};
use crate::csi::expander::Expander;

/// Upstream looks at each sync of the pod, which is about once a minute.
const EVERY: Duration = Duration::from_secs(60);

/// What is remembered, by PersistentVolume.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalGrowth(Arc<Mutex<BTreeMap<String, GrowthHistory>>>);

impl LocalGrowth {
    fn of(&self, volume: &str) -> GrowthHistory {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(volume).copied().unwrap_or_default()
    }

    /// Those that have grown are forgotten.
    fn keep(&self, volume: &str, history: GrowthHistory) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match history == GrowthHistory::default() {
            true => drop(known.remove(volume)),
            false => drop(known.insert(volume.to_owned(), history)),
        }
    }
}

impl HostVolumes {
    /// Makes the volume larger where its claim waits for that. `place` is where its disk is mounted; none of what has no file
    /// system of its own. Within the turn of its place.
    pub(super) async fn grow_local(
        &self,
        pod: &Pod,
        of: &LocalVolume,
        place: Option<&Path>,
        step: &'static str,
    ) -> Result<(), Failed> {
        let Some(claim) = &of.claim else { return Ok(()) };
        let expander = Expander::new(self.api.clone(), self.notes.clone(), &self.node.name);
        if of.read_only {
            expander.refuse(claim, &of.name, &pod.uid);
            return Ok(());
        }
        let grow = async {
            let Some(place) = place else { return Ok(()) };
            let grown = self.disk_programs.grow(&of.path, place).await;
            grown.map_err(|why| GrowthError { why, failure: GrowthFailure::Failed })
        };
        let mut history = self.local_growth.of(&of.name);
        let grown = expander.expand((claim, &of.name), &pod.uid, &mut history, grow).await;
        self.local_growth.keep(&of.name, history);
        grown.map_err(|why| Failed::Of { step, volume: of.name.clone(), why })
    }

    /// Has pods looked at whose volumes are to grow while they run. Ends with the process.
    pub(super) fn watch_local_growth(&self) {
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                for pod in this.growing_local().await {
                    this.api.refresh(&pod);
                }
            }
        });
    }

    /// Pods with local volumes that are to grow.
    pub(super) async fn growing_local(&self) -> Vec<PodUid> {
        let mut growing = Vec::new();
        for (pod, volumes) in self.local_volumes() {
            for volume in volumes {
                match self.grows(&volume).await {
                    Ok(true) => {
                        growing.push(pod);
                        break;
                    }
                    Ok(false) => {}
                    Err(why) => tracing::debug!(volume = volume.name, why, "a claim cannot be read"),
                }
            }
        }
        growing
    }

    /// Those that their pods may write to.
    fn local_volumes(&self) -> Vec<(PodUid, Vec<LocalVolume>)> {
        let of = |place: &VolumeBacking| match place {
            VolumeBacking::Local(of) | VolumeBacking::LocalBlock(of) if !of.read_only => Some((**of).clone()),
            _ => None,
        };
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.iter().map(|(pod, places)| (pod.clone(), places.values().filter_map(of).collect())).collect()
    }

    async fn grows(&self, volume: &LocalVolume) -> Result<bool, String> {
        let Some(of) = &volume.claim else { return Ok(false) };
        let claim = self.api.claim(&of.namespace, &of.name).await.map_err(|error| error.message)?;
        let found = self.api.persistent_volume(&volume.name).await.map_err(|error| error.message)?;
        let (Some(claim), Some(found)) = (claim, found) else { return Ok(false) };
        Ok(Expansion::of(&claim.size, &found).is_some())
    }
}

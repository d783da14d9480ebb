//! Has a claim's volume made larger, and tells the claim and the pod of it. Owns the order, upstream's events and its words;
//! whether a volume is to grow is [`super::expand`]'s to say, and how it does its owner's. Called by [`super::owner`] and by
//! the owner of local volumes.

use std::future::Future;
use std::sync::Arc;

use gantry_failpoint::failpoint;
use gantry_model::pod::PodUid;
use serde_json::Value;

use super::expand::{GrowthError, GrowthFailure, GrowthHistory};
use super::steps::WantedClaim;
use crate::api::Api;
use crate::events::{ClaimIdentity, Kind, Note, VolumeNotes};

/// Tells the API server.
#[derive(Debug, Clone)]
pub(crate) struct Expander {
    api: Arc<dyn Api>,
    notes: VolumeNotes,
    node: String,
}

impl Expander {
    /// On the node of that name.
    pub(crate) fn new(api: Arc<dyn Api>, notes: VolumeNotes, node: &str) -> Self {
        Self { api, notes, node: node.to_owned() }
    }

    /// Tells of a volume that would have grown if the pod could write to it. Upstream looks when the pod gets it.
    pub(crate) fn refuse(&self, claim: &WantedClaim, volume: &str, pod: &PodUid) {
        if claim.outgrown {
            let message = format!(
                "MountVolume.NodeExpandVolume failed for volume {volume:?} requested read-only file system"
            );
            self.tell(pod, claim, Kind::Warning, ("FileSystemResizeFailed", message));
        }
    }

    /// Of the pod and of its claim.
    fn tell(&self, pod: &PodUid, claim: &WantedClaim, kind: Kind, (reason, message): (&'static str, String)) {
        let WantedClaim { namespace, name, uid, .. } = claim.clone();
        self.notes.add_of_claim(
            pod,
            ClaimIdentity { namespace, name, uid },
            Note::pod(kind, reason, message),
        );
    }

    async fn patch(&self, claim: &WantedClaim, words: &str, patch: Value) -> Result<(), String> {
        let told = self.api.patch_claim_status(&claim.namespace, &claim.name, patch).await;
        told.map_err(|error| {
            format!("{words}patchPVCStatus failed to patch PVC {:?}: {}", claim.name, error.message)
        })
    }

    /// Makes the volume of that name larger by `grow`, where its claim waits for that.
    ///
    /// # Errors
    /// In upstream's words: it has not grown, or the claim could not be told.
    pub(crate) async fn expand(
        &self,
        (claim, volume): (&WantedClaim, &str),
        pod: &PodUid,
        history: &mut GrowthHistory,
        grow: impl Future<Output = Result<(), GrowthError>>,
    ) -> Result<(), String> {
        let Some(expansion) = claim.expansion.as_ref().filter(|_| !history.keeps_size) else {
            return Ok(());
        };
        if let Some(progress) = expansion.progress(&claim.size) {
            self.patch(claim, "", progress).await?;
            failpoint!("csi.growth-begun");
        }
        let grown = grow.await;
        failpoint!("csi.grown");
        let Err(error) = grown else {
            history.failed = false;
            let message =
                format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?} {}", self.node);
            self.tell(pod, claim, Kind::Normal, ("FileSystemResizeSuccessful", message));
            let words = match expansion.is_tracked() {
                true => "mountVolume.NodeExpandVolume update pvc status failed: ",
                false => "mountVolume.NodeExpandVolume update PVC status failed : ",
            };
            self.patch(claim, words, expansion.success()).await?;
            failpoint!("csi.growth-told");
            return Ok(());
        };
        if expansion.is_tracked() && error.failure != GrowthFailure::Away {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let failure = expansion.failure(&error, history.failed, &now);
            history.failed = true;
            if let Err(why) = self.patch(claim, "", failure).await {
                tracing::error!(claim = claim.name, why, "a claim is not told that it cannot grow");
            }
        }
        match error.failure {
            GrowthFailure::InUse => {
                history.keeps_size = true;
                let (claim, why) = (&claim.name, error.why);
                tracing::warn!(claim, why, "a volume does not grow while it is in use");
                Ok(())
            }
            // As upstream: an older resizer waits for no node whose driver cannot.
            GrowthFailure::Unsupported if !expansion.is_tracked() => Ok(()),
            _ => Err(error.why),
        }
    }
}

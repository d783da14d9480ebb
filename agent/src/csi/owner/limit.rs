//! A volume that finds no room on the node: its attacher says so, and a driver that is asked again and again how many the node
//! takes is asked at once. Owns that judgement; the pod's worker rejects the pod. Called by [`super`].

use gantry_model::pod::Pod;

use super::CsiVolumes;
use super::told::{Key, MountError};
use crate::csi::allocatable::Allocatable;
use crate::csi::files::DevicePlace;
use crate::csi::steps::{PUBLISH, StepError, WantedVolume, attachment_name};

/// gRPC's ResourceExhausted, as attachers tell it.
const RESOURCE_EXHAUSTED: i32 = 8;

impl CsiVolumes {
    /// From now on drivers are asked anew by that one, and pods may be rejected. Once.
    pub(crate) fn ask_anew_by(&self, allocatable: Allocatable) {
        if self.shared.allocatable.set(allocatable).is_err() {
            tracing::error!("drivers are asked anew by another already");
        }
    }

    /// Remembers a failure; how it is told. As upstream, whether there is room is looked up when the pod has waited long.
    pub(super) async fn failed(
        &self,
        key: &Key,
        pod: &Pod,
        wanted: &WantedVolume,
        error: StepError,
    ) -> MountError {
        let told = self.shared.waits.failed(key, wanted, error);
        let no_room = told.unattached && !told.quiet && self.has_no_room(pod, wanted).await;
        MountError { no_room, ..told }
    }

    /// Whether the attacher says that the node takes no more volumes of a driver that is asked again and again. The CSINode
    /// says so, too, before this returns: another pod in the place of this one is to be sent elsewhere.
    async fn has_no_room(&self, pod: &Pod, wanted: &WantedVolume) -> bool {
        let Some(allocatable) = self.shared.allocatable.get() else { return false };
        let (driver, handle) = (&wanted.source.driver, &wanted.source.handle);
        let is_asked = match self.steps().driver_object(driver, PUBLISH).await {
            Ok(object) => object.is_some_and(|object| object.allocatable_period.is_some()),
            Err(StepError { why, .. }) => {
                tracing::error!(driver, why, "a CSIDriver cannot be read");
                false
            }
        };
        if !is_asked || self.is_there(pod, wanted) {
            return false;
        }
        let name = attachment_name(handle, driver, &self.shared.node);
        match self.shared.api.attachment(&name).await {
            Ok(Some(found)) if found.error_code == Some(RESOURCE_EXHAUSTED) => {}
            Ok(_) => return false,
            Err(error) => {
                tracing::error!(
                    attachment = name,
                    error = error.message,
                    "a VolumeAttachment cannot be read"
                );
                return false;
            }
        }
        allocatable.update_or_tell(driver).await;
        true
    }

    /// Whether the pod has it mounted, as one that runs does.
    fn is_there(&self, pod: &Pod, wanted: &WantedVolume) -> bool {
        let target = match wanted.place(&self.shared.places) {
            DevicePlace::Folder(_) => self.shared.places.target(&pod.uid, &wanted.name),
            DevicePlace::Block(block) => block.map(&pod.uid).point(),
        };
        self.shared.mounts.is_mounted(&target).unwrap_or_else(|error| {
            tracing::error!(%error, "the mount table cannot be read");
            true
        })
    }
}

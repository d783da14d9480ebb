//! SELinux labels of volumes: which pod may have one with its own, and what is done for one that is mounted with another.
//! Owns the counts and what is told; who wants which is [`crate::csi::label`]'s. Called by [`super`].

use gantry_model::pod::PodUid;

use super::{CsiVolumes, Volume};
use crate::csi::files::DevicePlace;
use crate::csi::label::{self, LabelWish, WantedLabel};
use crate::csi::steps::{self, StepError, WantedVolume};

impl CsiVolumes {
    /// Whether the pod has that volume mounted with an SELinux label: nobody is to change those of its files.
    pub(crate) fn is_labelled(&self, pod: &PodUid, name: &str) -> bool {
        let is = |slot: &super::Slot| {
            slot.labelled.contains(pod) && slot.pods.get(pod).is_some_and(|own| own == name)
        };
        self.slots().values().any(is)
    }

    /// The pod has it so.
    pub(super) fn note_label(&self, key: &str, pod: &PodUid, label: Option<&str>) {
        if let Some(slot) = self.slots().get_mut(key) {
            match label.is_some_and(|label| !label.is_empty()) {
                true => slot.labelled.insert(pod.clone()),
                false => slot.labelled.remove(pod),
            };
        }
    }

    /// The pod wants it, with the label that this returns; none where labels are no matter. Others than volumes of one pod
    /// are mounted without, and what will not work once they are not is counted, as upstream.
    pub(super) fn want(
        &self,
        volume: &mut Volume,
        wanted: &WantedVolume,
        pod: &PodUid,
        takes_label: bool,
    ) -> Result<Option<String>, StepError> {
        let Some(WantedLabel { label, access_mode }) = &wanted.label else {
            volume.want(pod);
            return Ok(None);
        };
        let label = if takes_label { label.as_str() } else { "" };
        let (metrics, plugin) =
            (self.shared.drivers.metrics(), format!("{}/{}", crate::csi::PLUGIN, wanted.source.driver));
        let of = [plugin.as_str(), access_mode];
        match volume.label().want(pod, label) {
            LabelWish::First if !label.is_empty() => metrics.selinux_volumes_admitted.inc(of),
            LabelWish::First | LabelWish::Same => {}
            LabelWish::Other(other) if wanted.one_pod => {
                metrics.selinux_volume_errors.inc(of);
                return Err(StepError::before(steps::LABEL, label::conflict(&wanted.name, &other, label)));
            }
            LabelWish::Other(_) => {
                metrics.selinux_volume_warnings.inc(of);
                volume.label().join(pod);
            }
        }
        volume.want(pod);
        Ok(Some(if wanted.one_pod { label.to_owned() } else { String::new() }))
    }

    /// Takes the device back that no pod has, and that is mounted with another label.
    pub(super) async fn restage(&self, volume: &mut Volume, key: &str) -> Result<(), StepError> {
        let Some(slot) = self.slots().get(key).cloned() else { return Ok(()) };
        volume.begin_restage();
        let taken = match &slot.place {
            DevicePlace::Folder(staging) => self.steps().unstage(&slot.driver, &slot.handle, staging).await,
            DevicePlace::Block(block) => {
                self.steps().unstage_block((&slot.driver, &slot.handle), block).await
            }
        };
        taken.map_err(|why| {
            tracing::warn!(volume = key, why, "UnmountDevice failed; it is tried again");
            StepError::before(steps::OTHER_LABEL, label::waits(key))
        })?;
        volume.unstaged();
        Ok(())
    }
}

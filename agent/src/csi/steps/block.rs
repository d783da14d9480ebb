//! The steps of a raw block volume: its driver makes a device appear, and that is mapped for the pod. Owns the order of the
//! driver's calls and of the map, and upstream's words for what fails. Called by [`super`] and by the volumes' owner.

use gantry_failpoint::failpoint;
use gantry_model::pod::{Pod, PodUid};

use super::{
    Access, PUBLISH_BLOCK, Published, Ready, STAGE_BLOCK, StepError, Steps, WantedVolume, attachment_name,
    blocking, pod_info,
};
use crate::csi::block::BlockPlaces;
use crate::csi::driver::{Map, PublishCall, StageCall};
use crate::csi::files::DevicePlace;

/// As upstream tells what fails of a map.
const MAP_BLOCK: &str = "MapVolume.MapBlockVolume";
const MAPPER: &str = "kubernetes.io/csi: blockMapper";

impl Steps<'_> {
    /// None of a driver that does not stage: then there is nothing to be done.
    pub(super) async fn prepare_stage_block(
        &self,
        wanted: &WantedVolume,
        context: &Map,
    ) -> Result<Option<Ready<StageCall>>, StepError> {
        let source = &wanted.source;
        let before = |why: String| StepError::before(STAGE_BLOCK, why);
        let block = self.places.block(&wanted.name);
        let driver = self.drivers.get(&source.driver);
        let driver =
            driver.map_err(|why| before(format!("{MAPPER}.SetUpDevice failed to get CSI client: {why}")))?;
        let words = "stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability";
        let can = driver.capabilities().await;
        let can = can.map_err(|error| before(format!("{MAPPER}.{words}: {}", error.why())))?;
        if !can.stage {
            return Ok(None);
        }
        let secrets = self.secrets(source.stage_secret.as_ref(), "NodeStageSecretRef", STAGE_BLOCK).await?;
        self.write_down_block(wanted, &block).await.map_err(before)?;
        let staging = block.staging();
        let folder = staging.clone();
        let made = blocking(move || crate::block::make_folder(&folder)).await;
        made.map_err(|why| {
            before(format!("{MAPPER}.stageVolumeForBlock failed to create dir {}: {why}", staging.display()))
        })?;
        failpoint!("csi.block-folder");
        let call = StageCall {
            handle: source.handle.clone(),
            staging,
            publish_context: context.clone(),
            volume_context: source.attributes.clone(),
            secrets,
            access: access(wanted),
        };
        Ok(Some(Ready { driver, can, call, place: DevicePlace::Block(block) }))
    }

    /// Looks up and writes down. Neither a group nor tokens are a device's, as upstream.
    pub(super) async fn prepare_publish_block(
        &self,
        wanted: &WantedVolume,
        pod: &Pod,
        context: &Map,
    ) -> Result<(Ready<PublishCall>, Published), StepError> {
        let source = &wanted.source;
        let before = |why: String| StepError::before(PUBLISH_BLOCK, why);
        let driver = self.drivers.get(&source.driver);
        let driver =
            driver.map_err(|why| before(format!("{MAPPER}.MapPodDevice failed to get CSI client: {why}")))?;
        let object = self.driver_object(&source.driver, PUBLISH_BLOCK).await?;
        let can = driver.capabilities().await.map_err(|error| before(error.why().to_owned()))?;
        let mut volume_context = source.attributes.clone();
        if object.is_some_and(|object| object.pod_info) {
            volume_context.extend(pod_info(pod, false));
        }
        let secrets =
            self.secrets(source.publish_secret.as_ref(), "NodePublishSecretRef", PUBLISH_BLOCK).await?;
        let block = self.places.block(&wanted.name);
        self.write_down_block(wanted, &block).await.map_err(before)?;
        let (of, uid) = (block.clone(), pod.uid.clone());
        blocking(move || of.prepare(&uid))
            .await
            .map_err(|why| before(format!("{MAPPER}.publishVolumeForBlock failed to create dir: {why}")))?;
        let call = PublishCall {
            handle: source.handle.clone(),
            // Also of a driver that does not stage.
            staging: Some(block.staging()),
            target: block.target(&pod.uid),
            read_only: wanted.read_only,
            publish_context: context.clone(),
            volume_context,
            secrets,
            access: access(wanted),
        };
        let ready = Ready { driver, can, call, place: DevicePlace::Block(block) };
        Ok((ready, Published { set_group: false }))
    }

    async fn write_down_block(&self, wanted: &WantedVolume, block: &BlockPlaces) -> Result<(), String> {
        let (name, source, node) = (wanted.name.clone(), wanted.source.clone(), self.node.to_owned());
        let block = block.clone();
        blocking(move || {
            let attachment = attachment_name(&source.handle, &source.driver, &node);
            block.save(&[
                ("specVolID", name.as_str()),
                ("volumeHandle", &source.handle),
                ("driverName", &source.driver),
                ("nodeName", &node),
                ("attachmentID", &attachment),
            ])?;
            failpoint!("csi.block-noted"?);
            Ok(())
        })
        .await
    }

    /// Maps the device that the driver has made appear.
    pub(super) async fn map(&self, block: &BlockPlaces, pod: &PodUid) -> Result<(), StepError> {
        let (map, device, kernel) = (block.map(pod), block.target(pod), self.kernel.clone());
        let mapped = blocking(move || map.map(&device, kernel.as_ref())).await;
        mapped.map_err(|why| StepError::before(MAP_BLOCK, why))
    }

    /// Takes a pod's device back, and then what is known of it.
    pub(in crate::csi) async fn unpublish_block(
        &self,
        (driver, handle): (&str, &str),
        block: &BlockPlaces,
        pod: &PodUid,
    ) -> Result<(), String> {
        let (map, kernel) = (block.map(pod), self.kernel.clone());
        let unmapped = blocking(move || map.unmap(kernel.as_ref())).await;
        unmapped.map_err(|why| format!("UnmapVolume.UnmapBlockVolume failed: {why}"))?;
        let client = self.drivers.get(driver);
        let client =
            client.map_err(|why| format!("{MAPPER}.UnmapPodDevice failed to get CSI client: {why}"))?;
        let taken = client.unpublish(handle, &block.target(pod)).await;
        taken.map_err(|error| format!("{MAPPER}.unpublishVolumeForBlock failed: {}", error.why()))?;
        failpoint!("csi.block-unpublished"?);
        block
            .forget(pod, self.mounts)
            .map_err(|why| format!("{MAPPER}.UnmapPodDevice failed to clean up: {why}"))
    }

    /// Takes the volume back from the node, and then what is known of it.
    pub(in crate::csi) async fn unstage_block(
        &self,
        (driver, handle): (&str, &str),
        block: &BlockPlaces,
    ) -> Result<(), String> {
        if !block.is_known()? {
            // Its driver does not stage, or all of it but the folders has gone.
            return block.remove();
        }
        let holders = block.holders(self.kernel.as_ref())?;
        if !holders.is_empty() {
            return Err(format!("the device is still referenced from other Pods {holders:?}"));
        }
        let staging = block.staging();
        if staging.is_dir() {
            let client = self.drivers.get(driver);
            let client =
                client.map_err(|why| format!("{MAPPER}.TearDownDevice failed to get CSI client: {why}"))?;
            let words = "unstageVolumeForBlock failed";
            let can = client.capabilities().await.map_err(|error| {
                format!("{MAPPER}.{words} to check STAGE_UNSTAGE_VOLUME capability: {}", error.why())
            })?;
            if can.stage {
                let unstaged = client.unstage(handle, &staging).await;
                unstaged.map_err(|error| format!("{MAPPER}.{words}: {}", error.why()))?;
                failpoint!("csi.block-unstaged"?);
            }
            block
                .remove_staging()
                .map_err(|why| format!("{MAPPER}.{words} to remove staging path: {why}"))?;
            failpoint!("csi.block-staging-gone"?);
        }
        // A pod may have gone between its note and the call.
        block.remove_notes()?;
        block.remove()
    }
}

fn access(wanted: &WantedVolume) -> Access {
    let mode = wanted.source.access_modes.first().cloned();
    Access { mode: mode.unwrap_or_else(|| "ReadWriteOnce".to_owned()), block: true, ..Access::default() }
}

//! Raw block devices of a pod: those of local volumes, mapped here, and which devices a container has, whoever mapped them.
//! Owns where maps of local volumes are, in upstream's places; how one is made is [`crate::block`]'s. Called by [`super`].
//!
//! ```text
//! ROOT/plugins/kubernetes.io~local-volume/volumeDevices/PV/POD_UID   the device, bound
//! ROOT/pods/UID/volumeDevices/kubernetes.io~local-volume/PV          a link to it
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::volume::{VolumeDevice, VolumeSource};
use gantry_model::pod::{Container, Pod, PodUid};

use super::super::MappedDevice;
use super::super::claim::{LocalVolume, VolumeBacking};
use super::claims::Failed;
use super::{HostVolumes, LOCAL, blocking};
use crate::block::{self, BlockMap, FOLDER};
use crate::csi::owner::CsiVolumes;
use crate::csi::steps::{EXPAND_BLOCK, EXPAND_IN_USE};
use crate::events::{Kind, Note};

impl HostVolumes {
    /// Of all pods.
    pub(super) fn local_devices(&self) -> PathBuf {
        self.plugins.join(LOCAL).join(FOLDER)
    }

    pub(super) fn local_map(&self, uid: &PodUid, volume: &str) -> BlockMap {
        BlockMap {
            global: self.local_devices().join(volume),
            pod: uid.clone(),
            link: self.pod(uid).join(FOLDER).join(LOCAL).join(volume),
        }
    }

    pub(super) async fn map_local(&self, pod: &Pod, of: &LocalVolume) -> Result<(), Failed> {
        let (map, kernel, device) =
            (self.local_map(&pod.uid, &of.name), self.blocks.clone(), of.path.clone());
        let this = map.clone();
        let mapped = blocking(move || match this.is_mapped(kernel.as_ref())? {
            true => Ok(false),
            false => this.map(&device, kernel.as_ref()).map(|()| true),
        });
        let step = "MapVolume.MapBlockVolume";
        let is_new = mapped.await.map_err(|why| Failed::Of { step, volume: of.name.clone(), why })?;
        if is_new {
            self.tell_map(&pod.uid, &of.name, &map);
        }
        if !is_new && !of.may_grow() {
            return Ok(());
        }
        let step = if is_new { EXPAND_BLOCK } else { EXPAND_IN_USE };
        self.grow_local(pod, of, None, step).await
    }

    /// As upstream tells it, twice.
    pub(super) fn tell_map(&self, uid: &PodUid, volume: &str, map: &BlockMap) {
        let words = format!("MapVolume.MapPodDevice succeeded for volume {volume:?}");
        let folder = map.link.parent().unwrap_or(&map.link);
        let told = [("globalMapPath", map.global.as_path()), ("volumeMapPath", folder)]
            .map(|(what, path)| format!("{words} {what} {:?}", path.display().to_string()));
        for words in told {
            self.notes.add(uid, Note::pod(Kind::Normal, "SuccessfulMountVolume", words));
        }
    }

    /// Takes back what the pod has of local volumes, also what an earlier agent has mapped. Blocks.
    pub(super) fn unmap_local(&self, uid: &PodUid) -> Result<(), String> {
        let own = self.pod(uid).join(FOLDER).join(LOCAL);
        let mut names = BTreeSet::new();
        for folder in [&self.local_devices(), &own] {
            let found = block::entries(folder).map_err(|error| format!("list {}: {error}", folder.display()));
            names.extend(found?.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
        }
        for name in names {
            let map = self.local_map(uid, &name);
            if map.point().symlink_metadata().is_err() && !map.link.is_symlink() {
                continue;
            }
            map.unmap(self.blocks.as_ref())
                .and_then(|()| map.forget())
                .map_err(|why| format!("UnmapVolume.UnmapBlockVolume failed for volume {name:?} : {why}"))?;
            if block::entries(&map.global).is_ok_and(|others| others.is_empty()) {
                block::remove_folder(&map.global)?;
            }
        }
        Ok(())
    }

    /// Pods of which something is mapped here, also such as have no folder any more. Blocks.
    pub(super) fn pods_with_maps(&self) -> Result<BTreeSet<PodUid>, String> {
        let list = |folder: &Path| {
            block::entries(folder).map_err(|error| format!("list {}: {error}", folder.display()))
        };
        let mut found: BTreeSet<PodUid> = self.csi.iter().flat_map(CsiVolumes::pods).collect();
        for volume in list(&self.local_devices())? {
            let pods = list(&volume)?;
            found.extend(pods.iter().filter_map(|path| PodUid::parse(path.file_name()?.to_str()?)));
        }
        found.extend(self.pods_with_disks()?);
        Ok(found)
    }

    /// Of each, in order. Blocks.
    pub(super) fn devices_of(&self, pod: &Pod, container: &Container) -> Result<Vec<MappedDevice>, String> {
        let of = |device: &VolumeDevice| self.device_of(pod, container, device);
        container.devices.iter().map(of).collect()
    }

    fn device_of(
        &self,
        pod: &Pod,
        container: &Container,
        device: &VolumeDevice,
    ) -> Result<MappedDevice, String> {
        let VolumeDevice { volume: name, path } = device;
        if !path.starts_with('/') {
            return Err(format!("error DevicePath `{path}` must be an absolute path"));
        }
        let missing = || format!("cannot find volume {name:?} to pass into container {:?}", container.name);
        let volume = pod.volumes.iter().find(|volume| volume.name == *name).ok_or_else(missing)?;
        let link = match self.place_of(&pod.uid, name) {
            Some(VolumeBacking::LocalBlock(of)) => self.local_map(&pod.uid, &of.name).link,
            Some(VolumeBacking::Csi(wanted)) if wanted.block => {
                self.csi_places().map(&pod.uid, &wanted.name).link
            }
            Some(VolumeBacking::Iscsi(disk)) if disk.block => self.iscsi_map(&pod.uid, &disk).link,
            _ => return Err(missing()),
        };
        if !link.is_symlink() {
            return Err(missing());
        }
        let read_only = matches!(volume.source, VolumeSource::Claim { read_only: true, .. });
        let permissions = if read_only { "r" } else { "mrw" };
        Ok((path.clone(), link.to_string_lossy().into_owned(), permissions.to_owned()))
    }
}

/// How large the device is, which is all that it says, as upstream.
pub(super) async fn device_usage(point: PathBuf) -> Result<Option<VolumeUsage>, String> {
    let look = move || {
        let size = fs::File::open(&point).and_then(|mut device| device.seek(SeekFrom::End(0)));
        size.map_err(|error| format!("look at device {}: {error}", point.display()))
    };
    let size = blocking(look).await?;
    let driver = "block".to_owned();
    Ok(Some(VolumeUsage { driver, capacity_bytes: Some(size), ..VolumeUsage::default() }))
}

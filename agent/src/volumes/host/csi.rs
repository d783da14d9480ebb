//! A pod's volumes of CSI: mounted and taken back by their owner, who has the drivers. Owns the join of both, and what of
//! the pod must be gone before a driver is asked. Called by [`super`].

use std::path::Path;
use std::sync::PoisonError;
use std::time::Instant;

use gantry_model::pod::usage::VolumeUsage;
use gantry_model::pod::volume::{CsiVolume, MigratedVolume, Volume};
use gantry_model::pod::{Pod, PodUid};

use super::super::claim::VolumeBacking;
use super::super::ownership_progress::GroupChange;
use super::super::removal::Mounts;
use super::super::{Error, VolumeOrigin, VolumeWait, iscsi, nfs, removal};
use super::block::device_usage;
use super::claims::Failed;
use super::failures::MissingVolume;
use super::{HostVolumes, blocking, mounts};
use crate::api::{CsiSource, widest};
use crate::block;
use crate::csi::files::{FOLDER, Places};
use crate::csi::label::WantedLabel;
use crate::csi::owner::{CsiVolumes, Wait};
use crate::csi::steps::{WantedVolume, ephemeral_handle};

/// Of bind mounts of parts of volumes.
const SUB_PATHS: &str = "volume-subpaths";

impl HostVolumes {
    /// The same, with volumes of CSI by that owner.
    pub(crate) fn with_csi(self, csi: CsiVolumes) -> Self {
        let iscsi = self.iscsi.with_attachments(csi.attachments().clone());
        Self { notes: csi.notes(), iscsi, csi: Some(csi), ..self }
    }

    /// Where volumes of CSI are, as the mount table names it.
    pub(crate) fn csi_places(&self) -> Places {
        Places::new(&self.pods, &self.plugins)
    }

    pub(super) async fn mount_csi(
        &self,
        pod: &Pod,
        volume: &Volume,
        wanted: Box<WantedVolume>,
        begun: Instant,
    ) -> Result<(), MissingVolume> {
        let Some(csi) = &self.csi else {
            let why =
                format!("volume {:?} is of a CSI driver, which pods have in a cluster only", volume.name);
            return Err(MissingVolume::new(&volume.name, Error::new(why)));
        };
        let change = GroupChange::of(pod, self.notes.clone());
        let mounted = csi.mount(pod, &wanted, move |path| Box::pin(change.apply(path))).await;
        self.tally.record_mount(pod, volume, begun, mounted.is_ok());
        let is_new = mounted.map_err(|error| MissingVolume::of_mount(&volume.name, error))?;
        if wanted.block && is_new {
            self.tell_map(&pod.uid, &wanted.name, &self.csi_places().map(&pod.uid, &wanted.name));
        }
        Ok(())
    }

    pub(super) async fn usage_of(&self, uid: &PodUid, volume: &str) -> Result<Option<VolumeUsage>, String> {
        match (self.place_of(uid, volume), &self.csi) {
            (Some(VolumeBacking::Csi(wanted)), Some(csi)) => csi.usage(uid, &wanted.name).await,
            (Some(VolumeBacking::Nfs(wanted)), _) => self.usage_at(self.nfs_target(uid, &wanted.name)).await,
            (Some(VolumeBacking::Iscsi(disk)), _) if disk.block => {
                device_usage(self.iscsi_map(uid, &disk).point()).await
            }
            (Some(VolumeBacking::Iscsi(disk)), _) => self.usage_at(self.iscsi_target(uid, &disk.name)).await,
            // An inline one has the pod's own name for it.
            (None, csi) => {
                for target in [self.nfs_target(uid, volume), self.iscsi_target(uid, volume)] {
                    if let Some(found) = self.usage_at(target).await? {
                        return Ok(Some(found));
                    }
                }
                match csi {
                    Some(csi) => csi.usage(uid, volume).await,
                    None => Ok(None),
                }
            }
            (Some(VolumeBacking::LocalBlock(of)), _) => {
                device_usage(self.local_map(uid, &of.name).point()).await
            }
            _ => Ok(None),
        }
    }

    pub(super) fn csi_waits(&self, uid: &PodUid) -> Vec<VolumeWait> {
        let told = |Wait { volume, driver, step, why, since }| {
            let from = VolumeOrigin::Driver(driver);
            VolumeWait { volume, from, step, why, since }
        };
        self.csi.iter().flat_map(|csi| csi.waits(uid)).map(told).collect()
    }

    /// A volume of an older kind. No controller makes it larger, and nobody else has it by another name.
    pub(super) fn migrated(
        &self,
        pod: &Pod,
        volume: &Volume,
        of: &Result<Box<MigratedVolume>, String>,
    ) -> Result<VolumeBacking, Failed> {
        let of = of.as_ref().map_err(|why| Failed::Unprocessed(why.clone()))?;
        let MigratedVolume { name, driver, handle, fs_type, attributes, access_mode, secret } =
            (**of).clone();
        let access_modes = vec![access_mode.to_owned()];
        let label = self.label(pod, volume, (widest(&access_modes), false))?;
        let source = CsiSource {
            driver,
            handle,
            fs_type,
            attributes,
            access_modes,
            stage_secret: secret,
            ..CsiSource::default()
        };
        let place = VolumeBacking::Csi(Box::new(WantedVolume {
            name,
            own_name: volume.name.clone(),
            label,
            source,
            read_only: false,
            one_pod: false,
            block: false,
            ephemeral: false,
            claim: None,
        }));
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.entry(pod.uid.clone()).or_default().insert(volume.name.clone(), place.clone());
        Ok(place)
    }

    /// Everything of the pod: what drivers have mounted is given back to them first, and parts of it before that.
    pub(super) async fn take_all(&self, uid: &PodUid) -> Result<(), String> {
        let folder = self.pod(uid);
        let exports = self.has_folder(uid, nfs::FOLDER).await?;
        let disks = self.has_folder(uid, iscsi::FOLDER).await?;
        if exports || disks || self.csi.is_some() {
            let parts = folder.join(SUB_PATHS);
            if exports {
                self.unmount_parts(parts.clone()).await?;
            }
            blocking(move || detach_all(&parts, &mounts::Table)).await?;
        }
        // Side by side: a server may keep one waiting, and a driver the other.
        let of_drivers = async {
            match &self.csi {
                Some(csi) => csi.unmount_all(uid).await,
                None => Ok(()),
            }
        };
        let of = async |is_there, plugin| match is_there {
            true => self.unmount_below(uid, plugin).await,
            false => Ok(()),
        };
        let (of_drivers, of_servers, of_targets) =
            tokio::join!(of_drivers, of(exports, nfs::FOLDER), of(disks, iscsi::FOLDER));
        of_drivers.and(of_servers).and(of_targets)?;
        self.take_folders(uid).await?;
        let this = self.clone();
        let disks = blocking(move || this.list_local_disks()).await?;
        self.leave_local_disks(disks);
        self.leave_disks(uid).await
    }

    /// What is this machine's own.
    async fn take_folders(&self, uid: &PodUid) -> Result<(), String> {
        let (this, uid, folder) = (self.clone(), uid.clone(), self.pod(uid));
        blocking(move || {
            this.unmap_local(&uid)?;
            this.unmap_disks(&uid)?;
            of_nobody(&folder, &mounts::Table)?;
            removal::take_down(&folder, &mounts::Table)
        })
        .await
    }
}

/// A volume that is the pod's own.
pub(super) fn own(pod: &Pod, name: &str, of: &CsiVolume, label: Option<WantedLabel>) -> VolumeBacking {
    let secret = of.secret.as_ref().map(|secret| (pod.namespace.clone(), secret.clone()));
    let source = CsiSource {
        driver: of.driver.clone(),
        handle: ephemeral_handle(pod, name),
        fs_type: of.fs_type.clone(),
        attributes: of.attributes.clone(),
        publish_secret: secret,
        ..CsiSource::default()
    };
    let (name, read_only) = (name.to_owned(), of.read_only);
    let own_name = name.clone();
    VolumeBacking::Csi(Box::new(WantedVolume {
        name,
        own_name,
        label,
        source,
        read_only,
        one_pod: false,
        block: false,
        ephemeral: true,
        claim: None,
    }))
}

fn detach_all(folder: &Path, mounts: &dyn Mounts) -> Result<(), String> {
    let below = mounts.below(folder).map_err(|error| format!("read the mount table: {error}"))?;
    below.iter().try_for_each(|point| {
        mounts.detach(point).map_err(|error| format!("unmount {}: {error}", point.display()))
    })
}

/// What is mounted there yet is of a driver that nobody knows: it alone may take it back.
fn of_nobody(pod: &Path, mounts: &dyn Mounts) -> Result<(), String> {
    let folder = pod.join("volumes").join(FOLDER);
    let below = mounts.below(&folder).map_err(|error| format!("read the mount table: {error}"))?;
    let devices = pod.join(block::FOLDER).join(FOLDER);
    let linked = block::entries(&devices).map_err(|error| format!("list {}: {error}", devices.display()))?;
    if let Some(link) = linked.first() {
        return Err(format!(
            "{} is mapped and no vol_data.json says which CSI driver's it is: unmap it",
            link.display()
        ));
    }
    match below.first() {
        None => Ok(()),
        Some(point) => Err(format!(
            "{} is mounted and no vol_data.json says which CSI driver's it is: unmount it",
            point.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    struct Mounted(Vec<PathBuf>);

    impl Mounts for Mounted {
        fn below(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
            Ok(self.0.iter().filter(|point| point.starts_with(folder)).cloned().collect())
        }

        fn detach(&self, _: &Path) -> io::Result<()> {
            Err(io::ErrorKind::ResourceBusy.into())
        }
    }

    #[test]
    fn what_a_driver_may_have_mounted_is_not_unmounted_for_it() {
        let pod = Path::new("/k/pods/u");
        let check = |point: &str| of_nobody(pod, &Mounted(vec![pod.join(point)]));
        assert_eq!(check("volumes/kubernetes.io~empty-dir/e"), Ok(()));
        assert!(check("volumes/kubernetes.io~csi/pv/mount").unwrap_err().contains("unmount it"));
        let busy = detach_all(&pod.join(SUB_PATHS), &Mounted(vec![pod.join("volume-subpaths/pv/web/0")]));
        assert!(busy.unwrap_err().starts_with("unmount /k/pods/u/volume-subpaths/pv/web/0: "));
    }
}

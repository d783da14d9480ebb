//! A pod's volumes of NFS servers: mounted by mount(8) in upstream's folder. Owns the order; how they are taken back is
//! [`super::served`]'s. Called by [`super`].

use std::path::PathBuf;
use std::time::Instant;

use gantry_model::pod::volume::Volume;
use gantry_model::pod::{Pod, PodUid};

use super::super::nfs::{FOLDER, NfsMount, SET_UP};
use super::super::{Error, VolumeOrigin};
use super::HostVolumes;
use super::claims::Failed;
use super::failures::MissingVolume;

impl HostVolumes {
    pub(super) fn nfs_target(&self, uid: &PodUid, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(FOLDER).join(name)
    }

    pub(super) async fn mount_nfs(
        &self,
        pod: &Pod,
        volume: &Volume,
        wanted: Box<NfsMount>,
        begun: Instant,
    ) -> Result<(), MissingVolume> {
        self.waits.begin(&pod.uid, &wanted.name, VolumeOrigin::Export(wanted.source()), SET_UP);
        let mounted = self.mount_export(pod, &wanted).await;
        match &mounted {
            Ok(()) => self.waits.end(&pod.uid, &wanted.name),
            Err(why) => self.waits.fail(&pod.uid, &wanted.name, why),
        }
        self.tally.record_mount(pod, volume, begun, mounted.is_ok());
        let told = |why| Failed::Of { step: SET_UP, volume: wanted.name.clone(), why }.told(&volume.name);
        mounted.map_err(|why| MissingVolume::new(&volume.name, Error::new(told(why))))
    }

    /// Unless something is mounted there: an earlier kubelet may have done it.
    async fn mount_export(&self, pod: &Pod, wanted: &NfsMount) -> Result<(), String> {
        let target = self.nfs_target(&pod.uid, &wanted.name);
        if self.served.is_mounted(&target).await? {
            return Ok(());
        }
        self.served.mount(&wanted.arguments(&target)?, &target).await
    }
}

//! Whether a pod may use the volume of its claim on this node: the volume's node affinity, and its one
//! writer. Owns both checks and upstream's words for them; what a claim leads to is [`claim`]'s.
//! Called by [`super`] while volumes are set up.
//!
//! What is mounted already is not asked again. The table of mounts is what counts, so that a restart of
//! the agent forgets nobody; the reservation is for the moment between the look and the mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gantry_model::pod::volume::{ClaimRef, Volume};
use gantry_model::pod::{Pod, PodUid};

use super::super::FAILED_MOUNT;
use super::super::claim::{self, BoundVolume, VolumeBacking};
use super::super::removal::Mounts;
use super::{HostVolumes, LOCAL, blocking, mounts};
use crate::admission;
use crate::csi::label::WantedLabel;
use crate::csi::owner::event_reason;
use crate::csi::steps::{failure_message, unmounted};

pub(super) const IN_USE: &str =
    "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

const NO_OPTIONS: &str = "mount options are not supported for this volume type";

/// Why a volume is not there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// It could not be made.
    SetUp(String),
    /// A step, of a PersistentVolume.
    Of { step: &'static str, volume: String, why: String },
    /// Nobody knows how the pod is to have it.
    Unprocessed(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::SetUp(why)
    }
}

impl Failed {
    /// Of the event that tells it.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Of { step, .. } if !step.contains("NodeAffinity") => event_reason(step),
            _ => FAILED_MOUNT,
        }
    }

    /// As upstream, which names a PersistentVolume where there is one.
    pub(super) fn told(&self, name: &str) -> String {
        match self {
            Self::SetUp(why) => format!("MountVolume.SetUp failed for volume {name:?} : {why}"),
            Self::Of { step, volume, why } => failure_message(step, volume, why),
            Self::Unprocessed(why) => unmounted(name, name, why),
        }
    }
}

/// By PersistentVolume, of those that one pod alone may use.
#[derive(Debug, Clone, Default)]
pub(super) struct Writers(Arc<Mutex<BTreeMap<String, PodUid>>>);

impl Writers {
    /// Reserves the volume for the pod. `place` says where a pod has it mounted, below that folder, whose first step is the
    /// pod's UID; false when another pod has it mounted, or is about to.
    fn take(
        &self,
        (below, place): (&Path, impl Fn(&str) -> PathBuf),
        volume: &str,
        uid: &PodUid,
        mounts: &dyn Mounts,
    ) -> Result<bool, String> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let points = mounts.below(below).map_err(|error| format!("read the mount table: {error}"))?;
        if points.contains(&place(uid.as_str())) {
            return Ok(true);
        }
        let of_other = |point: &PathBuf| {
            let first = point.strip_prefix(below).ok().and_then(|rest| rest.iter().next());
            first.and_then(|uid| uid.to_str()).is_some_and(|uid| *point == place(uid))
        };
        if points.iter().any(of_other) || taken.get(volume).is_some_and(|other| other != uid) {
            return Ok(false);
        }
        taken.insert(volume.to_owned(), uid.clone());
        Ok(true)
    }

    /// What the pod has not mounted is free again.
    pub(super) fn give_back(&self, uid: &PodUid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, other| other != uid);
    }
}

impl HostVolumes {
    /// Where the claim leads, once that pod may go there.
    pub(super) async fn claim(
        &self,
        pod: &Pod,
        volume: &Volume,
        claim: &ClaimRef,
    ) -> Result<VolumeBacking, Failed> {
        let mut found = claim::find(self.api.as_ref(), pod, volume, claim).await?;
        let label = self.label(pod, volume, (found.access_mode, found.one_pod))?;
        if let VolumeBacking::Csi(wanted) = &mut found.place {
            wanted.label = label;
        }
        let name = found.volume.clone();
        let of = |step, why| Failed::Of { step, volume: name.clone(), why };
        if !self.is_there(pod, volume, &found).await? {
            let step = match found.place.is_block() {
                true => "MapVolume.NodeAffinity check",
                false => "MountVolume.NodeAffinity check",
            };
            self.affine(&found).map_err(|why| of(step, why))?;
        }
        if found.wants_options && self.place_of(&pod.uid, &volume.name).is_none() {
            return Err(of("MountVolume.MountOptionSupport check", NO_OPTIONS.to_owned()));
        }
        // Upstream's kubelet knows who has a volume mounted by its name only where a plugin mounts
        // devices; a hostPath is not one of these.
        if found.one_pod && !self.reserve(&pod.uid, &found).await? {
            let step = if found.place.is_block() { "MapVolume.SetUpDevice" } else { "MountVolume.SetUp" };
            return Err(of(step, IN_USE.to_owned()));
        }
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.entry(pod.uid.clone()).or_default().insert(volume.name.clone(), found.place.clone());
        Ok(found.place)
    }

    /// With which SELinux label the pod wants the volume; none where that is no matter. What keeps a volume of one pod from
    /// its pod is counted for others, as upstream.
    pub(super) fn label(
        &self,
        pod: &Pod,
        volume: &Volume,
        (access_mode, one_pod): (&'static str, bool),
    ) -> Result<Option<WantedLabel>, Failed> {
        let Some(labels) = &self.labels else { return Ok(None) };
        let error = match labels.of(pod, &volume.name) {
            Ok(label) => return Ok(Some(WantedLabel { label, access_mode })),
            Err(error) => error,
        };
        self.tally.record_no_label(&error, access_mode, one_pod);
        match one_pod {
            true => Err(Failed::Unprocessed(error.why().to_owned())),
            false => {
                let (pod, volume, why) = (pod.full_name(), &volume.name, error.why());
                tracing::debug!(pod, volume, why, "a volume has no SELinux label of its own");
                Ok(None)
            }
        }
    }

    /// Whether no other pod has the local volume, nor is about to.
    async fn reserve(&self, uid: &PodUid, found: &BoundVolume) -> Result<bool, String> {
        let (below, name) = match &found.place {
            VolumeBacking::Local(of) => (self.pods.clone(), of.name.clone()),
            VolumeBacking::LocalBlock(of) => (self.local_devices().join(&of.name), of.name.clone()),
            // The owner of disks sees to these himself.
            VolumeBacking::HostPath { .. }
            | VolumeBacking::Csi(_)
            | VolumeBacking::Iscsi(_)
            | VolumeBacking::Nfs(_) => return Ok(true),
        };
        let (writers, uid, is_block) = (self.writers.clone(), uid.clone(), found.place.is_block());
        let take = move || {
            let place = |uid: &str| match is_block {
                true => below.join(uid),
                false => below.join(uid).join("volumes").join(LOCAL).join(&name),
            };
            writers.take((&below, place), &name, &uid, &mounts::Table)
        };
        blocking(take).await
    }

    /// Whether the pod has it already, also from an agent before.
    async fn is_there(&self, pod: &Pod, volume: &Volume, found: &BoundVolume) -> Result<bool, String> {
        match &found.place {
            _ if found.affinity.is_none() => Ok(true),
            _ if self.place_of(&pod.uid, &volume.name).is_some() => Ok(true),
            // What its owner has mounted already is not mounted again, whatever is asked of the node.
            VolumeBacking::HostPath { .. } | VolumeBacking::Csi(_) => Ok(false),
            VolumeBacking::Nfs(wanted) => {
                self.served.is_mounted(&self.nfs_target(&pod.uid, &wanted.name)).await
            }
            VolumeBacking::Iscsi(disk) if disk.block => Ok(self.iscsi_map(&pod.uid, disk).link.is_symlink()),
            VolumeBacking::Iscsi(disk) => {
                self.served.is_mounted(&self.iscsi_target(&pod.uid, &disk.name)).await
            }
            VolumeBacking::LocalBlock(of) => Ok(self.local_map(&pod.uid, &of.name).link.is_symlink()),
            VolumeBacking::Local(of) => self.has_local(&pod.uid, &of.name).await,
        }
    }

    fn affine(&self, found: &BoundVolume) -> Result<(), String> {
        let Some(terms) = &found.affinity else { return Ok(()) };
        let name = &self.node.name;
        let labels = self.node.labels.now();
        let labels = labels.ok_or_else(|| format!("error retrieving node: node {name:?} not found"))?;
        match admission::any_fits(terms, &labels) {
            true => Ok(()),
            false => Err("no matching NodeSelectorTerms".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    #[derive(Default)]
    struct Mounted(Vec<PathBuf>);

    impl Mounts for Mounted {
        fn below(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
            Ok(self.0.iter().filter(|point| point.starts_with(folder)).cloned().collect())
        }

        fn detach(&self, _: &Path) -> io::Result<()> {
            unreachable!("it only looks")
        }
    }

    #[test]
    fn a_volume_of_one_pod_is_mounted_for_one_pod() {
        let (writers, pods) = (Writers::default(), Path::new("/k/pods"));
        let uid = |text: &str| PodUid::parse(text).unwrap();
        let take = |volume: &str, pod: &str, mounted: &[&str]| {
            let mounted = Mounted(mounted.iter().map(PathBuf::from).collect());
            let place = |uid: &str| pods.join(uid).join("volumes").join(LOCAL).join(volume);
            writers.take((pods, place), volume, &uid(pod), &mounted).unwrap()
        };
        // Side by side: the second waits for the first, which has not mounted it yet.
        assert!(take("pv", "a", &[]) && take("pv", "a", &[]) && !take("pv", "b", &[]));
        assert!(take("other", "b", &[]));
        writers.give_back(&uid("a"));
        assert!(take("pv", "b", &[]));
        writers.give_back(&uid("b"));
        // Mounted by an agent before this one.
        let mounted = ["/k/pods/a/volumes/kubernetes.io~local-volume/pv"];
        assert!(!take("pv", "b", &mounted) && take("pv", "a", &mounted) && take("other", "b", &mounted));
        // What a container has mounted within the pod's folders says nothing.
        assert!(take("pv", "b", &["/k/pods/a/volumes/kubernetes.io~empty-dir/e/pv"]));
    }
}

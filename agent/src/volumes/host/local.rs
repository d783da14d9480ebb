//! A folder or a disk of the node as a pod's volume: bound below the pod's own, and given to the pod's group by the first pod
//! that has it. Owns the order and upstream's words for one that others have; who may have it is [`super::claims`]', and how
//! a disk is mounted is [`super::local_disk`]'s. Called by [`super`].

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use gantry_base::mountinfo;
use gantry_model::pod::{Pod, PodUid};

use super::super::claim::LocalVolume;
use super::super::ownership_progress::GroupChange;
use super::claims::Failed;
use super::{HostVolumes, LOCAL, blocking, make_folder, mounts};
use crate::csi::steps::{EXPAND, EXPAND_IN_USE};
use crate::events::{Kind, Note};

/// How a folder came to a pod.
#[derive(Debug)]
enum Binding {
    /// No other pod has it.
    First,
    /// Others have it, with that group.
    Shared { group: u32 },
}

impl HostVolumes {
    pub(super) fn local_target(&self, uid: &PodUid, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(LOCAL).join(name)
    }

    /// Whether the pod has the volume, whatever has become of its path since, as upstream.
    pub(super) async fn has_local(&self, uid: &PodUid, name: &str) -> Result<bool, String> {
        let target = self.local_target(uid, name);
        blocking(move || {
            mounts::is_mount_point(&target).map_err(|error| format!("stat {}: {error}", target.display()))
        })
        .await
    }

    /// The folder, or what is on the disk, as the pod's volume.
    pub(super) async fn mount_local(&self, pod: &Pod, of: &LocalVolume) -> Result<(), Failed> {
        let has = self.has_local(&pod.uid, &of.name).await?;
        if has && !of.may_grow() {
            return Ok(());
        }
        let of_device = |why| Failed::Of { step: "MountVolume.MountDevice", volume: of.name.clone(), why };
        let path = of.path.clone();
        let is_disk = blocking(move || is_disk(&path)).await.map_err(of_device)?;
        let folder = if is_disk { self.disk_place(&of.name) } else { of.path.clone() };
        // The second pod waits for the first, as upstream.
        let turn = self.turns.of(&folder);
        let _turn = turn.lock().await;
        let place = is_disk.then_some(folder.as_path());
        if has {
            return self.grow_local(pod, of, place, EXPAND_IN_USE).await;
        }
        if is_disk {
            self.mount_local_disk(of, &folder).await.map_err(|failure| {
                self.tell_mismatch(&pod.uid, (&of.name, &of.uid), &failure);
                of_device(failure.why)
            })?;
        }
        // Before it is bound: a pod has no volume that is too small.
        self.grow_local(pod, of, place, EXPAND).await?;
        self.bind_local(pod, of, folder).await.map_err(Failed::SetUp)
    }

    async fn bind_local(&self, pod: &Pod, of: &LocalVolume, folder: PathBuf) -> Result<(), String> {
        let (path, pods) = (self.local_target(&pod.uid, &of.name), self.pods.clone());
        let target = path.clone();
        let source = folder.clone();
        let binding = blocking(move || bind(&source, &target, &pods)).await?;
        self.give_options(of, &folder, &path).await?;
        let wanted = pod.security.fs_group;
        match binding {
            Binding::Shared { group } => {
                if let Some(message) = mismatch(wanted, group, &of.name) {
                    self.notes.add(&pod.uid, Note::pod(Kind::Warning, "AlreadyMountedVolume", message));
                }
                Ok(())
            }
            Binding::First if of.read_only => Ok(()),
            Binding::First => {
                let change = GroupChange::of(pod, self.notes.clone());
                change.apply(path).await.map_err(|why| format!("applyFSGroup failed: {why}"))
            }
        }
    }

    /// Those of the PersistentVolume; what is bound of a disk has them already.
    pub(super) async fn give_options(
        &self,
        of: &LocalVolume,
        folder: &Path,
        path: &Path,
    ) -> Result<(), String> {
        if of.options.is_empty() || folder != of.path {
            return Ok(());
        }
        let ro = of.read_only.then_some("ro");
        let own = of.options.iter().map(String::as_str).chain(ro);
        let options: Vec<&str> = ["bind", "remount"].into_iter().chain(own).collect();
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        let arguments = ["-o".to_owned(), options.join(","), shown(folder), shown(path)];
        let Err(why) = self.served.program.mount(&arguments).await else { return Ok(()) };
        // What is mounted counts as whole.
        self.served.program.unmount(path).await?;
        Err(why)
    }
}

/// Whether it is a block device, and no folder. Errors in upstream's words.
fn is_disk(path: &Path) -> Result<bool, String> {
    let kind = match fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("path {path:?} does not exist"));
        }
        Err(error) => return Err(format!("stat {}: {error}", path.display())),
    };
    match kind.is_block_device() {
        false if !kind.is_dir() => Err("only directory and block device are supported".to_owned()),
        is_disk => Ok(is_disk),
    }
}

/// What is said of a group that those who have the volume have not.
fn mismatch(wanted: Option<i64>, group: u32, name: &str) -> Option<String> {
    let wanted = wanted.filter(|wanted| *wanted != i64::from(group))?;
    Some(format!(
        "The requested fsGroup is {wanted}, but the volume {name} has GID {group}. The volume may not be shareable."
    ))
}

fn bind(folder: &Path, path: &Path, pods: &Path) -> Result<Binding, String> {
    make_folder(path).map_err(|error| format!("mkdir {}: {error}", path.display()))?;
    let source =
        fs::File::open(folder).map_err(|error| format!("path {folder:?} does not exist: {error}"))?;
    let found = source.metadata().map_err(|error| format!("stat {}: {error}", folder.display()))?;
    let shared = is_shared(folder, pods)?;
    mounts::bind(source.as_fd(), path)
        .map_err(|error| format!("bind {} on {}: {error}", folder.display(), path.display()))?;
    Ok(if shared { Binding::Shared { group: found.gid() } } else { Binding::First })
}

/// Whether a pod has the folder.
fn is_shared(folder: &Path, pods: &Path) -> Result<bool, String> {
    let real = folder.canonicalize().map_err(|error| format!("resolve {}: {error}", folder.display()))?;
    let table = mountinfo::own().map_err(|error| format!("read the mount table: {error}"))?;
    Ok(mounts::copies(&table, &real).any(|point| point.starts_with(pods)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_group_than_the_one_that_a_shared_volume_has_is_told_in_upstreams_words() {
        let words =
            "The requested fsGroup is 7, but the volume pv has GID 0. The volume may not be shareable.";
        assert_eq!(mismatch(Some(7), 0, "pv").as_deref(), Some(words));
        assert_eq!((mismatch(Some(7), 7, "pv"), mismatch(None, 7, "pv")), (None, None));
    }
}

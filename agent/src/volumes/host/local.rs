//! A folder of the node as a pod's volume: bound below the pod's own, and given to the pod's group by the first pod that has
//! it. Owns the order and upstream's words for one that others have; who may have it is [`super::claims`]'.
//! Called by [`super`].

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gantry_base::mountinfo;
use gantry_model::pod::Pod;

use super::super::ownership_progress::GroupChange;
use super::{HostVolumes, blocking, make_folder, mounts};
use crate::events::{Kind, Note};

/// How a folder came to a pod.
#[derive(Debug, PartialEq, Eq)]
enum Binding {
    /// The pod had it.
    Old,
    /// No other pod has it.
    First,
    /// Others have it, with that group.
    Shared { group: u32 },
}

impl HostVolumes {
    /// The folder as the pod's volume of that name, at `path`.
    pub(super) async fn mount_local(
        &self,
        pod: &Pod,
        (folder, name): (&Path, &str),
        path: &Path,
        read_only: bool,
    ) -> Result<(), String> {
        // The second pod waits for the first, as upstream.
        let turn = self.turns.of(folder);
        let _turn = turn.lock().await;
        let (source, target, pods) = (folder.to_owned(), path.to_owned(), self.pods.clone());
        let binding = blocking(move || bind(&source, &target, &pods)).await?;
        let wanted = pod.security.fs_group;
        match binding {
            Binding::Old => Ok(()),
            Binding::Shared { group } => {
                if let Some(message) = mismatch(wanted, group, name) {
                    self.notes.add(&pod.uid, Note::pod(Kind::Warning, "AlreadyMountedVolume", message));
                }
                Ok(())
            }
            Binding::First if read_only => Ok(()),
            Binding::First => {
                let change = GroupChange::of(pod, self.notes.clone());
                change.apply(path.to_owned()).await.map_err(|why| format!("applyFSGroup failed: {why}"))
            }
        }
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
    if mounts::is_mount_point(path).map_err(|error| format!("stat {}: {error}", path.display()))? {
        return Ok(Binding::Old);
    }
    let source =
        fs::File::open(folder).map_err(|error| format!("path {folder:?} does not exist: {error}"))?;
    let found = source.metadata().map_err(|error| format!("stat {}: {error}", folder.display()))?;
    if !found.is_dir() {
        return Err(format!("path {folder:?} is no folder: this node mounts local volumes that are folders"));
    }
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

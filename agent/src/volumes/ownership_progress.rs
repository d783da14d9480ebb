//! The change of a volume's group that takes long, told to its pod. Owns when that is told and upstream's words; what is
//! changed is [`super::ownership`]'s. Called by [`super::host`].

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gantry_model::pod::{Pod, PodUid};
use tokio::time::sleep;

use super::ownership;
use crate::events::{Kind, Note, VolumeNotes};

const REASON: &str = "VolumePermissionChangeInProgress";
/// Until it is told first, and from then on.
const FIRST: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(60);

/// Whose volume's files get the group of their pod.
#[derive(Debug, Clone)]
pub(super) struct GroupChange {
    uid: PodUid,
    group: Option<u32>,
    on_mismatch: bool,
    notes: VolumeNotes,
}

impl GroupChange {
    pub(super) fn of(pod: &Pod, notes: VolumeNotes) -> Self {
        Self {
            uid: pod.uid.clone(),
            group: pod.security.fs_group.and_then(|group| u32::try_from(group).ok()),
            on_mismatch: pod.security.fs_group_on_root_mismatch,
            notes,
        }
    }

    /// Gives the folder and all that is in it to the pod's group.
    pub(super) async fn apply(self, folder: PathBuf) -> Result<(), String> {
        let count = Arc::new(AtomicU64::new(0));
        let (of, counted, Self { group, on_mismatch, .. }) = (folder.clone(), count.clone(), self.clone());
        let work = tokio::task::spawn_blocking(move || {
            ownership::set_tree(&of, group, on_mismatch, &counted)
                .map_err(|error| format!("{}: {error}", of.display()))
        });
        let changed = self.tell_meanwhile(work, &folder, &count).await;
        changed.unwrap_or_else(|error| Err(format!("the work on a volume died: {error}")))
    }

    async fn tell_meanwhile<T>(&self, work: impl Future<Output = T>, folder: &Path, count: &AtomicU64) -> T {
        let (mut work, told) = (pin!(work), self.shown(folder));
        let tell = |message: String| {
            tracing::warn!(pod = %self.uid, message, "the group of a volume's files");
            self.notes.add(&self.uid, Note::pod(Kind::Warning, REASON, message));
        };
        // The same work at each turn; a sleep that is cut short has told nothing.
        tokio::select! {
            done = &mut work => return done,
            () = sleep(FIRST) => tell(format!(
                "Setting volume ownership for {told} is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
            )),
        }
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = sleep(AGAIN) => {
                    let count = count.load(Ordering::Relaxed);
                    tell(format!("Setting volume ownership for {told}, processed {count} files."));
                }
            }
        }
    }

    /// The path from the pod's UID on, as upstream shows it.
    fn shown(&self, folder: &Path) -> String {
        let path = folder.to_string_lossy().into_owned();
        path.find(self.uid.as_str()).and_then(|at| path.get(at..)).unwrap_or(&path).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    #[tokio::test(start_paused = true)]
    async fn a_change_that_takes_long_is_told_after_half_a_minute_and_then_each_minute() {
        let (notes, folder) =
            (VolumeNotes::default(), Path::new("/k/pods/uid-1/volumes/kubernetes.io~csi/pv/mount"));
        let change = GroupChange::of(&pod(), notes.clone());
        let told = async |seconds| {
            let count = AtomicU64::new(7);
            change.tell_meanwhile(sleep(Duration::from_secs(seconds)), folder, &count).await;
            notes.take(&change.uid).into_iter().map(|told| told.note).collect::<Vec<_>>()
        };
        assert_eq!(told(29).await, []);
        let [first, again, last] = &told(160).await[..] else { panic!("it is not told thrice") };
        let what = "Setting volume ownership for uid-1/volumes/kubernetes.io~csi/pv/mount";
        let words = format!(
            "{what} is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/"
        );
        assert!(first.message.starts_with(&words), "{first:?}");
        assert_eq!((again.message.as_str(), again), (&*format!("{what}, processed 7 files."), last));
        assert_eq!((first.kind, first.reason.as_ref()), (Kind::Warning, REASON));
    }
}

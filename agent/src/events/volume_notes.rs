//! What happens to the volumes of pods while they are set up, until the pod's worker takes it to its list. Owns what is not
//! taken yet; never tells anybody. Filled by [`crate::csi`] and [`crate::volumes`], read by [`crate::pod::run`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_model::pod::PodUid;
use tokio::sync::Notify;

use super::Note;

/// A PersistentVolumeClaim, as an event refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimIdentity {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Of this very claim.
    pub(crate) uid: String,
}

/// A PersistentVolume, as an event refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeIdentity {
    /// Its name.
    pub(crate) name: String,
    /// Of this very volume.
    pub(crate) uid: String,
}

/// Of what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeNoteSubject {
    /// Of the pod.
    Pod,
    /// Of the pod, and of the claim behind its volume.
    Claim(ClaimIdentity),
    /// Of the PersistentVolume, and not of the pod.
    Volume(VolumeIdentity),
}

/// Something that happened to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeNote {
    pub(crate) subject: VolumeNoteSubject,
    pub(crate) note: Note,
}

/// Of all pods. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct VolumeNotes(Arc<Untaken>);

#[derive(Debug, Default)]
struct Untaken {
    by_pod: Mutex<BTreeMap<PodUid, Vec<VolumeNote>>>,
    more: Notify,
}

impl VolumeNotes {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PodUid, Vec<VolumeNote>>> {
        self.0.by_pod.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It happened to a volume of the pod.
    pub(crate) fn add(&self, pod: &PodUid, note: Note) {
        self.push(pod, VolumeNote { subject: VolumeNoteSubject::Pod, note });
    }

    /// The same, and to the claim behind that volume.
    pub(crate) fn add_of_claim(&self, pod: &PodUid, claim: ClaimIdentity, note: Note) {
        self.push(pod, VolumeNote { subject: VolumeNoteSubject::Claim(claim), note });
    }

    /// It happened to the PersistentVolume that the pod is to have; the pod hears of it otherwise.
    pub(crate) fn add_of_volume(&self, pod: &PodUid, volume: VolumeIdentity, note: Note) {
        self.push(pod, VolumeNote { subject: VolumeNoteSubject::Volume(volume), note });
    }

    fn push(&self, pod: &PodUid, note: VolumeNote) {
        self.all().entry(pod.clone()).or_default().push(note);
        self.0.more.notify_waiters();
    }

    /// What nobody has taken yet.
    pub(crate) fn take(&self, pod: &PodUid) -> Vec<VolumeNote> {
        self.all().remove(pod).unwrap_or_default()
    }

    /// The same, once there is something.
    pub(crate) async fn next(&self, pod: &PodUid) -> Vec<VolumeNote> {
        loop {
            // Before the look: what comes after it wakes us.
            let more = self.0.more.notified();
            let untaken = self.take(pod);
            if !untaken.is_empty() {
                return untaken;
            }
            more.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::events::Kind::Normal;

    #[tokio::test(start_paused = true)]
    async fn what_happens_is_taken_once_by_the_worker_of_that_pod() {
        let notes = VolumeNotes::default();
        let [a, b] = ["a", "b"].map(|uid| PodUid::parse(uid).unwrap());
        let note = |message: &str| Note::pod(Normal, "SuccessfulMountVolume", message);
        let (waiting, of) = (notes.clone(), a.clone());
        let next = tokio::spawn(async move { waiting.next(&of).await });
        notes.add(&b, note("of b"));
        let claim = ClaimIdentity { namespace: "n".into(), name: "c".into(), uid: "u".into() };
        notes.add_of_claim(&a, claim.clone(), note("of a"));
        let next = timeout(Duration::from_secs(60), next).await.unwrap().unwrap();
        assert_eq!(next, [VolumeNote { subject: VolumeNoteSubject::Claim(claim), note: note("of a") }]);
        assert_eq!((notes.take(&a), notes.next(&b).await.len()), (Vec::new(), 1));
    }
}

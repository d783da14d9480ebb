//! Whose leftovers are being taken back just now. Owns the two sets that exclude each other: pods that
//! are here, and pods that are swept; never touches what they left. A removal that hangs stays in the
//! second one, however long nobody waits for it any more. Called by [`super`] and by whoever takes a
//! pod up.

use std::collections::BTreeSet;
use std::sync::Arc;

use gantry_model::pod::PodUid;
use tokio::sync::watch;

/// Each that hangs has a thread of its own.
const MOST: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Sweeps {
    sets: watch::Sender<Sets>,
}

#[derive(Debug, Default)]
struct Sets {
    here: BTreeSet<PodUid>,
    swept: BTreeSet<PodUid>,
}

/// Why a sweep is not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The pod is here again: it is no orphan.
    Here,
    /// An earlier sweep has not come to its end.
    UnderWay,
    /// Too many of them.
    Full,
}

/// A sweep under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Sweep {
    uid: PodUid,
    sweeps: Arc<Sweeps>,
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.sweeps.sets.send_modify(|sets| {
            sets.swept.remove(&self.uid);
        });
    }
}

impl Sweeps {
    /// These pods are here, and no others: none of them is swept from now on.
    pub(crate) fn here(&self, pods: BTreeSet<PodUid>) {
        self.sets.send_modify(|sets| sets.here = pods);
    }

    /// So is this one.
    pub(crate) fn keep(&self, uid: &PodUid) {
        self.sets.send_modify(|sets| {
            sets.here.insert(uid.clone());
        });
    }

    /// Whether what a pod of that UID left is being taken back.
    pub(crate) fn is_under_way(&self, uid: &PodUid) -> bool {
        self.sets.borrow().swept.contains(uid)
    }

    /// Waits until it is not. Cancel-safe.
    pub(crate) async fn wait_finished(&self, uid: &PodUid) {
        // The sender is ours: it cannot be gone.
        let _ = self.sets.subscribe().wait_for(|sets| !sets.swept.contains(uid)).await;
    }

    pub(crate) fn begin(self: &Arc<Self>, uid: &PodUid) -> Result<Sweep, Refusal> {
        let mut begun = Ok(());
        self.sets.send_if_modified(|sets| {
            begun = if sets.here.contains(uid) {
                Err(Refusal::Here)
            } else if sets.swept.contains(uid) {
                Err(Refusal::UnderWay)
            } else if sets.swept.len() >= MOST {
                Err(Refusal::Full)
            } else {
                Ok(())
            };
            begun.is_ok() && sets.swept.insert(uid.clone())
        });
        begun.map(|()| Sweep { uid: uid.clone(), sweeps: self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("uid-{number}")).unwrap()
    }

    #[test]
    fn a_pod_that_is_here_is_not_swept_and_none_is_swept_twice_at_once() {
        let sweeps = Arc::new(Sweeps::default());
        sweeps.here([uid(1)].into());
        sweeps.keep(&uid(2));
        assert_eq!(sweeps.begin(&uid(1)).unwrap_err(), Refusal::Here);
        assert_eq!(sweeps.begin(&uid(2)).unwrap_err(), Refusal::Here);
        let sweep = sweeps.begin(&uid(3)).unwrap();
        assert_eq!(sweeps.begin(&uid(3)).unwrap_err(), Refusal::UnderWay);
        assert!(sweeps.is_under_way(&uid(3)) && !sweeps.is_under_way(&uid(1)));
        drop(sweep);
        assert!(!sweeps.is_under_way(&uid(3)));
        sweeps.here(BTreeSet::new());
        let all: Vec<_> = (0..MOST).map(|number| sweeps.begin(&uid(number)).unwrap()).collect();
        assert_eq!(sweeps.begin(&uid(MOST)).unwrap_err(), Refusal::Full);
        drop(all);
        assert!(sweeps.begin(&uid(MOST)).is_ok());
    }
}

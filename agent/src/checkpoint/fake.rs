//! Checkpoints in memory, for tests of the workers. Owns the map; never a file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use gantry_model::allocation::Allocation;
use gantry_model::pod::{Origin, PodUid, Requirements};

use super::{Checkpoints, Claims, Error, Marks};

/// The fake.
#[derive(Debug, Default)]
pub struct Memory {
    pods: Mutex<BTreeMap<PodUid, Marks>>,
    claims: Mutex<Claims>,
    allocated: Mutex<BTreeMap<PodUid, Allocation>>,
    actuated: Mutex<BTreeMap<PodUid, Allocation>>,
}

impl Checkpoints for Memory {
    fn load<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<Marks, Error>> {
        let marks = self.pods.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned();
        Box::pin(async move { Ok(marks.unwrap_or_default()) })
    }

    fn save<'a>(&'a self, uid: &'a PodUid, marks: &'a Marks) -> BoxFuture<'a, Result<(), Error>> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.is_empty() {
            pods.remove(uid);
        } else {
            pods.insert(uid.clone(), marks.clone());
        }
        Box::pin(async { Ok(()) })
    }

    fn claim<'a>(&'a self, uid: &'a PodUid, origin: &'a Origin) -> BoxFuture<'a, Result<(), Error>> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.insert(uid.clone(), origin.clone());
        Box::pin(async { Ok(()) })
    }

    fn allocate<'a>(&'a self, uid: &'a PodUid, with: &'a Allocation) -> BoxFuture<'a, Result<(), Error>> {
        let mut allocated = self.allocated.lock().unwrap_or_else(PoisonError::into_inner);
        allocated.insert(uid.clone(), with.clone());
        Box::pin(async { Ok(()) })
    }

    fn allocated(&self) -> BoxFuture<'_, BTreeMap<PodUid, Allocation>> {
        let allocated = self.allocated.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { allocated })
    }

    fn actuate<'a>(&'a self, uid: &'a PodUid, to: &'a Allocation) -> BoxFuture<'a, Result<(), Error>> {
        let mut actuated = self.actuated.lock().unwrap_or_else(PoisonError::into_inner);
        super::merge(actuated.entry(uid.clone()).or_default(), to);
        Box::pin(async { Ok(()) })
    }

    fn actuate_container<'a>(
        &'a self,
        uid: &'a PodUid,
        container: &'a str,
        to: &'a Requirements,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let mut actuated = self.actuated.lock().unwrap_or_else(PoisonError::into_inner);
        actuated.entry(uid.clone()).or_default().containers.insert(container.to_owned(), to.clone());
        Box::pin(async { Ok(()) })
    }

    fn actuated<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Option<Allocation>> {
        let actuated = self.actuated.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned();
        Box::pin(async { actuated })
    }

    fn retain<'a>(&'a self, known: &'a [PodUid]) -> BoxFuture<'a, ()> {
        for all in [&self.allocated, &self.actuated] {
            all.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| known.contains(uid));
        }
        Box::pin(async {})
    }

    fn disown<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        self.allocated.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.actuated.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        Box::pin(async { Ok(()) })
    }

    fn claims(&self) -> BoxFuture<'_, Result<Claims, Error>> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { Ok(claims) })
    }
}

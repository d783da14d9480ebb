//! Checkpoints in memory, for tests of the workers. Owns the map; never a file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use gantry_model::admitted::Admitted;
use gantry_model::pod::{Origin, PodUid};

use super::{Checkpoints, Claims, Error, Marks};

/// The fake.
#[derive(Debug, Default)]
pub struct Memory {
    pods: Mutex<BTreeMap<PodUid, Marks>>,
    claims: Mutex<Claims>,
    admitted: Mutex<BTreeMap<PodUid, Admitted>>,
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

    fn admit<'a>(&'a self, uid: &'a PodUid, with: &'a Admitted) -> BoxFuture<'a, Result<(), Error>> {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.insert(uid.clone(), with.clone());
        Box::pin(async { Ok(()) })
    }

    fn load_admitted(&self) -> BoxFuture<'_, Result<BTreeMap<PodUid, Admitted>, Error>> {
        let admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { Ok(admitted) })
    }

    fn disown<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        Box::pin(async { Ok(()) })
    }

    fn claims(&self) -> BoxFuture<'_, Result<Claims, Error>> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { Ok(claims) })
    }
}

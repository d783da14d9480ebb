//! Checkpoints in memory, for tests of the workers. Owns the map; never a file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;

use super::{Checkpoints, Error, Marks};
use crate::pod::spec::PodUid;

/// The fake.
#[derive(Debug, Default)]
pub struct Memory {
    pods: Mutex<BTreeMap<PodUid, Marks>>,
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
}

//! Cgroups that are only remembered. Owns its state; passes for [`Cgroups`] in tests.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, ready};
use gantry_model::cgroup::Together;
use gantry_model::pod::{Pod, PodUid};

use super::{Cgroups, Error};

/// Starts empty.
#[derive(Debug, Default)]
pub struct FakeCgroups {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeSet<PodUid>,
    failure: Option<String>,
    all: Option<Together>,
}

impl FakeCgroups {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Making one fails so until told otherwise.
    pub fn fail(&self, message: Option<&str>) {
        self.state().failure = message.map(str::to_owned);
    }

    /// What all pods were last held to.
    #[must_use]
    pub fn all(&self) -> Option<Together> {
        self.state().all.clone()
    }

    /// Whether the pod has one.
    #[must_use]
    pub fn has(&self, uid: &PodUid) -> bool {
        self.state().pods.contains(uid)
    }
}

impl Cgroups for FakeCgroups {
    fn set_up<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<String, Error>> {
        let mut state = self.state();
        let result = match &state.failure {
            Some(message) => Err(Error { message: message.clone() }),
            None => {
                state.pods.insert(pod.uid.clone());
                Ok(format!("/kubepods/pod{}", pod.uid))
            }
        };
        Box::pin(ready(result))
    }

    fn hold<'a>(&'a self, all: &'a Together) -> BoxFuture<'a, Result<(), Error>> {
        let mut state = self.state();
        let result = match &state.failure {
            Some(message) => Err(Error { message: message.clone() }),
            None => {
                state.all = Some(all.clone());
                Ok(())
            }
        };
        Box::pin(ready(result))
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        self.state().pods.remove(uid);
        Box::pin(ready(Ok(())))
    }
}

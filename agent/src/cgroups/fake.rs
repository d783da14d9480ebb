//! Cgroups that are only remembered. Owns its state; passes for [`Cgroups`] in tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, ready};
use gantry_model::cgroup::limits::{Limits, Rules};
use gantry_model::cgroup::{Reserved, Together};
use gantry_model::pod::{Pod, PodUid};

use super::{Cgroups, Error};

/// Starts empty.
#[derive(Debug, Default)]
pub struct FakeCgroups {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<PodUid, Vec<Limits>>,
    in_use: BTreeMap<PodUid, u64>,
    failure: Option<String>,
    all: Option<Together>,
    reserved: Vec<(String, Option<Reserved>)>,
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

    /// What others' cgroups were held to, in this order.
    #[must_use]
    pub fn reserved(&self) -> Vec<(String, Option<Reserved>)> {
        self.state().reserved.clone()
    }

    /// What the pod was held to, oldest first.
    #[must_use]
    pub fn limits(&self, uid: &PodUid) -> Vec<Limits> {
        self.state().pods.get(uid).cloned().unwrap_or_default()
    }

    /// From now on the pod has so many bytes in use.
    pub fn use_memory(&self, uid: &PodUid, bytes: u64) {
        self.state().in_use.insert(uid.clone(), bytes);
    }

    /// Whether the pod has one.
    #[must_use]
    pub fn has(&self, uid: &PodUid) -> bool {
        self.state().pods.contains_key(uid)
    }
}

impl Cgroups for FakeCgroups {
    fn set_up<'a>(&'a self, pod: &'a Pod, limits: &'a Limits) -> BoxFuture<'a, Result<String, Error>> {
        let mut state = self.state();
        let result = match &state.failure {
            Some(message) => Err(Error { message: message.clone() }),
            None => {
                state.pods.entry(pod.uid.clone()).or_default().push(*limits);
                Ok(format!("/kubepods/pod{}", pod.uid))
            }
        };
        Box::pin(ready(result))
    }

    fn rules(&self) -> Rules {
        Rules::default()
    }

    fn update<'a>(&'a self, pod: &'a Pod, limits: &'a Limits) -> BoxFuture<'a, Result<(), Error>> {
        let mut state = self.state();
        let failure = state.failure.clone();
        let result = match (failure, state.pods.get_mut(&pod.uid)) {
            (Some(message), _) => Err(Error { message }),
            (None, None) => Err(Error { message: format!("pod {} has no cgroup", pod.uid) }),
            (None, Some(held)) => {
                held.push(*limits);
                Ok(())
            }
        };
        Box::pin(ready(result))
    }

    fn memory_in_use<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        Box::pin(ready(Ok(Some(self.state().in_use.get(&pod.uid).copied().unwrap_or(0)))))
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

    fn enforce<'a>(&'a self, name: &'a str, to: Option<Reserved>) -> BoxFuture<'a, Result<(), Error>> {
        let mut state = self.state();
        let result = match &state.failure {
            Some(message) => Err(Error { message: message.clone() }),
            None => {
                state.reserved.push((name.to_owned(), to));
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

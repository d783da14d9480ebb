//! Volumes that are only remembered. Owns its state; passes for [`Volumes`] in tests.

#![expect(clippy::disallowed_methods, reason = "reclaiming goes on in a host whose caller has gone")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, ready};
use gantry_model::mount::Mount;
use gantry_model::pod::volume::{Propagation, VolumeDevice};
use gantry_model::pod::{Container, Pod, PodUid};
use tokio::sync::watch;

use super::{Error, MappedDevice, MountsOf, VOLUME_LIMIT, Volumes, WordsOf};
use crate::events::VolumeNotes;

/// Starts empty.
#[derive(Debug, Default)]
pub struct FakeVolumes {
    state: Arc<Mutex<State>>,
    held: watch::Sender<bool>,
    stuck: watch::Sender<bool>,
    slow: watch::Sender<bool>,
    notes: VolumeNotes,
}

#[derive(Debug, Default)]
struct State {
    set_up: BTreeSet<PodUid>,
    times: BTreeMap<PodUid, usize>,
    reclaims: BTreeMap<PodUid, usize>,
    words: BTreeMap<(PodUid, String, u32), String>,
    files: BTreeMap<(PodUid, String), String>,
    failure: Option<Error>,
    foreign: bool,
}

impl FakeVolumes {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Volumes of an earlier kubelet are mounted, or not any more.
    pub fn set_foreign(&self, mounted: bool) {
        self.state().foreign = mounted;
    }

    /// Taking back what a pod has left hangs until told otherwise.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Volumes of pods that end are not given back until told otherwise.
    pub fn stick(&self, stuck: bool) {
        self.stuck.send_replace(stuck);
    }

    /// How often it was begun to take back what the pod has left.
    #[must_use]
    pub fn reclaims(&self, uid: &PodUid) -> usize {
        self.state().reclaims.get(uid).copied().unwrap_or(0)
    }

    /// Setting up and mounting fail so until told otherwise.
    pub fn fail(&self, message: Option<&str>) {
        self.state().failure = message.map(Error::new);
    }

    /// Setting up fails as the map of a device.
    pub fn fail_map(&self, message: &str) {
        self.state().failure = Some(Error { reason: "FailedMapVolume", ..Error::new(message) });
    }

    /// The node takes no more volumes.
    pub fn fill(&self, message: &str) {
        self.state().failure = Some(Error { reason: VOLUME_LIMIT, rejects: true, ..Error::new(message) });
    }

    /// Setting up takes until told otherwise.
    pub fn slow(&self, slow: bool) {
        self.slow.send_replace(slow);
    }

    /// What a container leaves.
    pub fn say(&self, uid: &PodUid, container: &str, attempt: u32, words: &str) {
        self.state().words.insert((uid.clone(), container.to_owned(), attempt), words.to_owned());
    }

    /// A file in a volume of the pod.
    pub fn leave(&self, uid: &PodUid, volume: &str, path: &str, text: &str) {
        self.state().files.insert((uid.clone(), format!("{volume}/{path}")), text.to_owned());
    }

    /// How often they were set up.
    #[must_use]
    pub fn times(&self, uid: &PodUid) -> usize {
        self.state().times.get(uid).copied().unwrap_or(0)
    }

    /// Whether the pod has its volumes.
    #[must_use]
    pub fn has(&self, uid: &PodUid) -> bool {
        self.state().set_up.contains(uid)
    }

    fn check(&self) -> Result<(), Error> {
        match &self.state().failure {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    fn mounts_of(&self, of: MountsOf<'_>) -> Result<Vec<Mount>, Error> {
        self.check()?;
        let pod = PathBuf::from("/fake").join(of.pod.uid.as_str());
        Ok(of
            .container
            .mounts
            .iter()
            .map(|mount| Mount {
                host_path: pod.join(&mount.volume),
                image: None,
                container_path: mount.path.clone(),
                read_only: mount.read_only,
                recursive_read_only: false,
                propagation: Propagation::None,
                relabel: false,
            })
            .collect())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn remove(&mut self, uid: &PodUid) {
        self.set_up.remove(uid);
        self.words.retain(|(of, _, _), _| of != uid);
    }
}

impl Volumes for FakeVolumes {
    fn set_up<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Error>> {
        let result = self.check();
        if result.is_ok() {
            let mut state = self.state();
            state.set_up.insert(pod.uid.clone());
            *state.times.entry(pod.uid.clone()).or_default() += 1;
        }
        let mut slow = self.slow.subscribe();
        Box::pin(async move {
            slow.wait_for(|slow| !slow).await.map_err(|error| Error::new(error.to_string()))?;
            result
        })
    }

    fn mounts<'a>(&'a self, of: MountsOf<'a>) -> BoxFuture<'a, Result<Vec<Mount>, Error>> {
        Box::pin(ready(self.mounts_of(of)))
    }

    fn devices<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<Vec<MappedDevice>, Error>> {
        let host = |volume: &str| format!("/fake/{}/{volume}", pod.uid);
        let of = |device: &VolumeDevice| (device.path.clone(), host(&device.volume), "mrw".to_owned());
        Box::pin(ready(Ok(container.devices.iter().map(of).collect())))
    }

    fn notes(&self) -> VolumeNotes {
        self.notes.clone()
    }

    fn last_words<'a>(&'a self, of: WordsOf<'a>) -> BoxFuture<'a, Result<Option<String>, Error>> {
        let words = self.state().words.get(&(of.uid.clone(), of.container.to_owned(), of.attempt)).cloned();
        Box::pin(ready(Ok(words)))
    }

    fn left_file<'a>(
        &'a self,
        uid: &'a PodUid,
        volume: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<String, Error>> {
        let key = (uid.clone(), format!("{volume}/{path}"));
        let found = self.state().files.get(&key).cloned();
        let missing = || Error::new(format!("failed to open environment variable file {path:?}"));
        Box::pin(ready(found.ok_or_else(missing)))
    }

    fn claim_name(&self, _: &PodUid, _: &str) -> Option<String> {
        None
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        let mut stuck = self.stuck.subscribe();
        Box::pin(async move {
            stuck.wait_for(|stuck| !stuck).await.map_err(|error| Error::new(error.to_string()))?;
            self.state().remove(uid);
            Ok(())
        })
    }

    fn foreign(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(ready(Ok(self.state().foreign)))
    }

    fn list_orphans(&self) -> BoxFuture<'_, Result<Vec<PodUid>, Error>> {
        let left = self.state().set_up.iter().cloned().collect();
        Box::pin(ready(Ok(left)))
    }

    fn reclaim<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        if let Err(error) = self.check() {
            return Box::pin(ready(Err(error)));
        }
        *self.state().reclaims.entry(uid.clone()).or_default() += 1;
        let (state, mut held, uid) = (self.state.clone(), self.held.subscribe(), uid.clone());
        // As work on a disk: it goes on when nobody waits for it any more.
        let work = tokio::spawn(async move {
            if held.wait_for(|held| !held).await.is_ok() {
                lock(&state).remove(&uid);
            }
        });
        Box::pin(async move { work.await.map_err(|error| Error::new(error.to_string())) })
    }
}

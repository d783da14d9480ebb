//! What the node tells the API server of its pods, and their final deletion. Owns one task for each
//! pod, so that no two patches of one pod are under way; never decides how a pod is. Called by the
//! kubelet's wiring; the worker's word comes through its handle.
//!
//! convert: [`convert`] (pure) · merge: [`merge`] (pure) · wait: [`hold`] (pure) · send: [`patcher`] · mirror pods: [`mirror`] ·
//! startup latency: [`start_sli`].

#![expect(clippy::disallowed_methods, reason = "the supervisor owns the patchers' handles")]

pub(crate) mod convert;
mod hold;
mod merge;
pub(crate) mod mirror;
mod patcher;
pub(crate) mod start_sli;

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_kube_client::identity::client::RequestPace;
use gantry_metrics::Metrics;
use gantry_model::pod::{self, Origin, PodUid};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Client;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::pod::status::PodStatus as Word;
use crate::pod::worker::PodHandle;
use crate::pod_source::ApiPods;
use patcher::{PatcherContext, StatusPatcher};

/// Says in the API's words what a worker says; the last argument is what the API has.
pub(crate) type ConvertStatus = fn(&pod::Pod, &Word, &PodStatus) -> PodStatus;

/// Every pod of the node with its status in force, told or not yet, by the worker's UID.
pub(crate) type Reported = BTreeMap<PodUid, Arc<Pod>>;

/// Static pods as their files or their URL describe them, with upstream's additions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Statics {
    /// Those that are known.
    pub pods: Arc<BTreeMap<PodUid, Arc<Pod>>>,
    /// Whether these are all: every source has been read.
    pub complete: bool,
}

/// Marks where a pod comes from: `file`, `http` or `api`.
pub(crate) const SOURCE: &str = "kubernetes.io/config.source";

/// Requests under way at most: the others wait, the lease has a connection of its own.
const AT_ONCE: usize = 10;

/// Inputs of the status patchers.
#[derive(Clone)]
pub(crate) struct StatusSources {
    /// None on a machine without an API server: then only the view is kept.
    pub client: Option<Client>,
    /// Of that client, which waits for nothing itself.
    pub pace: RequestPace,
    /// The API's pods.
    pub seen: watch::Receiver<ApiPods>,
    /// The agent's.
    pub pods: watch::Receiver<Arc<[PodHandle]>>,
    /// Those of files and of a URL.
    pub statics: watch::Receiver<Statics>,
    /// See the type.
    pub form: ConvertStatus,
    /// Counts how long it takes until a change is told.
    pub metrics: Arc<Metrics>,
}

/// Begins to tell; the task ends with the agent.
#[must_use]
pub(crate) fn publish(sources: StatusSources) -> (watch::Receiver<Reported>, JoinHandle<()>) {
    let (told, receiver) = watch::channel(Reported::new());
    (receiver, tokio::spawn(supervise(sources, told)))
}

/// A patcher for each pod, and the handle it has now: a pod may get another worker. Only the patcher of a pod that
/// changed is woken: with 500 pods a change of each would else be a quarter of a million wake-ups.
async fn supervise(sources: StatusSources, told: watch::Sender<Reported>) {
    let (mut pods, mut seen, mut statics) =
        (sources.pods.clone(), sources.seen.clone(), sources.statics.clone());
    let shared = PatcherContext { sources, told, permits: Arc::new(Semaphore::new(AT_ONCE)) };
    let mut patchers: BTreeMap<PodUid, Patcher> = BTreeMap::new();
    loop {
        patchers.retain(|_, patcher| !patcher.task.0.is_finished());
        {
            let (api, own) = (seen.borrow_and_update(), statics.borrow_and_update());
            for handle in pods.borrow_and_update().iter() {
                match patchers.get(&handle.pod.uid) {
                    Some(patcher) => patcher.take(handle),
                    None => {
                        let known = Known::of(&api, &own, &handle.pod);
                        patchers.insert(handle.pod.uid.clone(), Patcher::start(&shared, handle, known));
                    }
                }
            }
            patchers.values_mut().for_each(|patcher| patcher.wake_if_changed(&api, &own));
        }
        // All arms are cancel-safe: a change stays marked until it is looked at.
        tokio::select! {
            changed = pods.changed() => if changed.is_err() { return },
            () = changed(&mut seen) => {}
            () = changed(&mut statics) => {}
        }
    }
}

async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The API's image of the pod: itself, or its mirror.
fn image_of(seen: &ApiPods, pod: &pod::Pod) -> Option<Arc<Pod>> {
    match pod.origin {
        Origin::Static => seen.mirrors.values().find(|image| mirror::is_of(image, pod)).cloned(),
        _ => seen.pods.get(&pod.uid).cloned(),
    }
}

/// Whether the API server has the pod as ended, or has it no more. In doubt it has: nothing can be told there.
pub(crate) fn is_end_told(seen: &ApiPods, pod: &pod::Pod) -> bool {
    let phase = |image: &Pod| image.status.as_ref().and_then(|status| status.phase.clone());
    image_of(seen, pod).is_none_or(|image| matches!(phase(&image).as_deref(), Some("Succeeded" | "Failed")))
}

/// What others have of a pod.
struct Known {
    /// Whether the API's pods have been listed.
    synced: bool,
    image: Option<Arc<Pod>>,
    /// Of a static pod.
    file: Option<Arc<Pod>>,
}

impl Known {
    fn of(seen: &ApiPods, statics: &Statics, pod: &pod::Pod) -> Self {
        let file = statics.pods.get(&pod.uid).cloned();
        Self { synced: seen.synced, image: image_of(seen, pod), file }
    }

    fn is(&self, other: &Self) -> bool {
        let same = |one: &Option<Arc<Pod>>, other: &Option<Arc<Pod>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.synced == other.synced && same(&self.image, &other.image) && same(&self.file, &other.file)
    }
}

/// The task of one pod.
struct Patcher {
    handle: watch::Sender<PodHandle>,
    known: Known,
    task: Ends,
}

impl Patcher {
    fn start(shared: &PatcherContext, handle: &PodHandle, known: Known) -> Self {
        let (to, from) = watch::channel(handle.clone());
        let task = tokio::spawn(StatusPatcher::new(shared.clone(), from).run()).abort_handle();
        Self { handle: to, known, task: Ends(task) }
    }

    fn take(&self, handle: &PodHandle) {
        self.handle.send_if_modified(|old| {
            let other = !old.status.same_channel(&handle.status) || !Arc::ptr_eq(&old.pod, &handle.pod);
            if other {
                *old = handle.clone();
            }
            other
        });
    }

    fn wake_if_changed(&mut self, seen: &ApiPods, statics: &Statics) {
        let known = Known::of(seen, statics, &self.handle.borrow().pod);
        if !known.is(&self.known) {
            self.known = known;
            self.handle.send_modify(|_| {});
        }
    }
}

/// Ends its task when it goes.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether it is one of the node's own.
fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|all| all.get(SOURCE));
    source.is_some_and(|source| source != "api")
}

#[cfg(test)]
mod tests;

//! What the node tells the API server of its pods, and their final deletion. Owns one task for each
//! pod, so that no two patches of one pod are under way; never decides how a pod is. Called by the
//! kubelet's wiring; the worker's word comes through its handle.
//!
//! convert: [`convert`] (pure) · merge: [`merge`] (pure) · send: [`patcher`] · mirror pods: [`mirror`] ·
//! startup latency: [`start_sli`].

#![expect(clippy::disallowed_methods, reason = "the supervisor owns the patchers' handles")]

pub(crate) mod convert;
mod merge;
pub(crate) mod mirror;
mod patcher;
pub(crate) mod start_sli;

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_kube_client::identity::client::RequestPace;
use gantry_metrics::Metrics;
use gantry_model::pod::{self, PodUid};
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

/// Static pods as their files describe them, with upstream's additions; none until the folder has
/// been read.
pub(crate) type Statics = Option<Arc<BTreeMap<PodUid, Arc<Pod>>>>;

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
    /// The manifest folder's.
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

/// A patcher for each pod, and the handle it has now: a pod may get another worker.
async fn supervise(sources: StatusSources, told: watch::Sender<Reported>) {
    let mut pods = sources.pods.clone();
    let shared = PatcherContext { sources, told, permits: Arc::new(Semaphore::new(AT_ONCE)) };
    let mut patchers: BTreeMap<PodUid, (watch::Sender<PodHandle>, Ends)> = BTreeMap::new();
    loop {
        let now = pods.borrow_and_update().clone();
        patchers.retain(|_, (_, task)| !task.0.is_finished());
        for handle in now.iter() {
            if let Some((to, _)) = patchers.get(&handle.pod.uid) {
                to.send_if_modified(|old| {
                    let other =
                        !old.status.same_channel(&handle.status) || !Arc::ptr_eq(&old.pod, &handle.pod);
                    if other {
                        *old = handle.clone();
                    }
                    other
                });
                continue;
            }
            let (to, from) = watch::channel(handle.clone());
            let task = tokio::spawn(StatusPatcher::new(shared.clone(), from).run()).abort_handle();
            patchers.insert(handle.pod.uid.clone(), (to, Ends(task)));
        }
        if pods.changed().await.is_err() {
            return;
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

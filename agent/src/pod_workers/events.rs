//! What happens to pods, from their workers' lists into the API's events. Owns an ear at each worker; never makes an
//! event up, and never decides which are posted ([`sink`] does). Started by the kubelet's wiring.

#![expect(clippy::disallowed_methods, reason = "the handles of listeners are kept and aborted here")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_model::pod::PodUid;
use kube::Client;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::events::Event;
use crate::events::sink::{self, Queue, Recorder};
use crate::pod::worker::PodHandle;

/// Posts events of the pods and of the queue until the process ends; without a client they are only logged.
#[must_use]
pub fn run(
    client: Option<Client>,
    node: &str,
    queue: Queue,
    pods: watch::Receiver<Arc<[PodHandle]>>,
) -> JoinHandle<()> {
    let (node, recorder) = (node.to_owned(), queue.recorder());
    tokio::spawn(async move {
        // Neither ends by itself while there is an agent.
        tokio::select! {
            () = sink::post(client, node, queue) => {}
            () = listen(pods, recorder) => {}
        }
    })
}

/// One ear for each pod.
async fn listen(mut pods: watch::Receiver<Arc<[PodHandle]>>, to: Recorder) {
    // By worker and not by pod: while one ends and comes back, two of one UID are there.
    let mut ears: BTreeMap<PodUid, Vec<(PodHandle, AbortHandle)>> = BTreeMap::new();
    loop {
        let now = pods.borrow_and_update().clone();
        ears.retain(|_, of| {
            of.retain(|(_, task)| !task.is_finished());
            !of.is_empty()
        });
        for handle in now.iter() {
            let of = ears.entry(handle.pod.uid.clone()).or_default();
            if !of.iter().any(|(heard, _)| heard.status.same_channel(&handle.status)) {
                let task = tokio::spawn(hear(handle.clone(), to.clone())).abort_handle();
                of.push((handle.clone(), task));
            }
        }
        if pods.changed().await.is_err() {
            return;
        }
    }
}

/// What the worker's list has more than the last time; to its end.
async fn hear(handle: PodHandle, to: Recorder) {
    let mut status = handle.status.clone();
    let mut told: Vec<Event> = Vec::new();
    loop {
        let now = status.borrow_and_update().events.clone();
        if !to.more(&handle.pod, &told, &now).await {
            return;
        }
        told = now.to_vec();
        if status.changed().await.is_err() {
            return;
        }
    }
}

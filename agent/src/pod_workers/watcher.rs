//! One subscription to the runtime's events for all pods, and one look at the states of all that makes up for events
//! that were lost: wakes the worker of the pod that changed, and says whether the stream is alive. Owns the subscription
//! and what the look before showed; never looks at one pod (its worker does). Started by [`crate::pod_workers`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use gantry_metrics::Metrics;
use gantry_model::failure::FailureKind;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::pod::worker::PodHandle;
use crate::runtime::{Changes, PodStates, Runtime};

/// Between two looks at all pods, while the runtime tells of changes.
const LOOK: Duration = Duration::from_secs(10);
/// Between two while it does not: as upstream's.
const LOOK_ALONE: Duration = Duration::from_secs(1);
/// With a look that gets no answer, before the next one.
const PATIENCE: Duration = Duration::from_secs(60);
/// After the stream broke.
const RETRY: Duration = Duration::from_secs(1);
/// A runtime without events may be replaced by one that has them.
const RETRY_UNSUPPORTED: Duration = Duration::from_secs(60);

/// All pods of an agent, as they come and go.
pub(crate) type Pods = watch::Receiver<Arc<[PodHandle]>>;

/// Watches for ever.
pub(crate) async fn watch(
    runtime: Arc<dyn Runtime>,
    pods: Pods,
    told: watch::Sender<bool>,
    metrics: Arc<Metrics>,
) {
    let mut before = None;
    loop {
        // Some runtimes answer with the first change alone.
        let changes = tokio::select! {
            changes = subscribe(runtime.as_ref(), &metrics) => changes,
            never = look_alone(runtime.as_ref(), &pods, &mut before, &told) => match never {},
        };
        metrics.evented_pleg_connections.inc([]);
        told.send_replace(true);
        // Whatever happened before the stream began was not told.
        poke(&pods, |_| true);
        tokio::select! {
            () = follow(changes, &pods) => {}
            never = look_for_lost(runtime.as_ref(), &pods, &mut before) => match never {},
        }
        told.send_replace(false);
        poke(&pods, |_| true);
        tokio::time::sleep(RETRY).await;
    }
}

/// Until the runtime tells of changes.
async fn subscribe(runtime: &dyn Runtime, metrics: &Metrics) -> Changes {
    loop {
        let error = match runtime.changes().await {
            Ok(changes) => return changes,
            Err(error) => error,
        };
        metrics.evented_pleg_errors.inc([]);
        tracing::debug!(%error, detail = error.detail(), "no events from the runtime: looking by itself");
        let unsupported = error.failure().is_some_and(|f| f.kind == FailureKind::Unsupported);
        tokio::time::sleep(if unsupported { RETRY_UNSUPPORTED } else { RETRY }).await;
    }
}

/// Until the stream ends.
async fn follow(mut changes: Changes, pods: &Pods) {
    while let Some(change) = changes.next().await {
        match change {
            Ok(Some(uid)) => poke(pods, |handle| handle.pod.uid == uid),
            Ok(None) => poke(pods, |_| true),
            Err(error) => {
                tracing::debug!(%error, detail = error.detail(), "the runtime's events end");
                return;
            }
        }
    }
}

/// Looks at all pods in the place of events, for ever. Workers look by themselves after a look that failed.
async fn look_alone(
    runtime: &dyn Runtime,
    pods: &Pods,
    before: &mut Option<PodStates>,
    told: &watch::Sender<bool>,
) -> Infallible {
    loop {
        tokio::time::sleep(LOOK_ALONE).await;
        let looked = look(runtime, pods, before).await;
        if told.send_replace(looked) && !looked {
            poke(pods, |_| true);
        }
    }
}

/// Looks at all pods beside events, for ever: of most changes these have told already.
async fn look_for_lost(runtime: &dyn Runtime, pods: &Pods, before: &mut Option<PodStates>) -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        look(runtime, pods, before).await;
    }
}

/// Looks at all pods, by two calls whatever their number, and wakes the workers of those whose state is another than at
/// the look before. Whether there was an answer.
async fn look(runtime: &dyn Runtime, pods: &Pods, before: &mut Option<PodStates>) -> bool {
    match timeout(PATIENCE, runtime.states()).await {
        Ok(Ok(now)) => {
            match before {
                Some(before) => poke(pods, |handle| {
                    let uid = &handle.pod.uid;
                    before.get(uid) != now.get(uid)
                }),
                // With nothing to compare it with, what changed before it may not have been told.
                None => poke(pods, |_| true),
            }
            *before = Some(now);
            return true;
        }
        // What the look before showed is kept: what changed meanwhile shows in the next.
        Ok(Err(error)) => {
            tracing::warn!(%error, detail = error.detail(), "cannot look at all pods for what changed");
        }
        Err(_) => tracing::warn!("cannot look at all pods for what changed: no answer"),
    }
    false
}

fn poke(pods: &Pods, which: impl Fn(&PodHandle) -> bool) {
    let pods = pods.borrow().clone();
    pods.iter().filter(|handle| which(handle)).for_each(PodHandle::poke);
}

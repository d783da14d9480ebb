//! The loop between where pods come from and the agent: the API's pods and the manifest folder's, as
//! one set, each time either changes. Owns the agent and the order in which the sources count (trap
//! 1); never looks into a pod. Called by the kubelet's wiring.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::agent::{Agent, Wanted};
use crate::manifest::api;
use crate::source::Seen;
use crate::static_pods::choice::Found;
use crate::status::Statics;

/// After the runtime did not say what it has.
const AGAIN: Duration = Duration::from_secs(5);
/// After something of an orphan could not be taken back.
const SWEEP_AGAIN: Duration = Duration::from_secs(60);

/// Where pods come from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// None on a machine without an API server.
    pub seen: Option<watch::Receiver<Seen>>,
    /// Pods of the API wait for their node: they are admitted by its labels and taints.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// None without a manifest folder.
    pub found: Option<watch::Receiver<Found>>,
}

impl Sources {
    /// What is wanted now, and whether every source has told all of its own.
    fn wanted(&self, node_known: bool) -> (Vec<Wanted>, bool) {
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut complete = true;
        if let Some(found) = &self.found {
            wanted.extend(found.borrow().pods.iter().cloned().map(Wanted::from));
        }
        if let Some(seen) = &self.seen {
            let seen = seen.borrow();
            complete = seen.synced && node_known;
            if complete {
                wanted.extend(seen.pods.values().filter_map(|pod| api::wanted(pod)));
            }
        }
        (wanted, complete)
    }
}

/// Keeps the agent's pods those of its sources, for ever. `statics` is told what the folder
/// describes.
pub async fn run(mut agent: Agent, mut sources: Sources, statics: watch::Sender<Statics>) {
    let mut node_known = false;
    // What an earlier agent left and nobody wants is ended once everybody has been heard.
    let mut swept = false;
    let mut sweep_at: Option<Instant> = None;
    loop {
        node_known |= sources.node.borrow_and_update().is_some();
        mark(&mut sources.seen);
        mark(&mut sources.found);
        let (wanted, complete) = sources.wanted(node_known);
        agent.take(wanted, complete);
        let described =
            sources.found.as_ref().map(|found| found.borrow().described.clone()).unwrap_or_default();
        statics.send_if_modified(|known| {
            let new = known.as_deref() != Some(&described);
            if new {
                *known = Some(Arc::new(described));
            }
            new
        });
        if complete && !swept {
            match agent.end_unwanted().await {
                Ok(()) => {
                    swept = true;
                    sweep_at = Some(Instant::now());
                }
                Err(error) => tracing::warn!(error, "pods that nobody wants run on"),
            }
        }
        // Here and not beside: no pod may come with the UID of one that is being swept.
        if sweep_at.is_some_and(|at| at <= Instant::now()) {
            sweep_at = if agent.sweep().await { None } else { Some(Instant::now() + SWEEP_AGAIN) };
        }
        let waits = complete && !swept;
        // All arms are cancel-safe: a change stays marked until it is looked at.
        tokio::select! {
            () = changed(&mut sources.seen) => {}
            () = changed(&mut sources.found) => {}
            Ok(()) = sources.node.changed(), if !node_known => {}
            () = tokio::time::sleep(AGAIN), if waits => {}
            () = until(sweep_at) => {}
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn mark<T>(source: &mut Option<watch::Receiver<T>>) {
    if let Some(source) = source {
        source.mark_unchanged();
    }
}

async fn changed<T>(source: &mut Option<watch::Receiver<T>>) {
    let over = match source {
        Some(source) => source.changed().await.is_err(),
        None => true,
    };
    if over {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;

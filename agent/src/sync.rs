//! The loop between where pods come from and the agent: the API's pods and the manifest folder's, as
//! one set, each time either changes. Owns the agent and the order in which the sources count (trap
//! 1); never looks into a pod. Called by the kubelet's wiring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_model::pod::PodUid;
use k8s_openapi::api::core::v1::{Node, Pod as Described};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::{Agent, Heard};
use crate::manifest::api;
use crate::pod::wanted::Wanted;
use crate::source::Seen;
use crate::static_pods::choice::{Found, Problem};
use crate::status::Statics;

/// The loop comes round even when nothing changes: after the runtime did not say what it has, and to
/// show that it lives.
const AGAIN: Duration = Duration::from_secs(5);
/// After something of an orphan could not be taken back.
const SWEEP_AGAIN: Duration = Duration::from_secs(60);

/// Of several API servers the first may answer from a cache that lags: what it did not name is ended
/// only if nobody has named it by then.
const SETTLED: Duration = Duration::from_secs(5);

/// Where pods come from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// None on a machine without an API server.
    pub seen: Option<watch::Receiver<Seen>>,
    /// Pods of the API wait for their node: they are admitted by its labels and taints.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// None without a manifest folder.
    pub found: Option<watch::Receiver<Found>>,
}

/// The API's pods as the agent takes them: those that have not changed are not read again.
#[derive(Debug, Default)]
struct Known(BTreeMap<PodUid, (Arc<Described>, Wanted)>);

impl Known {
    fn wanted(&mut self, pods: &BTreeMap<PodUid, Arc<Described>>) -> Vec<Wanted> {
        let mut old = std::mem::take(&mut self.0);
        for (uid, pod) in pods {
            let same = old.remove(uid).filter(|(before, _)| Arc::ptr_eq(before, pod));
            let known = same.or_else(|| Some((pod.clone(), api::wanted(pod)?)));
            self.0.extend(known.map(|known| (uid.clone(), known)));
        }
        self.0.values().map(|(_, wanted)| wanted.clone()).collect()
    }
}

impl Sources {
    /// What is wanted now, and of whom that is all.
    fn wanted(&self, known: &mut Known, node_known: bool) -> (Vec<Wanted>, Heard) {
        let (mut wanted, mut heard) = (Vec::new(), Heard::ALL);
        if let Some(found) = &self.found {
            let found = found.borrow();
            heard.files = found.read;
            wanted.extend(found.pods.iter().cloned().map(Wanted::from));
        }
        if let Some(seen) = &self.seen {
            let seen = seen.borrow();
            heard.api = seen.synced && node_known;
            if heard.api {
                wanted.extend(known.wanted(&seen.pods));
            }
        }
        (wanted, heard)
    }

    /// Files that are not as they should be: who knows which pods are theirs.
    fn problems(&self) -> Vec<Problem> {
        self.found.as_ref().map(|found| found.borrow().problems.clone()).unwrap_or_default()
    }

    /// What the folder describes; none before it was read.
    fn described(&self) -> Statics {
        match &self.found {
            None => Some(Arc::default()),
            Some(found) => {
                let found = found.borrow();
                found.read.then(|| Arc::new(found.described.clone()))
            }
        }
    }
}

/// What pods have left is taken back beside the loop: a disk that hangs must not keep pods from being
/// taken up and ended.
#[derive(Debug, Default)]
struct Sweeps {
    /// When the next is due.
    at: Option<Instant>,
    /// At most one.
    under_way: JoinSet<bool>,
}

impl Sweeps {
    fn begin_if_due(&mut self, agent: &Agent) {
        if self.under_way.is_empty() && self.at.is_some_and(|at| at <= Instant::now()) {
            self.at = None;
            self.under_way.spawn(agent.sweep());
        }
    }

    /// Waits for the end of the one under way. Cancel-safe.
    async fn over(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok(true)) => {}
            Some(Ok(false) | Err(_)) => {
                self.at.get_or_insert(Instant::now() + SWEEP_AGAIN);
            }
        }
    }
}

/// Keeps the agent's pods those of its sources, for ever. `statics` is told what the folder
/// describes, and `beat` when the loop last came round.
pub(crate) async fn run(
    mut agent: Agent,
    mut sources: Sources,
    statics: watch::Sender<Statics>,
    beat: watch::Sender<Instant>,
) {
    agent.recall().await;
    let (mut known, mut node_known) = (Known::default(), false);
    // What an earlier agent left and nobody wants is ended once everybody has been heard; again when
    // other files are bad than then.
    let mut swept: Option<Vec<Problem>> = None;
    let mut heard_since: Option<Instant> = None;
    let mut sweeps = Sweeps::default();
    loop {
        beat.send_replace(Instant::now());
        node_known |= sources.node.borrow_and_update().is_some();
        mark(&mut sources.seen);
        mark(&mut sources.found);
        let (wanted, heard) = sources.wanted(&mut known, node_known);
        agent.take(wanted, heard);
        let described = sources.described();
        statics.send_if_modified(|known| {
            let new = described.is_some() && *known != described;
            if new {
                *known = described;
            }
            new
        });
        let problems = sources.problems();
        let since = (heard == Heard::ALL).then(|| heard_since.unwrap_or_else(Instant::now));
        heard_since = since;
        let settled = since.is_some_and(|since| since.elapsed() >= SETTLED);
        if settled && swept.as_ref() != Some(&problems) {
            match agent.end_unwanted(!problems.is_empty()).await {
                Ok(()) => {
                    swept = Some(problems);
                    sweeps.at = Some(Instant::now());
                }
                Err(error) => tracing::warn!(error, "pods that nobody wants run on"),
            }
        }
        sweeps.begin_if_due(&agent);
        // All arms are cancel-safe: a change stays marked until it is looked at.
        tokio::select! {
            () = changed(&mut sources.seen) => {}
            () = changed(&mut sources.found) => {}
            Ok(()) = sources.node.changed(), if !node_known => {}
            () = agent.ended() => {}
            () = sweeps.over() => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
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

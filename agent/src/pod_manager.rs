//! The pod manager: merges the API's pods and the static pods into one set, and gives it to the pod
//! workers each time either changes. Owns the workers and the order in which the sources count (trap
//! 1); never looks into a pod. Called by the kubelet's wiring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_model::pod::PodUid;
use k8s_openapi::api::core::v1::{Node, Pod as Described};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::manifest::api;
use crate::pod::update::PodUpdate;
use crate::pod_source::ApiPods;
use crate::pod_workers::{PodWorkers, SourcesReady};
use crate::static_pods::choice::{Problem, StaticPods};
use crate::status::Statics;

/// The loop comes round even when nothing changes: after the runtime did not say what it has, and to
/// show that it lives.
const AGAIN: Duration = Duration::from_secs(5);
/// After something of an orphan could not be taken back.
const SWEEP_AGAIN: Duration = Duration::from_secs(60);

/// Of several API servers the first may answer from a cache that lags: what it did not name is ended
/// only if nobody has named it by then.
const SETTLED: Duration = Duration::from_secs(5);

/// The sources of pods.
#[derive(Debug, Clone)]
pub(crate) struct PodSources {
    /// None on a machine without an API server.
    pub seen: Option<watch::Receiver<ApiPods>>,
    /// Pods of the API wait for their node: they are admitted by its labels and taints.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// None without a manifest folder and without a URL of manifests.
    pub found: Option<watch::Receiver<StaticPods>>,
}

/// The API's pods as updates: those that have not changed are not converted again.
#[derive(Debug, Default)]
struct ApiPodUpdates(BTreeMap<PodUid, (Arc<Described>, Arc<PodUpdate>)>);

impl ApiPodUpdates {
    fn pod_updates(&mut self, pods: &BTreeMap<PodUid, Arc<Described>>) -> Vec<Arc<PodUpdate>> {
        let mut old = std::mem::take(&mut self.0);
        for (uid, pod) in pods {
            let known = match old.remove(uid) {
                Some(known) if Arc::ptr_eq(&known.0, pod) => Some(known),
                before => convert(pod, before.map(|(_, update)| update).as_deref()),
            };
            self.0.extend(known.map(|known| (uid.clone(), known)));
        }
        self.0.values().map(|(_, wanted)| wanted.clone()).collect()
    }
}

/// A pod of which only the status is another is described by the same `Arc` as before.
fn convert(pod: &Arc<Described>, before: Option<&PodUpdate>) -> Option<(Arc<Described>, Arc<PodUpdate>)> {
    let mut update = api::to_pod_update(pod)?;
    if let Some(before) = before.filter(|before| before.pod == update.pod) {
        update.pod = before.pod.clone();
    }
    Some((pod.clone(), Arc::new(update)))
}

impl PodSources {
    /// The pods of all sources, and which sources are ready.
    fn pod_updates(
        &self,
        known: &mut ApiPodUpdates,
        node_known: bool,
    ) -> (Vec<Arc<PodUpdate>>, SourcesReady) {
        let (mut wanted, mut heard) = (Vec::new(), SourcesReady::ALL);
        if let Some(found) = &self.found {
            let found = found.borrow();
            heard.files = found.read;
            wanted.extend(found.pods.iter().cloned().map(PodUpdate::from).map(Arc::new));
        }
        if let Some(seen) = &self.seen {
            let seen = seen.borrow();
            heard.api = seen.synced && node_known;
            if heard.api {
                wanted.extend(known.pod_updates(&seen.pods));
            }
        }
        (wanted, heard)
    }

    /// Files that are not as they should be: who knows which pods are theirs.
    fn problems(&self) -> Vec<Problem> {
        self.found.as_ref().map(|found| found.borrow().problems.clone()).unwrap_or_default()
    }

    /// The static pods.
    fn static_pods(&self) -> Statics {
        match &self.found {
            None => Statics { complete: true, ..Statics::default() },
            Some(found) => {
                let found = found.borrow();
                Statics { pods: Arc::new(found.described.clone()), complete: found.read }
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
    fn begin_if_due(&mut self, agent: &PodWorkers) {
        if self.under_way.is_empty() && self.at.is_some_and(|at| at <= Instant::now()) {
            self.at = None;
            self.under_way.spawn(agent.sweep());
        }
    }

    /// Waits for the end of the one under way. Cancel-safe.
    async fn wait_finished(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok(true)) => {}
            Some(Ok(false) | Err(_)) => {
                self.at.get_or_insert(Instant::now() + SWEEP_AGAIN);
            }
        }
    }
}

/// Who is told of the loop.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// What the folder describes.
    pub statics: watch::Sender<Statics>,
    /// When the loop last came round.
    pub beat: watch::Sender<Instant>,
    /// That every source has been heard, and its pods taken up.
    pub heard: watch::Sender<bool>,
}

impl Listeners {
    /// Somebody listens for the static pods, and nobody for the rest.
    #[cfg(test)]
    pub(crate) fn of_test(statics: watch::Sender<Statics>) -> Self {
        Self { statics, beat: watch::channel(Instant::now()).0, heard: watch::channel(false).0 }
    }
}

/// Keeps the agent's pods those of its sources, for ever.
pub(crate) async fn run(mut agent: PodWorkers, mut sources: PodSources, listeners: Listeners) {
    agent.recall().await;
    let (mut known, mut node_known) = (ApiPodUpdates::default(), false);
    // What an earlier agent left and nobody wants is ended once everybody has been heard; again when
    // other files are bad than then.
    let mut swept: Option<Vec<Problem>> = None;
    let mut told = Vec::new();
    let mut heard_since: Option<Instant> = None;
    let mut sweeps = Sweeps::default();
    loop {
        listeners.beat.send_replace(Instant::now());
        node_known |= sources.node.borrow_and_update().is_some();
        mark(&mut sources.seen);
        mark(&mut sources.found);
        let (wanted, heard) = sources.pod_updates(&mut known, node_known);
        agent.take(wanted, heard);
        if heard == SourcesReady::ALL {
            listeners.heard.send_replace(true);
        }
        let described = sources.static_pods();
        listeners.statics.send_if_modified(|known| {
            let new = *known != described;
            if new {
                *known = described;
            }
            new
        });
        let problems = sources.problems();
        told = tell(&problems, told);
        let since = (heard == SourcesReady::ALL).then(|| heard_since.unwrap_or_else(Instant::now));
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
            () = agent.wait_for_change() => {}
            () = sweeps.wait_finished() => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Says each problem once, for as long as it lasts; those that last.
fn tell(problems: &[Problem], told: Vec<Problem>) -> Vec<Problem> {
    if problems == told {
        return told;
    }
    for Problem { path, message } in problems.iter().filter(|problem| !told.contains(problem)) {
        tracing::error!(place = %path.display(), error = message, "not as a static pod should be");
    }
    problems.to_vec()
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

//! The pod workers: takes the set of pods, runs one worker for each, and watches the runtime's events for all. Owns
//! the workers' tasks; never looks into a pod. Called by `gantry run`.

mod cpus;
pub mod events;
mod fit;
pub mod oom_survivor;
mod resizes;
pub(crate) mod watcher;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_model::allocation::Allocation;
use gantry_model::pod::{Origin, PendingResize, Pod, PodUid};
use gantry_model::shutdown::Shutdown;
use gantry_model::signal::Pressures;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::{self, Node, Rejection};
use crate::devices;
use crate::orphans;
use crate::pod::last::LastEnd;
use crate::pod::predecessor;
use crate::pod::resize;
use crate::pod::run::Deps;
use crate::pod::status::PodStatus;
use crate::pod::update::PodUpdate;
use crate::pod::worker::{PodHandle, Worker};
use crate::pod::{Life, PodFailure};
use crate::static_pods::rules::is_made_again;
pub use fit::follow;
use resizes::Resizes;
use watcher::Pods;

/// Of pods that nobody has described.
const ORPHANS_GRACE: Duration = Duration::from_secs(1);

/// Which sources have delivered all of their pods (the kubelet's SourcesReady). Of one that has not, nobody is ended for missing
/// (trap 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcesReady {
    /// The API server.
    pub api: bool,
    /// The manifest folder, or the files of a command.
    pub files: bool,
}

impl SourcesReady {
    /// Everybody.
    pub const ALL: Self = Self { api: true, files: true };

    fn from(self, pod: &Pod) -> bool {
        if pod.origin == Origin::Api { self.api } else { self.files }
    }
}

/// The running workers. Dropping them leaves the pods as they are: a new one adopts them.
#[derive(Debug)]
pub struct PodWorkers {
    pods: watch::Sender<Arc<[PodHandle]>>,
    /// Whether the runtime tells what changes.
    told: watch::Receiver<bool>,
    workers: JoinSet<()>,
    /// What pods must fit; they all do without one.
    node: Option<watch::Receiver<Option<Arc<Node>>>>,
    /// What the node is short of.
    pressures: watch::Receiver<Pressures>,
    /// Whether the machine goes down.
    shutdown: watch::Receiver<Shutdown>,
    /// As the sources described them when the set was last applied.
    described: BTreeMap<PodUid, Arc<PodUpdate>>,
    /// See [`PodUpdate::is_foreign`].
    foreign: BTreeMap<PodUid, Arc<Pod>>,
    /// By an agent before this one; each counts when its pod is taken up.
    allocated: BTreeMap<PodUid, Allocation>,
    /// Those that wait.
    resizes: Resizes,
    deps: Deps,
}

impl PodWorkers {
    /// Takes up the pods: what the runtime has of them already is adopted.
    #[must_use]
    pub fn start(pods: Vec<Pod>, deps: Deps) -> Self {
        let (pods_in, pods_out) = watch::channel(Arc::from([]));
        let (told_in, told) = watch::channel(false);
        let mut workers = JoinSet::new();
        if let Some(ooms) = deps.runtime_ext.ooms.clone() {
            workers.spawn(oom_survivor::follow(ooms, pods_out.clone(), deps.runtime.clone()));
        }
        if deps.managers.holds_cpus() {
            workers.spawn(cpus::follow(deps.managers.clone(), pods_out.clone(), deps.runtime.clone()));
        }
        workers.spawn(watcher::watch(deps.runtime.clone(), pods_out, told_in, deps.metrics.clone()));
        let (node, foreign, allocated) = (None, BTreeMap::new(), BTreeMap::new());
        let described = BTreeMap::new();
        let pressures = watch::channel(Pressures::new()).1;
        let shutdown = watch::channel(Shutdown::Not).1;
        let resizes = Resizes::default();
        let mut agent = Self {
            pods: pods_in,
            told,
            workers,
            node,
            pressures,
            shutdown,
            described,
            foreign,
            allocated,
            resizes,
            deps,
        };
        agent.apply(pods);
        agent
    }

    /// The full set of pods that should be there, each time it changes: new ones are started, those
    /// that are missing are ended and forgotten, the others left alone. A new one of the same name as
    /// one that ends waits for it.
    pub fn apply(&mut self, wanted: Vec<Pod>) {
        let wanted: Vec<PodUpdate> = wanted.into_iter().map(PodUpdate::from).collect();
        self.take(wanted, SourcesReady::ALL);
    }

    /// From now on new pods must fit this node.
    pub fn admit_by(&mut self, node: watch::Receiver<Option<Arc<Node>>>) {
        self.node = Some(node);
    }

    /// From now on new pods are held against what the node is short of.
    pub fn watch_pressures(&mut self, pressures: watch::Receiver<Pressures>) {
        self.pressures = pressures;
    }

    /// From now on nothing is taken in while the machine goes down.
    pub fn watch_shutdown(&mut self, shutdown: watch::Receiver<Shutdown>) {
        self.shutdown = shutdown;
    }

    /// Learns what pods were allocated by an agent before this one. Before they are taken up.
    pub async fn recall(&mut self) {
        self.allocated = self.deps.checkpoints.allocated().await;
    }

    /// The same as [`PodWorkers::apply`] for pods of an API server. Pods that are known are described anew;
    /// what was deleted is ended, and asking again only shortens. The very same `Arc` as the last time says that nothing of
    /// a pod has changed.
    pub fn take(&mut self, wanted: Vec<impl Into<Arc<PodUpdate>>>, heard: SourcesReady) {
        let wanted: Vec<Arc<PodUpdate>> = wanted.into_iter().map(Into::into).collect();
        let described = wanted.iter().map(|wanted| (wanted.pod.uid.clone(), wanted.clone())).collect();
        let before = std::mem::replace(&mut self.described, described);
        let mut handles = self.take_up(wanted, heard, &before);
        self.resize(&mut handles, heard);
        self.show(handles);
    }

    /// Wakes nobody where all is as before: most of what is heard is what this node itself told.
    fn show(&self, handles: Vec<PodHandle>) {
        self.pods.send_if_modified(|old| {
            let same = |(old, new): (&PodHandle, &PodHandle)| old.is_same(new);
            let changed = old.len() != handles.len() || !old.iter().zip(&handles).all(same);
            if changed {
                *old = handles.into();
            }
            changed
        });
    }

    /// `before` is what was described the last time.
    fn take_up(
        &mut self,
        mut wanted: Vec<Arc<PodUpdate>>,
        heard: SourcesReady,
        before: &BTreeMap<PodUid, Arc<PodUpdate>>,
    ) -> Vec<PodHandle> {
        // Reaps what has ended meanwhile.
        while self.workers.try_join_next().is_some() {}
        let old = self.pods();
        let mut handles: Vec<PodHandle> = old.iter().filter(|handle| !handle.is_done()).cloned().collect();
        // Before any worker begins: what a pod is made of is nobody's leftover.
        let known = handles.iter().map(|handle| &handle.pod.uid).chain(self.foreign.keys());
        self.deps.sweeps.here(known.chain(self.described.keys()).cloned().collect());
        for handle in handles.iter().filter(|handle| heard.from(&handle.pod)) {
            if !self.described.contains_key(&handle.pod.uid) {
                handle.kill(None, "no longer wanted");
                handle.remove();
            }
        }
        let missing = |pod: &Arc<Pod>| heard.from(pod) && !self.described.contains_key(&pod.uid);
        let gone: Vec<_> = self.foreign.values().filter(|pod| missing(pod)).cloned().collect();
        for pod in gone {
            self.foreign.remove(&pod.uid);
            handles.push(self.end(pod, None, "no longer wanted"));
        }
        // As upstream: who came first is admitted first, over a restart of the agent, too.
        wanted.sort_by_key(|wanted| wanted.pod.created_at);
        let places = handles.iter().enumerate().map(|(at, handle)| (handle.pod.uid.clone(), at));
        // Of two the later one: the other is leaving.
        let mut places: BTreeMap<PodUid, usize> = places.collect();
        for wanted in wanted {
            let same = before.get(&wanted.pod.uid).is_some_and(|before| Arc::ptr_eq(before, &wanted));
            self.take_up_one(&wanted, same, &mut handles, &mut places);
        }
        handles
    }

    /// `same`: it is described as the last time. `places` says where in `handles` the last one of each pod is.
    fn take_up_one(
        &mut self,
        wanted: &PodUpdate,
        same: bool,
        handles: &mut Vec<PodHandle>,
        places: &mut BTreeMap<PodUid, usize>,
    ) {
        let uid = &wanted.pod.uid;
        let known = places.get(uid).and_then(|at| handles.get_mut(*at));
        let is_known = known.is_some();
        // One that was told to go and comes back, the very same, is a pod of its own.
        if let Some(handle) = known.filter(|handle| !handle.is_leaving()) {
            if same && !(wanted.last.end.is_some() && handle.is_at_work()) {
                return;
            }
            if !is_made_again(&handle.pod, &wanted.pod) {
                return self.apply_update(handle, wanted);
            }
            handle.kill(None, "no longer wanted");
            handle.remove();
        }
        if wanted.is_foreign() {
            return self.leave_alone(wanted);
        }
        self.foreign.remove(uid);
        if is_known {
            let is_static = if wanted.pod.origin == Origin::Static { "true" } else { "" };
            self.deps.metrics.restarted_pods.inc([is_static]);
        }
        let handle = self.begin(wanted.clone(), handles);
        places.insert(uid.clone(), handles.len());
        handles.push(handle);
    }

    fn leave_alone(&mut self, wanted: &PodUpdate) {
        if self.foreign.insert(wanted.pod.uid.clone(), wanted.pod.clone()).is_none() {
            let why = wanted.refused.as_ref().map_or_else(String::new, ToString::to_string);
            tracing::warn!(
                pod = wanted.pod.full_name(),
                why,
                "it runs, started by another kubelet, and is left as it is until it is deleted"
            );
        }
    }

    /// Ends a pod that has no worker, and forgets it.
    fn end(&mut self, pod: impl Into<PodUpdate>, grace: Option<Duration>, why: &str) -> PodHandle {
        let (worker, handle) = Worker::start_watched(pod, self.deps.clone(), self.told.clone());
        self.deps.sweeps.keep(&handle.pod.uid);
        handle.kill(grace, why);
        handle.remove();
        self.workers.spawn(predecessor::run_behind(worker, Vec::new(), Vec::new()));
        handle
    }

    /// Waits until a worker has come to its end, whose pod [`PodWorkers::take`] forgets then, or until it is to try
    /// resizes that wait. Cancel-safe.
    pub async fn wait_for_change(&mut self) {
        let pods = self.pods();
        tokio::select! {
            // The ear at the runtime never ends, so there always is one.
            _ = self.workers.join_next() => {}
            () = self.resizes.wait(&pods) => {}
        }
    }

    /// A pod that is known is described anew, or was deleted. A description that asks for what this node does not do is
    /// passed over: the pod goes on as it was. It keeps the resources that it was allocated until it is allocated others.
    fn apply_update(&mut self, handle: &mut PodHandle, wanted: &PodUpdate) {
        match &wanted.refused {
            None => {
                let allocated = Allocation::of(&handle.pod);
                let metrics = &self.deps.metrics;
                *handle = handle.update(self.resizes.describe(
                    &allocated,
                    &handle.pod,
                    wanted.pod.clone(),
                    metrics,
                ));
            }
            Some(why) => handle.pass_over(wanted.pod.generation, why),
        }
        if let Some(grace) = wanted.ending {
            handle.kill(Some(grace), "deleted");
        }
        // Somebody has said that it is over, such as the pod garbage collector.
        if let Some(LastEnd { reason, message, .. }) = &wanted.last.end
            && handle.is_at_work()
        {
            let (reason, message) = (reason.clone(), message.clone());
            handle.evict(PodFailure { reason, message, disrupted: None }, None);
        }
    }

    /// Tries the resizes that wait, when there may be room for them.
    fn resize(&mut self, handles: &mut [PodHandle], heard: SourcesReady) {
        if let Some(trigger) = self.resizes.due(handles, |uid| self.described.contains_key(uid)) {
            if heard == SourcesReady::ALL {
                for uid in self.resizes.order(handles) {
                    self.try_resize(&uid, handles, trigger);
                }
                self.resizes.tried();
            } else {
                self.resizes.put_off();
            }
        }
        self.resizes.count(&self.deps.metrics);
    }

    fn try_resize(&mut self, uid: &PodUid, handles: &mut [PodHandle], trigger: &str) {
        let own = |handle: &PodHandle| handle.pod.uid == *uid && !handle.is_leaving() && !handle.is_ending();
        let Some(at) = handles.iter().position(own) else { return };
        let Some(wanted) = self.resizes.wish(uid).map(|wish| wish.pod.clone()) else { return };
        let verdict = self.judge_resize(&wanted, at, handles);
        let Some(handle) = handles.get_mut(at) else { return };
        match verdict {
            Ok(()) => {
                let Some((pod, waited)) = self.resizes.allocate(&handle.pod) else { return };
                if waited {
                    self.deps.metrics.pod_deferred_accepted_resizes.inc([trigger]);
                }
                handle.tell(resize::started(&pod));
                *handle = handle.update(pod);
            }
            Err(why) => {
                let (kept, news) = self.resizes.refuse(handle.pod.clone(), &why);
                if news {
                    handle.tell(resize::pending(&wanted, &why));
                }
                *handle = handle.update(kept);
            }
        }
    }

    /// Whether the pod at `at` may have what it wants.
    fn judge_resize(&self, wanted: &Pod, at: usize, handles: &[PodHandle]) -> Result<(), PendingResize> {
        let generation = wanted.generation;
        let rules = self.node.as_ref().and_then(|node| node.borrow().as_ref().map(|node| node.resizes));
        let allocated = handles.get(at).map_or(wanted, |handle| &*handle.pod);
        admission::feasible(wanted, allocated, rules.unwrap_or_default()).map_err(|why| {
            let admission::Infeasible { message, detail } = why;
            self.deps.metrics.pod_infeasible_resizes.inc([detail]);
            PendingResize { infeasible: true, message, generation }
        })?;
        let others: Vec<&PodHandle> = handles.iter().filter(|other| other.pod.uid != wanted.uid).collect();
        let fits = self.fit(wanted, &others);
        fits.map(drop).map_err(|Rejection { message, .. }| PendingResize {
            infeasible: false,
            message,
            generation,
        })
    }

    /// Takes up a pod that is not known yet.
    fn begin(&mut self, mut wanted: PodUpdate, others: &[PodHandle]) -> PodHandle {
        if let Some(allocated) = self.allocated.remove(&wanted.pod.uid) {
            let lives = wanted.refused.is_none() && wanted.last.end.is_none() && wanted.ending.is_none();
            wanted.pod = match lives {
                true => self.resizes.recall(&allocated, wanted.pod),
                false => allocated.apply(wanted.pod),
            };
        }
        let mut displaced = Vec::new();
        match self.admit(&wanted, others) {
            Ok(uids) => displaced = uids,
            Err(rejection) => {
                tracing::warn!(pod = wanted.pod.full_name(), %rejection, "a pod is not admitted");
                wanted.refused.get_or_insert(rejection);
            }
        }
        if let Some(rejection) = wanted.refused.as_ref().filter(|_| wanted.last.end.is_none()) {
            self.deps.metrics.admission_rejections.inc([admission::label(&rejection.reason)]);
        }
        let (pod, ending) = (wanted.pod.clone(), wanted.ending);
        let (worker, handle) = Worker::start_watched(wanted, self.deps.clone(), self.told.clone());
        if let Some(grace) = ending {
            handle.kill(Some(grace), "deleted");
        }
        let room: Vec<PodHandle> =
            others.iter().filter(|other| displaced.contains(&other.pod.uid)).cloned().collect();
        if pod.origin == Origin::Api {
            // Whatever its name: it is another pod than that of another UID (trap 2).
            let itself = |other: &&PodHandle| other.pod.uid == pod.uid;
            let before: Vec<PodHandle> = others.iter().filter(itself).cloned().collect();
            self.workers.spawn(predecessor::run_behind(worker, before, room));
        } else {
            let same_name =
                |other: &&PodHandle| other.pod.name == pod.name && other.pod.namespace == pod.namespace;
            let before: Vec<PodHandle> = others.iter().filter(same_name).cloned().collect();
            self.workers.spawn(predecessor::run_after(worker, before, room));
        }
        handle
    }

    /// Whether the pod may run beside the others. One that an agent has taken up before, that ends
    /// or has ended is not asked: what runs is never rejected.
    fn admit(&self, wanted: &PodUpdate, others: &[PodHandle]) -> Result<Vec<PodUid>, Rejection> {
        let known = wanted.last.started_at != 0 || wanted.last.end.is_some();
        if known || wanted.ending.is_some() || wanted.refused.is_some() {
            return Ok(Vec::new());
        }
        // What a static pod replaces is not counted.
        let replaces = |other: &PodHandle| {
            wanted.pod.origin != Origin::Api
                && (&other.pod.namespace, &other.pod.name) == (&wanted.pod.namespace, &wanted.pod.name)
        };
        let others: Vec<&PodHandle> = others.iter().filter(|other| !replaces(other)).collect();
        self.fit(&wanted.pod, &others)
    }

    /// Makes room for it if it matters more than others: those that must go first.
    fn fit(&self, pod: &Pod, others: &[&PodHandle]) -> Result<Vec<PodUid>, Rejection> {
        // First, though upstream asks it last: nobody is preempted for a pod that does not run here.
        admission::while_up(*self.shutdown.borrow())?;
        admission::under(pod, &self.pressures.borrow())?;
        if pod.security.strict_groups && !self.deps.node.strict_groups {
            // With or without a cluster: nobody else would hold it to them.
            return Err(admission::no_strict_groups());
        }
        if self.deps.node.no_pod_level {
            admission::without_pod_level(pod)?;
        }
        let Some(node) = self.node.as_ref().and_then(|node| node.borrow().clone()) else {
            // Without a cluster, too: a profile that nobody enforces would protect nobody.
            admission::app_armor(pod, self.deps.node.app_armor)?;
            return Ok(Vec::new());
        };
        // What was told to go is not counted, though it still ends.
        let counts = |other: &&&PodHandle| other.is_active() && !other.is_leaving();
        let active: Vec<&PodHandle> = others.iter().filter(counts).copied().collect();
        let pods: Vec<&Pod> = active.iter().map(|other| self.resizes.counted(other)).collect();
        node.sysctls.check(pod)?;
        let room = admission::admit(pod, &pods, &self.without_devices(pod, node));
        // The managers' reason comes before another, as upstream.
        let first = |other| self.deps.managers.ask(pod, &self.deps.devices).err().unwrap_or(other);
        let admission::Room { victims, lacking } = room.map_err(first)?;
        let victims: Vec<PodUid> = victims.into_iter().map(|pod| pod.uid.clone()).collect();
        for other in active.into_iter().filter(|other| victims.contains(&other.pod.uid)) {
            self.deps.metrics.preemptions.inc([&lacking]);
            other.evict(preemption_verdict(), None);
        }
        Ok(victims)
    }

    /// The node but for what plugins offer: whether there is enough of that is said where it is given, as upstream.
    fn without_devices(&self, pod: &Pod, mut node: Arc<Node>) -> Arc<Node> {
        if devices::asks(pod) {
            let node = Arc::make_mut(&mut node);
            node.allocatable.retain(|name, _| !self.deps.devices.is_device(name));
        }
        node
    }

    /// Ends the pods that the runtime has and nobody wants, as upstream with a second's grace. For
    /// when all sources have told all of theirs (trap 1), and no other agent uses the runtime. With
    /// `spare_files` those of manifest files stay: one that cannot be read may be that of a pod.
    ///
    /// # Errors
    /// When the runtime does not answer; nothing was ended then.
    pub async fn end_unwanted(&mut self, spare_files: bool) -> Result<(), String> {
        let known = self.deps.runtime.pods().await.map_err(|error| error.detail())?;
        let mut handles = self.pods().to_vec();
        for known in known {
            let managed = handles.iter().any(|handle| handle.pod.uid == known.uid && !handle.is_done());
            if managed || self.foreign.contains_key(&known.uid) || (spare_files && known.from_file) {
                continue;
            }
            let pod = predecessor::shell(known);
            tracing::info!(pod = pod.full_name(), uid = %pod.uid, "nobody wants it: ending it");
            self.deps.metrics.orphaned_runtime_pods.inc([]);
            handles.push(self.end(pod, Some(ORPHANS_GRACE), "orphaned"));
        }
        self.pods.send_replace(handles.into());
        Ok(())
    }

    /// Takes back what pods have left of which neither this agent nor the runtime knows; says whether
    /// nothing of that is left. For when all sources have told all of theirs (trap 1). Pods may be
    /// taken up meanwhile.
    pub fn sweep(&self) -> impl Future<Output = bool> + Send + use<> {
        let pods = self.pods();
        let known = pods.iter().map(|handle| &handle.pod.uid).chain(self.foreign.keys());
        let (known, deps): (Vec<PodUid>, _) = (known.cloned().collect(), self.deps.clone());
        async move { sweep(&deps, &known).await }
    }

    /// Ends the pods of the manifest folder that an earlier agent started and whose files went while
    /// none was there. For when the whole folder has been read: a file that cannot be read may be
    /// that of a pod (trap 1).
    ///
    /// # Errors
    /// When it cannot be known which these are; nothing was ended then.
    pub async fn end_forgotten(&mut self) -> Result<(), String> {
        let mut handles = self.pods().to_vec();
        let here: Vec<&Pod> = handles.iter().map(|handle| &*handle.pod).collect();
        for known in orphans::forgotten(&self.deps, &here).await? {
            let pod = predecessor::shell(known);
            tracing::info!(pod = pod.full_name(), uid = %pod.uid, "its manifest is gone: ending it");
            handles.push(self.end(pod, None, "no longer wanted"));
        }
        self.pods.send_replace(handles.into());
        Ok(())
    }

    /// All pods, in the order they were given; those that end are listed until they are gone.
    #[must_use]
    pub fn pods(&self) -> Arc<[PodHandle]> {
        self.pods.borrow().clone()
    }

    /// The same, as it changes.
    #[must_use]
    pub fn watch_pods(&self) -> Pods {
        self.pods.subscribe()
    }

    /// Ends every pod within `grace`, or its own grace period; asking again only shortens.
    pub fn kill_all(&self, grace: Option<Duration>, reason: &str) {
        self.pods().iter().for_each(|pod| pod.kill(grace, reason));
    }

    /// Waits until nothing of any pod runs or will run.
    pub async fn until_over(&self) -> Vec<PodStatus> {
        let pods = self.pods();
        let mut statuses = Vec::with_capacity(pods.len());
        for pod in pods.iter() {
            statuses.push(pod.wait(PodStatus::is_over).await);
        }
        statuses
    }

    /// Forgets every pod and removes its logs; pods that are not over are ended first.
    /// Returns what could not be removed, and why.
    pub async fn clean_up(mut self) -> Vec<String> {
        let pods = self.pods();
        pods.iter().for_each(PodHandle::remove);
        let mut failures = Vec::new();
        for handle in pods.iter() {
            let status = handle.wait(|status| status.life == Life::Gone).await;
            if status.life != Life::Gone {
                failures.push(format!("pod {}: {}", handle.pod.full_name(), status.message));
                continue;
            }
            if let Err(error) = self.deps.logs.remove(&handle.pod).await {
                failures.push(format!("pod {}: {}", handle.pod.full_name(), chain(&error)));
            }
        }
        self.workers.shutdown().await;
        failures
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
async fn sweep(deps: &Deps, known: &[PodUid]) -> bool {
    let claims = deps.dra.retain(&known.iter().collect()).await;
    let swept = match orphans::sweep_all(deps, known).await {
        Ok(swept) => swept,
        Err(error) => {
            tracing::warn!(error, "orphans are kept");
            return false;
        }
    };
    deps.devices.retain(&known.iter().collect()).await;
    deps.managers.retain(known).await;
    deps.checkpoints.retain(known).await;
    deps.metrics.orphan_pod_cleaned_volumes.set([], swept.found as f64);
    deps.metrics.orphan_pod_cleaned_volumes_errors.set([], swept.failures.len() as f64);
    for problem in &swept.failures {
        tracing::warn!(problem, "left from an earlier run");
    }
    swept.failures.is_empty() && claims
}

/// In upstream's words.
fn preemption_verdict() -> PodFailure {
    PodFailure {
        reason: "Preempting".to_owned(),
        message: "Preempted in order to admit critical pod".to_owned(),
        disrupted: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
    }
}

#[cfg(test)]
mod tests;

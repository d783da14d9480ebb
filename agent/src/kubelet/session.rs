//! An agent without an API server: its pods from files and from a folder that is followed, and its operator API.
//! Owns that the right set of pods is applied and that problems are told once; never ends a pod by itself. Called
//! by `gantry run` and `gantry agent`.

#![expect(
    clippy::disallowed_methods,
    reason = "the assembly starts the parts; each ends with the drain or the process"
)]

mod pod_selection;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use gantry_model::pod::{Pod, PodUid};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::error::Error;
use super::pod_deps::{BuiltPodDeps, Setup, Tuning};
use super::run::LAST_ANSWERS;
use crate::api::files::Files;
use crate::operator::additions::{Added, Addition, Refused};
use crate::operator::socket::{self, Socket};
use crate::operator::{Ending, OperatorDeps};
use crate::pod::run::Deps;
use crate::pod_workers::PodWorkers;
use crate::root::Root;
use crate::static_pods::choice::StaticPods;
use crate::users::Range;
use crate::{node, orphans, static_pods};
use pod_selection::PodSelection;

/// What a session is told.
#[derive(Debug)]
pub struct SessionConfig {
    /// Of the files that were given.
    pub pods: Vec<Pod>,
    /// What pods refer to.
    pub objects: Files,
    /// Looked at as often as a kubelet does, and when it changes.
    pub manifest_dir: Option<PathBuf>,
    /// Where `socket` is.
    pub agent_socket: PathBuf,
    /// The logs of containers.
    pub pod_logs_dir: PathBuf,
    /// Above all pods.
    pub cgroup_root: String,
    /// RuntimeDefault for pods that name no profile.
    pub seccomp_default: bool,
}

/// What the process gives a session.
#[derive(Debug)]
pub struct SessionDeps<'a> {
    /// Of volumes. The caller holds it to the end: what is in it is this agent's alone.
    pub root: &'a Root,
    /// To the runtime.
    pub channel: Channel,
    /// Of the operator API.
    pub socket: Socket,
    /// Tells a person why a pod is left out.
    pub tell: fn(&str),
}

/// What a session hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The folder has changed, and its pods were applied.
    Folder,
    /// Somebody added pods, or tried to.
    Added,
    /// `gantry down`, and how far it is.
    Ending(Ending),
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    agent: PodWorkers,
    wanted: PodSelection,
    /// What pods refer to; more comes with pods that are added.
    objects: Files,
    additions: mpsc::Receiver<Addition>,
    /// None without a folder, and once the pods are to end.
    folder: Option<watch::Receiver<StaticPods>>,
    told: BTreeSet<String>,
    tell: fn(&str),
    /// Pods whose manifests went while no agent was here are still to be ended.
    unsettled: bool,
    ending: watch::Receiver<Ending>,
    /// To say that no pod is added any more.
    closed: watch::Sender<Ending>,
    operator: JoinHandle<Result<(), socket::Error>>,
    stop_serving: oneshot::Sender<()>,
}

impl Session {
    /// Makes what pods are run with, and starts the pods or takes them up.
    ///
    /// # Errors
    /// When the runtime does not answer, or something of the node cannot be used.
    pub async fn build(config: SessionConfig, deps: SessionDeps<'_>) -> Result<Self, Error> {
        let SessionConfig {
            pods,
            objects,
            manifest_dir,
            agent_socket,
            pod_logs_dir,
            cgroup_root,
            seccomp_default,
        } = config;
        let SessionDeps { root, channel, socket, tell } = deps;
        let setup = Setup {
            agent_socket,
            pod_logs_dir,
            root,
            cgroup_root,
            driver: None,
            seccomp_default,
            given: node::NodeOverrides::default(),
            users: Range::default(),
            tuning: Tuning::default(),
        };
        let api = Arc::new(objects.clone());
        let BuiltPodDeps { deps, .. } = setup.make(channel.clone(), api, Arc::default()).await?;
        Ok(Self::start((pods, objects), manifest_dir, deps, channel, (socket, tell)).await)
    }

    async fn start(
        (pods, objects): (Vec<Pod>, Files),
        folder: Option<PathBuf>,
        deps: Deps,
        runtime: Channel,
        (socket, tell): (Socket, fn(&str)),
    ) -> Self {
        let (node, clock, pulls) = (deps.node.clone(), deps.clock.clone(), deps.runtime_ext.pulls.clone());
        let volumes = deps.volumes.clone();
        let every = static_pods::CHECK_EVERY;
        // Its task ends when nobody listens any more.
        let folder = match folder {
            Some(folder) => Some(static_pods::follow(folder, node.name.clone(), every).await.0),
            None => None,
        };
        let first: Vec<PodUid> = folder
            .iter()
            .flat_map(|folder| folder.borrow().pods.clone())
            .chain(pods.iter().cloned())
            .map(|pod| pod.uid)
            .collect();
        // Before any pod: what is begun later is nobody's orphan.
        for problem in orphans::sweep(&deps, &first).await {
            tracing::warn!(problem, "left from an earlier run");
        }
        let agent = PodWorkers::start(Vec::new(), deps);
        let (ending_in, ending) = watch::channel(Ending::Not);
        let closed = ending_in.clone();
        let (additions_in, additions_out) = mpsc::channel(1);
        let answering = OperatorDeps {
            pods: agent.watch_pods(),
            node,
            clock,
            runtime: Some(runtime),
            pulls,
            volumes,
            additions: Some(additions_in),
            ending: ending_in,
        };
        let (stop_serving, stopped) = oneshot::channel::<()>();
        let mut session = Self {
            agent,
            wanted: PodSelection::new(pods),
            objects,
            additions: additions_out,
            folder,
            told: BTreeSet::new(),
            tell,
            unsettled: true,
            ending,
            closed,
            operator: tokio::spawn(socket.serve(answering, async {
                // Dropped or sent: either way it is time.
                let _ = stopped.await;
            })),
            stop_serving,
        };
        session.apply();
        session.settle().await;
        session
    }

    pub fn agent(&self) -> &PodWorkers {
        &self.agent
    }

    /// Whether new pods may come.
    pub fn follows(&self) -> bool {
        self.folder.is_some()
    }

    /// No new pods from now on.
    pub fn stop_following(&mut self) {
        self.folder = None;
    }

    /// The same, and those who asked for the end may look which pods there are.
    fn close(&mut self) {
        self.stop_following();
        // Who waits for an answer is told that none comes.
        self.additions.close();
        while self.additions.try_recv().is_ok() {}
        self.closed.send_if_modified(|ending| {
            let open = matches!(ending, Ending::Not | Ending::Begun);
            if open {
                *ending = Ending::Closed;
            }
            open
        });
    }

    /// The next thing that happened. Cancel-safe: a change stays marked until it was handled.
    pub async fn next(&mut self) -> News {
        let folder = self.folder.as_mut();
        let changed = async {
            let over = match folder {
                Some(folder) => folder.changed().await.is_err(),
                None => true,
            };
            // Nobody follows it any more: nothing will come.
            if over {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            // The end goes before a change of the folder: after it was heard of, no pod is added.
            biased;
            // Changes stay marked, an addition stays in its channel.
            Ok(()) = self.ending.changed() => {
                self.close();
                News::Ending(*self.ending.borrow_and_update())
            }
            () = changed => {
                self.apply();
                self.settle().await;
                News::Folder
            }
            Some(addition) = self.additions.recv() => {
                self.add(addition);
                News::Added
            }
            else => std::future::pending().await,
        }
    }

    /// Once, as soon as there is no doubt about the folder: what is not in it is not wanted. A caller
    /// that leaves in the midst of it is asked again at the next change.
    async fn settle(&mut self) {
        if !self.unsettled || self.folder.is_none() || !self.told.is_empty() {
            return;
        }
        match self.agent.end_forgotten().await {
            Ok(()) => self.unsettled = false,
            Err(error) => tracing::warn!(error, "pods whose manifests are gone run on"),
        }
    }

    /// Adds pods as if their files had been given.
    fn add(&mut self, Addition { loaded, replace, answer }: Addition) {
        let pods = self.agent.pods();
        let stay = pods.iter().filter(|handle| !handle.is_done() && !handle.is_leaving());
        let there: BTreeSet<PodUid> = stay.map(|handle| handle.pod.uid.clone()).collect();
        let found = self.folder.as_ref().map(|folder| folder.borrow().clone()).unwrap_or_default();
        let answered = match self.wanted.add(&loaded.pods, &there, &found, replace) {
            Ok(changes) => {
                let objects = self.objects.take(&loaded.objects).into_iter();
                let objects =
                    objects.map(|(kind, (namespace, name), change)| Added { kind, namespace, name, change });
                let pods = loaded.pods.into_iter().zip(changes).map(|(pod, change)| {
                    let Pod { namespace, name, .. } = pod;
                    Added { kind: "pod", namespace, name, change }
                });
                let added = objects.chain(pods).collect();
                self.apply();
                Ok(added)
            }
            Err(why) => Err(Refused(why)),
        };
        // Whoever asked may have gone.
        let _ = answer.send(answered);
    }

    fn apply(&mut self) {
        let found = self.folder.as_mut().map(|folder| folder.borrow_and_update().clone()).unwrap_or_default();
        let pods = self.agent.pods();
        let there: BTreeSet<PodUid> =
            pods.iter().filter(|handle| !handle.is_done()).map(|handle| handle.pod.uid.clone()).collect();
        let (pods, problems) = self.wanted.choose(&there, &found);
        let problems: BTreeSet<String> = problems.into_iter().collect();
        for problem in problems.difference(&self.told) {
            (self.tell)(problem);
        }
        self.told = problems;
        self.agent.apply(pods);
    }

    /// Removes every pod and ends; returns what is left and why.
    pub async fn clean_up(mut self) -> Result<Vec<String>, Error> {
        self.close();
        let left = self.agent.clean_up().await;
        // An operator who waits for a stop gets the answer before the socket goes.
        finish(self.stop_serving, self.operator).await?;
        Ok(left)
    }

    /// Ends, and leaves the pods as they are.
    pub async fn leave(mut self) -> Result<(), Error> {
        self.close();
        drop(self.agent);
        finish(self.stop_serving, self.operator).await
    }
}

async fn finish(
    stop: oneshot::Sender<()>,
    operator: JoinHandle<Result<(), socket::Error>>,
) -> Result<(), Error> {
    // An operator API that has ended already is reported below.
    let _ = stop.send(());
    let abort = operator.abort_handle();
    match tokio::time::timeout(LAST_ANSWERS, operator).await {
        Ok(ended) => ended.map_err(Error::OperatorDied)?.map_err(Error::Operator),
        Err(_) => {
            abort.abort();
            Ok(())
        }
    }
}

//! An agent at work: its pods from files and from a folder that is followed, and its operator API.
//! Owns that the right set of pods is applied and that problems are told once; never ends a pod by
//! itself. Called by `gantry run` and `gantry agent`.

mod wanted;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_agent::agent::Agent;
use gantry_agent::api::Api;
use gantry_agent::api::files::Files;
use gantry_agent::beyond::Beyond;
use gantry_agent::cgroups::tree::Tree;
use gantry_agent::checkpoint::CheckpointDir;
use gantry_agent::clock::SystemClock;
use gantry_agent::images::Images;
use gantry_agent::logs::dir::LogDir;
use gantry_agent::metrics::Metrics;
use gantry_agent::model::cgroup::limits::Rules;
use gantry_agent::model::cgroup::names::Driver;
use gantry_agent::model::pod::{Pod, PodUid};
use gantry_agent::node::{Allocatable, HostIps, NodeInfo};
use gantry_agent::operator::additions::{Added, Addition, Refused};
use gantry_agent::operator::socket::{self, Socket};
use gantry_agent::operator::{Ending, Sources};
use gantry_agent::pod::restart::LONGEST_WAIT;
use gantry_agent::pod::run::Deps;
use gantry_agent::probe::net::NetProbe;
use gantry_agent::root::Root;
use gantry_agent::runtime::cri::{CriRuntime, Features, NodeConfig, REQUEST_TIMEOUT, driver};
use gantry_agent::static_pods;
use gantry_agent::static_pods::choice::Found;
use gantry_agent::users::{Range, UserRanges};
use gantry_agent::volumes::host::HostVolumes;
use gantry_agent::{node, orphans};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::output;
use wanted::Wanted;

/// For answers under way; streams of a runtime may never end by themselves.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Whether this user may; says so when not.
pub(crate) fn may_run(command: &str) -> bool {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        output::say(&format!(
            "error: `gantry {command}` makes namespaces, mounts and cgroups, which user {} may not: run it as \
             root, as in `sudo gantry {command} …`",
            user.as_raw()
        ));
    }
    user.is_root()
}

/// A folder, looked at as often as a kubelet does.
pub(crate) fn checked(folder: Option<PathBuf>) -> Option<(PathBuf, Duration)> {
    folder.map(|folder| (folder, static_pods::CHECK_EVERY))
}

/// Where an agent keeps things, and what its pods get.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) agent_socket: PathBuf,
    pub(crate) pod_logs_dir: PathBuf,
    /// Of volumes; held to the end: what is in it is this agent's alone.
    pub(crate) root: Root,
    pub(crate) cgroup_root: String,
    /// Who makes cgroups; the runtime is asked when nobody said so.
    pub(crate) driver: Option<Driver>,
    /// RuntimeDefault for pods that name no profile.
    pub(crate) seccomp_default: bool,
    /// Read where it says nothing.
    pub(crate) given: node::Given,
    /// For pods with a user namespace.
    pub(crate) users: Range,
    pub(crate) tuning: Tuning,
}

/// Numbers that a kubelet's configuration has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// By what CPU and processes are held.
    pub(crate) rules: Rules,
    /// For an answer of the runtime.
    pub(crate) request_timeout: Duration,
    /// Of a container that crashes.
    pub(crate) longest_wait: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { rules: Rules::default(), request_timeout: REQUEST_TIMEOUT, longest_wait: LONGEST_WAIT }
    }
}

/// What pods are run with.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) deps: Deps,
    /// To be held to the end.
    pub(crate) root: Root,
    /// For what is asked of it beside pods.
    pub(crate) runtime: CriRuntime,
    /// Where pods learn the node's addresses, which are as given until then.
    pub(crate) ips: watch::Sender<Vec<String>>,
}

impl Setup {
    /// What pods are run with, when all they refer to is in `objects`.
    pub(crate) async fn deps(self, channel: Channel, objects: Files) -> Result<(Deps, Root)> {
        let Made { deps, root, .. } = self.make(channel, Arc::new(objects), Arc::default()).await?;
        Ok((deps, root))
    }

    /// The same, with objects from anywhere, and counted.
    pub(crate) async fn make(
        self,
        channel: Channel,
        api: Arc<dyn Api>,
        metrics: Arc<Metrics>,
    ) -> Result<Made> {
        let Self {
            agent_socket,
            pod_logs_dir,
            root,
            cgroup_root,
            driver,
            seccomp_default,
            given,
            users,
            tuning,
        } = self;
        let driver = match driver {
            Some(driver) => driver,
            None => {
                let told = driver::of(channel.clone(), tuning.request_timeout).await;
                told.map_err(anyhow::Error::msg)?.unwrap_or_default()
            }
        };
        let root_dir = root.path().to_owned();
        let facts = NodeConfig {
            seccomp_root: root_dir.join("seccomp"),
            seccomp_default,
            rules: tuning.rules,
            request_timeout: tuning.request_timeout,
            ..node::facts(pod_logs_dir.clone(), &given)?
        };
        let mut info = node::info(&root_dir)?;
        if let Some(name) = given.name {
            info.name = name;
        }
        let cpu = info.cpu;
        if let Some(Allocatable { cpu, memory, ephemeral }) = given.allocatable {
            (info.cpu, info.memory, info.ephemeral) = (cpu, memory, ephemeral);
        }
        let (ips_in, ips) = HostIps::told(node::addresses(given.ips.as_deref()));
        info.cluster_domain.clone_from(&facts.cluster_domain);
        let resolver = facts.resolver.clone();
        // Beside the socket: as long-lived as what runs here, and one per agent.
        let beside = agent_socket.parent().unwrap_or(Path::new("/run/gantry"));
        let runtime = CriRuntime::new(channel.clone(), facts, metrics.clone());
        let Features { runtime_name, recursive_read_only, strict_groups, user_namespaces } =
            runtime.features().await?;
        let beyond = Beyond::of(&runtime_name, &channel);
        let runtime = runtime.telling(beyond.pulls.clone());
        let told = async |uid: &PodUid| runtime.users_of(uid).await;
        let users = UserRanges::load(root_dir.clone(), users, told).await.map_err(anyhow::Error::msg)?;
        let node = Arc::new(NodeInfo {
            runtime_name,
            recursive_read_only,
            strict_groups,
            user_namespaces,
            resolver,
            ips,
            ..info
        });
        let deps = Deps {
            logs: Arc::new(LogDir::new(pod_logs_dir)),
            clock: Arc::new(SystemClock::new()),
            volumes: Arc::new(
                HostVolumes::new(&root_dir, api.clone(), node.clone(), recursive_read_only)
                    .counted_in(metrics.clone()),
            ),
            cgroups: Arc::new(Tree::new(&cgroup_root, cpu, driver)?.ruled(tuning.rules)),
            api,
            probe_io: Arc::new(NetProbe::new()?),
            checkpoints: Arc::new(CheckpointDir::new(beside.join("checkpoints"), root.claims())),
            users: Arc::new(users),
            sweeps: Arc::default(),
            longest_wait: tuning.longest_wait,
            metrics,
            probe_metrics: Arc::default(),
            // Without a kubelet nobody asks for it: a try tells.
            network: watch::channel(None).1,
            recorder: None,
            images: Arc::new(Images::plain()),
            beyond,
            node,
            runtime: Arc::new(runtime.clone()),
        };
        Ok(Made { deps, root, runtime, ips: ips_in })
    }
}

/// What a session hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The folder has changed, and its pods were applied.
    Folder,
    /// Somebody added pods, or tried to.
    Added,
    /// `gantry down`, and how far it is.
    Ending(Ending),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    agent: Agent,
    wanted: Wanted,
    /// What pods refer to; more comes with pods that are added.
    objects: Files,
    additions: mpsc::Receiver<Addition>,
    /// None without a folder, and once the pods are to end.
    folder: Option<watch::Receiver<Found>>,
    told: BTreeSet<String>,
    /// Pods whose manifests went while no agent was here are still to be ended.
    unsettled: bool,
    ending: watch::Receiver<Ending>,
    /// To say that no pod is added any more.
    closed: watch::Sender<Ending>,
    operator: JoinHandle<Result<(), socket::Error>>,
    stop_serving: oneshot::Sender<()>,
}

impl Session {
    /// Starts the pods, or takes them up; a folder is looked at that often, and when it changes.
    pub(crate) async fn start(
        (pods, objects): (Vec<Pod>, Files),
        folder: Option<(PathBuf, Duration)>,
        deps: Deps,
        runtime: Channel,
        socket: Socket,
    ) -> Self {
        let (node, clock, pulls) = (deps.node.clone(), deps.clock.clone(), deps.beyond.pulls.clone());
        // Its task ends when nobody listens any more.
        let folder = match folder {
            Some((folder, every)) => Some(static_pods::follow(folder, node.name.clone(), every).await.0),
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
        let agent = Agent::start(Vec::new(), deps);
        let (ending_in, ending) = watch::channel(Ending::Not);
        let pods_seen = agent.watch_pods();
        let closed = ending_in.clone();
        let runtime = Some(runtime);
        let (additions_in, additions_out) = mpsc::channel(1);
        let additions = Some(additions_in);
        let sources = Sources { pods: pods_seen, node, clock, runtime, pulls, additions, ending: ending_in };
        let (stop_serving, stopped) = oneshot::channel::<()>();
        let mut session = Self {
            agent,
            wanted: Wanted::new(pods),
            objects,
            additions: additions_out,
            folder,
            told: BTreeSet::new(),
            unsettled: true,
            ending,
            closed,
            operator: tokio::spawn(socket.serve(sources, async {
                // Dropped or sent: either way it is time.
                let _ = stopped.await;
            })),
            stop_serving,
        };
        session.apply();
        session.settle().await;
        session
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Whether new pods may come.
    pub(crate) fn follows(&self) -> bool {
        self.folder.is_some()
    }

    /// No new pods from now on.
    pub(crate) fn stop_following(&mut self) {
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
    pub(crate) async fn next(&mut self) -> News {
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
            output::say(&format!("error: {}", output::one_line(problem)));
        }
        self.told = problems;
        self.agent.apply(pods);
    }

    /// Removes every pod and ends; returns what is left and why.
    pub(crate) async fn clean_up(mut self) -> Result<Vec<String>> {
        self.close();
        let left = self.agent.clean_up().await;
        // An operator who waits for a stop gets the answer before the socket goes.
        finish(self.stop_serving, self.operator).await?;
        Ok(left)
    }

    /// Ends, and leaves the pods as they are.
    pub(crate) async fn leave(mut self) -> Result<()> {
        self.close();
        drop(self.agent);
        finish(self.stop_serving, self.operator).await
    }
}

async fn finish(stop: oneshot::Sender<()>, operator: JoinHandle<Result<(), socket::Error>>) -> Result<()> {
    // An operator API that has ended already is reported below.
    let _ = stop.send(());
    let abort = operator.abort_handle();
    match tokio::time::timeout(LAST_ANSWERS, operator).await {
        Ok(ended) => ended.context("the operator API died")?.context("offer the operator API"),
        Err(_) => {
            abort.abort();
            Ok(())
        }
    }
}

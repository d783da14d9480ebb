//! `gantry run`: pods from files in the foreground. Owns the order of start and end, the
//! signals and the exit code; never decides about a pod. Called by main.

mod followed;
mod narrate;
mod signals;
mod summary;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_agent::agent::Agent;
use gantry_agent::cgroups::tree::Tree;
use gantry_agent::checkpoint::CheckpointDir;
use gantry_agent::clock::SystemClock;
use gantry_agent::logs::dir::LogDir;
use gantry_agent::operator::Sources;
use gantry_agent::operator::socket::Socket;
use gantry_agent::pod::run::Deps;
use gantry_agent::pod::spec::{Pod, PodUid};
use gantry_agent::pod::status::{Phase, PodStatus};
use gantry_agent::probe::net::NetProbe;
use gantry_agent::runtime::cri::{self, CriRuntime, NodeConfig};
use gantry_agent::volumes::host::HostVolumes;
use gantry_agent::{manifest, node, orphans};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::args::RunArgs;
use crate::in_process::InProcess;
use crate::{output, runtime};
use followed::Followed;
use narrate::narrate;
use signals::Signals;

const BAD_MANIFEST: u8 = 2;
/// Our runtime refuses such mounts so far.
const RECURSIVE_READ_ONLY: bool = false;
/// As a shell reports a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// For the last lines of containers that have ended.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: Box<RunArgs>) -> Result<ExitCode> {
    let manifest::Loaded { pods, objects } = match manifest::load(&args.files) {
        Ok(loaded) => loaded,
        Err(error) => {
            output::say(&format!("error: {:#}", anyhow::Error::from(error)));
            return Ok(ExitCode::from(BAD_MANIFEST));
        }
    };
    let user = rustix::process::geteuid();
    if !user.is_root() {
        output::say(&format!(
            "error: `gantry run` makes namespaces, mounts and cgroups, which user {} may not: run it as root, as in `sudo gantry run …`",
            user.as_raw()
        ));
        return Ok(ExitCode::FAILURE);
    }
    let RunArgs {
        files: _,
        manifest_dir,
        flags,
        container_runtime_endpoint,
        agent_socket,
        pod_logs_dir,
        root_dir,
    } = *args;
    let root_dir = root_dir.unwrap_or_else(|| flags.root.join("kubelet"));
    let cgroup_root = flags.cgroup_root.clone();
    let mut signals = Signals::new()?;
    // First of all what tells whether another agent is here already.
    let socket = Socket::bind(&agent_socket).await.context("offer the operator API")?;
    let (in_process, channel) = match container_runtime_endpoint {
        Some(endpoint) => (None, cri::connect(&endpoint).await?),
        None => {
            let (runtime, channel) = InProcess::start(runtime::standalone_config(flags)).await?;
            (Some(runtime), channel)
        }
    };
    let facts = NodeConfig {
        seccomp_root: root_dir.join("seccomp"),
        // Safe unless a pod says otherwise, as a kubelet with --seccomp-default.
        seccomp_default: true,
        ..node::facts(pod_logs_dir.clone())?
    };
    let node = Arc::new(node::info(&root_dir)?);
    let api = Arc::new(objects);
    // Beside the socket: as long-lived as what runs here, and one per agent.
    let beside = agent_socket.parent().unwrap_or(Path::new("/run/gantry"));
    let deps = Deps {
        logs: Arc::new(LogDir::new(pod_logs_dir)),
        clock: Arc::new(SystemClock::new()),
        volumes: Arc::new(HostVolumes::new(root_dir, api.clone(), node.clone(), RECURSIVE_READ_ONLY)),
        cgroups: Arc::new(Tree::new(&cgroup_root, node.cpu)?),
        api,
        probe_io: Arc::new(NetProbe::new()?),
        checkpoints: Arc::new(CheckpointDir::new(beside.join("checkpoints"))),
        node,
        runtime: Arc::new(CriRuntime::new(channel.clone(), facts)),
    };
    let followed = match manifest_dir {
        Some(folder) => Followed::start(folder, &deps.node.name).await,
        None => Followed::Nothing,
    };
    let pods = followed.first().unwrap_or(pods);
    let code = live(pods, followed, deps, channel, socket, &mut signals).await?;
    if let Some(runtime) = in_process {
        runtime.stop().await?;
    }
    Ok(code)
}

/// From the first pod to the last.
async fn live(
    pods: Vec<Pod>,
    followed: Followed,
    deps: Deps,
    runtime: Channel,
    socket: Socket,
    signals: &mut Signals,
) -> Result<ExitCode> {
    let wanted: Vec<PodUid> = pods.iter().map(|pod| pod.uid.clone()).collect();
    for problem in orphans::sweep(&deps, &wanted).await {
        tracing::warn!(problem, "left from an earlier run");
    }
    let (node, clock) = (deps.node.clone(), deps.clock.clone());
    let mut agent = Agent::start(pods, deps);
    let sources = Sources {
        pods: agent.watch_pods(),
        node,
        clock,
        runtime: Some(runtime),
        // Nothing to tell: this ends with its pods anyway.
        shutdown: Arc::new(Notify::new()),
    };
    let (stop_serving, stopped) = oneshot::channel::<()>();
    let stopped = async {
        // Dropped or sent: either way it is time.
        let _ = stopped.await;
    };
    let operator = tokio::spawn(socket.serve(sources, stopped));
    let mut narrators =
        Narrators { several: agent.pods().len() > 1 || followed.goes_on(), ..Default::default() };
    narrators.take_up(&agent);

    let Some(statuses) = until_over(&mut agent, followed, signals, &mut narrators).await else {
        output::say("leaving at once: what runs goes on; `gantry run` on the same files takes it up again");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let drain = async { while narrators.tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drain).await.is_err() {
        tracing::warn!("not all output of the containers could be shown in time");
    }
    let pods = agent.pods();
    output::say(&summary::table(&pods, &statuses));
    // Cancel-safe: leaving at once is what was asked for.
    let left = tokio::select! {
        left = agent.clean_up() => left,
        () = signals.next() => vec!["interrupted before everything was removed".to_owned()],
    };
    // An operator who waits for a stop gets the answer before the socket goes.
    let _ = stop_serving.send(());
    operator.await.context("the operator API died")?.context("offer the operator API")?;
    for problem in &left {
        output::say(&format!("error: left behind: {problem}"));
    }
    let failed = statuses.iter().any(|status| status.phase == Phase::Failed && !status.killed);
    Ok(if failed || !left.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One teller for each pod that ever was.
#[derive(Default)]
struct Narrators {
    several: bool,
    known: BTreeSet<PodUid>,
    tasks: JoinSet<()>,
}

impl Narrators {
    fn take_up(&mut self, agent: &Agent) {
        // Reaps those whose pods are over.
        while self.tasks.try_join_next().is_some() {}
        for handle in agent.pods().iter() {
            if self.known.insert(handle.pod.uid.clone()) {
                self.tasks.spawn(narrate(handle.clone(), self.several));
            }
        }
    }
}

/// Until no pod runs or will run; a followed folder may bring more until the first signal. That asks
/// the pods to end, the second kills them, the third gives up: none.
async fn until_over(
    agent: &mut Agent,
    mut followed: Followed,
    signals: &mut Signals,
    narrators: &mut Narrators,
) -> Option<Vec<PodStatus>> {
    let mut count = 0;
    loop {
        let more = followed.goes_on();
        let over = async {
            let statuses = agent.until_over().await;
            if more {
                std::future::pending::<()>().await;
            }
            statuses
        };
        // All arms are cancel-safe: pods are asked again, a signal and a change are kept.
        let found = tokio::select! {
            statuses = over => return Some(statuses),
            found = followed.next() => Some(found),
            () = signals.next() => None,
        };
        match found {
            Some(pods) => {
                agent.apply(pods);
                narrators.take_up(agent);
                continue;
            }
            None => count += 1,
        }
        followed = Followed::Nothing;
        match count {
            1 => {
                output::say("stopping; once more kills");
                agent.kill_all(None, "interrupted");
            }
            2 => {
                output::say("killing");
                agent.kill_all(Some(Duration::ZERO), "interrupted twice");
            }
            _ => return None,
        }
    }
}

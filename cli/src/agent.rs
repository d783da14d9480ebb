//! `gantry agent`: pods on a runtime with a socket of its own, without end. Owns the order of start
//! and end; never decides about a pod. Called by main, and started by `gantry run --detach`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use gantry_agent::kubelet::session::{News, Session, SessionConfig, SessionDeps};
use gantry_agent::manifest;
use gantry_agent::operator::Ending;
use gantry_agent::operator::socket::Socket;
use gantry_agent::root::Root;
use gantry_agent::runtime::cri;

use crate::args::{AgentArgs, PodsFlags};
use crate::detach::daemon;
use crate::output;
use crate::run::signals::Signals;
use crate::run::{BAD_MANIFEST, may_run, tell};

/// Until a signal, which leaves the pods as they are, or until `gantry down`.
pub(crate) async fn agent(args: Box<AgentArgs>) -> Result<ExitCode> {
    let AgentArgs { pods, container_runtime_endpoint, root_dir, cgroup_root, seccomp_default, daemon } =
        *args;
    if daemon {
        daemon::begin()?;
    }
    let PodsFlags { files, manifest_dir, agent_socket, pod_logs_dir } = pods;
    let manifest::Loaded { pods, objects, notes } = match manifest::load(&files) {
        Ok(loaded) => loaded,
        Err(error) => {
            output::say(&format!("error: {:#}", anyhow::Error::from(error)));
            return Ok(ExitCode::from(BAD_MANIFEST));
        }
    };
    notes.iter().for_each(|note| output::say(note));
    if !may_run("agent") {
        return Ok(ExitCode::FAILURE);
    }
    let mut signals = Signals::new()?;
    // First of all what tells whether another agent is here already.
    let socket = Socket::bind(&agent_socket).await.context("offer the operator API")?;
    let channel = cri::connect(&container_runtime_endpoint).await?;
    let root = Root::open(&root_dir)?;
    let config = SessionConfig {
        pods,
        objects,
        manifest_dir,
        agent_socket,
        pod_logs_dir,
        cgroup_root,
        seccomp_default,
    };
    let deps = SessionDeps { root: &root, channel, socket, tell };
    let mut session = Session::build(config, deps).await?;
    loop {
        // Both arms are cancel-safe: news stay marked, a signal is kept.
        tokio::select! {
            news = session.next() => match news {
                News::Ending(Ending::Over) => break,
                News::Ending(_) | News::Folder | News::Added => {}
            },
            () = signals.next() => {
                tracing::info!("ending; the pods go on");
                session.leave().await?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    let left = session.clean_up().await?;
    for problem in &left {
        output::say(&format!("error: left behind: {problem}"));
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

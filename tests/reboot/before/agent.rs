//! Pods of an agent: one that has ended, one that ends while the runtime is down, one that is cut
//! off, and one that should always run.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::node::Node;
use gantry_tests::poll::poll;
use gantry_tests::proc;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use rustix::process::{Pid, Signal};

use crate::Which;
use crate::agent::{self, AgentBefore};

/// Ends the container that has these words as its command line, and waits until its end is on record.
fn end(node: &Node, id: &str, words: &str) -> Result<()> {
    let all = proc::all()?;
    let found = all.iter().find(|process| proc::command_line(process.pid).trim_end() == words);
    let pid = found.and_then(|process| Pid::from_raw(process.pid)).context("the container does not run")?;
    rustix::process::kill_process(pid, Signal::TERM)?;
    // Nobody who could be asked: the runtime is down.
    let record = node.root().join("containers").join(id).join("exit.json");
    poll("the end to be on record", Duration::from_secs(60), || {
        if record.exists() { Ok(()) } else { Err(format!("no {}", record.display())) }
    })
}

#[test]
fn an_agent_s_pods_are_left_for_the_other_half() -> Result<()> {
    let registry = Registry::start()?;
    let web = web_image()?;
    let image = registry.push("reboot/web", "v1", &web.build()?)?;
    let roots = Which::Agent.roots()?;
    agent::write_manifests(&roots, &image)?;
    let mut node = Node::start_on(roots)?;
    let mut run = agent::start(node.roots())?;
    let seen = run.await_pods("one pod to have ended and three to run", 240, |pods| {
        let seen = agent::parse_pods(pods);
        let state = |name: &str| seen.get(name).map(|pod| pod.state.as_str());
        let done = state("done") == Some("terminated") && seen["done"].phase == "Succeeded";
        let others = ["down", "cut", "keeps"].iter().all(|name| state(name) == Some("running"));
        (done && others).then(|| agent::parse_pods(pods))
    })?;
    assert_eq!((seen["done"].exit_code, seen["done"].restarts), (Some(0), Some(0)), "{seen:?}");
    let list = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;

    node.kill()?;
    end(&node, &seen["down"].id, "/workload count 7 1000000")?;

    // A pull that died between its folder and the index's record. 26 characters, as theirs have.
    let stray = node.root().join("layers/strayabcdefghijklmnopqrstu");
    std::fs::create_dir(&stray)?;
    let made = AgentBefore {
        layers: web.layers.len(),
        containers: seen.into_iter().map(|(name, pod)| (name, pod.id)).collect(),
        sandboxes: list.into_iter().map(|sandbox| sandbox.id).collect(),
        stray,
    };
    std::fs::write(Which::Agent.handed_over(), serde_json::to_vec_pretty(&made)?)?;
    rustix::fs::sync();
    // Running when the machine goes down; the runtime is not.
    std::mem::forget(run);
    std::mem::forget(node);
    Ok(())
}

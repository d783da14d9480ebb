//! The same agent on the same files: what was over stays over, what should run runs anew.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Node;
use gantry_tests::pod;

use crate::Which;
use crate::agent::{self, AgentBefore, ContainerView};

/// What the runtime says before any agent is there.
fn assert_dead(node: &Node, made: &AgentBefore) -> Result<()> {
    let listed = super::sandboxes(node)?;
    for sandbox in &listed {
        ensure!(sandbox.state() == PodSandboxState::SandboxNotready, "{sandbox:?}");
    }
    let ids: BTreeSet<String> = listed.into_iter().map(|sandbox| sandbox.id).collect();
    ensure!(ids == made.sandboxes, "{ids:?} instead of {:?}", made.sandboxes);
    ensure!(super::leases(node.roots())?.is_empty(), "{:?}", super::leases(node.roots())?);
    ensure!(!made.stray.exists(), "{} is still there", made.stray.display());
    let layers: Vec<_> = std::fs::read_dir(node.root().join("layers"))?.flatten().collect();
    ensure!(layers.len() == made.layers, "{layers:?}");
    Ok(())
}

/// Exactly the one container that was, as it was.
fn assert_not_run_again(
    node: &Node,
    made: &AgentBefore,
    now: &BTreeMap<String, ContainerView>,
) -> Result<()> {
    // What is cut off may have heard the SIGTERM of an orderly shutdown, and its end may have been seen.
    let expected =
        [("done", "Succeeded", &[0][..]), ("down", "Failed", &[7]), ("cut", "Failed", &[255, 5, 137])];
    for (name, phase, codes) in expected {
        let (pod, old) = (&now[name], &made.containers[name]);
        let code = pod.exit_code.context("no exit code")?;
        ensure!(pod.id == *old && pod.state == "terminated", "{name} was run again: {pod:?}, it was {old}");
        ensure!(pod.phase == phase && codes.contains(&code), "{name}: {pod:?}");
        ensure!(pod.restarts == Some(0), "{name}: {pod:?}");
        ensure!(agent::containers_of(node, name)? == [old.as_str()], "{name} has a twin");
        let status = pod::container_status(node, old)?;
        ensure!(status.state() == ContainerState::ContainerExited, "{status:?}");
        ensure!(i64::from(status.exit_code) == code, "{status:?} is told as {code}");
    }
    Ok(())
}

/// In a new sandbox, which alone has an address.
fn assert_runs_anew(node: &Node, made: &AgentBefore, now: &ContainerView) -> Result<()> {
    ensure!(now.id != made.containers["keeps"] && now.restarts == Some(1), "{now:?}");
    ensure!(pod::container_status(node, &now.id)?.state() == ContainerState::ContainerRunning);
    let listed = super::sandboxes(node)?;
    let ready: Vec<_> =
        listed.iter().filter(|sandbox| sandbox.state() == PodSandboxState::SandboxReady).collect();
    ensure!(ready.len() == 1 && !made.sandboxes.contains(&ready[0].id), "{listed:?}");
    let owners = super::leases(node.roots())?;
    ensure!(owners == BTreeSet::from([ready[0].id.clone()]), "{owners:?} of {listed:?}");
    Ok(())
}

#[test]
fn what_was_over_stays_over_and_what_should_run_runs_anew() -> Result<()> {
    let made: AgentBefore = serde_json::from_slice(&std::fs::read(Which::Agent.handed_over())?)?;
    let roots = Which::Agent.roots()?;
    let before = Snapshot::take(&Scope { folders: Vec::new(), ..roots.scope() })?;
    // Without these there would be nothing to be lost or to leak.
    ensure!(made.stray.is_dir(), "{} did not survive", made.stray.display());
    let owners = super::leases(&roots)?;
    ensure!(!owners.is_empty() && owners.is_subset(&made.sandboxes), "{owners:?} of {:?}", made.sandboxes);
    let node = Node::start_on(roots)?;
    assert_dead(&node, &made)?;

    let mut run = agent::start(node.roots())?;
    let now =
        run.await_pods("the pod that should run to run, and the others to be told as over", 240, |pods| {
            let seen = agent::parse_pods(pods);
            let over = |name: &str| seen.get(name).is_some_and(|pod| pod.state == "terminated");
            let keeps = seen.get("keeps")?;
            let runs = keeps.state == "running" && keeps.ip.starts_with("10.99.");
            (runs && over("done") && over("down") && over("cut")).then(|| agent::parse_pods(pods))
        })?;
    assert_not_run_again(&node, &made, &now)?;
    assert_runs_anew(&node, &made, &now["keeps"])?;

    run.gantry_ok("down", &[&format!("--state={}", node.state().display())])?;
    ensure!(run.await_end()?.success(), "{}", run.stderr());
    drop(run);
    super::assert_no_pods(&node)?;
    let agents = agent::root_dir(node.roots());
    for folder in [agents.join("pods"), agents.join("gantry/pods"), node.logs()] {
        let left = if folder.exists() { super::files(&folder)? } else { Vec::new() };
        ensure!(left.is_empty(), "{left:?}");
    }
    let list = node.cri().list_containers(cri::ListContainersRequest::default())?.containers;
    ensure!(list.is_empty(), "{list:?}");
    super::assert_all_addresses_are_free(&node)?;
    super::end(node, &before)
}

//! After a reboot: played by killing everything, emptying what a tmpfs would lose, and another boot id.

use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::fake_reboot::{self, leases};
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;

use crate::images::{Ready, ready};

fn reboot(node: &mut Node, boot_id: &str) -> Result<()> {
    node.kill()?;
    let flag = fake_reboot::cycle(node.roots(), boot_id)?;
    node.restart_with(&[flag])
}

#[test]
fn rt_7_1_a_reboot_frees_addresses_and_uppers_and_shows_old_pods_until_they_are_removed() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "old")?;
    let script = "echo kept > /written; /workload sleep 600";
    let runs = pod.start(&pod::container_config("runs", &image, &["/bin/sh", "-c", script]))?;
    let ended = pod.start(&pod::container_config("ended", &image, &["/workload", "exit", "9"]))?;
    let created = pod.create(&pod::container_config("created", &image, &["/workload", "exit", "1"]))?;
    pod::await_exit(&node, &ended)?;
    let sandbox = pod.id.clone();
    drop(pod);
    assert_eq!(leases(node.roots())?.len(), 1);

    reboot(&mut node, "another boot")?;

    assert!(leases(node.roots())?.is_empty(), "a lease of the old boot");
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let status = node.cri().pod_sandbox_status(request)?.status.unwrap_or_default();
    assert_eq!(status.state(), PodSandboxState::SandboxNotready);
    assert_eq!(status.network.map(|network| network.ip), Some(String::new()), "an address it has no more");
    let status = pod::container_status(&node, &runs)?;
    assert_eq!(
        (status.state(), status.exit_code, status.reason.as_str()),
        (ContainerState::ContainerExited, 255, "Unknown")
    );
    let finished_at = status.finished_at;
    let status = pod::container_status(&node, &ended)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (9, "Error"), "{status:?}");
    let status = pod::container_status(&node, &created)?;
    assert_eq!(status.state(), ContainerState::ContainerCreated);
    let upper = node.root().join("containers").join(&runs).join("upper");
    poll("the old upper to be deleted", Duration::from_secs(20), || {
        if upper.exists() { Err(upper.display().to_string()) } else { Ok(()) }
    })?;
    let listed = node.cri().list_container_stats(cri::ListContainerStatsRequest::default())?.stats;
    assert_eq!(listed.len(), 3, "{listed:?}");

    // Whatever was not on disk yet went with the state folder.
    node.pull(&image)?;
    // The same name in a new attempt gets an address, beside the old pod.
    let mut config = pod::sandbox_config(&node, "old");
    config.metadata.get_or_insert_default().attempt = 1;
    let next = Pod::run_config(&node, config)?;
    let late = next.start(&pod::container_config("late", &image, &["/workload", "exit", "4"]))?;
    assert_eq!(pod::await_exit(&node, &late)?.exit_code, 4);
    next.remove()?;
    // An end that nobody saw is the same at every start.
    node.restart()?;
    assert_eq!(pod::container_status(&node, &runs)?.finished_at, finished_at);
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    node.assert_clean(&before)
}

#[test]
fn rt_7_2_the_network_is_freed_with_the_configuration_it_was_made_with() -> Result<()> {
    let Ready { mut node, registry: _registry, image: _, before } = ready()?;
    let pod = Pod::run(&node, "moved")?;
    let sandbox = pod.id.clone();
    drop(pod);
    // The add-on is gone when the node comes back.
    let conflist = node.roots().path("net.d/10-test.conflist");
    let text = std::fs::read(&conflist)?;
    std::fs::remove_file(&conflist)?;
    reboot(&mut node, "second boot")?;
    assert!(leases(node.roots())?.is_empty());
    std::fs::write(&conflist, text)?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    node.assert_clean(&before)
}

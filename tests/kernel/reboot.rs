//! After a reboot: played by killing everything, emptying what a tmpfs would lose, and another boot id.

use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::leakcheck;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;

use crate::images::{Ready, ready};

/// What power off and on again do to a node.
fn reboot(node: &mut Node, boot_id: &str) -> Result<()> {
    node.kill()?;
    let groups = leakcheck::tagged_cgroups(node.roots().tag())?;
    for folder in groups.iter().rev() {
        let members = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|line| line.parse().ok()) {
            proc::kill(pid)?;
        }
    }
    poll("the cgroups to go", Duration::from_secs(20), || {
        let left = leakcheck::tagged_cgroups(node.roots().tag()).map_err(|error| format!("{error:#}"))?;
        for folder in left.iter().rev() {
            // Busy while the dead are not gone; tried again.
            let _ = std::fs::remove_dir(folder);
        }
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    let netns = node.roots().path("netns");
    for entry in std::fs::read_dir(&netns)? {
        let path = entry?.path();
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH)?;
        std::fs::remove_file(&path)?;
    }
    std::fs::remove_dir_all(node.state())?;
    let file = node.roots().path("boot-id");
    std::fs::write(&file, boot_id)?;
    node.set_flags(&[format!("--boot-id-file={}", file.display())]);
    node.restart()
}

fn leases(node: &Node) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(node.roots().path("leases").join("test"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("10.") {
            names.push(name);
        }
    }
    Ok(names)
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
    assert_eq!(leases(&node)?.len(), 1);

    reboot(&mut node, "another boot")?;

    assert!(leases(&node)?.is_empty(), "a lease of the old boot");
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
    assert!(leases(&node)?.is_empty());
    std::fs::write(&conflist, text)?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    node.assert_clean(&before)
}

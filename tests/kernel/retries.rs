//! Calls that are made again, because their answer was lost or is long in coming: the caller gets what
//! the first one made, and nothing is there twice.

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::cri::Cri;
use gantry_tests::pod::{self, Pod};
use tonic::Code;

use crate::images::{Ready, ready};

const AT_ONCE: usize = 4;

#[test]
fn rt_4_calls_for_one_sandbox_at_once_and_again_make_one() -> Result<()> {
    let Ready { mut node, registry: _registry, image: _, before } = ready()?;
    let config = pod::sandbox_config(&node, "once");
    std::fs::create_dir_all(&config.log_directory)?;
    let request = cri::RunPodSandboxRequest { config: Some(config), ..Default::default() };
    let socket = node.socket();
    let ids = std::thread::scope(|scope| {
        let call = || Cri::new(&socket)?.run_pod_sandbox(request.clone()).context("RunPodSandbox");
        let calls: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(call)).collect();
        let ended =
            calls.into_iter().map(|call| call.join().map_err(|_| anyhow::anyhow!("a call panicked"))?);
        ended.map(|answer| answer.map(|answer| answer.pod_sandbox_id)).collect::<Result<Vec<_>>>()
    })?;
    ensure!(ids.iter().all(|id| *id == ids[0]), "several sandboxes: {ids:?}");
    let again = |node: &gantry_tests::node::Node| node.cri().run_pod_sandbox(request.clone());
    assert_eq!(again(&node)?.pod_sandbox_id, ids[0], "its answer was lost, say");
    node.restart()?;
    assert_eq!(again(&node)?.pod_sandbox_id, ids[0], "and the runtime's life with it");

    let mut other = request.clone();
    other.config.get_or_insert_default().hostname = "another".into();
    let refused = node.cri().run_pod_sandbox(other).expect_err("one name, two wishes");
    assert_eq!(refused.code(), Code::AlreadyExists);
    let name = "once_default_uid-once_0";
    let words =
        format!("failed to reserve sandbox name {name:?}: name {name:?} is reserved for {:?}", ids[0]);
    assert_eq!(refused.message(), words, "containerd's words");

    let stop = cri::StopPodSandboxRequest { pod_sandbox_id: ids[0].clone() };
    node.cri().stop_pod_sandbox(stop)?;
    again(&node).expect_err("a stopped sandbox is not what was asked for");
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: ids[0].clone() })?;
    let fresh = again(&node)?.pod_sandbox_id;
    assert_ne!(fresh, ids[0]);
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: fresh.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: fresh })?;
    node.assert_clean(&before)
}

#[test]
fn rt_4_create_container_again_is_the_container_that_was_made_until_it_is_started() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let config = pod::container_config("again", &image, &["/workload", "sleep", "600"]);
    let (sandbox, id) = {
        let pod = Pod::run(&node, "again")?;
        let id = pod.create(&config)?;
        assert_eq!(pod.create(&config)?, id);
        let mut other = config.clone();
        other.command.push("more".into());
        let refused = pod.create(&other).expect_err("one name, two wishes");
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert!(refused.message().starts_with("failed to reserve container name "), "{refused}");
        assert!(refused.message().contains(&id), "{refused}");
        (pod.id.clone(), id)
    };
    node.restart()?;
    let again = |node: &gantry_tests::node::Node| {
        node.cri().create_container(cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(config.clone()),
            sandbox_config: Some(pod::sandbox_config(node, "again")),
        })
    };
    assert_eq!(again(&node)?.container_id, id, "in the runtime's next life, too");
    let start = || node.cri().start_container(cri::StartContainerRequest { container_id: id.clone() });
    start()?;
    start().context("a start whose answer was lost")?;
    assert_eq!(again(&node).expect_err("it runs: its caller knows it").code(), Code::AlreadyExists);
    let listed = node.cri().list_containers(cri::ListContainersRequest::default())?.containers;
    assert_eq!(listed.len(), 1, "{listed:?}");
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    node.assert_clean(&before)
}

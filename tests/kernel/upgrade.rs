//! Monitors outlive runtimes: what a runtime makes of one that is newer than itself.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;

use crate::images::{Ready, ready};

/// The answer to request 1, Welcome with protocol_version 99, as monitor.proto has it: a frame of 8
/// bytes { reply (1): { id (1): 1, welcome (3): { protocol_version (1): 99 } } }.
const WELCOME_99: [u8; 12] = [8, 0, 0, 0, 0x0a, 6, 0x08, 1, 0x1a, 2, 0x08, 99];

#[test]
fn rt_2_15_a_pod_with_a_newer_monitor_is_not_ready_runs_on_and_can_be_stopped() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let (sandbox, id, log_path) = {
        let pod = Pod::run(&node, "future")?;
        let id = pod.start(&pod::container_config("count", &image, &["/workload", "count", "0"]))?;
        (pod.id.clone(), id, pod.log_path("count"))
    };
    node.kill()?;
    // The monitor stays; its socket is taken over by one that says it is of version 99.
    let socket = node.state().join("monitors").join(format!("{}.sock", &sandbox[..32]));
    std::fs::remove_file(&socket).with_context(|| socket.display().to_string())?;
    let listener = UnixListener::bind(&socket)?;
    let future = std::thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0u8; 4])?;
        stream.write_all(&WELCOME_99)?;
        // Until the runtime hangs up.
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    });
    node.restart()?;
    let cri = node.cri();
    let listed = cri.list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
    assert_eq!(listed.len(), 1, "it must be listed, or the kubelet starts a twin: {listed:?}");
    assert_eq!(listed[0].state, i32::from(PodSandboxState::SandboxNotready));
    let status = pod::container_status(&node, &id)?;
    assert_eq!(status.state, i32::from(ContainerState::ContainerRunning), "{status:?}");
    let lines = || std::fs::read_to_string(&log_path).map(|text| text.lines().count());
    let now = lines()?;
    poll("the log to go on", Duration::from_secs(20), || match lines() {
        Ok(count) if count > now => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    // Other pods are served.
    let other = Pod::run(&node, "other")?;
    other.remove()?;
    cri.stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 10 })?;
    let status = pod::container_status(&node, &id)?;
    assert_eq!(
        (status.state, status.exit_code),
        (i32::from(ContainerState::ContainerExited), 0),
        "{status:?}"
    );
    cri.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    future.join().map_err(|_| anyhow::anyhow!("the thread of the future panicked"))??;
    node.assert_clean(&before)
}

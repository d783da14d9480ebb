//! GetContainerEvents: every change of a pod and its containers, in order, with their status.

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerEventType as Kind, ContainerState, PodSandboxState};
use gantry_tests::pod::{self, Pod};

use crate::images::ready;

#[test]
fn a_pods_life_is_told_in_order_with_its_status() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let mut events = node.cri().events()?;
    let mut other = node.cri().events()?;
    let pod = Pod::run(node, "told")?;
    let id = pod.start(&pod::container_config("told", &ready.image, &["/workload", "exit", "3"]))?;
    pod::await_exit(node, &id)?;
    pod.remove()?;
    let mut expected = vec![
        (&pod.id, Kind::ContainerCreatedEvent),
        (&pod.id, Kind::ContainerStartedEvent),
        (&id, Kind::ContainerCreatedEvent),
        (&id, Kind::ContainerStartedEvent),
        (&id, Kind::ContainerStoppedEvent),
        (&pod.id, Kind::ContainerStoppedEvent),
        (&id, Kind::ContainerDeletedEvent),
        (&pod.id, Kind::ContainerDeletedEvent),
    ];
    let mut last = 0;
    let mut stopped = None;
    while !expected.is_empty() {
        let event = events.receive()?.context("the stream ended")?;
        let kind = event.container_event_type();
        // A program this short may end before its start is told.
        let at = expected.iter().position(|wanted| *wanted == (&event.container_id, kind));
        let at = at.with_context(|| format!("{event:?} is not among {expected:?}"))?;
        assert!(at == 0 || (at == 1 && expected[0].0 == &id), "{event:?} came before {:?}", expected[0]);
        expected.remove(at);
        assert!(event.created_at >= last, "{event:?}");
        last = event.created_at;
        let sandbox = event.pod_sandbox_status.as_ref().context("no sandbox status")?;
        assert_eq!(sandbox.id, pod.id);
        if event.container_id == id && kind == Kind::ContainerStoppedEvent {
            stopped = Some(event);
        } else if event.container_id == pod.id && kind == Kind::ContainerDeletedEvent {
            assert_eq!(sandbox.state(), PodSandboxState::SandboxNotready);
            assert!(event.containers_statuses.is_empty(), "{event:?}");
        }
    }
    let stopped = stopped.context("no stop was told")?;
    let [status] = &stopped.containers_statuses[..] else { anyhow::bail!("{stopped:?}") };
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 3));
    assert_eq!(other.receive()?.context("the other stream ended")?.container_id, pod.id);
    node.assert_clean(&ready.before)
}

#[test]
fn a_failed_start_is_told_as_a_stop() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "fails")?;
    let id = pod.create(&pod::container_config("fails", &ready.image, &["/no/such/program"]))?;
    let mut events = node.cri().events()?;
    let request = cri::StartContainerRequest { container_id: id.clone() };
    assert!(node.cri().start_container(request).is_err());
    let event = events.receive()?.context("the stream ended")?;
    assert_eq!((&event.container_id, event.container_event_type()), (&id, Kind::ContainerStoppedEvent));
    assert_eq!(event.containers_statuses[0].reason, "StartError");
    pod.remove()?;
    node.assert_clean(&ready.before)
}

//! A pod's life through the socket, as a kubelet drives it: filters, states, removal.

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::ready::{Ready, ready};

fn sandboxes(node: &Node, filter: cri::PodSandboxFilter) -> Result<String> {
    let request = cri::ListPodSandboxRequest { filter: Some(filter) };
    let listed = node.cri().list_pod_sandbox(request).context("ListPodSandbox")?;
    let ids: Vec<String> = listed.items.into_iter().map(|sandbox| sandbox.id).collect();
    Ok(ids.join(" "))
}

#[test]
fn it_says_who_it_is_and_that_it_is_ready() -> Result<()> {
    let node = Node::start()?;
    let before = node.snapshot()?;
    let version = node.cri().version(cri::VersionRequest { version: "0.1.0".into() })?;
    // The first two are what kubelet's client asks for and checks.
    assert_eq!((version.version.as_str(), version.runtime_api_version.as_str()), ("0.1.0", "v1"));
    assert_eq!(version.runtime_name, "gantry");
    let status = node.cri().status(cri::StatusRequest { verbose: false })?;
    let conditions = status.status.context("no status")?.conditions;
    for name in ["RuntimeReady", "NetworkReady"] {
        let found = conditions.iter().find(|condition| condition.r#type == name);
        assert!(found.is_some_and(|condition| condition.status), "{name}: {conditions:?}");
    }
    node.assert_clean(&before)
}

#[test]
fn sandboxes_are_found_by_id_state_and_label() -> Result<()> {
    let Ready { node, registry: _registry, image, before } = ready()?;
    let one = Pod::run(&node, "one")?;
    let two = Pod::run(&node, "two")?;
    let container = two.start(&pod::container_config("sleeps", &image, &["/workload", "sleep", "600"]))?;
    let label = cri::PodSandboxFilter {
        label_selector: [("app".to_owned(), "two".to_owned())].into(),
        ..Default::default()
    };
    assert_eq!(sandboxes(&node, label)?, two.id);
    let by_id = cri::PodSandboxFilter { id: one.id.clone(), ..Default::default() };
    assert_eq!(sandboxes(&node, by_id)?, one.id);

    let stop = cri::StopPodSandboxRequest { pod_sandbox_id: two.id.clone() };
    node.cri().stop_pod_sandbox(stop.clone()).context("StopPodSandbox")?;
    // A kubelet stops again whatever it is not sure of.
    node.cri().stop_pod_sandbox(stop).context("StopPodSandbox again")?;
    for (state, id) in [(PodSandboxState::SandboxReady, &one.id), (PodSandboxState::SandboxNotready, &two.id)]
    {
        let state = Some(cri::PodSandboxStateValue { state: state.into() });
        assert_eq!(sandboxes(&node, cri::PodSandboxFilter { state, ..Default::default() })?, *id);
    }
    let status = pod::container_status(&node, &container)?;
    assert_eq!(status.state, i32::from(ContainerState::ContainerExited), "{status:?}");

    one.remove()?;
    two.remove()?;
    assert_eq!(sandboxes(&node, cri::PodSandboxFilter::default())?, "");
    let status = pod::container_status(&node, &container).unwrap_err();
    assert!(format!("{status:#}").contains("not found"), "{status:#}");
    node.assert_clean(&before)
}

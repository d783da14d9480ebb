//! Devices of plugins over a restart of the kubelet: pods of the API server's list, on a node that offers none yet.

use std::collections::BTreeMap;

use gantry_model::pod::{Container, Requirements};

use super::*;
use crate::admission::Node;
use crate::devices::{DeviceHealth, DeviceManager};
use crate::pod::last::{Last, LastContainer};

const GPU: &str = "vendor.com/gpu";

/// A pod of the API server whose container asks for a device.
fn asking() -> PodUpdate {
    let one = BTreeMap::from([(GPU.to_owned(), "1".to_owned())]);
    let written = Requirements { requests: one.clone(), limits: one };
    let asks = |container| Container { written: written.clone(), ..container };
    let containers = pod().containers.into_iter().map(asks).collect();
    Pod { origin: Origin::Api, containers, ..named("a", "a-1") }.into()
}

fn kubelet(machine: &WorkersFixture, devices: DeviceManager) -> PodWorkers {
    let logs = Arc::new(LogDir::new(machine.folder.clone()));
    let deps = deps(&machine.runtime, logs, machine.clock.clone());
    let mut agent = PodWorkers::start(vec![], Deps { devices, ..deps });
    let allocatable = BTreeMap::from([(GPU.into(), 0), ("pods".into(), 110)]);
    let node = Node { name: "n".into(), allocatable, ..Node::default() };
    agent.admit_by(watch::channel(Some(Arc::new(node))).1);
    agent
}

/// As the API server has it.
fn last(status: &PodStatus) -> Last {
    let of = |container: &ContainerStatus| LastContainer {
        id: container.id.clone(),
        image: container.image.clone(),
        image_id: container.image_id.clone(),
        state: container.state.clone(),
        last_exit: None,
        restart_count: container.restart_count,
        started: container.started,
        ready: container.ready,
    };
    let containers = status.containers.iter().map(|c| (c.name.clone(), of(c))).collect();
    Last { started_at: 1, containers, ..Last::default() }
}

/// #133382: a pod without init containers became `UnexpectedAdmissionError`, and its containers ended.
#[tokio::test(start_paused = true)]
async fn a_pod_with_a_device_runs_on_when_its_plugin_comes_after_the_kubelet() {
    let machine = WorkersFixture::new();
    let root = tempfile::tempdir().unwrap();
    let uid = asking().pod.uid.clone();
    let before = DeviceManager::noted_below(root.path(), &uid, "web", GPU).await;
    let mut agent = kubelet(&machine, before.clone());
    agent.take(vec![asking()], SourcesReady::ALL);
    let then = running(agent.pods().first().unwrap()).await;
    let (asked, has) = (machine.runtime.log(), before.of_container(&uid, "web"));
    assert_eq!(has[GPU].keys().collect::<Vec<_>>(), ["a"]);
    drop((agent, before));

    let devices = DeviceManager::open(root.path(), machine.clock.clone(), Arc::default());
    devices.serve().unwrap();
    let mut agent = kubelet(&machine, devices.clone());
    let last = last(&then);
    agent.take(vec![PodUpdate { last, ..asking() }], SourcesReady::ALL);
    let handle = agent.pods().first().unwrap().clone();
    let unchanged = async || {
        let now = running(&handle).await;
        assert_eq!((&now.containers, now.api_reason.as_str()), (&then.containers, ""));
        assert_eq!((machine.runtime.log(), devices.of_container(&uid, "web")), (asked.clone(), has.clone()));
        let healthy = [("a".to_owned(), true.into())].into();
        assert_eq!(
            *now.devices,
            DeviceHealth::from([("web".to_owned(), [(GPU.to_owned(), healthy)].into())])
        );
    };
    unchanged().await;
    // Whoever takes back what nobody has any more, and whoever looks again, comes by.
    assert!(agent.sweep().await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(devices.healthy()[GPU].is_empty(), "no plugin is there yet");
    unchanged().await;
    devices.register_test(GPU).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    unchanged().await;
    // A kubelet that follows knows it, too.
    let after = DeviceManager::open(root.path(), machine.clock.clone(), Arc::default());
    assert_eq!(after.of_container(&uid, "web"), has);
}

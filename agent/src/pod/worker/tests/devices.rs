//! Pods that ask for devices of plugins: given before anything else of them, or refused.

use gantry_metrics::Metrics;
use gantry_model::pod::Requirements;

use super::*;

const GPU: &str = "vendor.com/gpu";

/// A pod whose container asks for a device.
fn asking() -> Pod {
    let limits = [(GPU.to_owned(), "1".to_owned())].into();
    let written = Requirements { limits, ..Requirements::default() };
    Pod { containers: vec![Container { written, ..container("web") }], ..pod() }
}

/// A manager whose plugin was there before the kubelet's restart, and is not yet again.
fn without_its_plugin(world: &World, root: &std::path::Path) -> DeviceManager {
    let data = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"vendor.com/gpu":["a"]}},"Checksum":4102375016}"#;
    std::fs::create_dir_all(root.join("device-plugins")).unwrap();
    std::fs::write(root.join("device-plugins/kubelet_internal_checkpoint"), data).unwrap();
    DeviceManager::open(root, world.clock.clone(), Arc::new(Metrics::default()))
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_gets_no_device_is_refused_before_anything_of_it_is_made() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::new();
    world.devices = without_its_plugin(&world, root.path());
    let handle = world.start(asking());
    let status = until(&handle, "refused", |s| s.phase == Phase::Failed).await;
    assert_eq!(status.api_reason, "UnexpectedAdmissionError");
    assert_eq!(
        status.api_message,
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices \
         vendor.com/gpu, which is unexpected"
    );
    assert!(status.containers.is_empty());
    for made in ["run-sandbox", "pull", "create"] {
        assert_eq!(world.runtime.count(made), 0, "{made}");
    }
    let events = handle.events();
    let told = events.iter().find(|e| e.note.reason == "UnexpectedAdmissionError").unwrap();
    assert_eq!((told.note.kind, told.count), (Kind::Warning, 1));
    assert!(told.note.message.starts_with("Allocate failed due to no healthy devices"));
}

/// #118559, #124345: what runs is not admitted again when a kubelet comes back before its plugins.
#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_keeps_running_while_its_plugin_is_away() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let handle = world.start(asking());
    until_running(&handle).await;
    world.kill_agent().await;
    world.devices = without_its_plugin(&world, root.path());
    let handle = world.start(asking());
    until_running(&handle).await;
    assert_eq!(world.runtime.count("create"), 1);
}

/// #125579: after a reboot it is, and refused.
#[tokio::test(start_paused = true)]
async fn a_pod_of_before_a_reboot_is_refused_while_its_plugin_is_away() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let handle = world.start(asking());
    until_running(&handle).await;
    world.kill_agent().await;
    world.runtime.reboot();
    world.devices = without_its_plugin(&world, root.path());
    let handle = world.start(asking());
    let status = until(&handle, "refused", |s| s.phase == Phase::Failed).await;
    assert_eq!(status.api_reason, "UnexpectedAdmissionError");
    assert_eq!(world.runtime.count("create"), 1);
}

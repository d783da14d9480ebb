//! Pods that ask for devices of plugins: given before anything else of them, or refused.

use gantry_metrics::Metrics;
use gantry_model::pod::Requirements;
use gantry_model::pod::env::{EnvValue, EnvVar};
use gantry_model::pod::volume::VolumeDevice;

use super::*;
use crate::devices::{DeviceHealth, DeviceOptions};
use crate::events::{ClaimIdentity, Kind, Note};
use crate::pod::configure::{ContainerRequest, configure};
use crate::pod::last::{Last, LastEnd};
use crate::runtime::Image;
use crate::volumes::{PodFacts, Volumes};

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

/// The health of what a container has is told while it runs, and how it was at last after it has ended.
#[tokio::test(start_paused = true)]
async fn the_health_of_a_pods_devices_is_told_as_it_changes() {
    let mut world = World::new();
    let pod = with_restart_policy(RestartPolicy::Never, asking());
    world.devices = DeviceManager::of_test(&pod.uid, "web", GPU, DeviceOptions::default());
    let handle = world.start(pod);
    let healthy = |healthy: bool| {
        let device = [("a".to_owned(), healthy.into())].into();
        DeviceHealth::from([("web".to_owned(), [(GPU.to_owned(), device)].into())])
    };
    assert_eq!(*until_running(&handle).await.devices, healthy(true));
    let begun = world.clock.mono();
    world.devices.tell(GPU, false).await;
    until(&handle, "unhealthy", |s| *s.devices == healthy(false)).await;
    assert!(world.clock.mono() - begun < secs(1), "nobody waits for a look at the runtime");
    world.runtime.end("web", 1);
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!(*status.devices, healthy(false));
    assert!(world.devices.health(&handle.pod.uid).is_empty(), "it has given them back");
}

/// A container that has started again before a kubelet's restart leaves an ended record beside the one that runs.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_container_has_restarted_keeps_running_while_its_plugin_is_away() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let handle = world.start(asking());
    until_running(&handle).await;
    world.runtime.end("web", 1);
    until(&handle, "restarted", |s| restarts_of(s) == 1 && s.containers.iter().all(|c| c.ready)).await;
    world.kill_agent().await;
    world.devices = without_its_plugin(&world, root.path());
    let handle = world.start(asking());
    let status = until_running(&handle).await;
    assert_eq!((restarts_of(&status), world.runtime.count("create")), (1, 2));
}

/// A pod that had ended is not admitted again either.
#[tokio::test(start_paused = true)]
async fn a_pod_that_has_succeeded_stays_so_while_its_plugin_is_away() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let pod = with_restart_policy(RestartPolicy::Never, asking());
    let handle = world.start(pod.clone());
    until_running(&handle).await;
    world.runtime.end("web", 0);
    until(&handle, "succeeded", |s| s.is_over() && s.phase == Phase::Succeeded).await;
    world.kill_agent().await;
    world.devices = without_its_plugin(&world, root.path());
    let end = LastEnd { phase: Phase::Succeeded, reason: String::new(), message: String::new() };
    let last = Last { end: Some(end), ..Last::default() };
    let handle = world.start(PodUpdate { last, ..pod.into() });
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Succeeded, ""));
}

/// What a plugin wants a container to have is there for its command line, too; the container's own variables win.
#[tokio::test(start_paused = true)]
async fn a_command_may_name_the_variables_of_devices() {
    let mut world = World::new();
    let env = vec![("GPUS".to_owned(), "a".to_owned()), ("MODE".to_owned(), "shared".to_owned())];
    let mounts = vec![("/opt/gpu".to_owned(), "/usr/lib/gpu".to_owned(), true)];
    let mut pod = asking();
    let container = pod.containers.first_mut().unwrap();
    container.args = vec!["$(GPUS)-$(MODE)".to_owned()];
    container.env = vec![EnvVar { name: "MODE".to_owned(), value: EnvValue::Literal("mine".to_owned()) }];
    world.devices = DeviceManager::of_test(
        &pod.uid,
        "web",
        GPU,
        DeviceOptions { env, mounts, ..DeviceOptions::default() },
    );
    let (deps, image, facts) = (world.deps(), Image::default(), PodFacts::default());
    let container = pod.containers.first().unwrap();
    let request = ContainerRequest {
        deps: &deps,
        pod: &pod,
        container,
        attempt: 0,
        image: &image,
        facts: &facts,
        images: &[],
    };
    let setup = configure(request).await.unwrap();
    assert_eq!(setup.args, ["a-mine"]);
    let value = |name: &str| setup.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_slice());
    assert_eq!((value("GPUS"), value("MODE")), (Some(&b"a"[..]), Some(&b"mine"[..])));
    assert_eq!(setup.mounts.first().map(|mount| mount.container_path.as_str()), Some("/opt/gpu"));
}

/// Raw block devices come after those of plugins.
#[tokio::test(start_paused = true)]
async fn a_container_has_the_block_devices_of_its_claims() {
    let mut world = World::new();
    let mut pod = asking();
    let web = pod.containers.first_mut().unwrap();
    web.devices = vec![VolumeDevice { volume: "data".to_owned(), path: "/dev/xvda".to_owned() }];
    let of = |text: &str| (text.to_owned(), text.to_owned(), "rw".to_owned());
    let options = DeviceOptions { devices: vec![of("/dev/gpu")], ..DeviceOptions::default() };
    world.devices = DeviceManager::of_test(&pod.uid, "web", GPU, options);
    let (deps, image, facts) = (world.deps(), Image::default(), PodFacts::default());
    let container = pod.containers.first().unwrap();
    let (pod, deps) = (&pod, &deps);
    let request =
        ContainerRequest { deps, pod, container, attempt: 0, image: &image, facts: &facts, images: &[] };
    let setup = configure(request).await.unwrap();
    let path = format!("/fake/{}/data", pod.uid);
    let block = ("/dev/xvda".to_owned(), path, "mrw".to_owned());
    assert_eq!(setup.devices.devices, [of("/dev/gpu"), block]);
}

#[tokio::test(start_paused = true)]
async fn maps_of_block_devices_are_told_and_so_is_what_fails_of_one() {
    let mut world = World::new();
    let words = "MapVolume.MapPodDevice succeeded for volume \"pv\" globalMapPath \"/g\"";
    let pod = asking();
    world.volumes.notes().add(&pod.uid, Note::pod(Kind::Normal, "SuccessfulMountVolume", words));
    world.volumes.fail_map("MapVolume.MapBlockVolume failed for volume \"pv\" : no losetup");
    let handle = world.start(pod);
    until(&handle, "told", |s| s.message.contains("no losetup")).await;
    let told = |reason: &str| {
        let events = handle.events();
        let of = events.iter().filter(|event| event.note.reason == reason);
        of.map(|event| event.note.message.clone()).collect::<Vec<_>>()
    };
    assert_eq!(told("SuccessfulMountVolume"), [words]);
    assert!(told("FailedMapVolume").iter().all(|message| message.ends_with("no losetup")));
    assert_eq!((told("FailedMapVolume").is_empty(), told("FailedMount").len()), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_a_volume_is_told_while_it_is_set_up_and_of_its_claim_too() {
    let server = gantry_kube_client::fake_apiserver::FakeApiServer::default();
    let mut world = World::new();
    let (recorder, queue) = crate::events::sink::queue(world.clock.clone());
    let (_pods, pods) = watch::channel(Arc::from([]));
    drop(crate::pod_workers::events::run(Some(server.client()), "n1", queue, pods));
    let deps = Deps { recorder: Some(recorder), ..world.deps() };
    world.volumes.slow(true);
    let (worker, handle) = Worker::new(pod(), deps);
    world.workers.spawn(worker.run());
    let claim = ClaimIdentity { namespace: "default".into(), name: "data".into(), uid: "u".into() };
    let note = Note::pod(Kind::Normal, "FileSystemResizeSuccessful", "it has grown");
    world.volumes.notes().add_of_claim(&pod().uid, claim, note.clone());
    until(&handle, "told", |_| handle.events().iter().any(|event| event.note == note)).await;
    assert!(!handle.events().iter().any(|event| event.note.reason == "Created"), "its volumes are not there");
    let event = server.until("the claim's", |server| server.all("/api/v1/events").into_iter().next()).await;
    assert_eq!(event["involvedObject"]["kind"], "PersistentVolumeClaim");
    world.volumes.slow(false);
    until_running(&handle).await;
}

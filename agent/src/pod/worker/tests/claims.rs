//! Pods with claims to devices of DRA drivers: prepared before each sandbox, given to containers, unprepared before the rest of
//! the pod goes. The driver is at the other end of a real socket, so time is not paused.

use super::*;
use crate::api::fake::FakeApi;
use crate::dra::testing::{DRIVER, Mood, ServedDriver, claiming, manager, object, registered};
use crate::events::Kind;
use crate::pod::StopStep;
use crate::pod::configure::{ContainerRequest, configure};
use crate::runtime::Image;
use crate::volumes::PodFacts;

struct Claimed {
    world: World,
    serving: ServedDriver,
    pod: Pod,
    root: tempfile::TempDir,
}

impl Claimed {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut world = World::new();
        let api: Arc<FakeApi> = world.api.clone();
        api.put_resource_claim("one", object("claim-1", &["uid-1"], &[DRIVER]));
        world.dra = manager(root.path(), &api);
        let serving = registered(&world.dra, &root.path().join("s"), DRIVER).await;
        Self { world, serving, pod: claiming("uid-1", &["one"]), root }
    }
}

fn is_at(status: &PodStatus, at: StopStep) -> bool {
    matches!(status.life, Life::Stopping { step, .. } if step == at)
}

#[tokio::test]
async fn claims_are_prepared_before_the_sandbox_and_unprepared_before_the_volumes_go() {
    let Claimed { mut world, serving, pod, root: _root } = Claimed::new().await;
    serving.driver.prepares.send_replace(Mood::Holds);
    serving.driver.unprepares.send_replace(Mood::Holds);
    let handle = world.start(pod);
    serving.driver.asked(&["prepare one"]).await;
    assert_eq!((world.runtime.count("run-sandbox"), world.volumes.has(&handle.pod.uid)), (0, true));
    serving.driver.prepares.send_replace(Mood::Willing);
    let status = until_running(&handle).await;
    let stages: Vec<&str> = status.spans.iter().map(|span| span.name.as_str()).collect();
    let at = |name: &str| stages.iter().position(|stage| *stage == name);
    assert!(at("volumes") < at("claims") && at("claims") < at("sandbox"), "{stages:?}");
    handle.kill(Some(Duration::ZERO), "test");
    serving.driver.asked(&["prepare one", "unprepare one"]).await;
    until(&handle, "waiting for its driver", |s| is_at(s, StopStep::Claims)).await;
    assert!(world.volumes.has(&handle.pod.uid), "volumes stay until then");
    serving.driver.unprepares.send_replace(Mood::Willing);
    until(&handle, "over", |s| s.life == Life::Stopped).await;
    assert!(!world.volumes.has(&handle.pod.uid));
    serving.driver.asked(&["prepare one", "unprepare one"]).await;
}

#[tokio::test]
async fn a_prepare_that_fails_is_told_in_upstreams_words_and_tried_again() {
    let Claimed { mut world, serving, pod, root: _root } = Claimed::new().await;
    serving.driver.prepares.send_replace(Mood::Fails);
    let handle = world.start(pod);
    let words = "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources: rpc error: code = Internal desc = burnt";
    let status = until(&handle, "told", |s| s.message == words).await;
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Pending, "ContainerCreating"));
    let events = handle.events();
    let told = events.iter().find(|event| event.note.reason == "FailedPrepareDynamicResources").unwrap();
    assert_eq!((told.note.kind, told.note.message.as_str()), (Kind::Warning, words));
    assert_eq!(world.runtime.count("run-sandbox"), 0);
    serving.driver.prepares.send_replace(Mood::Willing);
    until_running(&handle).await;
    serving.driver.asked(&["prepare one", "prepare one"]).await;
}

/// Upstream gives up the call, too, when the pod is deleted meanwhile.
#[tokio::test]
async fn a_pod_that_is_deleted_does_not_wait_for_a_driver_that_prepares() {
    let Claimed { mut world, serving, pod, root: _root } = Claimed::new().await;
    serving.driver.prepares.send_replace(Mood::Holds);
    let handle = world.start(pod);
    serving.driver.asked(&["prepare one"]).await;
    handle.kill(Some(Duration::ZERO), "test");
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    serving.driver.asked(&["prepare one", "unprepare one"]).await;
    assert_eq!(world.runtime.count("run-sandbox"), 0);
}

/// The claims of a sandbox that is replaced are looked at again, as upstream; the driver is not asked for what it has prepared.
#[tokio::test]
async fn a_new_sandbox_prepares_again_after_a_reboot_and_not_before() {
    let Claimed { mut world, serving, pod, root } = Claimed::new().await;
    let handle = world.start(pod.clone());
    until_running(&handle).await;
    world.kill_agent().await;
    world.dra.deregister(DRIVER, &serving.socket);
    let api: Arc<FakeApi> = world.api.clone();
    world.dra = manager(root.path(), &api);
    world.dra.register(DRIVER, &serving.socket, &["v1.DRAPlugin".to_owned()]).await.unwrap();
    let handle = world.start(pod.clone());
    until_running(&handle).await;
    serving.driver.asked(&["prepare one"]).await;
    world.kill_agent().await;
    world.runtime.reboot();
    let handle = world.start(pod);
    until_running(&handle).await;
    serving.driver.asked(&["prepare one", "prepare one"]).await;
}

/// A pod of which nothing is known but its name, such as one that another kubelet ran, gives back what it has.
#[tokio::test]
async fn a_pod_that_nobody_describes_any_more_is_unprepared() {
    let Claimed { mut world, serving, pod, root: _root } = Claimed::new().await;
    world.dra.prepare(&pod).await.unwrap();
    let handle = world.start(Pod { containers: Vec::new(), resource_claims: Default::default(), ..pod });
    handle.kill(Some(Duration::ZERO), "test");
    until(&handle, "over", |s| s.life == Life::Stopped).await;
    serving.driver.asked(&["prepare one", "unprepare one"]).await;
}

#[tokio::test]
async fn a_container_is_made_with_the_cdi_devices_of_its_claims() {
    let Claimed { world, serving: _serving, pod, root: _root } = Claimed::new().await;
    let (deps, image, facts) = (world.deps(), Image::default(), PodFacts::default());
    let container = pod.containers.first().unwrap();
    let (pod, deps) = (&pod, &deps);
    let request =
        ContainerRequest { deps, pod, container, attempt: 0, image: &image, facts: &facts, images: &[] };
    let unknown = configure(request).await.unwrap_err();
    assert_eq!(unknown.reason, "CreateContainerConfigError");
    assert!(unknown.message.contains("unable to get claim info for ResourceClaim one"), "{unknown:?}");
    world.dra.prepare(pod).await.unwrap();
    assert_eq!(configure(request).await.unwrap().devices.cdi, ["vendor.example/gpu=one"]);
}

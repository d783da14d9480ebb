//! Containers and pods that somebody else removes while they run, as `crictl rm -f` and `crictl rmp -f` do.

use super::*;
use crate::runtime::Exit;

fn end_before(status: &PodStatus) -> Option<&Exit> {
    status.containers.first().unwrap().last_exit.as_ref()
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_while_it_runs_is_started_again() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        let mut world = World::new();
        let handle = world.start(with(policy));
        until_running(&handle).await;
        world.runtime.forget("web");
        let status = until(&handle, "again", |s| restarts_of(s) == 1 && s.reason == "Running").await;
        let exit = end_before(&status).unwrap();
        assert_eq!(
            (exit.code, exit.reason.as_str(), exit.message.as_str()),
            (
                137,
                "ContainerStatusUnknown",
                "The container could not be located when the pod was deleted.  The container used to be Running"
            )
        );
        assert_eq!((world.runtime.count("run-sandbox"), world.runtime.count("create")), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_and_is_to_run_once_has_failed() {
    let mut world = World::new();
    let handle = world.start(with(RestartPolicy::Never));
    until_running(&handle).await;
    world.runtime.forget("web");
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "ContainerStatusUnknown"));
    assert_eq!(world.runtime.count("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_again_and_again_backs_off_and_comes() {
    let mut world = World::new();
    let handle = world.start(pod());
    for restarts in 1..=3 {
        until_running(&handle).await;
        world.runtime.forget("web");
        until(&handle, "again", |s| restarts_of(s) == restarts && s.reason == "Running").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_forgotten_while_it_backs_off_comes_when_its_wait_is_over() {
    let mut world = World::new();
    let crash = Script::Exit { after: secs(1), code: 3 };
    world.runtime.script("web", &[crash.clone(), crash, Script::Serve]);
    let handle = world.start(pod());
    until_reason(&handle, "CrashLoopBackOff").await;
    world.runtime.forget("web");
    let status = until(&handle, "again", |s| restarts_of(s) == 2 && s.reason == "Running").await;
    assert_eq!(end_before(&status).unwrap().code, 3);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_before_its_start_is_made_again() {
    let mut world = World::new();
    world.runtime.fail(Call::Start, 1, FailureKind::Failed, "not yet");
    let handle = world.start(pod());
    until(&handle, "created", |_| world.runtime.count("create") == 1).await;
    world.runtime.forget("web");
    until_running(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_vanishes_while_it_runs_runs_again() {
    let mut world = World::new();
    let handle = world.start(pod());
    until_running(&handle).await;
    world.runtime.vanish(&pod().uid);
    let status = until(&handle, "again", |s| restarts_of(s) == 1 && s.reason == "Running").await;
    assert_eq!(status.phase, Phase::Running);
    assert_eq!((world.runtime.count("run-sandbox"), world.runtime.count("create")), (2, 2));
}

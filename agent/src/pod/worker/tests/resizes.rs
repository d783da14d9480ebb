//! Resizes in place of pods that run: the order of their steps, what is told, and what an agent that comes later does.

use gantry_model::allocation::{Allocation, resources};
use gantry_model::cgroup::limits::Limits;
use gantry_model::pod::{Origin, PendingResize, Requirements, ResizePolicy};

use super::*;
use crate::checkpoint::Checkpoints;
use crate::pod::status::{Condition, ConditionKind};
use crate::pod::tests::in_role;
use crate::runtime::Actual;

const MIB: i64 = 1 << 20;

fn written(cpu: &str, memory: &str) -> Requirements {
    let texts = || [("cpu".to_owned(), cpu.to_owned()), ("memory".to_owned(), memory.to_owned())].into();
    Requirements { requests: texts(), limits: texts() }
}

fn sizing(container: Container, written: Requirements) -> Container {
    Container { resources: resources(&written), written, ..container }
}

fn sized(generation: i64, cpu: &str, memory: &str) -> Pod {
    let containers = vec![sizing(container("web"), written(cpu, memory))];
    Pod { origin: Origin::Api, generation, containers, ..pod() }
}

fn restarting(pod: Pod) -> Pod {
    let resize = ResizePolicy { cpu_restarts: true, memory_restarts: true };
    let containers = pod.containers.into_iter().map(|c| Container { resize, ..c }).collect();
    Pod { containers, ..pod }
}

fn condition(status: &PodStatus) -> Option<&Condition> {
    status.conditions.iter().find(|one| one.kind == ConditionKind::PodResizeInProgress)
}

fn told(handle: &PodHandle, reason: &str) -> usize {
    handle.events().iter().filter(|event| event.note.reason == reason).map(|event| event.count as usize).sum()
}

async fn until_resized(handle: &PodHandle, generation: i64) -> PodStatus {
    let done = |s: &PodStatus| s.observed_generation == generation && condition(s).is_none();
    until(handle, "resized", done).await
}

fn limits(world: &World) -> Vec<(Option<i64>, Option<i64>)> {
    let of = |held: Limits| (held.cpu_quota, held.memory.map(|bytes| bytes / MIB));
    world.cgroups.limits(&pod().uid).into_iter().map(of).collect()
}

fn actual(status: &PodStatus) -> Option<Actual> {
    status.containers.first().unwrap().actual
}

#[tokio::test(start_paused = true)]
async fn a_pod_grows_and_shrinks_while_it_runs() {
    let mut world = World::new();
    let handle = world.start(sized(1, "100m", "64Mi"));
    until_running(&handle).await;
    let handle = handle.update(Arc::new(sized(2, "200m", "128Mi")));
    let status = until_resized(&handle, 2).await;
    let now = actual(&status).unwrap();
    assert_eq!((now.cpu_limit, now.memory_limit), (Some(200), Some(128 * MIB)));
    assert_eq!(status.containers.first().unwrap().memory_request.as_deref(), Some("128Mi"));
    assert_eq!(limits(&world), [(Some(10_000), Some(64)), (Some(20_000), Some(128))]);
    let handle = handle.update(Arc::new(sized(3, "50m", "32Mi")));
    let status = until_resized(&handle, 3).await;
    assert_eq!(actual(&status).unwrap().cpu_limit, Some(50));
    assert_eq!(limits(&world).last(), Some(&(Some(5000), Some(32))));
    assert_eq!((restarts_of(&status), world.runtime.count("create")), (0, 1));
    assert_eq!(told(&handle, "ResizeCompleted"), 2);
    let known = world.checkpoints.actuated(&handle.pod.uid).await.unwrap();
    assert_eq!((known, world.checkpoints.allocated().await.remove(&handle.pod.uid)), {
        let now = Allocation::of(&sized(3, "50m", "32Mi"));
        (now.clone(), Some(now))
    });
    assert_eq!(world.metrics.pod_in_progress_resizes.get([]), Some(0.0));
    assert_eq!(world.metrics.pod_resize_duration.count(["true"]), 2);
}

/// The pod's cgroup first when it grows, last when it shrinks.
#[tokio::test(start_paused = true)]
async fn a_container_is_never_held_to_more_than_its_pod() {
    let mut world = World::new();
    let handle = world.start(sized(1, "100m", "64Mi"));
    until_running(&handle).await;
    // The container cannot be updated yet: the pod has grown, and is told to be between both.
    world.runtime.fail(Call::UpdateContainer, 1, FailureKind::Failed, "busy");
    let handle = handle.update(Arc::new(sized(2, "200m", "64Mi")));
    let failed = |s: &PodStatus| condition(s).is_some_and(|one| one.reason == "Error");
    let status = until(&handle, "failed", failed).await;
    let one = condition(&status).unwrap();
    assert_eq!((one.message.as_str(), one.generation, one.holds), ("busy", 2, true));
    assert_eq!(limits(&world).last(), Some(&(Some(20_000), Some(64))));
    until_resized(&handle, 2).await;
    assert_eq!((told(&handle, "ResizeError"), told(&handle, "ResizeCompleted")), (1, 1));
    assert_eq!(world.metrics.pod_resize_duration.count(["false"]), 1);
    // It does not shrink before its container has.
    world.runtime.fail(Call::UpdateContainer, 1, FailureKind::Failed, "busy");
    let handle = handle.update(Arc::new(sized(3, "50m", "64Mi")));
    until(&handle, "failed", failed).await;
    assert_eq!(limits(&world).last(), Some(&(Some(20_000), Some(64))));
    until_resized(&handle, 3).await;
    assert_eq!(limits(&world).last(), Some(&(Some(5000), Some(64))));
}

#[tokio::test(start_paused = true)]
async fn memory_in_use_is_not_taken_away() {
    let mut world = World::new();
    let handle = world.start(sized(1, "100m", "64Mi"));
    until_running(&handle).await;
    world.cgroups.use_memory(&handle.pod.uid, 40 << 20);
    world.runtime.use_memory("web", 36 << 20);
    let handle = handle.update(Arc::new(sized(2, "100m", "32Mi")));
    let failed = |s: &PodStatus| condition(s).is_some_and(|one| !one.message.is_empty());
    let status = until(&handle, "failed", failed).await;
    assert_eq!(
        condition(&status).unwrap().message,
        "cannot decrease memory limits: [attempting to set pod memory limit (33554432) below current usage \
         (41943040), attempting to set container \"web\" memory limit (33554432) below current usage (37748736)]"
    );
    assert_eq!((limits(&world).len(), world.runtime.count("update")), (1, 0));
    world.cgroups.use_memory(&handle.pod.uid, 20 << 20);
    world.runtime.use_memory("web", 18 << 20);
    until_resized(&handle, 2).await;
    assert_eq!(limits(&world).last(), Some(&(Some(10_000), Some(32))));
}

#[tokio::test(start_paused = true)]
async fn a_container_starts_again_where_its_policy_says_so() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        let mut world = World::new();
        // Its end is no failure, and it is started all the same.
        world.runtime.script("web", &[Script::Polite]);
        let of =
            |generation, cpu, memory| with_restart_policy(policy, restarting(sized(generation, cpu, memory)));
        let handle = world.start(of(1, "100m", "64Mi"));
        until_running(&handle).await;
        let handle = handle.update(Arc::new(of(2, "50m", "32Mi")));
        let status = until_resized(&handle, 2).await;
        assert_eq!((restarts_of(&status), world.runtime.count("update c")), (1, 0));
        let killing = handle.events().iter().find(|event| event.note.reason == "Killing").cloned().unwrap();
        assert_eq!(killing.note.message, "Container web resize requires restart");
        assert_eq!(told(&handle, "ResizeCompleted"), 1);
        until(&handle, "small", |_| limits(&world).last() == Some(&(Some(5000), Some(32)))).await;
        // And only for that.
        tokio::time::sleep(secs(60)).await;
        assert_eq!(world.runtime.count("create"), 2);
    }
}

/// #125559: a change of the memory request alone stayed in progress for ever.
#[tokio::test(start_paused = true)]
async fn memory_that_is_only_asked_for_is_actuated_without_a_call() {
    let mut world = World::new();
    let asks = |generation, memory: &str| {
        let requests = [("memory".to_owned(), memory.to_owned())].into();
        let written = Requirements { requests, ..Requirements::default() };
        Pod { containers: vec![sizing(container("web"), written)], ..sized(generation, "1", "1Gi") }
    };
    let handle = world.start(asks(1, "16Mi"));
    until_running(&handle).await;
    let handle = handle.update(Arc::new(asks(2, "32Mi")));
    let status = until_resized(&handle, 2).await;
    assert_eq!(status.containers.first().unwrap().memory_request.as_deref(), Some("32Mi"));
    assert_eq!((world.runtime.count("update c"), told(&handle, "ResizeCompleted")), (0, 1));
}

/// #126033: a pod with a container that is not running was never done.
#[tokio::test(start_paused = true)]
async fn what_does_not_run_is_not_waited_for() {
    let mut world = World::new();
    world.runtime.script("done", &[Script::Exit { after: secs(1), code: 0 }]);
    world.runtime.script("setup", &[Script::Exit { after: secs(1), code: 0 }]);
    let of = |generation, cpu: &str| {
        let init = sizing(in_role("setup", Role::Init), written(cpu, "64Mi"));
        let sidecar = sizing(in_role("side", Role::Sidecar), written(cpu, "64Mi"));
        let own = ["web", "done"].map(|name| sizing(container(name), written(cpu, "64Mi")));
        let pod = sized(generation, cpu, "64Mi");
        let pod = Pod { init_containers: vec![init, sidecar], containers: own.to_vec(), ..pod };
        with_restart_policy(RestartPolicy::OnFailure, pod)
    };
    let handle = world.start(of(1, "100m"));
    until(&handle, "done", |s| {
        s.containers.iter().any(|c| c.name == "done" && matches!(c.state, ContainerState::Terminated(_)))
    })
    .await;
    let handle = handle.update(Arc::new(of(2, "200m")));
    until_resized(&handle, 2).await;
    assert_eq!(world.runtime.count("update c"), 2, "{:?}", world.runtime.log());
}

/// #126388, #128977: pods without limits or requests were stuck.
#[tokio::test(start_paused = true)]
async fn requests_and_limits_may_be_added() {
    let mut world = World::new();
    let asks = |generation, list: &[(&str, &str)]| {
        let requests = list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let own = Requirements { requests, ..Requirements::default() };
        let other = sizing(container("other"), Requirements::default());
        Pod { containers: vec![sizing(container("web"), own), other], ..sized(generation, "1", "1Gi") }
    };
    let handle = world.start(asks(1, &[("cpu", "100m")]));
    until_running(&handle).await;
    let handle = handle.update(Arc::new(asks(2, &[("cpu", "100m"), ("memory", "32Mi")])));
    until_resized(&handle, 2).await;
    let handle = handle.update(Arc::new(asks(3, &[("cpu", "200m"), ("memory", "32Mi")])));
    until_resized(&handle, 3).await;
    assert_eq!(told(&handle, "ResizeCompleted"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_comes_later_finishes_what_was_begun() {
    let mut world = World::new();
    let handle = world.start(sized(1, "100m", "64Mi"));
    until_running(&handle).await;
    world.runtime.set_latency_of(Call::UpdateContainer, secs(3600));
    let handle = handle.update(Arc::new(sized(2, "50m", "64Mi")));
    until(&handle, "begun", |s| condition(s).is_some()).await;
    tokio::time::sleep(secs(1)).await;
    world.kill_agent().await;
    world.runtime.set_latency_of(Call::UpdateContainer, Duration::ZERO);
    let held = limits(&world).len();
    let handle = world.start(sized(2, "50m", "64Mi"));
    until(&handle, "Running", |s| s.phase == Phase::Running && condition(s).is_none()).await;
    until(&handle, "held", |s| actual(s).is_some_and(|now| now.cpu_limit == Some(50))).await;
    // Adopted as it was held, then made smaller.
    let later = limits(&world).split_off(held);
    assert_eq!(later, [(Some(10_000), Some(64)), (Some(5000), Some(64))]);
    assert_eq!(world.runtime.count("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_waits_is_told_and_changes_nothing() {
    let mut world = World::new();
    let handle = world.start(sized(1, "100m", "64Mi"));
    until_running(&handle).await;
    let why = PendingResize { infeasible: false, message: "full".to_owned(), generation: 2 };
    let waiting = Pod { generation: 2, resize_pending: Some(why), ..sized(1, "100m", "64Mi") };
    let handle = handle.update(Arc::new(waiting));
    let status = until(&handle, "pending", |s| s.holds(ConditionKind::PodResizePending)).await;
    let one = status.conditions.iter().find(|one| one.kind == ConditionKind::PodResizePending).unwrap();
    assert_eq!((one.reason.as_str(), one.message.as_str(), one.generation), ("Deferred", "full", 2));
    assert_eq!((condition(&status), limits(&world).len()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn the_pod_as_a_whole_is_resized() {
    let mut world = World::new();
    let of = |generation, cpu: &str| {
        let own = Some(written(cpu, "64Mi"));
        let containers = vec![sizing(container("web"), Requirements::default())];
        Pod { resources: own, containers, ..sized(generation, "1", "1Gi") }
    };
    let handle = world.start(of(1, "100m"));
    until_running(&handle).await;
    let handle = handle.update(Arc::new(of(2, "200m")));
    let status = until_resized(&handle, 2).await;
    assert_eq!(limits(&world).last(), Some(&(Some(20_000), Some(64))));
    // The container has none of its own.
    assert_eq!(world.runtime.count("update c"), 1);
    let known = world.checkpoints.actuated(&handle.pod.uid).await.unwrap();
    assert_eq!(known, Allocation::held(&of(2, "200m")));
    assert_eq!(status.cgroup.and_then(|held| held.cpu_quota), Some(20_000));
}

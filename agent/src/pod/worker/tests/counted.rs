//! What a pod's life adds to the metrics.

use gantry_model::pod::Origin;
use gantry_model::pod::probe::{Handler, HttpGet, PortRef, Probe};

use super::*;
use crate::admission::Rejection;
use crate::pod::count::census;
use crate::pod::tests::in_role;
use crate::pod::update::PodUpdate;

#[tokio::test(start_paused = true)]
async fn a_life_is_counted_from_its_first_sight_to_its_end() {
    let mut world = World::new();
    world.runtime.script("setup", &[Script::Exit { after: secs(2), code: 0 }]);
    let own_users = Pod { init_containers: vec![in_role("setup", Role::Init)], ..pod() };
    let handle = world.start(own_users);
    until_running(&handle).await;
    let metrics = world.metrics.clone();
    assert_eq!(metrics.started_pods.get([]), Some(1.0));
    assert_eq!(
        (metrics.started_userns_pods.get([]), metrics.started_pods_errors.get([])),
        (Some(0.0), Some(0.0))
    );
    assert_eq!(metrics.started_containers.get(["container"]), Some(1.0));
    assert_eq!(metrics.started_containers.get(["init_container"]), Some(1.0));
    assert_eq!(metrics.terminated_containers.get(["init_container", "0", "Completed"]), Some(1.0));
    assert_eq!(metrics.pod_start_duration.count([]), 1);
    assert_eq!((metrics.pod_worker_start_duration.count([]), metrics.containers_per_pod.count([])), (1, 1));
    assert_eq!(metrics.pod_worker_duration.count(["create"]), 1);
    assert!(metrics.pod_worker_duration.count(["sync"]) > 0);
    assert!(metrics.pleg_pod_relist_duration.count([]) > 0);
    assert_eq!(metrics.cgroup_manager_duration.count(["create"]), 1);
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert!(metrics.pod_worker_duration.count(["kill"]) > 0);
    assert!(metrics.pod_worker_duration.count(["terminated"]) > 0);
    assert_eq!(metrics.terminated_containers.get(["container", "143", "Error"]), Some(1.0));
    assert_eq!(metrics.cgroup_manager_duration.count(["destroy"]), 1);
    assert_eq!((metrics.pod_start_duration.count([]), metrics.started_pods.get([])), (1, Some(1.0)));
}

#[tokio::test(start_paused = true)]
async fn starts_that_fail_are_counted_by_what_failed() {
    for (call, code) in [
        (Call::RunSandbox, None),
        (Call::Pull, Some("ErrImagePull")),
        (Call::Create, Some("CreateContainerError")),
        (Call::Start, Some("RunContainerError")),
    ] {
        let mut world = World::new();
        world.runtime.fail(call, 1, FailureKind::Failed, "no");
        let handle = world.start(pod());
        until_running(&handle).await;
        let metrics = &world.metrics;
        let codes = ["ErrImagePull", "CreateContainerError", "RunContainerError"];
        for other in codes {
            let expected = (code == Some(other)).then_some(1.0);
            assert_eq!(
                metrics.started_containers_errors.get(["container", other]),
                expected,
                "{call:?} {other}"
            );
        }
        // Each try counts; one that failed to start is begun again without being made again.
        let tries = if matches!(call, Call::Pull | Call::Create) { 2.0 } else { 1.0 };
        assert_eq!(metrics.started_containers.get(["container"]), Some(tries), "{call:?}");
        let pods = if call == Call::RunSandbox { (2.0, 1.0) } else { (1.0, 0.0) };
        let counted = (metrics.started_pods.get([]), metrics.started_pods_errors.get([]));
        assert_eq!(counted, (Some(pods.0), Some(pods.1)), "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_with_users_of_their_own_are_counted_besides() {
    let mut world = World::new();
    world.node.user_namespaces = [String::new()].into();
    world.runtime.fail(Call::RunSandbox, 1, FailureKind::Failed, "no");
    let mut pod = pod();
    pod.namespaces.own_users = true;
    let handle = world.start(pod);
    until_running(&handle).await;
    let counted =
        (world.metrics.started_userns_pods.get([]), world.metrics.started_userns_pods_errors.get([]));
    assert_eq!(counted, (Some(2.0), Some(1.0)));
}

fn readiness(path: &str) -> Pod {
    let (host, path, headers) = (String::new(), path.to_owned(), vec![]);
    let get = HttpGet { host, port: PortRef::Number(80), path, tls: false, headers };
    let probe = Probe {
        handler: Handler::HttpGet(get),
        initial_delay: Duration::ZERO,
        timeout: secs(1),
        period: secs(10),
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace: None,
    };
    let mut pod = pod();
    pod.containers.first_mut().unwrap().probes.readiness = Some(probe);
    pod
}

#[tokio::test(start_paused = true)]
async fn probes_are_counted_until_their_pod_is_gone() {
    let mut world = World::new();
    world.probes.script_http("/ready", &[500, 200]);
    let handle = world.start(readiness("/ready"));
    until_running(&handle).await;
    let probes = world.probe_metrics.clone();
    let of = |result| probes.results.get(["Readiness", result, "web", "web", "default", "uid-1"]);
    assert_eq!((of("failed"), of("successful")), (Some(1.0), Some(1.0)));
    assert_eq!(probes.duration.count(["Readiness", "web", "web", "default"]), 1, "of those that succeed");
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert_eq!((of("failed"), of("successful")), (None, None));
    assert_eq!(probes.duration.count(["Readiness", "web", "web", "default"]), 0);
}

#[tokio::test(start_paused = true)]
async fn hooks_that_fall_back_or_are_cut_short_are_counted() {
    let mut world = World::new();
    world.probes.serve_plain("/hook");
    let (host, path, port) = (String::new(), "/hook".to_owned(), PortRef::Number(8443));
    let get = HttpGet { host, port, path, tls: true, headers: vec![] };
    let mut pod = pod();
    let lifecycle = &mut pod.containers.first_mut().unwrap().lifecycle;
    lifecycle.post_start = Some(Handler::HttpGet(get));
    lifecycle.pre_stop = Some(Handler::Sleep(secs(3600)));
    let handle = world.start(pod);
    until_running(&handle).await;
    let fallbacks = world.metrics.lifecycle_http_fallbacks.get([]);
    handle.kill(Some(secs(5)), "test");
    until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((fallbacks, world.metrics.lifecycle_sleep_cut.get([])), (Some(1.0), Some(1.0)));
}

#[tokio::test(start_paused = true)]
async fn workers_are_counted_by_where_they_are() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let runs = world.start(pod());
    until_running(&runs).await;
    let named = |name: &str| Pod { name: name.into(), uid: PodUid::parse(name).unwrap(), ..pod() };
    let of_file = Pod { origin: Origin::Static, ..named("file") };
    let leaves = world.start(of_file);
    until_running(&leaves).await;
    leaves.kill(Some(secs(600)), "test");
    leaves.remove();
    until(&leaves, "stopping", |s| matches!(s.life, Life::Stopping { .. })).await;
    let refused = Some(Rejection::new("OutOfcpu", "no room"));
    let over = world.start(PodUpdate { refused, ..named("refused").into() });
    until(&over, "over", PodStatus::is_over).await;
    let metrics = &world.metrics;
    census(metrics, &[runs, leaves, over], 4);
    let of = |lifecycle, config, is_static| metrics.working_pods.get([lifecycle, config, is_static]);
    assert_eq!(of("sync", "desired", ""), Some(1.0));
    assert_eq!(of("terminating", "orphan", "true"), Some(1.0));
    assert_eq!(of("terminated", "desired", ""), Some(1.0));
    assert_eq!(of("sync", "orphan", ""), Some(0.0));
    assert_eq!((metrics.active_pods.get([""]), metrics.active_pods.get(["true"])), (Some(1.0), Some(1.0)));
    assert_eq!(metrics.mirror_pods.get([]), Some(4.0));
}

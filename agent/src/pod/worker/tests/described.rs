//! Pods of an API server: what its last status says, what changes while they run, and what rules of
//! their containers do.

use std::collections::BTreeMap;

use gantry_model::pod::probe::{Handler, Probe};
use gantry_model::pod::{Origin, RestartAction, RestartRule, Role};

use super::*;
use crate::admission::Rejection;
use crate::pod::StopStep;
use crate::pod::last::{Last, LastContainer, LastEnd};
use crate::pod::status::{ConditionKind, ContainerStatus};
use crate::pod::tests::in_role;
use crate::runtime::Exit;

fn api_pod() -> Pod {
    Pod { origin: Origin::Api, generation: 1, ..pod() }
}

fn exit(code: i32) -> Exit {
    Exit { code, reason: "Error".into(), message: String::new(), started_at: 1, finished_at: 2 }
}

fn last(id: &str, state: ContainerState, restart_count: u32) -> LastContainer {
    LastContainer {
        id: id.into(),
        image: "img".into(),
        image_id: "img@sha256:1".into(),
        state,
        last_exit: None,
        restart_count,
        started: true,
        ready: true,
    }
}

fn known(containers: &[(&str, LastContainer)]) -> Last {
    let containers = containers.iter().map(|(name, last)| ((*name).to_owned(), last.clone())).collect();
    Last { containers, started_at: 1_800_000_000_000_000_000, ..Last::default() }
}

fn web(status: &PodStatus) -> &ContainerStatus {
    status.containers.iter().find(|c| c.name == "web").unwrap()
}

fn told(handle: &PodHandle, reason: &str) -> Vec<String> {
    let events = handle.events();
    events.iter().filter(|e| e.note.reason == reason).map(|e| e.note.message.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_costs_nothing_until_it_is_removed() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Exit { after: secs(1), code: 0 }]);
    let handle = world.start(with(RestartPolicy::Never));
    until_running(&handle).await;
    assert_eq!(world.api.followers().len(), 1);
    until(&handle, "stopped", |s| s.life == Life::Stopped).await;
    assert_eq!(world.api.followers().len(), 0);
    tokio::time::sleep(secs(2)).await;
    world.runtime.fail(Call::Observe, 1000, FailureKind::Failed, "was looked at");
    tokio::time::sleep(secs(250)).await;
    assert_eq!(handle.status.borrow().message, "");
    world.runtime.fail(Call::Observe, 0, FailureKind::Failed, "");
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert_eq!(world.runtime.residue(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_api_has_as_ended_asks_for_no_objects() {
    let mut world = World::new();
    until_running(&world.start(api_pod())).await;
    world.kill_agent().await;
    world.api = Arc::default();
    world.runtime.fail(Call::StopSandbox, 100, FailureKind::Failed, "busy");
    let end = LastEnd { phase: Phase::Failed, reason: "Evicted".into(), message: String::new() };
    let last = Last { end: Some(end), ..known(&[]) };
    let handle = world.start(PodUpdate { last, ..api_pod().into() });
    let stopping = |life| matches!(life, Life::Stopping { step: StopStep::Sandbox, .. });
    until(&handle, "stopping", |s| stopping(s.life)).await;
    assert_eq!(world.api.followers().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn trap_03_a_terminal_pod_stays_terminal() {
    for phase in [Phase::Succeeded, Phase::Failed] {
        let mut world = World::new();
        let end = LastEnd { phase, reason: "Why".into(), message: "because".into() };
        let ended = last("old", ContainerState::Terminated(exit(3)), 2);
        let last = Last { end: Some(end), ..known(&[("web", ended)]) };
        // Its containers were removed: only the API remembers them.
        let handle = world.start(PodUpdate { last, ..api_pod().into() });
        assert_eq!(handle.status.borrow().phase, phase, "from the first moment on");
        let status = until(&handle, "over", PodStatus::is_over).await;
        assert_eq!(
            (status.phase, status.api_reason.as_str(), status.api_message.as_str()),
            (phase, "Why", "because")
        );
        let web = web(&status);
        assert_eq!(
            (web.restart_count, web.id.as_str(), &web.state),
            (2, "old", &ContainerState::Terminated(exit(3)))
        );
        assert_eq!((world.runtime.count("run-sandbox"), world.runtime.count("create")), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn trap_03_what_still_runs_of_a_terminal_pod_is_ended() {
    let mut world = World::new();
    until_running(&world.start(api_pod())).await;
    world.kill_agent().await;
    let end = LastEnd { phase: Phase::Failed, reason: "Evicted".into(), message: String::new() };
    let handle =
        world.start(PodUpdate { last: Last { end: Some(end), ..Last::default() }, ..api_pod().into() });
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "Evicted"));
    assert_eq!((world.runtime.count("stop c"), world.runtime.count("create")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn trap_06_readiness_comes_from_the_apis_last_status_until_a_probe_says_otherwise() {
    let probe = Probe {
        handler: Handler::Tcp { host: String::new(), port: gantry_model::pod::probe::PortRef::Number(80) },
        initial_delay: secs(0),
        timeout: secs(1),
        period: secs(10),
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace: None,
    };
    let mut described = api_pod();
    described.containers.first_mut().unwrap().probes.readiness = Some(probe);
    let mut world = World::new();
    world.probes.script_tcp(80, Ok(()));
    let status = until_running(&world.start(described.clone())).await;
    let id = web(&status).id.clone();
    world.kill_agent().await;
    // Another kubelet ran here meanwhile: it left no checkpoint of ours.
    world.checkpoints = Arc::default();
    world.probes.script_tcp(80, Err("refused".into()));
    let running = ContainerState::Running { started_at: 1 };
    let handle =
        world.start(PodUpdate { last: known(&[("web", last(&id, running, 0))]), ..described.into() });
    let first = until(&handle, "seen", |s| !web(s).id.is_empty()).await;
    assert!(web(&first).ready && web(&first).started && first.holds(ConditionKind::Ready));
    let begun = world.clock.mono();
    until(&handle, "unready", |s| !s.holds(ConditionKind::Ready)).await;
    assert!(world.clock.mono() - begun >= secs(20), "three failures make it unready");
    assert_eq!(world.runtime.count("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn trap_08_the_restart_count_goes_on_from_the_api() {
    let mut world = World::new();
    let crashed = last("gone", ContainerState::Terminated(exit(1)), 4);
    let handle = world.start(PodUpdate { last: known(&[("web", crashed)]), ..api_pod().into() });
    let status = until_running(&handle).await;
    let web = web(&status);
    assert_eq!((web.restart_count, web.last_exit.as_ref().map(|e| e.code)), (5, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ran_and_is_nowhere_has_ended_for_an_unknown_reason() {
    let mut world = World::new();
    world.runtime.fail(Call::RunSandbox, 3, FailureKind::Failed, "not yet");
    let lost = last("gone", ContainerState::Running { started_at: 1 }, 0);
    let handle = world.start(PodUpdate { last: known(&[("web", lost)]), ..api_pod().into() });
    let status = until(&handle, "lost", |s| web(s).last_exit.is_some()).await;
    let exit = web(&status).last_exit.clone().unwrap();
    assert_eq!(
        (exit.code, exit.reason.as_str(), web(&status).restart_count),
        (137, "ContainerStatusUnknown", 1)
    );
    assert_eq!(web(&until_running(&handle).await).restart_count, 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_admitted_is_failed_with_the_reason_and_nothing_of_it_is_made() {
    let mut world = World::new();
    let refused = Some(Rejection::new("OutOfcpu", "Node didn't have enough resource: cpu"));
    let handle = world.start(PodUpdate { refused, ..api_pod().into() });
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!(
        (status.phase, status.api_reason.as_str(), status.api_message.as_str()),
        (Phase::Failed, "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu")
    );
    assert_eq!(told(&handle, "OutOfcpu"), ["Node didn't have enough resource: cpu"]);
    assert!(status.containers.is_empty() && status.conditions.is_empty());
    assert_eq!((world.runtime.count("run-sandbox"), world.runtime.residue()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_changed_image_ends_the_container_and_starts_it_again_whatever_its_policy() {
    let mut world = World::new();
    world.runtime.publish("reg/img:v2");
    let described = with_restart_policy(RestartPolicy::Never, api_pod());
    let handle = world.start(described.clone());
    until_running(&handle).await;
    let mut changed = described;
    changed.generation = 2;
    let web_spec = changed.containers.first_mut().unwrap();
    (web_spec.image, web_spec.hash) = ("reg/img:v2".into(), "def".into());
    let handle = handle.update(Arc::new(changed));
    // An API server takes no end back of what is never restarted.
    let mut word = handle.status.clone();
    let ended = tokio::spawn(async move {
        let ended = |s: &PodStatus| matches!(web(s).state, ContainerState::Terminated(_));
        word.wait_for(|s| ended(s) || restarts_of(s) == 1).await.map(|s| ended(&s)).unwrap()
    });
    let status = until(&handle, "restarted", |s| s.holds(ConditionKind::Ready) && restarts_of(s) == 1).await;
    assert!(!ended.await.unwrap());
    assert_eq!((web(&status).image.as_str(), status.observed_generation), ("reg/img:v2", 2));
    assert_eq!(told(&handle, "Killing"), ["Container web definition changed, will be restarted"]);
    assert_eq!((world.runtime.count("pull reg/img:v2"), world.runtime.count("run-sandbox")), (1, 1));
    // Described in the same way again, nothing happens.
    let _same = handle.update(handle.pod.clone());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.runtime.count("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_is_started_once_and_nobody_waits_for_it() {
    let mut world = World::new();
    world.runtime.script("debug", &[Script::Exit { after: secs(5), code: 1 }]);
    let handle = world.start(api_pod());
    until_running(&handle).await;
    let debug = Container { target: "web".into(), ..in_role("debug", Role::Ephemeral) };
    let debug = Container { restart_policy: RestartPolicy::Never, ..debug };
    let lost = Container { target: "nobody".into(), ..in_role("lost", Role::Ephemeral) };
    let with = Pod { ephemeral_containers: vec![debug, lost], ..api_pod() };
    let handle = handle.update(Arc::new(with));
    let of =
        |status: &PodStatus, name: &str| status.ephemeral_containers.iter().find(|c| c.name == name).cloned();
    let runs =
        |s: &PodStatus| of(s, "debug").is_some_and(|c| matches!(c.state, ContainerState::Running { .. }));
    let status = until(&handle, "debugged", runs).await;
    assert_eq!(status.phase, Phase::Running);
    let id = web(&status).id.clone();
    assert_eq!(world.runtime.count(&format!("create debug/0 seeing {id}")), 1, "{:?}", world.runtime.log());
    let status = until(&handle, "looked", |s| {
        of(s, "debug").is_some_and(|c| matches!(c.state, ContainerState::Terminated(_)))
    })
    .await;
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Running, "Running"));
    let ContainerState::Waiting { reason, message } = of(&status, "lost").unwrap().state else {
        panic!("{status:?}")
    };
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("CreateContainerConfigError", "unable to find target container nobody")
    );
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.runtime.count("create debug"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_the_container_wins_over_its_policy() {
    let mut world = World::new();
    let end = |code| Script::Exit { after: secs(1), code };
    world.runtime.script("web", &[end(42), end(42), end(7)]);
    let mut described = with_restart_policy(RestartPolicy::Never, api_pod());
    described.containers.first_mut().unwrap().restart_rules =
        vec![RestartRule { action: RestartAction::Restart, within: true, codes: vec![42] }];
    let handle = world.start(described);
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((restarts_of(&status), status.phase), (2, Phase::Failed));
    let ContainerState::Terminated(exit) = &web(&status).state else { panic!("{status:?}") };
    assert_eq!(exit.code, 7);
}

#[tokio::test(start_paused = true)]
async fn a_rule_may_start_all_containers_anew_in_the_same_sandbox() {
    let mut world = World::new();
    world.runtime.set_latency(Duration::from_millis(50));
    world.runtime.script("init", &[Script::Exit { after: secs(1), code: 0 }]);
    world.runtime.script("web", &[Script::Exit { after: secs(10), code: 99 }, Script::Serve]);
    let all = RestartRule { action: RestartAction::RestartAllContainers, within: true, codes: vec![99] };
    let mut described = with_restart_policy(
        RestartPolicy::Never,
        Pod {
            init_containers: vec![in_role("init", Role::Init)],
            containers: vec![container("web"), container("side")],
            ..api_pod()
        },
    );
    described.containers.first_mut().unwrap().restart_rules = vec![all];
    let handle = world.start(described);
    let source = web(&until_running(&handle).await).id.clone();
    let status = until(&handle, "restarting", |s| s.holds(ConditionKind::AllContainersRestarting)).await;
    assert_eq!(status.phase, Phase::Running);
    let kind = ConditionKind::AllContainersRestarting;
    let condition = status.conditions.iter().find(|c| c.kind == kind).unwrap();
    assert_eq!(
        (condition.reason.as_str(), condition.message.as_str()),
        ("RestartAllContainersStarted", "container exited with restart policy rule")
    );
    let status = until(&handle, "anew", |s| {
        s.phase == Phase::Running && s.containers.iter().all(|c| c.ready && c.restart_count == 1)
    })
    .await;
    assert!(!status.holds(kind) && status.holds(ConditionKind::Initialized));
    let of = |name: &str| {
        let all: Vec<&ContainerStatus> = status.all_containers().collect();
        let one = all.into_iter().find(|c| c.name == name).unwrap();
        (one.restart_count, one.last_exit.as_ref().map(|e| (e.code, e.reason.clone())))
    };
    assert_eq!(of("init").0, 1);
    assert_eq!(of("web").1.map(|(code, _)| code), Some(99));
    assert_eq!(of("side"), (1, Some((137, "RestartingAllContainers".to_owned()))));
    let log = world.runtime.log();
    assert_eq!((world.runtime.count("run-sandbox"), world.runtime.count("create init")), (1, 2), "{log:?}");
    // The record that says why goes last.
    let removed: Vec<&String> = log.iter().filter(|line| line.starts_with("remove c")).collect();
    assert!(removed.len() == 3 && removed.last().unwrap().ends_with(&source), "{source}: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_may_be_set_while_the_pod_runs() {
    let mut world = World::new();
    let handle = world.start(api_pod());
    until_running(&handle).await;
    tokio::time::sleep(secs(100)).await;
    let handle = handle.update(Arc::new(Pod { active_deadline: Some(secs(120)), ..api_pod() }));
    let begun = world.clock.mono();
    let status = until(&handle, "over", PodStatus::is_over).await;
    let took = world.clock.mono() - begun;
    assert!((secs(15)..secs(30)).contains(&took), "{took:?}");
    assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "DeadlineExceeded"));
}

#[tokio::test(start_paused = true)]
async fn volumes_are_set_up_again_when_what_is_in_them_changes() {
    let mut world = World::new();
    let handle = world.start(api_pod());
    until_running(&handle).await;
    let before = world.volumes.times(&handle.pod.uid);
    let labels = BTreeMap::from([("app".to_owned(), "other".to_owned())]);
    let handle = handle.update(Arc::new(Pod { labels, ..api_pod() }));
    tokio::time::sleep(secs(2)).await;
    assert_eq!(world.volumes.times(&handle.pod.uid), before + 1);
    // A failure is told and tried again; the pod runs on.
    world.volumes.fail(Some("configmap \"c\" not found"));
    let handle = handle.update(Arc::new(api_pod()));
    tokio::time::sleep(secs(2)).await;
    assert_eq!(told(&handle, "FailedMount").len(), 1);
    world.volumes.fail(None);
    tokio::time::sleep(secs(60)).await;
    assert!(world.volumes.times(&handle.pod.uid) > before + 1);
    assert_eq!((handle.status.borrow().reason.as_str(), world.runtime.count("create")), ("Running", 1));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_class_and_a_user_namespace_reach_the_sandbox() {
    let mut world = World::new();
    world.api.put_runtime_class("fast", "runsc");
    let mut described = Pod { runtime_class: "fast".into(), ..api_pod() };
    described.namespaces.own_users = true;
    let handle = world.start(described.clone());
    let refusal = "RuntimeClass handler \"runsc\" does not support user namespaces";
    until(&handle, "refused", |s| s.message.contains(refusal)).await;
    world.kill_agent().await;
    world.node.user_namespaces.insert("runsc".into());
    until_running(&world.start(described)).await;
    assert_eq!(world.runtime.count("run-sandbox 0 under runsc as 65536"), 1, "{:?}", world.runtime.log());
    let mut world = World::new();
    let handle = world.start(Pod { runtime_class: "nope".into(), ..api_pod() });
    until(&handle, "unknown class", |s| s.message.contains("runtimeclass.node.k8s.io \"nope\" not found"))
        .await;
    assert_eq!(world.runtime.count("run-sandbox"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_kernel_does_not_take_is_told() {
    let mut world = World::new();
    let described = Pod { hostname: "h".repeat(40), subdomain: "s".repeat(20), fqdn: true, ..api_pod() };
    let handle = world.start(described);
    let part = "is too long (64 characters is the max, 87 characters requested)";
    until(&handle, "too long", |s| s.message.contains(part)).await;
    assert!(told(&handle, "FailedCreatePodSandBox").iter().any(|message| message.contains(part)));
}

#[tokio::test(start_paused = true)]
async fn readiness_goes_on_while_a_deleted_pod_ends_and_its_grace_only_shrinks() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let handle = world.start(api_pod());
    until_running(&handle).await;
    let begun = world.clock.mono();
    handle.kill(Some(secs(20)), "deleted");
    tokio::time::sleep(secs(2)).await;
    handle.kill(Some(secs(600)), "deleted");
    handle.kill(Some(secs(5)), "deleted");
    let status = until(&handle, "over", PodStatus::is_over).await;
    let took = world.clock.mono() - begun;
    assert!((secs(6)..secs(9)).contains(&took), "{took:?}");
    assert_eq!(status.phase, Phase::Failed);
}

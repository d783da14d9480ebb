//! Init containers and sidecars, over a pod's whole life.

use gantry_model::pod::Role;
use gantry_model::pod::probe::{Handler, HttpGet, PortRef, Probe};

use super::*;
use crate::pod::status::ConditionKind;
use crate::pod::tests::in_role;

/// i1, a sidecar, i2, then web.
fn staged(policy: RestartPolicy) -> Pod {
    let init_containers =
        vec![in_role("i1", Role::Init), in_role("side", Role::Sidecar), in_role("i2", Role::Init)];
    with_restart_policy(policy, Pod { init_containers, ..pod() })
}

fn finishes(world: &World, name: &str, codes: &[i32]) {
    let scripts: Vec<Script> =
        codes.iter().map(|code| Script::Exit { after: secs(2), code: *code }).collect();
    world.runtime.script(name, &scripts);
}

fn creations(world: &World) -> Vec<String> {
    let log = world.runtime.log();
    log.iter().filter_map(|entry| entry.strip_prefix("create ")).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_and_kubectl_shows_how_far_they_are() {
    let mut world = World::new();
    finishes(&world, "i1", &[0]);
    finishes(&world, "i2", &[0]);
    let handle = world.start(staged(RestartPolicy::Always));
    let status = until_reason(&handle, "Init:0/3").await;
    assert_eq!((status.phase, status.holds(ConditionKind::Initialized)), (Phase::Pending, false));
    let initialized = status.conditions.iter().find(|c| c.kind == ConditionKind::Initialized).unwrap();
    assert_eq!(initialized.reason, "ContainersNotInitialized");
    assert_eq!(initialized.message, "containers with incomplete status: [i1 side i2]");
    let ContainerState::Waiting { reason, .. } = &status.containers.first().unwrap().state else { panic!() };
    assert_eq!(reason, "PodInitializing");
    until_reason(&handle, "Init:2/3").await;
    let status = until_running(&handle).await;
    assert!(status.holds(ConditionKind::Initialized) && status.holds(ConditionKind::Ready), "{status:#?}");
    assert_eq!((status.reason.as_str(), status.phase), ("Running", Phase::Running));
    assert_eq!(creations(&world), ["i1/0", "side/0", "i2/0", "web/0"]);
    assert!(status.init_containers.iter().all(|c| c.ready));
}

#[tokio::test(start_paused = true)]
async fn a_failing_init_container_backs_off_or_fails_the_pod_by_policy() {
    let mut world = World::new();
    finishes(&world, "i1", &[1, 1, 0]);
    finishes(&world, "i2", &[0]);
    let handle = world.start(staged(RestartPolicy::OnFailure));
    until_reason(&handle, "Init:CrashLoopBackOff").await;
    assert_eq!(handle.status.borrow().phase, Phase::Pending);
    let status = until_running(&handle).await;
    assert_eq!(status.init_containers.first().unwrap().restart_count, 2);
    assert!(handle.events().iter().any(|e| e.note.reason == "BackOff" && e.note.container == "i1"));

    let mut world = World::new();
    finishes(&world, "i1", &[7]);
    let handle = world.start(staged(RestartPolicy::Never));
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "Init:Error"));
    assert_eq!(creations(&world), ["i1/0"]);
}

#[tokio::test(start_paused = true)]
async fn trap_09_the_end_stops_main_containers_then_sidecars_in_reverse() {
    let mut world = World::new();
    let init_containers = vec![in_role("s1", Role::Sidecar), in_role("s2", Role::Sidecar)];
    let mut list = pod();
    list.init_containers = init_containers;
    world.runtime.script("s2", &[Script::Stubborn]);
    let handle = world.start(list);
    let ids: BTreeMap<String, String> =
        until_running(&handle).await.all_containers().map(|c| (c.name.clone(), c.id.clone())).collect();
    let begun = world.clock.mono();
    handle.kill(Some(secs(6)), "test");
    until(&handle, "over", PodStatus::is_over).await;
    let log = world.runtime.log();
    let stops: Vec<&String> = log.iter().filter(|entry| entry.starts_with("stop c")).collect();
    // The second takes all of the grace; two seconds are left for the last.
    assert_eq!(
        stops,
        [
            &format!("stop {} 6", ids["web"]),
            &format!("stop {} 6", ids["s2"]),
            &format!("stop {} 2", ids["s1"])
        ]
    );
    assert!((secs(6)..secs(9)).contains(&(world.clock.mono() - begun)));
}

#[tokio::test(start_paused = true)]
async fn sidecars_do_not_keep_a_finished_pod_alive_even_when_it_is_never_restarted() {
    let mut world = World::new();
    finishes(&world, "i1", &[0]);
    finishes(&world, "i2", &[0]);
    finishes(&world, "web", &[0]);
    // The sidecar dies once meanwhile, and comes back although the pod's policy is Never.
    world.runtime.script("side", &[Script::Exit { after: secs(1), code: 1 }, Script::Serve]);
    let handle = world.start(staged(RestartPolicy::Never));
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Succeeded, "Completed"));
    assert_eq!(world.runtime.count("create side/"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_sidecars_startup_probe_gates_what_comes_after_it() {
    let mut world = World::new();
    let probe = Probe {
        handler: Handler::HttpGet(HttpGet {
            host: String::new(),
            port: PortRef::Number(80),
            path: "/up".into(),
            tls: false,
            headers: vec![],
        }),
        initial_delay: Duration::ZERO,
        timeout: secs(1),
        period: secs(5),
        success_threshold: 1,
        failure_threshold: 30,
        termination_grace: None,
    };
    world.probes.script_http("/up", &[503, 503, 200]);
    let mut side = in_role("side", Role::Sidecar);
    side.probes.startup = Some(probe);
    let handle = world.start(Pod { init_containers: vec![side], ..pod() });
    let status = until(&handle, "sidecar runs", |s| {
        matches!(s.init_containers.first().unwrap().state, ContainerState::Running { .. })
    })
    .await;
    assert_eq!((status.reason.as_str(), status.phase), ("Init:0/1", Phase::Pending));
    assert!(!status.init_containers.first().unwrap().started);
    let begun = world.clock.mono();
    until_running(&handle).await;
    assert!((secs(9)..secs(12)).contains(&(world.clock.mono() - begun)));
    assert_eq!(world.probes.count("/up"), 3);
}

#[tokio::test(start_paused = true)]
async fn trap_09_a_changed_sandbox_runs_all_init_containers_again() {
    let mut world = World::new();
    finishes(&world, "i1", &[0]);
    finishes(&world, "i2", &[0]);
    let handle = world.start(staged(RestartPolicy::Always));
    until_running(&handle).await;
    world.runtime.break_sandboxes();
    until(&handle, "again", |s| restarts_of(s) == 1 && s.reason == "Running").await;
    let made = creations(&world);
    assert_eq!(
        made.iter().map(String::as_str).collect::<Vec<_>>(),
        ["i1/0", "side/0", "i2/0", "web/0", "i1/1", "side/1", "i2/1", "web/1"]
    );
    assert!(handle.events().iter().any(|e| e.note.reason == "SandboxChanged"));
}

#[tokio::test(start_paused = true)]
async fn trap_09_removed_records_of_init_containers_make_none_run_again() {
    let mut world = World::new();
    finishes(&world, "i1", &[0]);
    finishes(&world, "i2", &[0]);
    let handle = world.start(staged(RestartPolicy::Always));
    until_running(&handle).await;
    world.kill_agent().await;
    world.runtime.forget_ended("i1");
    world.runtime.forget_ended("i2");
    let before = creations(&world);
    let handle = world.start(staged(RestartPolicy::Always));
    let status = until_running(&handle).await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(creations(&world), before);
    let ContainerState::Terminated(exit) = &status.init_containers.first().unwrap().state else { panic!() };
    assert_eq!((exit.code, exit.reason.as_str()), (0, "Completed"));
    assert!(exit.message.contains("treat it as exited normally"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_at_any_moment_of_a_staged_start_runs_each_init_container_once() {
    for dies_at in (0..400).step_by(7) {
        let mut world = World::new();
        world.runtime.set_latency(Duration::from_millis(10));
        for name in ["i1", "i2"] {
            world.runtime.script(name, &[Script::Exit { after: Duration::from_millis(20), code: 0 }]);
        }
        drop(world.start(staged(RestartPolicy::Always)));
        tokio::time::sleep(Duration::from_millis(dies_at)).await;
        world.kill_agent().await;
        let handle = world.start(staged(RestartPolicy::Always));
        until_running(&handle).await;
        assert_eq!(creations(&world), ["i1/0", "side/0", "i2/0", "web/0"], "died at {dies_at} ms");
        handle.remove();
        until(&handle, "gone", |s| s.life == Life::Gone).await;
        assert_eq!(world.runtime.residue(), 0, "died at {dies_at} ms");
    }
}

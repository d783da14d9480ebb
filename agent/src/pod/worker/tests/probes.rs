//! Probes, over a pod's whole life.

use gantry_model::pod::probe::{Handler, HttpGet, PortRef, Probe};

use super::*;
use crate::events::Kind;
use crate::pod::status::ConditionKind;
use crate::probe::ProbeResult;
use crate::runtime::ExecOutput;
use crate::runtime::fake::Exec;

fn probe(handler: Handler) -> Probe {
    Probe {
        handler,
        initial_delay: Duration::ZERO,
        timeout: secs(1),
        period: secs(10),
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace: None,
    }
}

fn http(path: &str) -> Probe {
    let (host, path, headers) = (String::new(), path.to_owned(), vec![]);
    probe(Handler::HttpGet(HttpGet { host, port: PortRef::Number(80), path, tls: false, headers }))
}

fn probed(startup: Option<Probe>, liveness: Option<Probe>, readiness: Option<Probe>) -> Pod {
    let mut pod = pod();
    let probes = &mut pod.containers.first_mut().unwrap().probes;
    (probes.startup, probes.liveness, probes.readiness) = (startup, liveness, readiness);
    pod
}

fn events(handle: &PodHandle, reason: &str) -> Vec<(String, u32)> {
    let events = handle.events();
    let of = events.iter().filter(|event| event.note.reason == reason);
    of.map(|event| (event.note.message.clone(), event.count)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_the_hosts_network_is_probed_at_the_nodes_address_and_has_it() {
    let mut world = World::new();
    world.probes.script_http("/ready", &[200]);
    let mut pod = probed(None, None, Some(http("/ready")));
    pod.namespaces.host_network = true;
    let handle = world.start(pod);
    let status = until_running(&handle).await;
    assert_eq!((status.ip.as_str(), status.ips), ("192.0.2.1", vec!["192.0.2.1".to_owned()]));
    let asked = world.probes.log();
    assert!(asked.first().unwrap().contains("192.0.2.1"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_container_is_ready_when_its_readiness_probe_says_so_and_not_longer() {
    let mut world = World::new();
    world.probes.script_http("/ready", &[500, 200, 200, 500, 500, 500, 200]);
    let handle = world.start(probed(None, None, Some(http("/ready"))));
    let status = until(&handle, "Running", |s| s.phase == Phase::Running).await;
    let web = status.containers.first().unwrap();
    assert_eq!((web.started, web.ready, status.holds(ConditionKind::Ready)), (true, false, false));
    let ready = status.conditions.iter().find(|c| c.kind == ConditionKind::Ready).unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        ("ContainersNotReady", "containers with unready status: [web]")
    );
    let status = until(&handle, "ready", |s| s.holds(ConditionKind::Ready)).await;
    assert!(status.spans.iter().any(|s| s.name == "probe.readiness" && s.end > s.start), "{status:#?}");
    let begun = world.clock.mono();
    until(&handle, "not ready", |s| !s.holds(ConditionKind::Ready)).await;
    // Two good ones, then three bad ones.
    assert!((secs(39)..secs(42)).contains(&(world.clock.mono() - begun)));
    until(&handle, "ready again", |s| s.holds(ConditionKind::Ready)).await;
    assert_eq!(restarts_of(&handle.status.borrow()), 0);
    assert_eq!(
        events(&handle, "Unhealthy"),
        [("Readiness probe failed: HTTP probe failed with statuscode: 500".to_owned(), 4)]
    );
    assert_eq!(world.probes.log().first().unwrap(), "http://10.88.0.2:80/ready kube-probe/1.36");
}

#[tokio::test(start_paused = true)]
async fn a_failed_liveness_probe_ends_the_container_within_the_probes_own_grace() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn, Script::Serve]);
    world.probes.script_http("/live", &[200, 500, 500, 500, 200]);
    let liveness = Probe { termination_grace: Some(secs(4)), ..http("/live") };
    let handle = world.start(probed(None, Some(liveness), None));
    let id = until_running(&handle).await.containers.first().unwrap().id.clone();
    let status = until(&handle, "restarted", |s| restarts_of(s) == 1).await;
    assert_eq!(status.containers.first().unwrap().last_exit.as_ref().unwrap().code, 137);
    assert_eq!(world.runtime.count(&format!("stop {id} 4")), 1, "{:?}", world.runtime.log());
    assert_eq!(
        events(&handle, "Killing"),
        [("Container web failed liveness probe, will be restarted".to_owned(), 1)]
    );
    // Nobody asks a container that is being ended.
    assert_eq!(world.probes.count("/live"), 5);
}

#[tokio::test(start_paused = true)]
async fn trap_07_a_result_of_an_old_container_does_not_touch_the_new_one() {
    let mut world = World::new();
    let crash = Script::Exit { after: secs(20), code: 1 };
    world.runtime.script("web", &[crash, Script::Serve]);
    // Two failures for the first container, then one for the second: no row of three.
    world.probes.script_http("/live", &[500, 500, 500, 200]);
    let liveness = Probe { period: secs(12), ..http("/live") };
    let handle = world.start(probed(None, Some(liveness), None));
    until(&handle, "second", |s| restarts_of(s) == 1).await;
    tokio::time::sleep(secs(120)).await;
    assert_eq!(restarts_of(&handle.status.borrow()), 1);
    assert_eq!(events(&handle, "Killing"), []);
}

#[tokio::test(start_paused = true)]
async fn trap_07_a_try_that_outlives_its_container_is_dropped() {
    let mut world = World::new();
    let crash = Script::Exit { after: secs(5), code: 1 };
    world.runtime.script("web", &[crash, Script::Serve]);
    world.probes.set_takes(secs(100));
    let liveness = Probe { timeout: secs(20), failure_threshold: 1, ..http("/live") };
    let handle = world.start(probed(None, Some(liveness), None));
    until(&handle, "second", |s| restarts_of(s) == 1).await;
    world.probes.set_takes(Duration::ZERO);
    tokio::time::sleep(secs(120)).await;
    assert_eq!(restarts_of(&handle.status.borrow()), 1);
}

#[tokio::test(start_paused = true)]
async fn the_startup_probe_gates_the_others_and_ends_the_container_when_it_fails() {
    let mut world = World::new();
    world.probes.script_http("/up", &[500, 500, 200]);
    let handle = world.start(probed(Some(http("/up")), Some(http("/live")), Some(http("/ready"))));
    let status = until(&handle, "Running", |s| s.phase == Phase::Running).await;
    assert!(!status.containers.first().unwrap().started);
    tokio::time::sleep(secs(15)).await;
    assert_eq!((world.probes.count("/live"), world.probes.count("/ready")), (0, 0));
    until(&handle, "ready", |s| s.holds(ConditionKind::Ready)).await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.probes.count("/up"), 3);

    let mut world = World::new();
    world.probes.script_http("/up", &[500]);
    let handle = world.start(probed(Some(http("/up")), None, None));
    until(&handle, "restarted", |s| restarts_of(s) == 1).await;
    assert_eq!(
        events(&handle, "Killing").first().unwrap().0,
        "Container web failed startup probe, will be restarted"
    );
}

/// Upstream ends and starts it in one step, so its code is never looked at.
#[tokio::test(start_paused = true)]
async fn a_container_that_ends_well_after_a_failed_probe_is_started_again_on_failure() {
    for (policy, restarts) in [(RestartPolicy::OnFailure, 1), (RestartPolicy::Never, 0)] {
        let mut world = World::new();
        world.runtime.script("web", &[Script::Polite, Script::Serve]);
        world.probes.script_http("/up", &[500, 200]);
        let once = Probe { failure_threshold: 1, ..http("/up") };
        let handle = world.start(with_restart_policy(policy, probed(Some(once), None, None)));
        let over = |s: &PodStatus| s.is_over() || (restarts_of(s) == 1 && s.holds(ConditionKind::Ready));
        let status = until(&handle, "restarted or over", over).await;
        assert_eq!(restarts_of(&status), restarts, "{policy:?}");
        let ended = status.containers.first().unwrap();
        let exit = match &ended.state {
            ContainerState::Terminated(exit) => Some(exit),
            _ => ended.last_exit.as_ref(),
        };
        assert_eq!(exit.unwrap().code, 0);
        // Nobody ever saw it as over.
        let phases = [Phase::Running, Phase::Succeeded];
        assert_eq!(status.phase, *phases.get(usize::from(restarts == 0)).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_try_waits_for_the_initial_delay_and_a_timeout_is_a_failure() {
    let mut world = World::new();
    let slow = Exec { takes: secs(5), output: ExecOutput::default() };
    world.runtime.script_exec("web", &[slow, Exec::default()]);
    let command = vec!["check".to_owned(), "$(A)".to_owned()];
    let readiness = Probe { initial_delay: secs(7), ..probe(Handler::Exec { command }) };
    let handle = world.start(probed(None, None, Some(readiness)));
    until(&handle, "Running", |s| s.phase == Phase::Running).await;
    tokio::time::sleep(secs(6)).await;
    assert_eq!(world.runtime.count("exec"), 0);
    until(&handle, "ready", |s| s.holds(ConditionKind::Ready)).await;
    assert_eq!(world.runtime.count("exec"), 2);
    assert!(world.runtime.log().iter().any(|entry| entry.ends_with("check 1")), "{:?}", world.runtime.log());
    let told = events(&handle, "Unhealthy");
    assert_eq!(
        told,
        [("Readiness probe failed: command timed out: \"check 1\" timed out after 1s".to_owned(), 1)]
    );
}

#[tokio::test(start_paused = true)]
async fn ports_by_number_over_tcp_and_grpc() {
    let mut world = World::new();
    world.probes.script_grpc(9000, ProbeResult::Success("service healthy".into()));
    world.probes.script_tcp(80, Err("dial tcp 10.88.0.2:80: connect: connection refused".into()));
    let tcp = probe(Handler::Tcp { host: String::new(), port: PortRef::Number(80) });
    let grpc = probe(Handler::Grpc { port: 9000, service: "db".into() });
    let handle = world.start(probed(Some(grpc), None, Some(tcp)));
    until(&handle, "unhealthy", |s| s.events.iter().any(|e| e.note.reason == "Unhealthy")).await;
    assert_eq!(world.probes.log(), ["grpc 10.88.0.2:9000 db", "tcp 10.88.0.2:80"]);
    let told = handle.events();
    let event = told.iter().find(|e| e.note.reason == "Unhealthy").unwrap();
    assert_eq!(
        event.note.message,
        "Readiness probe failed: dial tcp 10.88.0.2:80: connect: connection refused"
    );
    assert_eq!(event.note.kind, Kind::Warning);
}

#[tokio::test(start_paused = true)]
async fn readiness_goes_on_while_a_pod_ends_and_liveness_stops() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let handle = world.start(probed(None, Some(http("/live")), Some(http("/ready"))));
    until_running(&handle).await;
    handle.kill(Some(secs(25)), "test");
    tokio::time::sleep(Duration::from_millis(10)).await;
    let (live, ready) = (world.probes.count("/live"), world.probes.count("/ready"));
    world.probes.script_http("/ready", &[500]);
    world.probes.script_http("/live", &[500]);
    until(&handle, "over", PodStatus::is_over).await;
    assert_eq!(world.probes.count("/live"), live);
    assert!(world.probes.count("/ready") >= ready + 2);
    assert_eq!(events(&handle, "Killing"), [("Stopping container web".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn trap_06_an_agent_restart_flips_neither_started_nor_ready() {
    let mut world = World::new();
    let pod = || probed(Some(http("/up")), Some(http("/live")), Some(http("/ready")));
    let handle = world.start(pod());
    until_running(&handle).await;
    tokio::time::sleep(secs(30)).await;
    world.kill_agent().await;
    // From now on the startup page is gone: asking again would end the container.
    world.probes.script_http("/up", &[404]);
    let asked = world.probes.count("/up");
    let handle = world.start(pod());
    let first = until(&handle, "observed", |s| s.life == Life::Running).await;
    let web = first.containers.first().unwrap();
    assert_eq!((web.started, web.ready, first.holds(ConditionKind::Ready)), (true, true, true));
    tokio::time::sleep(secs(120)).await;
    assert_eq!((world.probes.count("/up"), restarts_of(&handle.status.borrow())), (asked, 0));
    // Until a probe says otherwise.
    world.probes.script_http("/ready", &[500]);
    until(&handle, "not ready", |s| !s.holds(ConditionKind::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn trap_06_liveness_counts_afresh_and_waits_no_second_initial_delay() {
    let mut world = World::new();
    let pod = || probed(None, Some(Probe { initial_delay: secs(300), ..http("/live") }), None);
    world.probes.script_http("/live", &[500]);
    let handle = world.start(pod());
    until_running(&handle).await;
    tokio::time::sleep(secs(305)).await;
    assert_eq!(world.probes.count("/live"), 1);
    world.kill_agent().await;
    let handle = world.start(pod());
    tokio::time::sleep(secs(11)).await;
    assert_eq!(world.probes.count("/live"), 2);
    tokio::time::sleep(secs(5)).await;
    assert_eq!(events(&handle, "Killing"), []);
    until(&handle, "restarted", |s| restarts_of(s) == 1).await;
    assert_eq!(world.probes.count("/live"), 4);
}

#[tokio::test(start_paused = true)]
async fn trap_15_a_step_of_the_wall_clock_neither_skips_nor_repeats_probes() {
    for step in [3600, -3600] {
        let mut world = World::new();
        world.probes.script_http("/live", &[500]);
        let liveness = Probe { initial_delay: secs(100), ..http("/live") };
        let handle = world.start(probed(None, Some(liveness), None));
        until_running(&handle).await;
        world.clock.step_wall(step);
        tokio::time::sleep(secs(95)).await;
        assert_eq!(world.probes.count("/live"), 0, "{step}");
        tokio::time::sleep(secs(10)).await;
        assert_eq!(world.probes.count("/live"), 1, "{step}");
        drop(handle);
    }
}

//! Start and end around the containers: cgroup, volumes, deadline, reboot, events.

use gantry_model::pod::{Origin, Role};

use super::*;
use crate::cgroups::Cgroups;
use crate::events::Kind;
use crate::pod::status::ConditionKind;
use crate::pod::tests::in_role;

#[tokio::test(start_paused = true)]
async fn nothing_is_made_before_cgroup_and_volumes_and_both_go_at_the_end() {
    let mut world = World::new();
    world.cgroups.fail(Some("cpu.max: device or resource busy"));
    let handle = world.start(pod());
    let status = until(&handle, "told", |s| s.message.contains("device or resource busy")).await;
    assert_eq!((status.reason.as_str(), status.phase), ("ContainerCreating", Phase::Pending));
    assert!(!world.volumes.has(&handle.pod.uid));
    world.volumes.fail(Some("MountVolume.SetUp failed for volume \"data\" : no such path"));
    world.cgroups.fail(None);
    until(&handle, "told", |s| s.message.contains("no such path")).await;
    assert!(world.cgroups.has(&handle.pod.uid));
    assert_eq!(world.runtime.count("run-sandbox"), 0);
    let reasons: Vec<String> = handle.events().iter().map(|e| e.note.reason.to_string()).collect();
    let has = |reason: &str| reasons.iter().any(|told| told == reason);
    assert!(has("FailedMount") && has("FailedCreatePodContainer"), "{reasons:?}");
    world.volumes.fail(None);
    let status = until_running(&handle).await;
    assert!(status.message.is_empty() && world.volumes.has(&handle.pod.uid));
    handle.kill(None, "test");
    until(&handle, "over", PodStatus::is_over).await;
    assert!(!world.volumes.has(&handle.pod.uid) && !world.cgroups.has(&handle.pod.uid));
}

#[tokio::test(start_paused = true)]
async fn rt_5_1_before_its_next_sandbox_a_pods_cgroup_is_made_again() {
    let mut world = World::new();
    let handle = world.start(pod());
    until_running(&handle).await;
    // As somebody who stops the slice of all pods.
    world.cgroups.tear_down(&handle.pod.uid).await.unwrap();
    world.runtime.break_sandboxes();
    until(&handle, "again", |s| restarts_of(s) == 1 && s.reason == "Running").await;
    assert!(world.cgroups.has(&handle.pod.uid));
}

#[tokio::test(start_paused = true)]
async fn a_pod_past_its_deadline_fails_with_upstreams_words_also_over_an_agent_restart() {
    let mut world = World::new();
    let limited = || Pod { active_deadline: Some(secs(100)), ..pod() };
    let handle = world.start(limited());
    until_running(&handle).await;
    let begun = world.clock.mono();
    tokio::time::sleep(secs(40)).await;
    world.kill_agent().await;
    let handle = world.start(limited());
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert!((secs(99)..secs(103)).contains(&(world.clock.mono() - begun)));
    assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "DeadlineExceeded"));
    assert_eq!(status.message, "Pod was active on the node longer than the specified deadline");
    let events = handle.events();
    let told = events.iter().find(|e| e.note.reason == "DeadlineExceeded").unwrap();
    assert_eq!((told.note.kind, told.count), (Kind::Normal, 1));
    assert!(!status.killed);
}

#[tokio::test(start_paused = true)]
async fn finished_pods_are_not_run_again_after_a_reboot() {
    let exit = |code| Script::Exit { after: secs(5), code };
    for (policy, code, phase, again) in [
        (RestartPolicy::Never, 0, Phase::Succeeded, false),
        (RestartPolicy::Never, 3, Phase::Failed, false),
        (RestartPolicy::OnFailure, 0, Phase::Succeeded, false),
        (RestartPolicy::OnFailure, 3, Phase::Running, true),
    ] {
        let mut world = World::new();
        world.runtime.script("web", &[exit(code), Script::Serve]);
        let _handle = world.start(with(policy));
        tokio::time::sleep(secs(2)).await;
        // It ends while nobody looks; then the machine goes down.
        world.kill_agent().await;
        tokio::time::sleep(secs(10)).await;
        world.runtime.reboot();
        let handle = world.start(with(policy));
        let status = until(&handle, "settled", |s| s.is_over() || s.reason == "Running").await;
        assert_eq!((status.phase, world.runtime.count("create") == 2), (phase, again), "{policy:?} {code}");
        assert_eq!(world.runtime.count("run-sandbox") == 2, again);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_only_what_is_not_done_runs_again() {
    let mut world = World::new();
    let done = Script::Exit { after: secs(1), code: 0 };
    world.runtime.script("done", std::slice::from_ref(&done));
    world.runtime.script("init", &[done]);
    let containers = vec![container("done"), container("web")];
    let init_containers = vec![in_role("init", Role::Init)];
    let pod = with_restart_policy(RestartPolicy::OnFailure, Pod { containers, init_containers, ..pod() });
    let handle = world.start(pod.clone());
    until(&handle, "one done", |s| {
        matches!(&s.containers.first().unwrap().state, ContainerState::Terminated(_))
    })
    .await;
    world.kill_agent().await;
    world.runtime.reboot();
    let handle = world.start(pod);
    until(&handle, "again", |s| s.containers.get(1).unwrap().restart_count == 1 && s.reason == "NotReady")
        .await;
    for (name, times) in [("init", 2), ("done", 1), ("web", 2)] {
        assert_eq!(world.runtime.count(&format!("create {name}/")), times, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_tell_the_story_of_a_start() {
    let mut world = World::new();
    world.runtime = FakeRuntime::new(&[]);
    let handle = world.start(pod());
    until_reason(&handle, "ImagePullBackOff").await;
    world.runtime.publish(IMAGE);
    until_running(&handle).await;
    let events = handle.events();
    let told: Vec<(Kind, &str, &str)> =
        events.iter().map(|e| (e.note.kind, &*e.note.reason, e.note.message.as_str())).collect();
    assert_eq!(
        told,
        [
            (Kind::Normal, "Pulling", "Pulling image \"reg/img:v1\""),
            (
                Kind::Warning,
                "Failed",
                "Failed to pull image \"reg/img:v1\": rpc error: code = NotFound desc = reg/img:v1: not found"
            ),
            (Kind::Warning, "Failed", "Error: ErrImagePull"),
            (Kind::Normal, "BackOff", "Back-off pulling image \"reg/img:v1\""),
            (Kind::Warning, "Failed", "Error: ImagePullBackOff"),
            (
                Kind::Normal,
                "Pulled",
                "Successfully pulled image \"reg/img:v1\" in 0s (0s including waiting). Image size: 1024 bytes."
            ),
            (Kind::Normal, "Created", "Container created"),
            (Kind::Normal, "Started", "Container started"),
        ]
    );
    assert_eq!(events.first().unwrap().count, 2);
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_told_once_for_each_back_off() {
    let mut world = World::new();
    let crash = Script::Exit { after: secs(1), code: 3 };
    world.runtime.script("web", &[crash.clone(), crash.clone(), crash, Script::Serve]);
    let handle = world.start(pod());
    until(&handle, "third", |s| restarts_of(s) == 3).await;
    let events = handle.events();
    let told = events.iter().find(|e| e.note.reason == "BackOff").unwrap();
    assert_eq!(told.note.message, "Back-off restarting failed container web in pod web_default(uid-1)");
    assert_eq!((told.note.kind, told.count), (Kind::Warning, 2));
}

#[tokio::test(start_paused = true)]
async fn conditions_keep_their_time_and_a_lost_sandbox_takes_one_back() {
    let mut world = World::new();
    let handle = world.start(pod());
    let kind = ConditionKind::PodReadyToStartContainers;
    let since = |s: &PodStatus| s.conditions.iter().find(|c| c.kind == kind).unwrap().since;
    let status = until_running(&handle).await;
    world.runtime.set_latency(Duration::from_millis(10));
    assert_eq!((status.qos.to_string().as_str(), status.holds(kind)), ("BestEffort", true));
    assert_eq!(
        (status.ips.as_slice(), status.host_ips.as_slice()),
        (&["10.88.0.2".to_owned()][..], &["192.0.2.1".to_owned()][..])
    );
    assert_eq!(status.containers.first().unwrap().image_id, "id-of-reg/img:v1");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(since(&handle.status.borrow()), since(&status));
    world.runtime.break_sandboxes();
    let lost = until(&handle, "lost", |s| !s.holds(kind)).await;
    assert!(since(&lost) > since(&status));
    // The address stays meanwhile.
    assert_eq!(lost.ip, "10.88.0.2");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_addresses_come_late_or_change_tells_them_of_pods_that_run() {
    let mut world = World::new();
    let (node_in, ips) = HostIps::channel(Vec::new());
    world.node.ips = ips;
    let mut own_uid = pod();
    own_uid.uid = PodUid::parse("uid-2").unwrap();
    own_uid.namespaces.host_network = true;
    let (told_in, told) = watch::channel(false);
    let [inside, outside] = [pod(), own_uid].map(|pod| {
        let (worker, handle) = Worker::start_watched(pod, world.deps(), told.clone());
        world.workers.spawn(worker.run());
        handle
    });
    until_running(&inside).await;
    assert_eq!(until_running(&outside).await.ip, "");
    // The runtime's events arrive, but there are none: nobody looks by itself for seconds.
    told_in.send_replace(true);
    for ip in ["10.0.2.15", "192.168.56.11"] {
        tokio::time::sleep(secs(11)).await;
        node_in.send_replace(vec![ip.to_owned(), "fd00::1".to_owned()]);
        let ips = [ip, "fd00::1"];
        let at_once = tokio::time::Instant::now();
        until(&inside, "host IPs", |s| s.host_ips == ips && s.ips == ["10.88.0.2"]).await;
        until(&outside, "IPs", |s| s.host_ips == ips && s.ips == ips).await;
        assert!(at_once.elapsed() < secs(1), "{:?}", at_once.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_network_a_pod_waits_for_it_and_one_on_the_hosts_does_not() {
    let mut world = World::new();
    let why = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni config uninitialized";
    let (network_in, network) = watch::channel(Some(why.to_owned()));
    let mut on_host = pod();
    on_host.uid = PodUid::parse("uid-2").unwrap();
    on_host.namespaces.host_network = true;
    let mut start = |pod: Pod| {
        let deps = Deps { network: network.clone(), ..world.deps() };
        let (worker, handle) = Worker::new(pod, deps);
        world.workers.spawn(worker.run());
        handle
    };
    until_running(&start(on_host)).await;
    let handle = start(pod());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.runtime.count("run-sandbox"), 1);
    assert_eq!(handle.status.borrow().reason, "ContainerCreating");
    let told: Vec<_> = handle.events().iter().map(|e| (e.note.kind, e.note.reason.clone())).collect();
    assert!(told.contains(&(Kind::Warning, "NetworkNotReady".into())), "{told:?}");
    assert!(told.iter().all(|(_, reason)| reason != "FailedCreatePodSandBox"), "{told:?}");
    let events = handle.events();
    let event = events.iter().find(|e| e.note.reason == "NetworkNotReady").unwrap();
    assert_eq!(event.note.message, format!("network is not ready: {why}"));
    let at_once = tokio::time::Instant::now();
    network_in.send_replace(None);
    until_running(&handle).await;
    assert!(at_once.elapsed() < secs(1), "{:?}", at_once.elapsed());
}

#[tokio::test(start_paused = true)]
async fn trap_04_a_pod_is_over_only_when_every_exit_code_is_known_and_everything_taken_back() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Exit { after: secs(1), code: 9 }]);
    let handle = world.start(with(RestartPolicy::Never));
    world.runtime.set_latency(Duration::from_millis(10));
    let status = until(&handle, "terminal", |s| s.phase == Phase::Failed).await;
    // The final status, exit code included, is told before the volumes go.
    let ContainerState::Terminated(exit) = &status.containers.first().unwrap().state else { panic!() };
    assert_eq!((exit.code, world.volumes.has(&handle.pod.uid), status.is_over()), (9, true, false));
    until(&handle, "over", PodStatus::is_over).await;
    assert_eq!(world.runtime.residue(), 2);
    assert!(!world.volumes.has(&handle.pod.uid) && !world.cgroups.has(&handle.pod.uid));
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_in_a_lost_sandbox_gets_its_grace_before_the_next_is_made() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let handle = world.start(pod());
    let id = until_running(&handle).await.containers.first().unwrap().id.clone();
    world.runtime.lose_sandboxes();
    until(&handle, "again", |s| restarts_of(s) == 1).await;
    let log = world.runtime.log();
    let at = |entry: &str| log.iter().position(|e| e.starts_with(entry)).unwrap();
    assert!(at(&format!("stop {id} 30")) < at("stop-sandbox"), "{log:?}");
    assert!(at("stop-sandbox") < at("run-sandbox 1"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_was_lost_is_looked_after_before_it_is_made_again() {
    for call in [Call::RunSandbox, Call::Create, Call::Start, Call::Stop, Call::StopSandbox] {
        let mut world = World::new();
        world.runtime.lose_answer(call);
        let handle = world.start(pod());
        let status = until_running(&handle).await;
        assert_eq!((restarts_of(&status), world.runtime.count("create")), (0, 1), "{call:?}");
        assert_eq!(world.runtime.count("run-sandbox"), 1, "{call:?}");
        handle.remove();
        until(&handle, "gone", |s| s.life == Life::Gone).await;
        assert_eq!(world.runtime.residue(), 0, "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_inspected_after_its_pull_does_not_run() {
    let mut world = World::new();
    let image = Container { pull_policy: PullPolicy::Always, ..container("web") };
    world.runtime.fail(Call::Image, 1, FailureKind::Failed, "down");
    let handle = world.start(Pod { containers: vec![image], ..pod() });
    let status = until_reason(&handle, "ImageInspectError").await;
    let told = "Failed to inspect image \"reg/img:v1\": rpc error: code = Unknown desc = down";
    assert!(status.message.contains(told), "{}", status.message);
    assert_eq!(world.runtime.count("create"), 0);
    until_running(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_end_is_told_in_upstreams_words() {
    for (call, words) in [
        (Call::Stop, "failed to \"KillContainer\" for \"web\" with KillContainerError"),
        (Call::StopSandbox, "failed to \"KillPodSandbox\" for \"uid-1\" with KillPodSandboxError"),
    ] {
        let mut world = World::new();
        let handle = world.start(pod());
        until_running(&handle).await;
        world.runtime.fail(call, 1, FailureKind::Failed, "a \"busy\" mount");
        handle.remove();
        until(&handle, "gone", |s| s.life == Life::Gone).await;
        let events = handle.events();
        let told: Vec<&str> = events
            .iter()
            .filter(|e| e.note.reason == "FailedKillPod")
            .map(|e| e.note.message.as_str())
            .collect();
        let answer = r#""rpc error: code = Unknown desc = a \"busy\" mount""#;
        assert_eq!(told, [format!("error killing pod: {words}: {answer}")]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_waits_for_the_nodes_resolver_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resolv.conf");
    let mut world = World::new();
    let source = crate::dns::source::Source::File(path.clone());
    world.node.resolver = Arc::new(crate::dns::Resolver { source, ..Default::default() });
    let handle = world.start(pod());
    let why = format!("Failed to create pod sandbox: open {}: no such file or directory", path.display());
    let told = |handle: &PodHandle| {
        handle.events().iter().any(|e| e.note.reason == "FailedCreatePodSandBox" && e.note.message == why)
    };
    until(&handle, "told", |_| told(&handle)).await;
    assert_eq!(world.runtime.count("run-sandbox"), 0);
    std::fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
    until_running(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_a_resolver_is_told_of_the_node_too() {
    let server = gantry_kube_client::fake_apiserver::FakeApiServer::default();
    let mut world = World::new();
    let (recorder, queue) = crate::events::sink::queue(world.clock.clone());
    let (_pods, pods) = watch::channel(Arc::from([]));
    drop(crate::pod_workers::events::run(Some(server.client()), "n1", queue, pods));
    let deps = Deps { recorder: Some(recorder), ..world.deps() };
    let (worker, handle) = Worker::new(Pod { origin: Origin::Static, ..pod() }, deps);
    world.workers.spawn(worker.run());
    until_running(&handle).await;
    let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let of_node = server.until("the node's", |server| server.all("/api/v1/events").into_iter().next()).await;
    assert_eq!((&of_node["reason"], &of_node["message"]), (&"MissingClusterDNS".into(), &text.into()));
    assert_eq!(of_node["involvedObject"]["kind"], "Node");
    let events = handle.events();
    let of_pod = events.iter().find(|event| event.note.reason == "MissingClusterDNS").unwrap();
    assert_eq!(of_pod.note.message, format!("pod: \"web_default(uid-1)\". {text}"));
}

//! Whole lives of pods on the fake runtime and paused time.

use std::time::Duration;

use futures_util::future::BoxFuture;
use gantry_metrics::{Metrics, ProbeMetrics};
use gantry_model::clock::{Clock, FakeClock};
use gantry_model::failure::FailureKind;
use gantry_model::pod::{Container, PodUid, PullPolicy, RestartPolicy, Role};
use gantry_trace::span::Tracer;
use tokio::task::JoinSet;

use super::*;
use crate::api::fake::FakeApi;
use crate::cgroups::fake::FakeCgroups;
use crate::checkpoint::fake::Memory;
use crate::devices::DeviceManager;
use crate::dra::DraManager;
use crate::logs::{self, PodLogs};
use crate::node::NodeInfo;
use crate::pod::predecessor::run_after;
use crate::pod::status::PodStatus;
use crate::pod::status::{ContainerState, Phase};
use crate::pod::tests::{container, deps, node_info, pod, with_restart_policy};
use crate::probe::fake::FakeProbe;
use crate::runtime::Runtime;
use crate::runtime::fake::{Call, FakeRuntime, Script};
use crate::timeline::chart::Chart;
use crate::volumes::fake::FakeVolumes;

mod claims;
mod counted;
mod described;
mod devices;
mod hooks;
mod images;
mod init;
mod life;
mod probes;
mod resizes;
mod traced;
mod vanished;
mod volumes;

pub(super) const IMAGE: &str = "reg/img:v1";

/// No files; an attempt may be remembered.
#[derive(Debug, Default)]
struct NoLogs {
    highest: Option<u32>,
}

impl PodLogs for NoLogs {
    fn prepare<'a>(&'a self, _: &'a Pod, _: Option<&'a Container>) -> BoxFuture<'a, Result<(), logs::Error>> {
        Box::pin(async { Ok(()) })
    }
    fn highest_attempt<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
    ) -> BoxFuture<'a, Result<Option<u32>, logs::Error>> {
        Box::pin(async { Ok(self.highest) })
    }
    fn link<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
        _: u32,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), logs::Error>> {
        Box::pin(async { Ok(()) })
    }
    fn unlink<'a>(&'a self, _: &'a Pod, _: &'a str) -> BoxFuture<'a, Result<(), logs::Error>> {
        Box::pin(async { Ok(()) })
    }
    fn remove<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), logs::Error>> {
        Box::pin(async { Ok(()) })
    }
}

pub(super) struct World {
    pub(super) runtime: FakeRuntime,
    pub(super) clock: Arc<FakeClock>,
    pub(super) probes: FakeProbe,
    pub(super) volumes: Arc<FakeVolumes>,
    pub(super) cgroups: Arc<FakeCgroups>,
    pub(super) devices: DeviceManager,
    pub(super) dra: DraManager,
    pub(super) checkpoints: Arc<Memory>,
    pub(super) api: Arc<FakeApi>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) probe_metrics: Arc<ProbeMetrics>,
    pub(super) node: NodeInfo,
    pub(super) tracer: Option<Tracer>,
    workers: JoinSet<()>,
    highest_log: Option<u32>,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            runtime: FakeRuntime::new(&[IMAGE]),
            clock: Arc::new(FakeClock::new(1_800_000_000)),
            probes: FakeProbe::default(),
            volumes: Arc::default(),
            cgroups: Arc::default(),
            devices: DeviceManager::default(),
            dra: DraManager::default(),
            checkpoints: Arc::default(),
            api: Arc::default(),
            metrics: Arc::default(),
            probe_metrics: Arc::default(),
            node: node_info(),
            tracer: None,
            workers: JoinSet::new(),
            highest_log: None,
        }
    }

    pub(super) fn deps(&self) -> Deps {
        let logs = Arc::new(NoLogs { highest: self.highest_log });
        Deps {
            volumes: self.volumes.clone(),
            cgroups: self.cgroups.clone(),
            probe_io: Arc::new(self.probes.clone()),
            devices: self.devices.clone(),
            dra: self.dra.clone(),
            checkpoints: self.checkpoints.clone(),
            api: self.api.clone(),
            metrics: self.metrics.clone(),
            probe_metrics: self.probe_metrics.clone(),
            node: Arc::new(self.node.clone()),
            tracer: self.tracer.clone(),
            ..deps(&self.runtime, logs, self.clock.clone())
        }
    }

    /// A new agent takes the pod up.
    pub(super) fn start(&mut self, pod: impl Into<PodUpdate>) -> PodHandle {
        let (_, silent) = watch::channel(false);
        let (worker, handle) = Worker::start_watched(pod, self.deps(), silent);
        self.workers.spawn(run_after(worker, vec![], vec![]));
        handle
    }

    /// The agent is gone; the runtime is not.
    pub(super) async fn kill_agent(&mut self) {
        self.workers.shutdown().await;
    }
}

pub(super) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn with(policy: RestartPolicy) -> Pod {
    with_restart_policy(policy, pod())
}

/// Waits up to ten (paused) minutes, and tells what was there instead.
pub(super) async fn until(handle: &PodHandle, what: &str, test: impl FnMut(&PodStatus) -> bool) -> PodStatus {
    match tokio::time::timeout(secs(600), handle.wait(test)).await {
        Ok(status) => status,
        Err(_) => panic!("never {what}: {:#?}", handle.status.borrow()),
    }
}

pub(super) async fn until_running(handle: &PodHandle) -> PodStatus {
    until(handle, "Running", |s| s.phase == Phase::Running && s.containers.iter().all(|c| c.ready)).await
}

pub(super) async fn until_reason(handle: &PodHandle, reason: &str) -> PodStatus {
    until(handle, reason, |s| s.reason == reason).await
}

pub(super) fn restarts_of(status: &PodStatus) -> u32 {
    status.containers.first().unwrap().restart_count
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_runs_and_is_stopped_within_its_grace() {
    let mut world = World::new();
    world.runtime.set_latency(Duration::from_millis(50));
    world.runtime.script("web", &[Script::Stubborn]);
    let handle = world.start(pod());
    let open = until(&handle, "open stage", |s| s.spans.iter().any(|span| span.name == "sandbox")).await;
    assert_eq!(open.spans.iter().find(|s| s.name == "sandbox").unwrap().end, 0);
    let status = until_running(&handle).await;
    assert_eq!(
        (status.reason.as_str(), status.ip.as_str(), status.life),
        ("Running", "10.88.0.2", Life::Running)
    );
    let by_others = |name: &&str| !name.starts_with("agent.") && !name.ends_with(".made");
    let names: Vec<&str> = status.spans.iter().map(|s| s.name.as_str()).filter(by_others).collect();
    assert_eq!(
        names,
        [
            "seen",
            "admitted",
            "cgroup",
            "volumes",
            "image",
            "sandbox",
            "container.create",
            "container.start",
            "ready"
        ]
    );
    // Side by side: the image was asked for before the sandbox was there.
    let span = |name: &str| status.spans.iter().find(|s| s.name == name).unwrap().clone();
    assert!(span("image").start < span("sandbox").end);

    let begun = world.clock.mono();
    handle.kill(Some(secs(7)), "test");
    assert_eq!(until_reason(&handle, "Terminating").await.phase, Phase::Running);
    let over = until(&handle, "over", PodStatus::is_over).await;
    let took = world.clock.mono() - begun;
    assert!((secs(7)..secs(9)).contains(&took), "{took:?}");
    let ContainerState::Terminated(exit) = &over.containers.first().unwrap().state else {
        panic!("{over:?}")
    };
    assert_eq!((exit.code, over.phase, over.ip.as_str()), (137, Phase::Failed, "10.88.0.2"));
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert_eq!(world.runtime.residue(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_whole_start_is_explained_and_asking_for_details_delays_nothing() {
    let mut world = World::new();
    world.runtime.set_latency(Duration::from_millis(10));
    world.runtime.set_timeline_latency(secs(60));
    world.runtime.script("setup", &[Script::Exit { after: Duration::from_millis(300), code: 0 }]);
    let setup = Container { role: Role::Init, ..container("setup") };
    let handle = world.start(Pod { init_containers: vec![setup], ..pod() });
    let status = until_running(&handle).await;
    let chart = Chart::new(&status.spans, 0);
    assert_eq!(chart.covered_percent(), 100, "{:#?}", status.spans);
    assert!(chart.ready.unwrap() < 1_000_000_000, "{:#?}", status.spans);
    // The agent's share is told, not hidden in the stages: without it there are gaps.
    let (own, stages): (Vec<Span>, Vec<Span>) =
        status.spans.iter().cloned().partition(|span| span.name.starts_with("agent."));
    assert!(Chart::new(&stages, 0).covered_percent() < 95, "{stages:#?}");
    let turns = own.iter().filter(|span| span.name == "agent.turn");
    let led_to: Vec<&str> = turns.filter_map(|span| span.detail.split(';').next()).collect();
    for next in ["[setup] container.start", "[web] container.create", "[web] container.start"] {
        assert!(led_to.contains(&format!("to {next}").as_str()), "{next}: {led_to:?}");
    }
    assert_eq!(led_to.last(), Some(&"to ready"));
    let ran = stages.iter().find(|span| span.name == "container.run").unwrap();
    assert_eq!((ran.container.as_str(), ran.end - ran.start), ("setup", 300_000_000));
    let detailed = |s: &PodStatus| {
        let has = |name| s.spans.iter().any(|span| span.name == name);
        has("sandbox.made") && has("container.create.made")
    };
    until(&handle, "detailed", detailed).await;
}

#[tokio::test(start_paused = true)]
async fn asking_again_only_shortens_the_grace() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let handle = world.start(pod());
    until_running(&handle).await;
    let begun = world.clock.mono();
    handle.kill(None, "test");
    until_reason(&handle, "Terminating").await;
    handle.kill(Some(secs(3600)), "longer");
    tokio::time::sleep(secs(2)).await;
    handle.kill(Some(secs(0)), "now");
    until(&handle, "over", PodStatus::is_over).await;
    // Two seconds are the least.
    assert!((secs(4)..secs(6)).contains(&(world.clock.mono() - begun)));
    assert_eq!(world.runtime.count("stop c"), 2, "{:?}", world.runtime.log());
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_backs_off_and_runs_again() {
    let mut world = World::new();
    let crash = Script::Exit { after: secs(1), code: 3 };
    world.runtime.script("web", &[crash.clone(), crash.clone(), crash, Script::Serve]);
    let handle = world.start(pod());
    let status = until_reason(&handle, "CrashLoopBackOff").await;
    assert_eq!((status.phase, restarts_of(&status)), (Phase::Running, 1));
    let web = status.containers.first().unwrap();
    let ContainerState::Waiting { message, .. } = &web.state else { panic!("{web:?}") };
    assert_eq!(message, "back-off 10s restarting failed container=web pod=web_default(uid-1)");
    assert_eq!(web.last_exit.as_ref().unwrap().code, 3);
    let begun = world.clock.mono();
    until(&handle, "second restart", |s| restarts_of(s) == 2).await;
    let took = world.clock.mono() - begun;
    assert!((secs(9)..secs(11)).contains(&took), "{took:?}");
    let status = until(&handle, "20s", |s| s.message.contains("back-off 20s")).await;
    assert_eq!(status.reason, "CrashLoopBackOff");
    let status = until_running(&handle).await;
    assert_eq!((restarts_of(&status), world.runtime.count("run-sandbox")), (3, 1));
    assert_eq!(status.spans.iter().filter(|s| s.name == "container.create").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_end_follows_the_restart_policy() {
    let exit = |code| Script::Exit { after: secs(1), code };
    for (policy, scripts, phase, restarts, reason) in [
        (RestartPolicy::Never, vec![exit(0)], Phase::Succeeded, 0, "Completed"),
        (RestartPolicy::Never, vec![exit(9)], Phase::Failed, 0, "Error"),
        (RestartPolicy::OnFailure, vec![exit(9), exit(9), exit(0)], Phase::Succeeded, 2, "Completed"),
    ] {
        let mut world = World::new();
        world.runtime.script("web", &scripts);
        let handle = world.start(with(policy));
        let status = until(&handle, "over", PodStatus::is_over).await;
        assert_eq!((status.phase, restarts_of(&status), status.reason.as_str()), (phase, restarts, reason));
        assert_eq!(world.runtime.count("stop-sandbox"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn several_containers_end_one_by_one() {
    let mut world = World::new();
    world.runtime.script("a", &[Script::Exit { after: secs(1), code: 0 }]);
    world.runtime.script("b", &[Script::Exit { after: secs(60), code: 0 }]);
    let containers = vec![container("a"), container("b")];
    let handle = world.start(with_restart_policy(RestartPolicy::Never, Pod { containers, ..pod() }));
    until(&handle, "a ended", |s| {
        matches!(s.containers.first().unwrap().state, ContainerState::Terminated(_))
    })
    .await;
    assert_eq!(handle.status.borrow().phase, Phase::Running);
    assert_eq!(until(&handle, "over", PodStatus::is_over).await.phase, Phase::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_backs_off_and_comes_later() {
    let mut world = World::new();
    world.runtime = FakeRuntime::new(&[]);
    let handle = world.start(pod());
    let status = until_reason(&handle, "ErrImagePull").await;
    assert_eq!(
        (status.phase, status.message.as_str()),
        (Phase::Pending, "container web: rpc error: code = NotFound desc = reg/img:v1: not found")
    );
    let status = until_reason(&handle, "ImagePullBackOff").await;
    assert_eq!(
        status.message,
        "container web: Back-off pulling image \"reg/img:v1\": ErrImagePull: rpc error: code = NotFound desc = reg/img:v1: not found"
    );
    assert_eq!(world.runtime.count("pull"), 1);
    world.runtime.publish(IMAGE);
    let begun = world.clock.mono();
    assert_eq!(restarts_of(&until_running(&handle).await), 0);
    assert!((secs(8)..secs(11)).contains(&(world.clock.mono() - begun)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_stuck_on_its_image_is_stopped_at_once_and_leaves_nothing() {
    let mut world = World::new();
    world.runtime = FakeRuntime::new(&[]);
    let handle = world.start(pod());
    until_reason(&handle, "ImagePullBackOff").await;
    let begun = world.clock.mono();
    handle.kill(None, "test");
    handle.remove();
    let status = until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert!(world.clock.mono() - begun < secs(2));
    assert_eq!((status.phase, world.runtime.residue()), (Phase::Failed, 0));
}

#[tokio::test(start_paused = true)]
async fn wrong_names_and_absent_images_have_their_own_reasons() {
    for (image, policy, reason, part) in [
        ("Not An Image", PullPolicy::Always, "InvalidImageName", "couldn't parse image name"),
        (IMAGE, PullPolicy::Never, "ErrImageNeverPull", "is not present with pull policy of Never"),
    ] {
        let mut world = World::new();
        let web = Container { image: image.into(), pull_policy: policy, ..container("web") };
        let handle = world.start(Pod { containers: vec![web], ..pod() });
        let status = until_reason(&handle, reason).await;
        assert!(status.message.contains(part), "{}", status.message);
        assert_eq!(world.runtime.count("pull"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_sandbox_create_and_start_are_told_and_overcome() {
    for (call, part) in [
        (Call::RunSandbox, "Failed to create pod sandbox: rpc error: code = Unknown desc = no address left"),
        (Call::Create, "web: no address left"),
        (Call::Start, "web: no address left"),
    ] {
        let mut world = World::new();
        world.runtime.fail(call, 3, FailureKind::Failed, "no address left");
        let handle = world.start(pod());
        let status = until(&handle, part, |s| s.message.contains(part)).await;
        let reason = match call {
            Call::RunSandbox => "ContainerCreating",
            Call::Create => "CreateContainerError",
            _ => "RunContainerError",
        };
        assert_eq!(status.reason, reason);
        let status = until_running(&handle).await;
        assert_eq!((restarts_of(&status), status.message.as_str()), (0, ""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_started_is_a_start_error() {
    let fail = Script::FailStart("exec: \"/bin/nope\": no such file".into());
    let mut world = World::new();
    world.runtime.script("web", std::slice::from_ref(&fail));
    let handle = world.start(with(RestartPolicy::Never));
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "StartError"));
    assert_eq!(status.message, "container web: exec: \"/bin/nope\": no such file");

    let mut world = World::new();
    world.runtime.script("web", &[fail.clone(), fail, Script::Serve]);
    let handle = world.start(pod());
    until_reason(&handle, "RunContainerError").await;
    until_reason(&handle, "CrashLoopBackOff").await;
    assert_eq!(restarts_of(&until_running(&handle).await), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_replaced() {
    let mut world = World::new();
    let handle = world.start(pod());
    until_running(&handle).await;
    world.runtime.break_sandboxes();
    let status = until(&handle, "restarted", |s| restarts_of(s) == 1 && s.reason == "Running").await;
    assert_eq!(status.phase, Phase::Running);
    assert_eq!((world.runtime.count("run-sandbox 0"), world.runtime.count("run-sandbox 1")), (1, 1));

    let mut world = World::new();
    let handle = world.start(with(RestartPolicy::Never));
    until_running(&handle).await;
    world.runtime.break_sandboxes();
    assert_eq!(until(&handle, "over", PodStatus::is_over).await.phase, Phase::Failed);
    assert_eq!(world.runtime.count("run-sandbox"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_at_any_moment_of_a_start_leaves_no_twin() {
    // Each call takes 10 ms there and 10 ms back; the agent dies once in every 3 ms.
    for dies_at in (0..160).step_by(3) {
        let mut world = World::new();
        world.runtime.set_latency(Duration::from_millis(10));
        drop(world.start(pod()));
        tokio::time::sleep(Duration::from_millis(dies_at)).await;
        world.kill_agent().await;
        let handle = world.start(pod());
        let status = until_running(&handle).await;
        let log = world.runtime.log();
        assert_eq!(restarts_of(&status), 0, "died at {dies_at} ms: {log:?}");
        assert_eq!(world.runtime.count("create web/"), 1, "died at {dies_at} ms: {log:?}");
        assert_eq!(world.runtime.count("run-sandbox"), 1, "died at {dies_at} ms: {log:?}");
        handle.kill(None, "test");
        handle.remove();
        until(&handle, "gone", |s| s.life == Life::Gone).await;
        assert_eq!(world.runtime.residue(), 0, "died at {dies_at} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_adopts_what_runs_and_what_has_ended() {
    let mut world = World::new();
    let handle = world.start(pod());
    let id = until_running(&handle).await.containers.first().unwrap().id.clone();
    world.kill_agent().await;
    let log = world.runtime.log();
    let handle = world.start(pod());
    let status = until_running(&handle).await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(status.containers.first().unwrap().id, id);
    assert_eq!(world.runtime.log(), log);

    let mut world = World::new();
    world.runtime.script("web", &[Script::Exit { after: secs(1), code: 4 }]);
    drop(world.start(with(RestartPolicy::Never)));
    tokio::time::sleep(Duration::from_millis(400)).await;
    world.kill_agent().await;
    tokio::time::sleep(secs(60)).await;
    let handle = world.start(with(RestartPolicy::Never));
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, world.runtime.count("create")), (Phase::Failed, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_resumed_by_a_new_agent_that_is_asked_again() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let handle = world.start(pod());
    until_running(&handle).await;
    handle.kill(None, "test");
    tokio::time::sleep(secs(3)).await;
    world.kill_agent().await;
    let handle = world.start(pod());
    handle.kill(Some(secs(1)), "test");
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert_eq!(world.runtime.residue(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_down_changes_nothing_and_is_told() {
    let mut world = World::new();
    let handle = world.start(pod());
    until_running(&handle).await;
    world.runtime.fail(Call::Observe, 5, FailureKind::Unavailable, "connection refused");
    let status = until(&handle, "told", |s| !s.message.is_empty()).await;
    assert_eq!(status.message, "the runtime does not answer: connection refused");
    assert_eq!(status.phase, Phase::Running);
    let status = until(&handle, "back", |s| s.message.is_empty()).await;
    assert_eq!((restarts_of(&status), world.runtime.count("create")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn failing_stops_are_tried_until_they_succeed() {
    let mut world = World::new();
    let handle = world.start(pod());
    until_running(&handle).await;
    world.runtime.fail(Call::StopSandbox, 2, FailureKind::Failed, "device busy");
    world.runtime.fail(Call::RemoveSandbox, 1, FailureKind::Failed, "device busy");
    handle.kill(None, "test");
    handle.remove();
    until(&handle, "told", |s| s.message.contains("device busy")).await;
    until(&handle, "gone", |s| s.life == Life::Gone).await;
    assert_eq!(world.runtime.residue(), 0);
}

#[tokio::test(start_paused = true)]
async fn trap_02_same_name_and_new_uid_waits_for_the_old_one_to_be_gone() {
    let mut world = World::new();
    world.runtime.script("web", &[Script::Stubborn]);
    let old = world.start(pod());
    until_running(&old).await;
    world.kill_agent().await;
    world.runtime.script("web", &[Script::Serve]);
    let new = world.start(Pod { uid: PodUid::parse("uid-2").unwrap(), ..pod() });
    until(&new, "waiting", |s| s.message.contains("earlier pod uid-1")).await;
    assert_eq!(world.runtime.count("create"), 1);
    assert_eq!(new.status.borrow().containers.first().unwrap().id, "");
    until_running(&new).await;
    assert!(world.runtime.observe(&PodUid::parse("uid-1").unwrap()).await.unwrap().sandboxes.is_empty());
    assert_eq!(world.runtime.residue(), 2);
}

#[tokio::test(start_paused = true)]
async fn trap_08_the_restart_count_goes_on_from_the_logs() {
    let mut world = World::new();
    world.highest_log = Some(6);
    let handle = world.start(pod());
    assert_eq!(restarts_of(&until_running(&handle).await), 7);
}

#[tokio::test(start_paused = true)]
async fn trap_15_a_step_of_the_wall_clock_neither_kills_nor_hurries() {
    let mut world = World::new();
    let crash = Script::Exit { after: secs(1), code: 3 };
    world.runtime.script("web", &[crash.clone(), crash, Script::Stubborn]);
    let handle = world.start(pod());
    until_reason(&handle, "CrashLoopBackOff").await;
    let begun = world.clock.mono();
    world.clock.step_wall(3600);
    until_running(&handle).await;
    assert!(world.clock.mono() - begun > secs(8));
    handle.kill(Some(secs(10)), "test");
    world.clock.step_wall(-7200);
    let begun = world.clock.mono();
    until(&handle, "over", PodStatus::is_over).await;
    assert!((secs(9)..secs(12)).contains(&(world.clock.mono() - begun)));
}

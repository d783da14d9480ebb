//! Sets of pods that change, and the runtime's events, on fakes and paused time.

use std::path::PathBuf;

use gantry_model::clock::FakeClock;
use gantry_model::failure::FailureKind;
use gantry_model::pod::{Origin, PodUid};

use super::*;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::fake::Memory;
use crate::logs::dir::LogDir;
use crate::pod::status::{ContainerState, ContainerStatus, Phase};
use crate::pod::tests::{deps, pod};
use crate::runtime::Runtime;
use crate::runtime::fake::{Call, FakeRuntime, Script};

mod cpus;
mod devices;
mod looks;
mod resizes;

struct WorkersFixture {
    runtime: FakeRuntime,
    clock: Arc<FakeClock>,
    folder: PathBuf,
    _guard: tempfile::TempDir,
}

impl WorkersFixture {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        Self {
            runtime: FakeRuntime::new(&["reg/img:v1"]),
            clock: Arc::new(FakeClock::new(1_800_000_000)),
            folder: guard.path().to_owned(),
            _guard: guard,
        }
    }

    fn agent(&self, pods: Vec<Pod>) -> PodWorkers {
        let logs = Arc::new(LogDir::new(self.folder.clone()));
        PodWorkers::start(pods, deps(&self.runtime, logs, self.clock.clone()))
    }
}

fn named(name: &str, uid: &str) -> Pod {
    Pod { name: name.into(), uid: PodUid::parse(uid).unwrap(), ..pod() }
}

async fn running(handle: &PodHandle) -> PodStatus {
    let running = handle.wait(|s| s.phase == Phase::Running && s.reason == "Running");
    tokio::time::timeout(Duration::from_secs(600), running).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_set_of_pods_may_change_and_the_same_pods_are_left_alone() {
    let machine = WorkersFixture::new();
    let mut agent = machine.agent(vec![named("a", "a-1"), named("b", "b-1")]);
    let first = agent.pods();
    for handle in first.iter() {
        running(handle).await;
    }
    agent.apply(vec![named("b", "b-1"), named("c", "c-1")]);
    let [a, b, c] = &*agent.pods() else { panic!("{:?}", agent.pods()) };
    a.wait(|s| s.life == Life::Gone).await;
    running(c).await;
    assert_eq!(b.status.borrow().containers.first().unwrap().restart_count, 0);
    assert_eq!(machine.runtime.count("create"), 3);
    // One that is gone leaves the list with the next set.
    agent.apply(vec![named("b", "b-1"), named("c", "c-1")]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    agent.apply(vec![named("b", "b-1"), named("c", "c-1")]);
    assert_eq!(agent.pods().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn trap_02_a_changed_pod_waits_for_the_old_one_of_the_same_agent() {
    let machine = WorkersFixture::new();
    machine.runtime.script("web", &[Script::Stubborn, Script::Serve]);
    let mut agent = machine.agent(vec![named("a", "a-1")]);
    running(agent.pods().first().unwrap()).await;
    agent.apply(vec![named("a", "a-2")]);
    let [old, new] = &*agent.pods() else { panic!("{:?}", agent.pods()) };
    new.wait(|s| s.message.contains("earlier pod a-1")).await;
    assert_eq!(machine.runtime.count("create"), 1);
    running(new).await;
    assert_eq!(old.status.borrow().life, Life::Gone);
    assert_eq!(machine.runtime.count("stop c"), 1, "{:?}", machine.runtime.log());
}

#[tokio::test(start_paused = true)]
async fn the_logs_of_a_pod_that_is_gone_go_with_it() {
    let machine = WorkersFixture::new();
    let mut agent = machine.agent(vec![named("a", "a-1")]);
    running(agent.pods().first().unwrap()).await;
    assert!(machine.folder.join("default_a_a-1").exists());
    agent.apply(vec![named("a", "a-2")]);
    let [old, new] = &*agent.pods() else { panic!("{:?}", agent.pods()) };
    old.wait(|s| s.life == Life::Gone).await;
    assert!(!machine.folder.join("default_a_a-1").exists());
    running(new).await;
    assert!(machine.folder.join("default_a_a-2").exists());
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_whose_file_comes_back_within_its_grace_runs_again() {
    let machine = WorkersFixture::new();
    machine.runtime.script("web", &[Script::Stubborn, Script::Serve]);
    let mut agent = machine.agent(vec![named("a", "a-1")]);
    running(agent.pods().first().unwrap()).await;
    agent.apply(vec![]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    agent.apply(vec![named("a", "a-1")]);
    agent.apply(vec![named("a", "a-1")]);
    let [old, new] = &*agent.pods() else { panic!("{:?}", agent.pods()) };
    running(new).await;
    assert_eq!(agent.deps.metrics.restarted_pods.get([""]), Some(1.0));
    assert_eq!((old.status.borrow().life, machine.runtime.count("create")), (Life::Gone, 2));
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_whose_file_was_removed_and_made_again_between_two_looks_runs_anew() {
    let machine = WorkersFixture::new();
    let met = |at: &str| {
        let annotations = [("kubernetes.io/config.seen".to_owned(), at.to_owned())].into();
        Pod { origin: Origin::Static, annotations, ..named("a", "a-1") }
    };
    let mut agent = machine.agent(vec![met("1")]);
    running(agent.pods().first().unwrap()).await;
    agent.apply(vec![met("1")]);
    assert_eq!(agent.pods().len(), 1);
    agent.apply(vec![met("2")]);
    let [old, new] = &*agent.pods() else { panic!("{:?}", agent.pods()) };
    running(new).await;
    assert_eq!(old.status.borrow().life, Life::Gone);
    let status = new.status.borrow();
    // As upstream, which still knows of the container that ended.
    assert_eq!(status.containers.first().unwrap().restart_count, 1);
    assert_eq!(machine.runtime.count("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn static_pods_whose_files_went_without_an_agent_end_and_no_others() {
    let machine = WorkersFixture::new();
    let memory: Arc<Memory> = Arc::default();
    let agent = |pods| {
        let logs = Arc::new(LogDir::new(machine.folder.clone()));
        let deps = deps(&machine.runtime, logs, machine.clock.clone());
        PodWorkers::start(pods, Deps { checkpoints: memory.clone(), ..deps })
    };
    let of_folder = |name, uid| Pod { origin: Origin::Static, ..named(name, uid) };
    let first = agent(vec![of_folder("gone", "gone-1"), of_folder("kept", "kept-1"), named("run", "run-1")]);
    for handle in first.pods().iter() {
        running(handle).await;
    }
    drop(first);
    let of_another_agent = machine.agent(vec![of_folder("other", "other-1")]);
    running(of_another_agent.pods().first().unwrap()).await;
    drop(of_another_agent);
    let mut second = agent(vec![of_folder("kept", "kept-1")]);
    machine.runtime.fail(Call::Observe, 1, FailureKind::Unavailable, "down");
    assert_eq!(second.end_forgotten().await, Err("list pods: down".to_owned()));
    second.end_forgotten().await.unwrap();
    let [_, gone] = &*second.pods() else { panic!("{:?}", second.pods()) };
    assert_eq!(gone.pod.uid.as_str(), "gone-1");
    gone.wait(|s| s.life == Life::Gone).await;
    let mut left: Vec<_> =
        machine.runtime.pods().await.unwrap().into_iter().map(|p| p.uid.to_string()).collect();
    left.sort();
    assert_eq!(left, ["kept-1", "other-1", "run-1"]);
    let claims = memory.claims().await.unwrap();
    assert_eq!(claims.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["kept-1", "run-1"]);
}

#[tokio::test(start_paused = true)]
async fn trap_01_a_runtime_that_is_away_for_minutes_costs_no_container() {
    let machine = WorkersFixture::new();
    let agent = machine.agent(vec![named("a", "a-1")]);
    let id = running(agent.pods().first().unwrap()).await.containers.first().unwrap().id.clone();
    drop(agent);
    // A new agent comes while nobody answers, and knows nothing.
    machine.runtime.fail(Call::Observe, 180, FailureKind::Unavailable, "connection refused");
    machine.runtime.fail(Call::Changes, 180, FailureKind::Unavailable, "connection refused");
    let before = machine.runtime.log();
    let agent = machine.agent(vec![named("a", "a-1")]);
    let status = running(agent.pods().first().unwrap()).await;
    assert_eq!((&status.containers.first().unwrap().id, machine.runtime.log()), (&id, before));
    assert!(matches!(status.containers.first().unwrap().state, ContainerState::Running { .. }));
}

mod described {
    //! Sets of an API server: admission, incomplete sets, deletion.

    use std::collections::BTreeMap;

    use gantry_model::pod::{Container, Port, Requirements, Resources};

    use super::*;
    use crate::admission::Node;
    use crate::devices::DeviceManager;
    use crate::node::NodeInfo;
    use crate::pod::last::Last;

    fn asks(name: &str, uid: &str, cpu: i64) -> PodUpdate {
        let resources = Resources { cpu_request: Some(cpu), ..Resources::default() };
        let containers = pod().containers.into_iter().map(|c| Container { resources, ..c }).collect();
        Pod { origin: Origin::Api, containers, ..named(name, uid) }.into()
    }

    fn node(cpu: i64) -> watch::Receiver<Option<Arc<Node>>> {
        let allocatable = BTreeMap::from([("cpu".into(), cpu), ("pods".into(), 110)]);
        watch::channel(Some(Arc::new(Node { name: "n".into(), allocatable, ..Node::default() }))).1
    }

    fn find(agent: &PodWorkers, uid: &str) -> PodHandle {
        agent.pods().iter().find(|handle| handle.pod.uid.as_str() == uid).unwrap().clone()
    }

    async fn over(handle: &PodHandle) -> PodStatus {
        tokio::time::timeout(Duration::from_secs(600), handle.wait(PodStatus::is_over)).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn trap_01_an_incomplete_set_ends_nobody() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        agent.take(Vec::<PodUpdate>::new(), SourcesReady { api: false, files: true });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!find(&agent, "a-1").is_ending());
        agent.take(Vec::<PodUpdate>::new(), SourcesReady::ALL);
        find(&agent, "a-1").wait(|s| s.life == Life::Gone).await;
        assert_eq!(machine.runtime.residue(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_are_as_before_wake_nobody() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        let mut listener = agent.watch_pods();
        listener.mark_unchanged();
        let mut wakes = |agent: &mut PodWorkers, wanted: Vec<PodUpdate>| {
            agent.take(wanted, SourcesReady::ALL);
            let changed = listener.has_changed().unwrap();
            listener.mark_unchanged();
            changed
        };
        assert!(!wakes(&mut agent, vec![asks("a", "a-1", 0)]));
        let other = PodUpdate { last: Last { started_at: 1, ..Last::default() }, ..asks("a", "a-1", 0) };
        assert!(!wakes(&mut agent, vec![other]), "what this node told itself");
        assert!(wakes(&mut agent, vec![asks("a", "a-1", 1)]));
        assert!(wakes(&mut agent, vec![asks("a", "a-1", 1), asks("b", "b-1", 0)]));
        let ends = PodUpdate { ending: Some(Duration::ZERO), ..asks("b", "b-1", 0) };
        agent.take(vec![asks("a", "a-1", 1), ends], SourcesReady::ALL);
        assert!(find(&agent, "b-1").is_ending());
    }

    #[tokio::test(start_paused = true)]
    async fn trap_01_what_nobody_wants_is_ended_once_all_is_known() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0), asks("b", "b-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        running(&find(&agent, "b-1")).await;
        drop(agent);
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        machine.runtime.fail(Call::Observe, 1, FailureKind::Unavailable, "down");
        assert_eq!(agent.end_unwanted(false).await.unwrap_err(), "down");
        agent.end_unwanted(false).await.unwrap();
        assert_eq!(agent.deps.metrics.orphaned_runtime_pods.get([]), Some(1.0));
        find(&agent, "b-1").wait(|s| s.life == Life::Gone).await;
        running(&find(&agent, "a-1")).await;
        assert_eq!(machine.runtime.count("create"), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn trap_02_pods_of_one_name_and_two_uids_do_not_wait_for_each_other() {
        let machine = WorkersFixture::new();
        machine.runtime.script("web", &[Script::Stubborn]);
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        let leaving = PodUpdate { ending: Some(Duration::from_secs(3600)), ..asks("a", "a-1", 0) };
        agent.take(vec![leaving, asks("a", "a-2", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-2")).await;
        assert!(!find(&agent, "a-1").status.borrow().is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_pod_is_ended_but_forgotten_only_when_the_api_has_forgotten_it() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        let leaving = || PodUpdate { ending: Some(Duration::from_secs(5)), ..asks("a", "a-1", 0) };
        agent.take(vec![leaving()], SourcesReady::ALL);
        assert_eq!(over(&find(&agent, "a-1")).await.life, Life::Stopped);
        agent.take(vec![leaving()], SourcesReady::ALL);
        assert_eq!(find(&agent, "a-1").status.borrow().life, Life::Stopped);
        agent.take(Vec::<PodUpdate>::new(), SourcesReady::ALL);
        find(&agent, "a-1").wait(|s| s.life == Life::Gone).await;
    }

    #[tokio::test(start_paused = true)]
    async fn admission_goes_by_age_and_never_rejects_what_was_taken_up_before() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.admit_by(node(1000));
        let aged = |name: &str, uid: &str, created_at| {
            let mut wanted = asks(name, uid, 600);
            Arc::make_mut(&mut wanted.pod).created_at = created_at;
            wanted
        };
        agent.take(vec![aged("young", "y-1", 20), aged("old", "o-1", 10)], SourcesReady::ALL);
        running(&find(&agent, "o-1")).await;
        let young = over(&find(&agent, "y-1")).await;
        assert_eq!((young.phase, young.api_reason.as_str()), (Phase::Failed, "OutOfcpu"));
        assert_eq!(agent.deps.metrics.admission_rejections.get(["OutOfcpu"]), Some(1.0));
        // A new agent on a smaller node: who ran before runs on.
        drop(agent);
        let mut agent = machine.agent(vec![]);
        agent.admit_by(node(500));
        let last = Last { started_at: 1, ..Last::default() };
        agent.take(vec![PodUpdate { last, ..aged("old", "o-1", 10) }], SourcesReady::ALL);
        running(&find(&agent, "o-1")).await;
        assert_eq!(machine.runtime.count("create"), 1);
    }

    /// Upstream gives devices before it counts: whether there are enough is said there, in those words.
    #[tokio::test(start_paused = true)]
    async fn devices_are_counted_where_they_are_given() {
        let machine = WorkersFixture::new();
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("device-plugins");
        std::fs::create_dir(&folder).unwrap();
        let left = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"vendor.com/gpu":["a"]}},"Checksum":4102375016}"#;
        std::fs::write(folder.join("kubelet_internal_checkpoint"), left).unwrap();
        let mut agent = machine.agent(vec![]);
        agent.deps.devices = DeviceManager::open(root.path(), machine.clock.clone(), Arc::default());
        let allocatable = BTreeMap::from([("vendor.com/gpu".into(), 0), ("pods".into(), 110)]);
        let node = Node { name: "n".into(), allocatable, ..Node::default() };
        agent.admit_by(watch::channel(Some(Arc::new(node))).1);
        let one = BTreeMap::from([("vendor.com/gpu".to_owned(), "1".to_owned())]);
        let mut update: PodUpdate = named("a", "a-1").into();
        let pod = Arc::make_mut(&mut update.pod);
        pod.origin = Origin::Api;
        pod.containers[0].written = Requirements { requests: one.clone(), limits: one };
        agent.take(vec![update], SourcesReady::ALL);
        let status = over(&find(&agent, "a-1")).await;
        assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "UnexpectedAdmissionError"));
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_the_runtime_cannot_hold_to_are_refused_without_a_cluster_too() {
        let machine = WorkersFixture::new();
        let mut strict = named("a", "a-1");
        strict.security.strict_groups = true;
        let agent = machine.agent(vec![strict]);
        let status = over(&find(&agent, "a-1")).await;
        assert_eq!(
            (status.phase, status.api_reason.as_str()),
            (Phase::Failed, "SupplementalGroupsPolicyNotSupported")
        );
        assert_eq!(machine.runtime.residue(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_pods_ask_for_as_a_whole_is_refused_where_its_gate_is_closed() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.deps.node = Arc::new(NodeInfo { no_pod_level: true, ..NodeInfo::clone(&agent.deps.node) });
        let (mut asks, mut empty) = (named("a", "a-1"), named("b", "b-1"));
        let limits = BTreeMap::from([("cpu".to_owned(), "1".to_owned())]);
        asks.resources = Some(Requirements { limits, ..Requirements::default() });
        empty.resources = Some(Requirements::default());
        agent.take(vec![PodUpdate::from(asks), empty.into()], SourcesReady::ALL);
        let status = over(&find(&agent, "a-1")).await;
        assert_eq!(
            (status.phase, status.api_reason.as_str(), status.api_message.as_str()),
            (
                Phase::Failed,
                "PodLevelResourcesNotSupported",
                "Pod was rejected: PodLevelResources feature gate is disabled"
            )
        );
        running(&find(&agent, "b-1")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_profile_that_nobody_would_enforce_is_refused_without_a_cluster_too() {
        let machine = WorkersFixture::new();
        let mut armed = named("a", "a-1");
        armed.security.app_armor = true;
        let agent = machine.agent(vec![armed]);
        let status = over(&find(&agent, "a-1")).await;
        assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "AppArmor"));
        assert_eq!(machine.runtime.residue(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_critical_pod_waits_for_those_that_it_displaces() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.admit_by(node(1000));
        agent.take(vec![asks("a", "a-1", 600)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        let mut critical = asks("c", "c-1", 600);
        Arc::make_mut(&mut critical.pod).placement.priority = Some(2_000_000_000);
        agent.take(vec![asks("a", "a-1", 600), critical], SourcesReady::ALL);
        let victim = over(&find(&agent, "a-1")).await;
        assert_eq!(
            (victim.phase, victim.api_reason.as_str(), victim.api_message.as_str()),
            (Phase::Failed, "Preempting", "Preempted in order to admit critical pod")
        );
        assert!(victim.disrupted.unwrap().starts_with("Pod was preempted by Kubelet"));
        assert_eq!(agent.deps.metrics.preemptions.get(["cpu"]), Some(1.0));
        running(&find(&agent, "c-1")).await;
        let log = machine.runtime.log();
        let at = |part: &str, nth| {
            log.iter().enumerate().filter(|(_, l)| l.contains(part)).map(|(i, _)| i).nth(nth)
        };
        assert!(at("stop-sandbox", 0) < at("run-sandbox", 1), "{log:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_somebody_has_said_is_over_ends_though_its_worker_had_not_begun() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        let running_yet = Arc::new(asks("a", "a-1", 0));
        agent.take(vec![running_yet.clone()], SourcesReady::ALL);
        let (reason, message) = ("NodeLost".to_owned(), "the node was away".to_owned());
        let end = crate::pod::last::LastEnd { phase: Phase::Failed, reason, message };
        let mut word = PodUpdate::clone(&running_yet);
        word.last.end = Some(end);
        let word = Arc::new(word);
        agent.take(vec![word.clone()], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        // The very same, at the manager's next round.
        agent.take(vec![word], SourcesReady::ALL);
        let status = self::over(&find(&agent, "a-1")).await;
        assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "NodeLost"));
    }

    /// kubeadm's manifests of the control plane have host ports, and are edited by an upgrade.
    #[tokio::test(start_paused = true)]
    async fn trap_10_an_edited_manifest_takes_over_what_its_earlier_version_was_admitted_for() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.admit_by(node(1000));
        let version = |uid: &str| -> PodUpdate {
            let (name, protocol, host_ip) = (String::new(), "TCP".to_owned(), String::new());
            let ports = vec![Port { name, port: 6443, protocol, host_port: 6443, host_ip }];
            let resources = Resources { cpu_request: Some(600), ..Resources::default() };
            let own = |c: Container| Container { resources, ports: ports.clone(), ..c };
            let containers = pod().containers.into_iter().map(own).collect();
            Pod { origin: Origin::Static, containers, ..named("apiserver-n", uid) }.into()
        };
        // Whether or not the API server was heard: it may be the very one.
        for (uid, heard) in [
            ("v-1", SourcesReady::ALL),
            ("v-2", SourcesReady::ALL),
            ("v-3", SourcesReady { api: false, files: true }),
        ] {
            agent.take(vec![version(uid)], heard);
            running(&find(&agent, uid)).await;
        }
        assert_eq!(machine.runtime.count("create"), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_left_by_force_is_not_counted_against_its_successor() {
        let machine = WorkersFixture::new();
        machine.runtime.script("web", &[Script::Stubborn]);
        let mut agent = machine.agent(vec![]);
        agent.admit_by(node(1000));
        agent.take(vec![asks("a", "a-1", 600)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        agent.take(vec![asks("a", "a-2", 600)], SourcesReady::ALL);
        running(&find(&agent, "a-2")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_comes_back_while_it_ends_waits_for_itself() {
        let machine = WorkersFixture::new();
        machine.runtime.script("web", &[Script::Stubborn, Script::Serve]);
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        agent.take(Vec::<PodUpdate>::new(), SourcesReady::ALL);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        let again = agent.pods().last().unwrap().clone();
        running(&again).await;
        let log = machine.runtime.log();
        let at = |part: &str| log.iter().rposition(|line| line.contains(part)).unwrap();
        assert!(at("remove-sandbox") < at("run-sandbox"), "{log:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_description_that_cannot_be_followed_leaves_the_pod_as_it_was() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        let refused = Some(Rejection::new("PodFeatureUnsupported", "resources.claims"));
        let bare = || Pod { origin: Origin::Api, containers: vec![], generation: 2, ..named("a", "a-1") };
        let unfit = || PodUpdate { refused: refused.clone(), ..bare().into() };
        agent.take(vec![unfit()], SourcesReady::ALL);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(!find(&agent, "a-1").status.borrow().is_over());
        assert_eq!(machine.runtime.count("stop"), 0);
        // Its deletion counts.
        agent.take(vec![PodUpdate { ending: Some(Duration::from_secs(1)), ..unfit() }], SourcesReady::ALL);
        assert_eq!(over(&find(&agent, "a-1")).await.containers.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_another_kubelet_that_this_one_cannot_run_is_left_alone_until_it_is_deleted() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![named("a", "a-1")]);
        running(&find(&agent, "a-1")).await;
        drop(agent);
        agent = machine.agent(vec![]);
        let refused = Some(Rejection::new("PodFeatureUnsupported", "csi"));
        let last = Last { started_at: 1, ..Last::default() };
        let bare = || Pod { origin: Origin::Api, containers: vec![], ..named("a", "a-1") };
        let foreign = || PodUpdate { last: last.clone(), refused: refused.clone(), ..bare().into() };
        agent.take(vec![foreign()], SourcesReady::ALL);
        agent.end_unwanted(false).await.unwrap();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!((agent.pods().len(), machine.runtime.count("stop")), (0, 0));
        agent.take(vec![PodUpdate { ending: Some(Duration::from_secs(5)), ..foreign() }], SourcesReady::ALL);
        over(&find(&agent, "a-1")).await;
        assert_eq!(machine.runtime.count("stop "), 1);
        agent.take(Vec::<PodUpdate>::new(), SourcesReady::ALL);
        find(&agent, "a-1").wait(|s| s.life == Life::Gone).await;
        assert_eq!(machine.runtime.residue(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_phase_somebody_has_ended_in_the_api_is_ended() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        running(&find(&agent, "a-1")).await;
        let end = LastEnd { phase: Phase::Failed, reason: "Gone".into(), message: "by the collector".into() };
        let last = Last { end: Some(end), ..Last::default() };
        agent.take(vec![PodUpdate { last, ..asks("a", "a-1", 0) }], SourcesReady::ALL);
        let status = over(&find(&agent, "a-1")).await;
        assert_eq!((status.phase, status.api_reason.as_str()), (Phase::Failed, "Gone"));
        assert_eq!(machine.runtime.count("create"), 1);
    }

    /// Others compare descriptions by their address.
    #[tokio::test(start_paused = true)]
    async fn the_same_description_is_the_very_same() {
        let machine = WorkersFixture::new();
        let mut agent = machine.agent(vec![]);
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        let before = find(&agent, "a-1");
        agent.take(vec![asks("a", "a-1", 0)], SourcesReady::ALL);
        assert!(Arc::ptr_eq(&before.pod, &find(&agent, "a-1").pod));
        agent.take(vec![asks("a", "a-1", 1)], SourcesReady::ALL);
        assert!(!Arc::ptr_eq(&before.pod, &find(&agent, "a-1").pod));
    }
}

//! Resizes that wait: for which reason, in which order they are tried, and when.

use gantry_model::allocation::resources;
use gantry_model::pod::{Container, Requirements, RestartPolicy};

use super::*;
use crate::pod::status::{Condition, ConditionKind};
use crate::pod::tests::with_restart_policy;

fn sized(uid: &str, cpu: &str) -> Pod {
    let requests = [("cpu".to_owned(), cpu.to_owned())].into();
    let written = Requirements { requests, ..Requirements::default() };
    let own = |c: Container| Container { resources: resources(&written), written: written.clone(), ..c };
    let containers = pod().containers.into_iter().map(own).collect();
    Pod { origin: Origin::Api, containers, generation: 1, ..named(uid, uid) }
}

fn asks(uid: &str, cpu: &str) -> PodUpdate {
    sized(uid, cpu).into()
}

fn node(cpu: i64) -> watch::Receiver<Option<Arc<Node>>> {
    let allocatable = BTreeMap::from([("cpu".into(), cpu), ("pods".into(), 110)]);
    watch::channel(Some(Arc::new(Node { name: "n".into(), allocatable, ..Node::default() }))).1
}

fn find(agent: &PodWorkers, uid: &str) -> PodHandle {
    agent.pods().iter().find(|handle| handle.pod.uid.as_str() == uid).unwrap().clone()
}

fn cpu_of(agent: &PodWorkers, uid: &str) -> Option<i64> {
    find(agent, uid).pod.containers[0].resources.cpu_request
}

async fn pending(agent: &PodWorkers, uid: &str) -> Condition {
    let handle = find(agent, uid);
    let waits = handle.wait(|s| s.holds(ConditionKind::PodResizePending));
    let status = tokio::time::timeout(Duration::from_secs(600), waits).await.unwrap();
    status.conditions.into_iter().find(|one| one.kind == ConditionKind::PodResizePending).unwrap()
}

fn told(agent: &PodWorkers, uid: &str, reason: &str) -> u32 {
    let events = find(agent, uid).events();
    events.iter().filter(|event| event.note.reason == reason).map(|event| event.count).sum()
}

async fn until_told(agent: &PodWorkers, uid: &str, reason: &str) {
    let told = |s: &PodStatus| s.events.iter().any(|event| event.note.reason == reason);
    tokio::time::timeout(Duration::from_secs(600), find(agent, uid).wait(told)).await.unwrap();
}

/// Until the agent would look again.
async fn change(agent: &mut PodWorkers) {
    tokio::time::timeout(Duration::from_secs(600), agent.wait_for_change()).await.unwrap();
}

/// Takes the pods in whenever the agent would, until the pod has so much.
async fn until_cpu(agent: &mut PodWorkers, uid: &str, cpu: i64, wanted: impl Fn() -> Vec<PodUpdate>) {
    while cpu_of(agent, uid) != Some(cpu) {
        change(agent).await;
        agent.take(wanted(), SourcesReady::ALL);
    }
}

async fn started(machine: &WorkersFixture, cpu: i64, pods: &[(&str, &str)]) -> PodWorkers {
    let mut agent = machine.agent(vec![]);
    agent.admit_by(node(cpu));
    agent.take(pods.iter().map(|(uid, cpu)| asks(uid, cpu)).collect(), SourcesReady::ALL);
    for (uid, _) in pods {
        running(&find(&agent, uid)).await;
    }
    agent
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_has_no_room_waits_and_others_are_admitted_beside_what_the_pod_has() {
    let machine = WorkersFixture::new();
    let mut agent = started(&machine, 1000, &[("a", "400m")]).await;
    agent.take(vec![asks("a", "1100m"), asks("b", "500m")], SourcesReady::ALL);
    assert_eq!(cpu_of(&agent, "a"), Some(400));
    let why = pending(&agent, "a").await;
    let words = "Node didn't have enough resource: cpu, requested: 1100, used: 500, capacity: 1000";
    assert_eq!((why.reason.as_str(), why.message.as_str(), why.generation), ("Deferred", words, 1));
    running(&find(&agent, "b")).await;
    until_told(&agent, "a", "ResizeDeferred").await;
    assert_eq!(agent.deps.metrics.pod_pending_resizes.get(["deferred"]), Some(1.0));
    // The same again is no news, and taken back it is none.
    agent.take(vec![asks("a", "1100m"), asks("b", "500m")], SourcesReady::ALL);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((told(&agent, "a", "ResizeDeferred"), told(&agent, "a", "ResizeStarted")), (1, 0));
    agent.take(vec![asks("a", "400m"), asks("b", "500m")], SourcesReady::ALL);
    find(&agent, "a").wait(|s| !s.holds(ConditionKind::PodResizePending)).await;
    assert_eq!(agent.deps.metrics.pod_pending_resizes.get(["deferred"]), None);
    let requested = |operation| {
        agent.deps.metrics.container_requested_resizes.get(["cpu", "requests", operation]).unwrap_or(0.0)
    };
    assert_eq!((requested("increase"), requested("decrease")), (1.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_has_room_is_taken_up_at_once() {
    let machine = WorkersFixture::new();
    let mut agent = started(&machine, 1000, &[("a", "400m")]).await;
    agent.take(vec![asks("a", "1000m")], SourcesReady::ALL);
    assert_eq!(cpu_of(&agent, "a"), Some(1000));
    until_told(&agent, "a", "ResizeCompleted").await;
    assert_eq!(told(&agent, "a", "ResizeStarted"), 1);
    assert_eq!(agent.deps.metrics.pod_deferred_accepted_resizes.get(["pod_updated"]), None);
    assert_eq!(machine.runtime.count("update c"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_tried_when_another_pod_shrinks_or_goes() {
    for (trigger, others) in [("pod_resized", vec![asks("b", "100m")]), ("pods_removed", vec![])] {
        let machine = WorkersFixture::new();
        let mut agent = started(&machine, 1000, &[("a", "400m"), ("b", "500m")]).await;
        agent.take(vec![asks("a", "800m"), asks("b", "500m")], SourcesReady::ALL);
        pending(&agent, "a").await;
        let wanted = || [asks("a", "800m")].into_iter().chain(others.clone()).collect::<Vec<_>>();
        agent.take(wanted(), SourcesReady::ALL);
        // A pod that shrinks counts as it was until it is held to less.
        assert_eq!(cpu_of(&agent, "a") == Some(800), others.is_empty());
        until_cpu(&mut agent, "a", 800, wanted).await;
        assert_eq!(agent.deps.metrics.pod_deferred_accepted_resizes.get([trigger]), Some(1.0), "{trigger}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_makes_room() {
    let machine = WorkersFixture::new();
    let mut agent = started(&machine, 1000, &[("a", "400m")]).await;
    let job = || -> PodUpdate {
        let containers = sized("b", "500m").containers.into_iter();
        let containers = containers.map(|c| Container { name: "job".into(), ..c }).collect();
        with_restart_policy(RestartPolicy::Never, Pod { containers, ..sized("b", "500m") }).into()
    };
    machine.runtime.script("job", &[Script::Exit { after: Duration::from_secs(20), code: 0 }]);
    agent.take(vec![asks("a", "400m"), job()], SourcesReady::ALL);
    agent.take(vec![asks("a", "800m"), job()], SourcesReady::ALL);
    assert_eq!(cpu_of(&agent, "a"), Some(400));
    let begun = tokio::time::Instant::now();
    until_cpu(&mut agent, "a", 800, || vec![asks("a", "800m"), job()]).await;
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    assert_eq!(agent.deps.metrics.pod_deferred_accepted_resizes.get(["pod_terminated"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_tried_again_after_three_minutes() {
    let machine = WorkersFixture::new();
    let mut agent = started(&machine, 1000, &[("a", "400m")]).await;
    let (sender, receiver) = watch::channel(node(1000).borrow().clone());
    agent.admit_by(receiver);
    agent.take(vec![asks("a", "1500m")], SourcesReady::ALL);
    pending(&agent, "a").await;
    // The node has grown: nobody tells of that.
    sender.send_replace(node(2000).borrow().clone());
    let begun = tokio::time::Instant::now();
    change(&mut agent).await;
    assert!((178..=180).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    agent.take(vec![asks("a", "1500m")], SourcesReady::ALL);
    assert_eq!(cpu_of(&agent, "a"), Some(1500));
    assert_eq!(agent.deps.metrics.pod_deferred_accepted_resizes.get(["periodic_retry"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn what_matters_more_is_tried_first() {
    let machine = WorkersFixture::new();
    let mut agent =
        started(&machine, 1000, &[("a", "200m"), ("b", "200m"), ("c", "200m"), ("d", "400m")]).await;
    let of = |uid: &str, cpu: &str, priority: i32| {
        let mut wanted = sized(uid, cpu);
        wanted.placement.priority = Some(priority);
        PodUpdate::from(wanted)
    };
    let all = |d: Option<&str>| {
        let known = [of("a", "500m", 1), of("b", "500m", 3), of("c", "500m", 2)].into_iter();
        known.chain(d.map(|cpu| of("d", cpu, 0))).collect::<Vec<_>>()
    };
    let cpus = |agent: &PodWorkers| ["a", "b", "c"].map(|uid| cpu_of(agent, uid).unwrap());
    agent.take(all(Some("400m")), SourcesReady::ALL);
    assert_eq!(cpus(&agent), [200, 200, 200]);
    // Room for one of them.
    agent.take(all(None), SourcesReady::ALL);
    assert_eq!(cpus(&agent), [200, 500, 200]);
    until_told(&agent, "b", "ResizeCompleted").await;
    // What asks for less comes before them, and makes room.
    let less = || vec![of("a", "500m", 1), of("b", "100m", 3), of("c", "500m", 2)];
    agent.take(less(), SourcesReady::ALL);
    assert_eq!(cpus(&agent), [200, 100, 200]);
    until_cpu(&mut agent, "c", 500, less).await;
    assert_eq!(cpus(&agent), [200, 100, 500]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_tried_before_all_pods_are_known() {
    let machine = WorkersFixture::new();
    let mut agent = started(&machine, 1000, &[("a", "400m")]).await;
    let half = SourcesReady { api: true, files: false };
    agent.take(vec![asks("a", "800m")], half);
    assert_eq!(cpu_of(&agent, "a"), Some(400));
    agent.take(vec![asks("a", "800m")], SourcesReady::ALL);
    assert_eq!(cpu_of(&agent, "a"), Some(800));
}

#[tokio::test(start_paused = true)]
async fn what_the_node_never_does_is_infeasible_and_not_tried_again() {
    let machine = WorkersFixture::new();
    let mut agent = machine.agent(vec![]);
    let resizes = admission::ResizeRules { limited_swap: true, ..admission::ResizeRules::default() };
    let allocatable = BTreeMap::from([("memory".into(), 1 << 40), ("pods".into(), 110)]);
    let node = Node { name: "n".into(), allocatable, resizes, ..Node::default() };
    agent.admit_by(watch::channel(Some(Arc::new(node))).1);
    let of = |memory: &str| {
        let requests = [("memory".to_owned(), memory.to_owned())].into();
        let written = Requirements { requests, ..Requirements::default() };
        let own = |c: Container| Container { resources: resources(&written), written: written.clone(), ..c };
        let containers = pod().containers.into_iter().map(own).collect();
        vec![PodUpdate::from(Pod { containers, ..sized("a", "0") })]
    };
    agent.take(of("1Gi"), SourcesReady::ALL);
    running(&find(&agent, "a")).await;
    agent.take(of("2Gi"), SourcesReady::ALL);
    let why = pending(&agent, "a").await;
    assert_eq!(why.reason, "Infeasible");
    assert_eq!(why.message, "In-place resize of containers with swap is not supported.");
    until_told(&agent, "a", "ResizeInfeasible").await;
    let count = |agent: &PodWorkers| agent.deps.metrics.pod_infeasible_resizes.get(["swap_limitation"]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    agent.take(of("2Gi"), SourcesReady::ALL);
    assert_eq!((count(&agent), told(&agent, "a", "ResizeInfeasible")), (Some(1.0), 1));
    agent.take(of("3Gi"), SourcesReady::ALL);
    assert_eq!(count(&agent), Some(2.0));
}

//! Containers that run follow what is shared, and pods with CPUs of their own are held by nothing else.

use gantry_model::pod::Container;

use super::*;
use crate::admission::Node;
use crate::resource_managers::ResourceManagers;
use crate::resource_managers::tests::asking;

const GIB: i64 = 1 << 30;

fn kubelet(machine: &WorkersFixture, managers: ResourceManagers) -> PodWorkers {
    let logs = Arc::new(LogDir::new(machine.folder.clone()));
    let deps = deps(&machine.runtime, logs, machine.clock.clone());
    PodWorkers::start(vec![], Deps { managers, ..deps })
}

/// Until the runtime was told so.
async fn told(machine: &WorkersFixture, line: &str) {
    let seen = async {
        while machine.runtime.count(line) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(600), seen).await;
    assert!(seen.is_ok(), "{line}: {:?}", machine.runtime.log());
}

fn guaranteed(uid: &str, milli: i64) -> Pod {
    let asks = asking(uid, milli, GIB);
    let own = |container: Container| Container { name: "web".to_owned(), ..container };
    let containers = asks.containers.into_iter().map(own).collect();
    Pod { containers, ..named(uid, uid) }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_told_is_told_at_the_next_look() {
    let machine = WorkersFixture::new();
    let root = tempfile::tempdir().unwrap();
    let managers = ResourceManagers::of_test(root.path());
    let mut agent = kubelet(&machine, managers.clone());
    let shares = named("a", "a-1");
    agent.apply(vec![shares.clone()]);
    let status = running(agent.pods().first().unwrap()).await;
    let id = status.containers[0].id.clone();
    told(&machine, &format!("update {id} cpus 0-7")).await;
    machine.runtime.fail(Call::UpdateContainer, 1, FailureKind::Unavailable, "busy");
    let owns = guaranteed("b", 2000);
    agent.apply(vec![shares.clone(), owns.clone()]);
    told(&machine, &format!("update {id} cpus 0,3-7")).await;
    let owner = agent.pods().iter().find(|handle| handle.pod.uid == owns.uid).unwrap().clone();
    running(&owner).await;
    assert_eq!(managers.affinity(&owns.uid, "web").cpus, "1-2");
    // Its end gives them back.
    let whole = format!("update {id} cpus 0-7");
    assert_eq!(machine.runtime.count(&whole), 1);
    agent.apply(vec![shares]);
    owner.wait(|status| status.life == Life::Gone).await;
    let again = async {
        while machine.runtime.count(&whole) < 2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), again).await.unwrap();
    assert!(!managers.lifts_quota(&owns.uid));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_finds_no_cpus_is_refused_in_upstreams_words() {
    let machine = WorkersFixture::new();
    let root = tempfile::tempdir().unwrap();
    let mut agent = kubelet(&machine, ResourceManagers::of_test(root.path()));
    agent.apply(vec![guaranteed("b", 9000)]);
    let status = agent.pods().first().unwrap().clone().wait(|status| status.phase == Phase::Failed).await;
    assert_eq!(status.api_reason, "UnexpectedAdmissionError");
    assert_eq!(
        status.api_message,
        "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: requested=9, \
         available=7, which is unexpected"
    );
    assert_eq!(machine.runtime.count("run-sandbox"), 0);
}

/// Upstream asks the managers before it looks at the node's room.
#[tokio::test(start_paused = true)]
async fn a_pod_that_neither_the_managers_nor_the_node_have_room_for_has_the_managers_reason() {
    let machine = WorkersFixture::new();
    let root = tempfile::tempdir().unwrap();
    let managers = ResourceManagers::of_test(root.path());
    let mut agent = kubelet(&machine, managers.clone());
    let allocatable = [("cpu", 7000), ("memory", GIB / 2), ("pods", 110)];
    let allocatable = allocatable.map(|(name, amount)| (name.to_owned(), amount)).into();
    let node = Node { name: "n".into(), allocatable, ..Node::default() };
    agent.admit_by(watch::channel(Some(Arc::new(node))).1);
    let of_api =
        |name: &str, from: Pod| Pod { origin: Origin::Api, containers: from.containers, ..named(name, name) };
    let large = of_api("large", asking("large", 100, 1000 * GIB));
    let fits = of_api("fits", asking("fits", 1000, GIB));
    let mut forbidden = of_api("forbidden", asking("forbidden", 100, 1000 * GIB));
    forbidden.security.sysctls = vec![("kernel.msgmax".to_owned(), "1".to_owned())];
    agent.take(vec![PodUpdate::from(large), fits.clone().into(), forbidden.into()], SourcesReady::ALL);
    let [large, small, forbidden] = &agent.pods()[..] else { panic!("three pods") };
    let status = large.wait(|status| status.phase == Phase::Failed).await;
    let words = "Allocate failed due to [memorymanager] ";
    assert_eq!(status.api_reason, "UnexpectedAdmissionError");
    assert!(status.api_message.contains(words), "{}", status.api_message);
    let status = small.wait(|status| status.phase == Phase::Failed).await;
    assert_eq!(status.api_reason, "OutOfmemory", "the managers have room for it");
    let status = forbidden.wait(|status| status.phase == Phase::Failed).await;
    assert_eq!(status.api_reason, "SysctlForbidden", "that comes before the managers");
    assert_eq!(managers.affinity(&fits.uid, "c").cpus, "0-7");
}

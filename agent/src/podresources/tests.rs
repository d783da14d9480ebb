//! The answers over the real socket, and the limit.

use gantry_grpc::dial;
use gantry_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use gantry_proto::podresources_v1alpha1::pod_resources_lister_client::PodResourcesListerClient as OldClient;
use tonic::Code;

use super::*;
use crate::devices::DeviceOptions;
use crate::pod::status::{Phase, PodStatus};
use crate::pod::tests::{in_role, pod};

const GPU: &str = "vendor.com/gpu";

/// Time stands still: what is spent of the limit stays spent.
#[derive(Debug)]
struct StillClock;

impl Clock for StillClock {
    fn mono(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn wall_nanos(&self) -> i64 {
        0
    }
}

/// A pod of that name, and how it goes.
fn handle(name: &str, pod: Pod, phase: Phase) -> PodHandle {
    let (_, status) = watch::channel(PodStatus { phase, ..PodStatus::default() });
    PodHandle::of_test(Arc::new(Pod { name: name.to_owned(), ..pod }), status, Arc::new(StillClock))
}

/// One that has a device, one without, one that has ended.
fn world() -> Sources {
    let mut has = pod();
    has.init_containers = vec![in_role("init", Role::Init), in_role("side", Role::Sidecar)];
    let devices = DeviceManager::of_test(&has.uid, "web", GPU, DeviceOptions::default());
    let other = gantry_model::pod::PodUid::parse("uid-2").unwrap();
    let handles = [
        handle("has", has, Phase::Running),
        handle("none", Pod { uid: other.clone(), ..pod() }, Phase::Pending),
        handle("ended", Pod { uid: other, ..pod() }, Phase::Succeeded),
    ];
    let pods = watch::channel(Arc::from(handles)).1;
    let heard = watch::channel(true).1;
    Sources {
        pods,
        heard,
        devices,
        dra: DraManager::default(),
        managers: ResourceManagers::default(),
        with_ended: false,
        metrics: Arc::default(),
        clock: Arc::new(StillClock),
    }
}

/// Pods, with their containers and the devices of these.
type Told = Vec<(String, Vec<(String, Vec<String>)>)>;

fn told(pods: Vec<wire::PodResources>) -> Told {
    let of = |container: wire::ContainerResources| {
        let ids = container.devices.into_iter().flat_map(|device| device.device_ids);
        (container.name, ids.collect())
    };
    pods.into_iter().map(|pod| (pod.name, pod.containers.into_iter().map(of).collect())).collect()
}

fn has() -> (String, Vec<(String, Vec<String>)>) {
    let containers = vec![("side".to_owned(), vec![]), ("web".to_owned(), vec!["a".to_owned()])];
    ("has".to_owned(), containers)
}

#[tokio::test]
async fn both_versions_tell_of_active_pods_and_what_they_have() {
    let root = tempfile::tempdir().unwrap();
    let sources = world();
    serve(root.path(), sources.clone()).unwrap();
    let socket = root.path().join(FOLDER).join(SOCKET);
    let channel = dial(&socket, Duration::from_secs(10)).await.unwrap();
    let mut client = PodResourcesListerClient::new(channel.clone());
    let all = client.list(wire::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    let none = ("none".to_owned(), vec![("web".to_owned(), vec![])]);
    assert_eq!(told(all), [has(), none]);
    let get = |name: &str| wire::GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "default".to_owned(),
    };
    let one = client.get(get("has")).await.unwrap().into_inner().pod_resources;
    assert_eq!(told(one.into_iter().collect()), [has()]);
    let refused = client.get(get("nobody")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unknown, "pod nobody in namespace default not found")
    );
    let over = client.get(get("ended")).await.unwrap_err();
    assert_eq!(over.message(), "pod ended in namespace default not found");
    let request = wire::AllocatableResourcesRequest {};
    let free = client.get_allocatable_resources(request).await.unwrap().into_inner();
    let free: Vec<_> =
        free.devices.into_iter().map(|device| (device.resource_name, device.device_ids)).collect();
    assert_eq!(free, [(GPU.to_owned(), vec!["a".to_owned()])], "also what a pod has");
    let mut old = OldClient::new(channel);
    let all = old.list(old::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    let names: Vec<_> = all.iter().map(|pod| (pod.name.as_str(), pod.containers.len())).collect();
    assert_eq!(names, [("has", 1), ("none", 1)], "without sidecars");
    let metrics = &sources.metrics;
    assert_eq!(metrics.pod_resources_requests.get(["v1"]), Some(5.0));
    assert_eq!(metrics.pod_resources_requests.get(["v1alpha1"]), Some(1.0));
    assert_eq!(metrics.pod_resources_requests_get.get(["v1"]), Some(3.0));
    assert_eq!(metrics.pod_resources_errors_get.get(["v1"]), Some(2.0));
}

#[tokio::test]
async fn pods_that_are_over_are_told_of_where_the_gate_is_closed() {
    let lister = lister(Sources { with_ended: true, ..world() });
    let told = lister.list(Request::new(wire::ListPodResourcesRequest {})).await.unwrap().into_inner();
    let names: Vec<_> = told.pod_resources.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["has", "none", "ended"]);
}

#[tokio::test]
async fn cpus_and_memory_that_containers_have_to_themselves_are_told() {
    use crate::resource_managers::tests::asking;
    let root = tempfile::tempdir().unwrap();
    let managers = ResourceManagers::of_test(root.path());
    let owner = asking("uid-9", 2000, 1 << 30);
    managers.allocate(&owner, false, &DeviceManager::default()).await.unwrap();
    let pods = watch::channel(Arc::from([handle("owner", owner, Phase::Running)])).1;
    let lister = lister(Sources { pods, managers, ..world() });
    let told = lister.list(Request::new(wire::ListPodResourcesRequest {})).await.unwrap().into_inner();
    let container = &told.pod_resources[0].containers[0];
    assert_eq!(container.cpu_ids, [1, 2]);
    let of = |memory: &wire::ContainerMemory| {
        let nodes = memory.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id);
        (memory.memory_type.clone(), memory.size, nodes.collect::<Vec<_>>())
    };
    let memory: Vec<_> = container.memory.iter().map(of).collect();
    assert_eq!(memory, [("memory".to_owned(), 1 << 30, vec![0])]);
    let request = Request::new(wire::AllocatableResourcesRequest {});
    let all = lister.get_allocatable_resources(request).await.unwrap().into_inner();
    assert_eq!(all.cpu_ids, (1..8).collect::<Vec<i64>>());
    let memory: Vec<_> = all.memory.iter().map(of).collect();
    let each = (8 << 30) - (512 << 20);
    assert_eq!(memory, [("memory".to_owned(), each, vec![0]), ("memory".to_owned(), each, vec![1])]);
}

#[tokio::test]
async fn what_containers_have_by_claims_is_told() {
    use crate::api::fake::FakeApi;
    use crate::dra::testing::{DRIVER, claiming, manager, object, registered};
    let root = tempfile::tempdir().unwrap();
    let api = Arc::new(FakeApi::default());
    api.put_resource_claim("one", object("claim-1", &["uid-1"], &[DRIVER]));
    let dra = manager(root.path(), &api);
    let _serving = registered(&dra, &root.path().join("s"), DRIVER).await;
    let pod = claiming("uid-1", &["one"]);
    dra.prepare(&pod).await.unwrap();
    let pods = watch::channel(Arc::from([handle("has", pod, Phase::Running)])).1;
    serve(root.path(), Sources { pods, dra, ..world() }).unwrap();
    let channel = dial(&root.path().join(FOLDER).join(SOCKET), Duration::from_secs(10)).await.unwrap();
    let mut client = PodResourcesListerClient::new(channel);
    let all = client.list(wire::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    let resource = wire::ClaimResource {
        cdi_devices: vec![wire::CdiDevice { name: "vendor.example/gpu=one".to_owned() }],
        driver_name: DRIVER.to_owned(),
        pool_name: "pool".to_owned(),
        device_name: "dev-of-one".to_owned(),
        share_id: Some("share".to_owned()),
    };
    let dynamic = wire::DynamicResource {
        claim_name: "one".to_owned(),
        claim_namespace: "default".to_owned(),
        claim_resources: vec![resource],
    };
    assert_eq!(all[0].containers[0].dynamic_resources, [dynamic]);
}

#[tokio::test]
async fn who_asks_too_often_is_told_so() {
    let root = tempfile::tempdir().unwrap();
    serve(root.path(), world()).unwrap();
    let socket = root.path().join(FOLDER).join(SOCKET);
    let channel = dial(&socket, Duration::from_secs(10)).await.unwrap();
    let mut client = PodResourcesListerClient::new(channel);
    for _ in 0..BURST {
        client.list(wire::ListPodResourcesRequest {}).await.unwrap();
    }
    let refused = client.list(wire::ListPodResourcesRequest {}).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "rejected by rate limit"));
}

/// A kubelet that was killed leaves its socket.
#[tokio::test]
async fn a_socket_of_before_is_no_hindrance() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(FOLDER);
    std::fs::create_dir(&folder).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join(SOCKET)).unwrap());
    serve(root.path(), world()).unwrap();
    let channel = dial(&folder.join(SOCKET), Duration::from_secs(10)).await.unwrap();
    PodResourcesListerClient::new(channel).list(wire::ListPodResourcesRequest {}).await.unwrap();
}

#[test]
fn ten_requests_at_once_and_a_hundred_a_second() {
    let mut limit = Limit { tokens: f64::from(BURST), filled: Duration::ZERO };
    let mut allowed = |now: Duration, tries: usize| (0..tries).filter(|_| limit.allows(now)).count();
    assert_eq!(allowed(Duration::ZERO, 20), 10);
    assert_eq!(allowed(Duration::from_millis(50), 20), 5);
    assert_eq!(allowed(Duration::from_secs(60), 20), 10);
}

#[test]
fn a_device_is_told_once_for_each_numa_node_it_is_near_to() {
    let of =
        [("vendor.com/gpu".to_owned(), [("a".to_owned(), vec![0, 1]), ("b".to_owned(), Vec::new())].into())];
    let told = devices(of.into());
    let nodes = |at: usize| told[at].topology.as_ref().map(|topology| topology.nodes[0].id);
    assert_eq!(told.len(), 3);
    assert_eq!((nodes(0), nodes(1), nodes(2)), (Some(0), Some(1), None));
    assert_eq!(told[2].device_ids, ["b"]);
}

fn lister(sources: Sources) -> Lister {
    let limit = Mutex::new(Limit { tokens: f64::from(BURST), filled: sources.clock.mono() });
    Lister(Arc::new(Shared { sources, limit }))
}

#[tokio::test]
async fn a_kubelet_that_has_just_begun_answers_once_its_pods_are_known() {
    let known = world();
    let (pods_in, pods) = watch::channel(Arc::from([]));
    let (heard_in, heard) = watch::channel(false);
    let lister = lister(Sources { pods, heard, ..known.clone() });
    let asked = tokio::spawn({
        let lister = lister.clone();
        async move { PodResourcesLister::list(&lister, Request::new(wire::ListPodResourcesRequest {})).await }
    });
    while known.metrics.pod_resources_requests_list.get(["v1"]).is_none() {
        tokio::task::yield_now().await;
    }
    pods_in.send_replace(known.pods.borrow().clone());
    heard_in.send_replace(true);
    let all = asked.await.unwrap().unwrap().into_inner().pod_resources;
    assert_eq!(told(all).first(), Some(&has()));
}

#[tokio::test(start_paused = true)]
async fn with_an_api_server_that_stays_away_it_tells_of_those_it_knows() {
    let (_heard_in, heard) = watch::channel(false);
    let lister = lister(Sources { heard, ..world() });
    let answer = PodResourcesLister::list(&lister, Request::new(wire::ListPodResourcesRequest {})).await;
    assert_eq!(told(answer.unwrap().into_inner().pod_resources).first(), Some(&has()));
}

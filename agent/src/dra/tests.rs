//! The manager with real drivers at the other ends of real sockets.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::testing::{DRIVER, Mood, PATIENCE, ServedDriver, claiming, manager, object, registered, serve};
use super::*;
use crate::api::ResourceClaim;
use crate::api::fake::FakeApi;

mod traps;

const OTHER: &str = "other.example";

/// A root, an API with the claim `one` for the pods uid-1 and uid-2, a driver.
struct DraWorld {
    root: tempfile::TempDir,
    api: Arc<FakeApi>,
    manager: DraManager,
    serving: ServedDriver,
}

impl DraWorld {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let api = Arc::new(FakeApi::default());
        api.put_resource_claim("one", object("claim-1", &["uid-1", "uid-2"], &[DRIVER]));
        let manager = manager(root.path(), &api);
        let serving = registered(&manager, &root.path().join("driver.sock"), DRIVER).await;
        Self { root, api, manager, serving }
    }

    /// What a kubelet that begins now reads.
    fn kept(&self) -> ClaimBook {
        restore(&self.root.path().join(CHECKPOINT)).unwrap()
    }

    /// The same driver, and a manager that begins anew.
    async fn restart(&mut self) {
        self.manager.deregister(DRIVER, &self.serving.socket);
        self.manager = manager(self.root.path(), &self.api);
        let services = ["v1.DRAPlugin".to_owned()];
        self.manager.register(DRIVER, &self.serving.socket, &services).await.unwrap();
    }

    fn cdi(&self, pod: &Pod) -> Result<Vec<String>, String> {
        self.manager.cdi(pod, &pod.containers[0])
    }
}

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

#[tokio::test]
async fn claims_are_prepared_given_to_containers_and_unprepared_with_the_last_pod() {
    let world = DraWorld::new().await;
    let (first, second) = (claiming("uid-1", &["one"]), claiming("uid-2", &["one"]));
    let unknown = "internal error: unable to get claim info for ResourceClaim one in namespace default";
    assert_eq!(world.cdi(&first), Err(unknown.to_owned()));
    world.manager.prepare(&first).await.unwrap();
    assert_eq!(world.cdi(&first).unwrap(), ["vendor.example/gpu=one"]);
    // Prepared already.
    world.manager.prepare(&second).await.unwrap();
    world.serving.driver.asked(&["prepare one"]).await;
    let metrics = &world.manager.0.metrics;
    let in_use = |driver: &str| metrics.dra_resource_claims_in_use.get([driver]);
    assert_eq!((in_use(ANY_DRIVER), in_use(DRIVER)), (Some(1.0), Some(1.0)));
    let method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    assert_eq!(metrics.dra_grpc_operations_duration.count([DRIVER, method, "OK"]), 1);
    assert_eq!(metrics.dra_operations_duration.count(["PrepareResources", "false"]), 2);
    world.manager.unprepare(&first.uid).await.unwrap();
    assert_eq!(world.kept().pods(), [uid("uid-2")].into());
    world.serving.driver.asked(&["prepare one"]).await;
    world.manager.unprepare(&second.uid).await.unwrap();
    world.serving.driver.asked(&["prepare one", "unprepare one"]).await;
    assert_eq!((in_use(ANY_DRIVER), in_use(DRIVER)), (Some(0.0), None));
    assert_eq!(world.kept(), ClaimBook::default());
    assert!(world.manager.0.lock().turns.is_empty(), "nobody waits");
    // Once more is once too often, and no harm.
    world.manager.unprepare(&second.uid).await.unwrap();
    world.serving.driver.asked(&["prepare one", "unprepare one"]).await;
}

#[tokio::test]
async fn what_a_container_names_of_claims_is_what_it_gets() {
    let world = DraWorld::new().await;
    world.api.put_resource_claim("two", object("claim-2", &["uid-1"], &[DRIVER]));
    let mut pod = claiming("uid-1", &["one", "two"]);
    world.manager.prepare(&pod).await.unwrap();
    assert_eq!(world.cdi(&pod).unwrap(), ["vendor.example/gpu=one", "vendor.example/gpu=two"]);
    pod.containers[0].claims.remove(0);
    for (request, found) in [("gpu", 1), ("nic", 0)] {
        pod.containers[0].claims[0].request = request.to_owned();
        assert_eq!(world.cdi(&pod).unwrap().len(), found, "{request}");
    }
    let told = world.manager.of_container(&pod, &pod.containers[0]);
    let [(namespace, name, devices)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((namespace.as_str(), name.as_str(), devices[0].0.as_str()), ("default", "two", DRIVER));
    assert_eq!((devices[0].1.device.as_str(), devices[0].1.share.as_deref()), ("dev-of-two", Some("share")));
    // Another container has nothing of it.
    let other = gantry_model::testing::container("other");
    assert_eq!(
        (world.manager.cdi(&pod, &other).unwrap(), world.manager.of_container(&pod, &other)),
        (vec![], vec![])
    );
}

/// The scheduler makes a claim for extended resources that a DRA driver gives; no container names it.
#[tokio::test]
async fn extended_resources_of_a_driver_come_by_the_schedulers_claim() {
    use gantry_model::pod::claim::ExtendedClaim;
    let world = DraWorld::new().await;
    let mut pod = claiming("uid-1", &[]);
    let request = ExtendedRequest {
        container: "web".into(),
        resource: "vendor.example/gpu".into(),
        request: "gpu".into(),
    };
    pod.resource_claims.extended = Some(ExtendedClaim { name: "one".into(), requests: vec![request] });
    pod.containers[0].written.requests = [("vendor.example/gpu".to_owned(), "1".to_owned())].into();
    world.manager.prepare(&pod).await.unwrap();
    assert_eq!(world.cdi(&pod).unwrap(), ["vendor.example/gpu=one"]);
    assert_eq!(world.manager.of_container(&pod, &pod.containers[0]).len(), 1);
    pod.containers[0].written.requests.clear();
    assert_eq!(world.cdi(&pod).unwrap(), [""; 0]);
    world.manager.unprepare(&pod.uid).await.unwrap();
    world.serving.driver.asked(&["prepare one", "unprepare one"]).await;
}

#[tokio::test]
async fn a_claim_that_a_pod_may_not_have_is_said_in_upstreams_words() {
    let world = DraWorld::new().await;
    let of = |claim: ResourceClaim, object: gantry_model::pod::claim::ClaimObject| {
        world.api.put_resource_claim("one", claim);
        let mut pod = claiming("uid-1", &["one"]);
        pod.resource_claims.listed[0].object = object;
        let manager = &world.manager;
        async move { manager.prepare(&pod).await.unwrap_err() }
    };
    use gantry_model::pod::claim::ClaimObject::{Made, Named, NotMade, Unset};
    let good = object("claim-1", &["uid-1"], &[DRIVER]);
    let prepare = "prepare dynamic resources: ";
    let not_made = format!("{prepare}pod \"default/web\": ResourceClaim not created yet");
    assert_eq!(of(good.clone(), NotMade).await, not_made);
    let unsaid = "pod \"default/web\", spec.resourceClaim \"own-one\": none of the supported fields are set";
    assert_eq!(of(good.clone(), Unset).await, format!("{prepare}{unsaid}"));
    let missing = "fetch ResourceClaim two: resourceclaims.resource.k8s.io \"two\" not found";
    assert_eq!(of(good.clone(), Named("two".into())).await, format!("{prepare}{missing}"));
    let foreign = "ResourceClaim default/one was not created for Pod default/web (Pod is not owner)";
    assert_eq!(of(good.clone(), Made("one".into())).await, format!("{prepare}{foreign}"));
    let other = ResourceClaim { reserved_for: vec!["uid-9".into()], ..good.clone() };
    let refused = "pod web (uid-1) is not allowed to use ResourceClaim one (claim-1)";
    assert_eq!(of(other, Named("one".into())).await, format!("{prepare}{refused}"));
    let early = ResourceClaim { drivers: None, ..good.clone() };
    assert_eq!(of(early, Named("one".into())).await, format!("{prepare}ResourceClaim one: not allocated"));
    let own = ResourceClaim { controller: "uid-1".into(), ..good };
    world.api.put_resource_claim("one", own);
    let mut pod = claiming("uid-1", &["one"]);
    pod.resource_claims.listed[0].object = Made("one".into());
    world.manager.prepare(&pod).await.unwrap();
    assert_eq!(world.manager.0.metrics.dra_operations_duration.count(["PrepareResources", "true"]), 6);
}

#[tokio::test]
async fn what_a_driver_does_wrong_is_said_in_upstreams_words() {
    let world = DraWorld::new().await;
    let pod = claiming("uid-1", &["one"]);
    let (driver, at) = (&world.serving.driver, "dynamic resources: ");
    let wrong = |call: &str, verb: &str| {
        [
            (Mood::Fails, format!("{at}{call}: rpc error: code = Internal desc = burnt")),
            (Mood::Refuses, format!("{at}{call} failed for ResourceClaim one: {verb}")),
            (Mood::Skips, format!("{at}{call} skipped 1 ResourceClaims")),
            (Mood::Lies, format!("{at}{call} returned result for unknown claim UID nobody")),
        ]
    };
    for (mood, words) in wrong("NodePrepareResources", "too hot") {
        driver.prepares.send_replace(mood);
        assert_eq!(world.manager.prepare(&pod).await, Err(format!("prepare {words}")));
    }
    driver.prepares.send_replace(Mood::Willing);
    world.manager.prepare(&pod).await.unwrap();
    for (mood, words) in wrong("NodeUnprepareResources", "in use") {
        driver.unprepares.send_replace(mood);
        assert_eq!(world.manager.unprepare(&pod.uid).await, Err(format!("unprepare {words}")));
    }
    world.manager.deregister(DRIVER, &world.serving.socket);
    let gone = format!("unprepare {at}DRA driver {DRIVER} is not registered");
    assert_eq!(world.manager.unprepare(&pod.uid).await, Err(gone));
    assert_eq!(world.kept().pods(), [uid("uid-1")].into(), "it is tried again");
}

#[tokio::test]
async fn a_driver_that_hangs_is_given_up() {
    let root = tempfile::tempdir().unwrap();
    let api = Arc::new(FakeApi::default());
    api.put_resource_claim("one", object("claim-1", &["uid-1"], &[DRIVER]));
    let (clock, metrics): (_, Arc<Metrics>) = (Arc::new(SystemClock::new()), Arc::default());
    let drivers = Drivers::with_patience(Duration::from_millis(20), metrics.clone());
    let manager = DraManager::open_with(root.path(), api, clock, metrics, drivers).unwrap();
    let serving = registered(&manager, &root.path().join("s"), DRIVER).await;
    serving.driver.prepares.send_replace(Mood::Holds);
    let words = "prepare dynamic resources: NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    assert_eq!(manager.prepare(&claiming("uid-1", &["one"])).await, Err(words.to_owned()));
}

#[tokio::test]
async fn a_driver_is_used_as_soon_as_it_listens_and_reached_again_when_it_comes_back() {
    let mut world = DraWorld::new().await;
    let pod = claiming("uid-1", &["one"]);
    let socket = world.serving.socket.clone();
    world.manager.deregister(DRIVER, &socket);
    world.serving.task.abort();
    std::fs::remove_file(&socket).unwrap();
    let services = ["v1.DRAPlugin".to_owned()];
    world.manager.register(DRIVER, &socket, &services).await.unwrap();
    let twice = world.manager.register(DRIVER, &socket, &services).await.unwrap_err();
    assert_eq!(
        twice,
        format!("endpoint {} already registered for DRA driver plugin {DRIVER}", socket.display())
    );
    let away = world.manager.prepare(&pod).await.unwrap_err();
    assert!(away.contains("connect: no such file or directory"), "{away}");
    world.serving = serve(&socket);
    until(|| world.manager.0.drivers.get(DRIVER).unwrap().connection.borrow().is_ok()).await;
    world.manager.prepare(&pod).await.unwrap();
    assert_eq!(world.cdi(&pod).unwrap(), ["vendor.example/gpu=one"]);
}

async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("in time");
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_used_stops_the_kubelet() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(CHECKPOINT), "{").unwrap();
    let metrics: Arc<Metrics> = Arc::default();
    let opened =
        DraManager::open(root.path(), Arc::new(FakeApi::default()), Arc::new(SystemClock::new()), metrics);
    let error = chain(&opened.unwrap_err());
    assert!(error.contains("drain this node and delete the file"), "{error}");
}

/// The driver's word goes into the statuses of pods, and with its connection.
#[tokio::test]
async fn the_health_of_claimed_devices_is_the_drivers_word() {
    use gantry_proto::dra_health as wire;
    let world = DraWorld::new().await;
    let pod = claiming("uid-1", &["one"]);
    world.manager.prepare(&pod).await.unwrap();
    let mut changes = world.manager.health_changes(&pod);
    let word = || {
        let all = world.manager.health(&pod);
        all["web"]["claim:own-one"]["vendor.example/gpu=one"].clone()
    };
    assert_eq!(word().word.as_str(), "Unknown", "nobody has told yet");
    let told = |health: wire::HealthStatus| {
        let device = wire::DeviceHealth {
            device: Some(wire::DeviceIdentifier {
                pool_name: "pool".into(),
                device_name: "dev-of-one".into(),
            }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: 0,
            message: "m".into(),
        };
        Ok(wire::NodeWatchResourcesResponse { devices: vec![device] })
    };
    for (health, text) in
        [(wire::HealthStatus::Healthy, "Healthy"), (wire::HealthStatus::Unhealthy, "Unhealthy")]
    {
        world.serving.tell.send(told(health)).await.unwrap();
        timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
        assert_eq!((word().word.as_str(), word().message.as_str()), (text, "m"));
    }
    let file = world.root.path().join(HEALTH);
    until(|| std::fs::read_to_string(&file).is_ok_and(|text| text.contains("Unhealthy"))).await;
    world.manager.deregister(DRIVER, &world.serving.socket);
    timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    assert_eq!(word().word.as_str(), "Unknown");
    until(|| std::fs::read_to_string(&file).is_ok_and(|text| text == "{}")).await;
    assert!(
        world.manager.health_changes(&gantry_model::testing::pod()).has_changed().is_err(),
        "it has none"
    );
}

/// What was deleted.
#[derive(Debug, Default)]
struct FakeSlices(channel::Sender<Vec<Option<String>>>);

impl Slices for FakeSlices {
    fn delete<'a>(&'a self, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>> {
        self.0.send_modify(|deleted| deleted.push(driver.map(str::to_owned)));
        // The first is refused.
        let refused = self.0.borrow().len() == 1;
        async move { if refused { Err("no".to_owned()) } else { Ok(()) } }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn resource_slices_of_drivers_that_are_away_are_deleted() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path(), &Arc::default());
    let slices = Arc::new(FakeSlices::default());
    let mut deleted = slices.0.subscribe();
    manager.wipe(slices);
    // At the start those of all, until it works.
    deleted.wait_for(|deleted| *deleted == [None, None]).await.unwrap();
    let begun = tokio::time::Instant::now();
    let socket = root.path().join("nobody");
    manager.register(DRIVER, &socket, &["v1.DRAPlugin".to_owned()]).await.unwrap();
    // A driver that deregisters meanwhile gets no more time.
    tokio::time::sleep(Duration::from_secs(20)).await;
    manager.deregister(DRIVER, &socket);
    deleted.wait_for(|deleted| deleted.len() == 3).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(deleted.borrow().last(), Some(&Some(DRIVER.to_owned())));
    // And again, when it comes and goes again.
    manager.register(DRIVER, &socket, &["v1.DRAPlugin".to_owned()]).await.unwrap();
    deleted.wait_for(|deleted| deleted.len() == 4).await.unwrap();
}

#[tokio::test]
async fn a_driver_that_comes_back_in_time_keeps_its_resource_slices() {
    let mut world = DraWorld::new().await;
    let slices = Arc::new(FakeSlices::default());
    world.manager.wipe(slices.clone());
    let socket = world.serving.socket.clone();
    world.serving.task.abort();
    until(|| world.manager.0.drivers.is_to_be_wiped(DRIVER)).await;
    world.serving = serve(&socket);
    until(|| !world.manager.0.drivers.is_to_be_wiped(DRIVER)).await;
}

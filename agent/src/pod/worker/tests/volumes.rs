//! Pods whose volumes find no room on the node: rejected, late as it is, and nothing of them stays.

use gantry_kube_client::fake_apiserver::FakeApiServer;
use gantry_model::pod::volume::{
    ClaimRef, Medium, Propagation, RecursiveReadOnly, SubPath, Volume, VolumeMount, VolumeSource,
};
use serde_json::json;

use super::*;
use crate::api::fake::{claim_to, volume_from};
use crate::api::{Api as _, Attachment, CsiDriver, CsiSource, PersistentSource};
use crate::attachments::InUse;
use crate::csi::allocatable::Allocatable;
use crate::csi::drivers::Drivers;
use crate::csi::fake::FakeDriver;
use crate::csi::node_info::NodeInfo as CsiNode;
use crate::csi::owner::CsiVolumes;
use crate::csi::steps::attachment_name;
use crate::events::Kind;
use crate::volumes::host::HostVolumes;

const DRIVER: &str = "d.example";
const REASON: &str = "VolumeAttachmentLimitExceeded";

/// A pod with a claim and a folder of its own.
fn claiming() -> Pod {
    let claim = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    let own = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None };
    let volumes = [("data", claim), ("own", own)];
    let mount = |name: &str| VolumeMount {
        volume: name.into(),
        path: format!("/{name}"),
        sub_path: SubPath::Whole,
        read_only: false,
        recursive_read_only: RecursiveReadOnly::Disabled,
        propagation: Propagation::None,
    };
    let mounts = volumes.iter().map(|(name, _)| mount(name)).collect();
    let volumes = volumes.map(|(name, source)| Volume { name: name.into(), source }).into();
    Pod { containers: vec![Container { mounts, ..container("web") }], volumes, ..pod() }
}

/// A claim on a driver that is asked again and again, whose attacher says that the node takes no more.
fn put_full_volume(api: &FakeApi) {
    api.put_claim("c", claim_to("pv"));
    let access_modes = vec!["ReadWriteOnce".into()];
    let source =
        CsiSource { driver: DRIVER.into(), handle: "h".into(), access_modes, ..CsiSource::default() };
    let volume = volume_from(PersistentSource::Csi(Box::new(source)));
    api.put_volume("pv", volume);
    let object = CsiDriver {
        attach_required: true,
        pod_info: false,
        fs_group_policy: "None".into(),
        modes: vec!["Persistent".into()],
        tokens: vec![],
        tokens_in_secrets: false,
        republish: false,
        se_linux_mount: false,
        allocatable_period: Some(secs(3600)),
    };
    api.put_csi_driver(DRIVER, object);
    let failed = Attachment { error_code: Some(8), ..Attachment::default() };
    api.put_attachment(&attachment_name("h", DRIVER, "n1"), failed);
}

/// Volumes of a kubelet whose drivers are at real sockets.
fn volumes_of(world: &World, root: &std::path::Path, driver: &FakeDriver) -> (HostVolumes, CsiVolumes) {
    let drivers = Drivers::new(world.metrics.clone());
    let socket = root.join("d.sock");
    drop(driver.serve(&socket));
    drivers.put(DRIVER, &socket);
    let volumes = HostVolumes::new(root, world.api.clone(), Arc::new(world.node.clone()), false);
    let (mounts, blocks) = (Arc::new(driver.clone()), Arc::new(driver.blocks()));
    let csi = CsiVolumes::open(world.api.clone(), drivers, mounts, blocks, volumes.csi_places(), "n1");
    (volumes.with_csi(csi.clone()), csi)
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_volume_finds_no_room_is_rejected_and_its_volumes_go() {
    let root = tempfile::tempdir().unwrap();
    let (mut world, driver, server) = (World::new(), FakeDriver::new(DRIVER), FakeApiServer::default());
    put_full_volume(&world.api);
    driver.says("i-1", 3, &[]);
    server.put("/api/v1/nodes/n1", json!({ "metadata": { "uid": "node-uid" } }));
    let (volumes, csi) = volumes_of(&world, root.path(), &driver);
    let cluster = CsiNode::new(server.client(), "n1");
    csi.ask_anew_by(Allocatable::new(world.api.clone(), csi.drivers(), cluster));
    let deps = Deps { volumes: Arc::new(volumes), ..world.deps() };
    let (worker, handle) = Worker::new(claiming(), deps);
    let begun = world.clock.mono();
    world.workers.spawn(worker.run());
    let own = root.path().join("pods/uid-1/volumes/kubernetes.io~empty-dir/own");
    until(&handle, "waiting", |_| own.exists()).await;
    let status = until(&handle, "rejected", |s| s.phase == Phase::Failed).await;
    assert!(world.clock.mono() - begun >= secs(123), "a volume may yet be detached elsewhere");
    let why = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline exceeded";
    assert_eq!(status.api_reason, REASON);
    assert_eq!(status.api_message, format!("Pod was rejected: {why}"));
    assert_eq!((status.containers.len(), world.runtime.count("run-sandbox")), (0, 0));
    let events = handle.events();
    let told = events.iter().find(|event| event.note.reason == REASON).unwrap();
    assert_eq!((told.note.kind, told.count, told.note.message.as_str()), (Kind::Warning, 1, why));
    assert_eq!(world.metrics.admission_rejections.get([REASON]), Some(1.0));
    let told = server.get("/apis/storage.k8s.io/v1/csinodes/n1").unwrap();
    assert_eq!(told["spec"]["drivers"][0]["allocatable"], json!({ "count": 3 }));
    until(&handle, "over", |s| s.life == Life::Stopped).await;
    assert!(!root.path().join("pods/uid-1").exists());
    assert_eq!((csi.pods().len(), &*csi.attachments().in_use().borrow()), (0, &InUse::default()));
    assert_eq!(driver.calls(), Vec::<String>::new());
}

/// A look at the volumes of one that runs is another matter.
#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_is_not_rejected() {
    let mut world = World::new();
    let handle = world.start(pod());
    until_running(&handle).await;
    world.volumes.fill("no room");
    world.api.refresh(&handle.pod.uid);
    tokio::time::sleep(secs(300)).await;
    let times = world.volumes.times(&handle.pod.uid);
    world.volumes.fail(None);
    let looked = async {
        while world.volumes.times(&handle.pod.uid) == times {
            tokio::time::sleep(secs(1)).await;
        }
    };
    tokio::time::timeout(secs(600), looked).await.unwrap();
    let status = until_running(&handle).await;
    assert_eq!((status.api_reason.as_str(), world.runtime.count("create")), ("", 1));
    assert!(handle.events().iter().all(|event| event.note.reason != REASON));
    assert_eq!(world.metrics.admission_rejections.get([REASON]), None);
}

//! Volumes of CSI with a driver at the other end of a real socket, which comes and goes, fails and hangs. Traps by their
//! upstream's number.

mod block;
#[cfg(feature = "failpoints")]
mod failpoints;
mod labels;
mod limit;
mod upkeep;

use std::path::Path;

use gantry_metrics::Metrics;
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use k8s_openapi::api::core::v1::Node;

use super::*;
use crate::api::fake::FakeApi;
use crate::api::{Attachment, CsiDriver, CsiSource};
use crate::csi::fake::{FakeDriver, Trouble};

const DRIVER: &str = "d.example";
const KEY: &str = "kubernetes.io/csi/d.example^h1";

struct Bed {
    root: TempDir,
    api: Arc<FakeApi>,
    drivers: Drivers,
    driver: FakeDriver,
    volumes: CsiVolumes,
    metrics: Arc<Metrics>,
}

fn object() -> CsiDriver {
    CsiDriver {
        attach_required: false,
        pod_info: false,
        fs_group_policy: "ReadWriteOnceWithFSType".to_owned(),
        modes: vec!["Persistent".to_owned()],
        tokens: Vec::new(),
        tokens_in_secrets: false,
        republish: false,
        se_linux_mount: false,
        allocatable_period: None,
    }
}

/// The driver has set the group.
fn nothing_owned(_: PathBuf) -> Owned {
    Box::pin(std::future::ready(Ok(())))
}

impl Bed {
    /// With a driver whose volumes nobody attaches.
    fn new() -> Self {
        Self::patient(Duration::from_secs(20))
    }

    fn patient(patience: Duration) -> Self {
        let (root, api) = (tempfile::tempdir().unwrap(), Arc::new(FakeApi::default()));
        api.put_csi_driver(DRIVER, object());
        let driver = FakeDriver::new(DRIVER);
        let metrics = Arc::new(Metrics::default());
        let drivers = Drivers::with_patience(patience, metrics.clone());
        let volumes = open(&root, &api, &drivers, &driver);
        let bed = Self { root, api, drivers, driver, volumes, metrics };
        bed.serve(DRIVER, &bed.driver);
        bed
    }

    fn serve(&self, name: &str, driver: &FakeDriver) {
        let socket = self.root.path().join(format!("{name}.sock"));
        drop(driver.serve(&socket));
        self.drivers.put(name, &socket);
    }

    /// Another kubelet takes over.
    fn restart(&mut self) {
        self.volumes = open(&self.root, &self.api, &self.drivers, &self.driver);
    }

    async fn mount(&self, pod: &Pod, wanted: &WantedVolume) -> Result<(), String> {
        let mounted = self.volumes.mount(pod, wanted, nothing_owned).await;
        mounted.map(drop).map_err(|error| error.message)
    }

    async fn patiently(&self, pod: &Pod, wanted: &WantedVolume) {
        for _ in 0..200 {
            if self.mount(pod, wanted).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it does not come: {:?}", self.volumes.waits(&pod.uid));
    }

    fn data(&self, pod: &Pod) -> PathBuf {
        let mount = self.volumes.shared.places.target(&pod.uid, "pv");
        mount.parent().unwrap().join("vol_data.json")
    }

    async fn empty(&self) {
        self.driver.until(|_| self.volumes.slots().is_empty()).await;
        self.volumes.attachments().in_use().wait_for(|in_use| *in_use == InUse::default()).await.unwrap();
        assert_eq!(self.driver.mounted(), Vec::<PathBuf>::new());
        let device = self.volumes.shared.places.device(DRIVER, "h1");
        assert!(!device.parent().unwrap().exists(), "what is known of it has gone, too");
    }
}

fn open(root: &TempDir, api: &Arc<FakeApi>, drivers: &Drivers, driver: &FakeDriver) -> CsiVolumes {
    let places = Places::new(&root.path().join("pods"), &root.path().join("plugins"));
    let (mounts, blocks) = (Arc::new(driver.clone()), Arc::new(driver.blocks()));
    CsiVolumes::open(api.clone(), drivers.clone(), mounts, blocks, places, "n1")
}

fn pod(uid: &str) -> Pod {
    Pod { uid: PodUid::parse(uid).unwrap(), ..crate::pod::tests::pod() }
}

fn wanted() -> WantedVolume {
    let source = CsiSource {
        driver: DRIVER.to_owned(),
        handle: "h1".to_owned(),
        fs_type: "ext4".to_owned(),
        attributes: [("kind".to_owned(), "fast".to_owned())].into(),
        mount_options: vec!["noatime".to_owned()],
        access_modes: vec!["ReadWriteOnce".to_owned()],
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
    };
    WantedVolume {
        name: "pv".to_owned(),
        source,
        read_only: false,
        one_pod: false,
        own_name: "data".to_owned(),
        label: None,
        block: false,
        ephemeral: false,
        claim: None,
    }
}

fn node(in_use: &[&str], attached: &[&str]) -> Node {
    let attached: Vec<_> = attached.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
    serde_json::from_value(json!({ "status": { "volumesInUse": in_use, "volumesAttached": attached } }))
        .unwrap()
}

#[tokio::test]
async fn a_volume_is_staged_once_published_to_each_pod_and_taken_back_after_the_last() {
    let bed = Bed::new();
    let (a, b) = (pod("a"), pod("b"));
    bed.mount(&a, &wanted()).await.unwrap();
    bed.mount(&b, &wanted()).await.unwrap();
    bed.mount(&a, &wanted()).await.unwrap();
    assert_eq!(bed.driver.calls(), ["stage h1", "publish h1 a", "publish h1 b"]);
    let stages = |pod: &Pod| -> Vec<String> {
        let of_pod = bed.volumes.stages(&pod.uid).into_iter();
        of_pod
            .filter(|span| span.start <= span.end)
            .map(|span| format!("{} {}", span.name, span.detail))
            .collect()
    };
    assert_eq!(stages(&a), ["volumes.stage pv d.example", "volumes.publish pv d.example"]);
    assert_eq!(stages(&b), ["volumes.publish pv d.example"]);
    let text = std::fs::read_to_string(bed.data(&a)).unwrap();
    let attachment = steps::attachment_name("h1", DRIVER, "n1");
    let want = json!({ "attachmentID": attachment, "driverName": DRIVER, "nodeName": "n1", "specVolID": "pv",
        "volumeHandle": "h1", "volumeLifecycleMode": "Persistent" });
    assert_eq!(text, format!("{want}\n"), "upstream's form and order");
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    assert!(!bed.data(&a).exists() && bed.data(&b).exists());
    bed.volumes.unmount_all(&b.uid).await.unwrap();
    bed.volumes.unmount_all(&b.uid).await.unwrap();
    bed.empty().await;
    assert_eq!(bed.driver.calls()[3..], ["unpublish h1 a", "unpublish h1 b", "unstage h1"]);
}

#[tokio::test]
async fn a_driver_is_told_what_the_volume_its_secrets_and_its_object_say() {
    let bed = Bed::new();
    bed.api.put_csi_driver(DRIVER, CsiDriver { pod_info: true, ..object() });
    bed.api.put_secret("s", "Opaque", &[("user", "u"), ("word", "w")]);
    let mut wanted = wanted();
    wanted.source.publish_secret = Some(("default".to_owned(), "s".to_owned()));
    wanted.source.stage_secret = Some(("default".to_owned(), "none".to_owned()));
    let pod = pod("a");
    let error = bed.mount(&pod, &wanted).await.unwrap_err();
    let words = "MountVolume.MountDevice failed for volume \"pv\" : fetching NodeStageSecretRef default/none failed: ";
    assert!(error.starts_with(words), "{error}");
    assert_eq!(bed.driver.calls(), Vec::<String>::new());
    wanted.source.stage_secret = None;
    bed.patiently(&pod, &wanted).await;
    let (staged, published) = bed.driver.asked();
    assert_eq!((staged.volume_id.as_str(), staged.secrets.len()), ("h1", 0));
    assert_eq!(staged.volume_context, wanted.source.attributes);
    assert_eq!(published.staging_target_path, staged.staging_target_path);
    let secrets = [("user", "u"), ("word", "w")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!((published.readonly, published.secrets), (false, secrets.into()));
    let context = published.volume_context;
    let of = |key: &str| context.get(&format!("csi.storage.k8s.io/{key}")).map(String::as_str);
    assert_eq!(
        (of("pod.uid"), of("pod.name"), of("ephemeral")),
        (Some("a"), Some(pod.name.as_str()), Some("false"))
    );
    assert_eq!((context.len(), context["kind"].as_str()), (6, "fast"));
    let capability = published.volume_capability.unwrap();
    assert_eq!(format!("{:?}", capability.access_mode.unwrap().mode()), "SingleNodeWriter");
    let mount = format!("{:?}", capability.access_type.unwrap());
    assert!(mount.contains("ext4") && mount.contains("noatime"), "{mount}");
}

#[tokio::test]
async fn a_pod_waits_until_its_volume_is_told_to_be_in_use_and_attached() {
    let bed = Bed::new();
    bed.api.put_csi_driver(DRIVER, CsiDriver { attach_required: true, ..object() });
    let (pod, wanted) = (pod("a"), wanted());
    let mount = || bed.volumes.mount(&pod, &wanted, nothing_owned);
    let error = mount().await.unwrap_err();
    assert!(error.quiet && error.message.contains("VolumesInUse"), "{error:?}");
    assert_eq!(
        *bed.volumes.attachments().in_use().borrow(),
        InUse { sure: [KEY.to_owned()].into(), ..InUse::default() }
    );
    bed.volumes.attachments().see_node(&node(&[KEY], &[]));
    let error = mount().await.unwrap_err();
    assert_eq!(error.message, "Volume not attached according to node status for volume \"pv\"");
    assert_eq!((error.quiet, bed.volumes.waits(&pod.uid)[0].step), (true, told::WAITS));
    bed.volumes.attachments().see_node(&node(&[KEY], &[KEY]));
    let error = mount().await.unwrap_err();
    assert!(
        !error.quiet && error.message.starts_with("MountVolume.WaitForAttach failed for volume \"pv\" : ")
    );
    let name = steps::attachment_name("h1", DRIVER, "n1");
    let metadata = BTreeMap::from([("device".to_owned(), "7".to_owned())]);
    let attachment = Attachment { attached: true, metadata: metadata.clone(), ..Attachment::default() };
    bed.api.put_attachment(&name, attachment);
    let error = mount().await.unwrap_err();
    assert!(error.quiet, "the driver is left alone for half a second: {error:?}");
    bed.patiently(&pod, &wanted).await;
    assert_eq!(bed.driver.asked().1.publish_context, metadata);
    assert_eq!(bed.volumes.waits(&pod.uid), []);
}

/// What is detached under a mount is lost.
#[tokio::test]
async fn trap_121937_a_volume_is_in_use_until_it_is_unstaged() {
    let bed = Bed::new();
    bed.api.put_csi_driver(DRIVER, CsiDriver { attach_required: true, ..object() });
    let attachment = Attachment { attached: true, ..Attachment::default() };
    bed.api.put_attachment(&steps::attachment_name("h1", DRIVER, "n1"), attachment);
    bed.volumes.attachments().see_node(&node(&[KEY], &[KEY]));
    bed.mount(&pod("a"), &wanted()).await.unwrap();
    bed.driver.fails("unstage", Trouble::Refused(Code::Internal));
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    bed.driver.until(|calls| calls.last().is_some_and(|call| call == "unstage h1 refused")).await;
    assert!(bed.volumes.attachments().in_use().borrow().sure.contains(KEY), "it may be mounted");
    bed.empty().await;
}

#[tokio::test]
async fn what_a_driver_refused_is_not_taken_back_and_is_asked_for_again() {
    let bed = Bed::new();
    bed.driver.fails("publish", Trouble::Refused(Code::InvalidArgument));
    let error = bed.mount(&pod("a"), &wanted()).await.unwrap_err();
    let words = "rpc error: code = InvalidArgument desc = publish failed";
    assert_eq!(error, format!("MountVolume.SetUp failed for volume \"pv\" : {words}"));
    let told = bed.volumes.waits(&pod("a").uid);
    assert_eq!((told[0].driver.as_str(), told[0].why.as_str()), (DRIVER, words));
    assert!(!bed.data(&pod("a")).exists());
    bed.patiently(&pod("a"), &wanted()).await;
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    bed.empty().await;
    let calls = ["stage h1", "publish h1 a refused", "publish h1 a", "unpublish h1 a", "unstage h1"];
    assert_eq!(bed.driver.calls(), calls);
}

#[tokio::test]
async fn an_inline_volume_is_the_pods_alone_and_never_staged() {
    let bed = Bed::new();
    let pod = pod("a");
    let handle = steps::ephemeral_handle(&pod, "scratch");
    assert_eq!(handle, format!("csi-{}", crate::csi::files::sha256("ascratch")), "upstream's");
    let source = CsiSource { access_modes: vec![], handle: handle.clone(), ..wanted().source };
    let wanted = WantedVolume { name: "scratch".to_owned(), source, ephemeral: true, ..wanted() };
    let error = bed.mount(&pod, &wanted).await.unwrap_err();
    let words = "failed to check volume lifecycle mode: volume mode \"Ephemeral\" not supported by driver d.example (only supports [\"Persistent\"])";
    assert!(error.ends_with(words), "{error}");
    let modes = vec!["Ephemeral".to_owned()];
    bed.api.put_csi_driver(DRIVER, CsiDriver { attach_required: true, pod_info: true, modes, ..object() });
    bed.patiently(&pod, &wanted).await;
    let (_, published) = bed.driver.asked();
    assert_eq!(published.volume_context["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(published.staging_target_path, "");
    assert_eq!(*bed.volumes.attachments().in_use().borrow(), InUse::default(), "nobody attaches it");
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.empty().await;
    assert_eq!(bed.driver.calls(), [format!("publish {handle} a"), format!("unpublish {handle} a")]);
}

/// After a time-out the driver may have done it.
#[tokio::test]
async fn trap_101911_what_nobody_knows_of_is_taken_back() {
    let bed = Bed::patient(Duration::from_secs(2));
    bed.driver.fails("stage", Trouble::Hangs);
    let error = bed.mount(&pod("a"), &wanted()).await.unwrap_err();
    assert!(
        error.ends_with("rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
        "{error}"
    );
    // The pod ends without having had it.
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    bed.empty().await;
    assert_eq!(bed.driver.calls(), ["stage h1", "unstage h1"]);
    bed.driver.fails("publish", Trouble::Done(Code::Aborted));
    bed.mount(&pod("b"), &wanted()).await.unwrap_err();
    assert!(bed.data(&pod("b")).exists());
    bed.volumes.unmount_all(&pod("b").uid).await.unwrap();
    bed.empty().await;
    assert_eq!(bed.driver.calls()[2..], ["stage h1", "publish h1 b", "unpublish h1 b", "unstage h1"]);
}

/// Without the file nobody would know what to take back.
#[tokio::test]
async fn what_is_known_of_a_volume_stays_while_its_driver_is_away_or_fails() {
    let bed = Bed::new();
    bed.mount(&pod("a"), &wanted()).await.unwrap();
    bed.drivers.remove(DRIVER);
    let error = bed.volumes.unmount_all(&pod("a").uid).await.unwrap_err();
    let words = "kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: driver name d.example not found in the list of registered CSI drivers";
    assert_eq!(error, format!("UnmountVolume.TearDown failed for volume \"pv\" : {words}"));
    assert!(bed.data(&pod("a")).exists());
    bed.drivers.put(DRIVER, &bed.root.path().join("d.example.sock"));
    bed.driver.fails("unpublish", Trouble::Refused(Code::Internal));
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap_err();
    assert!(bed.data(&pod("a")).exists());
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    bed.empty().await;
}

#[tokio::test]
async fn a_driver_that_hangs_holds_up_its_own_volume_and_no_other() {
    let bed = Bed::patient(Duration::from_secs(60));
    let mut other = wanted();
    (other.source.handle, other.name) = ("h2".to_owned(), "pv2".to_owned());
    bed.driver.fails("stage", Trouble::Hangs);
    let (a, b, wanted) = (pod("a"), pod("b"), wanted());
    let other = async {
        bed.driver.until(|calls| calls == ["stage h1"]).await;
        bed.mount(&b, &other).await.unwrap();
    };
    tokio::select! {
        slow = bed.mount(&a, &wanted) => panic!("it does not hang: {slow:?}"),
        () = other => {}
    }
}

/// #102486 is the other half: nothing is staged while it is being unstaged.
#[tokio::test]
async fn calls_of_one_volume_are_made_one_after_the_other() {
    let bed = Bed::new();
    let (a, b, wanted) = (pod("a"), pod("b"), wanted());
    let (first, second) = tokio::join!(bed.mount(&a, &wanted), bed.mount(&b, &wanted));
    first.and(second).unwrap();
    let calls = bed.driver.calls();
    assert_eq!(calls.iter().filter(|call| *call == "stage h1").count(), 1, "{calls:?}");
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    bed.volumes.unmount_all(&b.uid).await.unwrap();
    bed.mount(&a, &wanted).await.unwrap();
    assert!(!bed.driver.overlapped());
}

#[tokio::test]
async fn a_volume_of_one_pod_is_refused_to_another_in_upstreams_words() {
    let bed = Bed::new();
    let wanted = WantedVolume { one_pod: true, ..wanted() };
    bed.mount(&pod("a"), &wanted).await.unwrap();
    let error = bed.mount(&pod("b"), &wanted).await.unwrap_err();
    assert_eq!(error, format!("MountVolume.SetUp failed for volume \"pv\" : {IN_USE}"));
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    bed.patiently(&pod("b"), &wanted).await;
}

#[tokio::test]
async fn files_get_the_pods_group_as_the_driver_says() {
    for (policy, fs_type, mode, mount_group, set) in [
        ("ReadWriteOnceWithFSType", "ext4", "ReadWriteOnce", false, true),
        ("ReadWriteOnceWithFSType", "", "ReadWriteOnce", false, false),
        ("ReadWriteOnceWithFSType", "ext4", "ReadWriteMany", false, false),
        ("File", "", "ReadWriteMany", false, true),
        ("None", "ext4", "ReadWriteOnce", false, false),
        ("File", "ext4", "ReadWriteOnce", true, false),
    ] {
        let bed = Bed::new();
        bed.api.put_csi_driver(DRIVER, CsiDriver { fs_group_policy: policy.to_owned(), ..object() });
        bed.driver.can_set_group(mount_group);
        let mut wanted = wanted();
        (wanted.source.fs_type, wanted.source.access_modes) = (fs_type.to_owned(), vec![mode.to_owned()]);
        let mut pod = pod("a");
        pod.security.fs_group = Some(1234);
        let owned = Arc::new(Mutex::new(None));
        let note = owned.clone();
        let own = move |path: PathBuf| {
            *note.lock().unwrap() = Some(path);
            nothing_owned(PathBuf::new())
        };
        bed.volumes.mount(&pod, &wanted, own).await.unwrap();
        let path = set.then(|| bed.volumes.shared.places.target(&pod.uid, "pv"));
        assert_eq!(*owned.lock().unwrap(), path, "{policy} {fs_type} {mode} {mount_group}");
        let told = format!("{:?}", bed.driver.asked().1.volume_capability);
        assert_eq!(told.contains("1234"), mount_group, "{told}");
    }
}

/// A kubelet that was killed between unpublish and unstage has left the device, and no pod.
#[tokio::test]
async fn trap_85476_what_an_earlier_kubelet_has_staged_is_unstaged() {
    let mut bed = Bed::new();
    bed.mount(&pod("a"), &wanted()).await.unwrap();
    let target = bed.volumes.shared.places.target(&pod("a").uid, "pv");
    bed.volumes.steps().unpublish(DRIVER, "h1", &target).await.unwrap();
    bed.restart();
    assert!(bed.volumes.attachments().in_use().borrow().perhaps.contains(KEY), "until it is taken back");
    bed.volumes.begin();
    bed.empty().await;
    assert_eq!(bed.driver.calls()[2..], ["unpublish h1 a", "unstage h1"]);
}

#[tokio::test]
async fn trap_101791_a_pod_that_went_while_no_kubelet_ran_gives_its_volume_back() {
    let mut bed = Bed::new();
    bed.mount(&pod("a"), &wanted()).await.unwrap();
    bed.mount(&pod("b"), &wanted()).await.unwrap();
    bed.restart();
    bed.volumes.begin();
    // One is there yet: it gets it again, which drivers must allow. A refusal takes nothing from it.
    bed.driver.fails("publish", Trouble::Refused(Code::Internal));
    bed.mount(&pod("b"), &wanted()).await.unwrap_err();
    assert!(bed.data(&pod("b")).exists());
    bed.patiently(&pod("b"), &wanted()).await;
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    let calls = ["stage h1", "publish h1 b refused", "publish h1 b", "unpublish h1 a"];
    assert_eq!(bed.driver.calls()[3..], calls);
    bed.volumes.unmount_all(&pod("b").uid).await.unwrap();
    bed.empty().await;
}

/// KEP-6058: the file is lost or torn, as after a power cut, and the mount is not. The API server knows whose it is.
#[tokio::test]
async fn trap_6058_a_pod_whose_file_is_lost_has_its_volume_and_gives_it_back() {
    for torn in [None, Some("")] {
        let mut bed = Bed::new();
        bed.mount(&pod("a"), &wanted()).await.unwrap();
        match torn {
            None => std::fs::remove_file(bed.data(&pod("a"))).unwrap(),
            Some(text) => std::fs::write(bed.data(&pod("a")), text).unwrap(),
        }
        bed.restart();
        bed.volumes.begin();
        let told = bed.volumes.attachments().in_use().borrow().clone();
        assert!(told.in_doubt && told.perhaps.contains(KEY), "{told:?}");
        bed.mount(&pod("a"), &wanted()).await.unwrap();
        assert_eq!(bed.driver.mounted().len(), 2, "mounted once");
        bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
        bed.driver.until(|_| bed.volumes.slots().is_empty()).await;
        assert_eq!(bed.driver.mounted(), Vec::<PathBuf>::new());
        assert!(!bed.data(&pod("a")).exists());
        bed.volumes.attachments().in_use().wait_for(|told| !told.in_doubt).await.unwrap();
    }
}

/// A pod that comes while the device is being taken back gets it staged anew, and not before that is over.
#[tokio::test]
async fn trap_102486_nothing_is_staged_while_it_is_being_unstaged() {
    let bed = Bed::patient(Duration::from_secs(2));
    bed.mount(&pod("a"), &wanted()).await.unwrap();
    bed.driver.fails("unstage", Trouble::Hangs);
    bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    bed.driver.until(|calls| calls.last().is_some_and(|call| call == "unstage h1")).await;
    bed.patiently(&pod("b"), &wanted()).await;
    assert!(!bed.driver.overlapped());
    let calls = bed.driver.calls();
    assert_eq!(calls[3..], ["unstage h1", "stage h1", "publish h1 b"], "{calls:?}");
}

#[tokio::test]
async fn what_cannot_be_read_is_in_doubt() {
    let mut bed = Bed::new();
    let folder = bed.root.path().join("pods/a/volumes/kubernetes.io~csi/pv");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("vol_data.json"), "{").unwrap();
    bed.restart();
    assert!(bed.volumes.attachments().in_use().borrow().in_doubt);
    assert!(Path::new(&folder).exists());
}

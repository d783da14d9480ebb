//! Volumes that need no mount; the others are in the kernel tier.

mod block;
mod iscsi;
mod labels;
mod local_disk;
mod local_growth;
mod migrated;
mod nfs;

use gantry_model::pod::volume::{
    ClaimRef, HostPathType, KeysOf, Medium, Projection, Propagation, RecursiveReadOnly, SubPath, VolumeMount,
};
use gantry_model::pod::{Container, PullPolicy};

use super::*;
use crate::api::fake::{FakeApi, claim_to, volume_from};
use crate::node::NodeLabels;
use crate::pod::tests::{container, pod};
use crate::volumes::PodFacts;

fn node() -> Arc<NodeInfo> {
    Arc::new(NodeInfo {
        name: "n".into(),
        ips: Vec::new().into(),
        cluster_domain: "cluster.local".into(),
        cpu: 1000,
        memory: 1 << 30,
        ephemeral: 0,
        ..NodeInfo::default()
    })
}

fn volume(name: &str, source: VolumeSource) -> Volume {
    Volume { name: name.into(), source }
}

fn config_map(name: &str) -> VolumeSource {
    let keys = KeysOf { name: name.into(), items: vec![], optional: false };
    VolumeSource::Projected {
        sources: vec![Projection::ConfigMap(keys)],
        default_mode: 0o644,
        memory: false,
        plugin: "kubernetes.io~configmap",
    }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        volume: volume.into(),
        path: path.into(),
        sub_path: SubPath::Whole,
        read_only: false,
        recursive_read_only: RecursiveReadOnly::Disabled,
        propagation: Propagation::None,
    }
}

struct VolumeFixture {
    root: tempfile::TempDir,
    api: Arc<FakeApi>,
    volumes: HostVolumes,
}

impl VolumeFixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let api = Arc::new(FakeApi::default());
        let volumes = HostVolumes::new(root.path(), api.clone(), node(), false);
        Self { root, api, volumes }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join("pods/uid-1").join(path)
    }

    async fn mounts(&self, pod: &Pod, env: &[(String, String)]) -> Result<Vec<Mount>, Error> {
        let facts = PodFacts { ips: vec!["10.1.0.2".into()] };
        let container = pod.containers.first().unwrap();
        self.volumes.mounts(MountsOf { pod, container, attempt: 3, env, facts: &facts, images: &[] }).await
    }
}

fn with(volumes: Vec<Volume>, mounts: Vec<VolumeMount>) -> Pod {
    Pod { volumes, containers: vec![Container { mounts, ..container("web") }], ..pod() }
}

const DISK: VolumeSource = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None };

#[tokio::test]
async fn a_pods_folders_are_the_kubelets_and_go_with_it() {
    let place = VolumeFixture::new();
    place.api.put_config_map("c", &[("key", "value")]);
    let pod =
        with(vec![volume("e", DISK), volume("m", config_map("c"))], vec![mount("e", "/e"), mount("m", "/m")]);
    place.volumes.set_up(&pod).await.unwrap();
    place.volumes.set_up(&pod).await.unwrap();
    let empty = place.path("volumes/kubernetes.io~empty-dir/e");
    assert_eq!(fs::metadata(&empty).unwrap().permissions().mode() & 0o7777, 0o777);
    let key = place.path("volumes/kubernetes.io~configmap/m/key");
    assert_eq!(fs::read_to_string(&key).unwrap(), "value");
    let mounts = place.mounts(&pod, &[]).await.unwrap();
    let seen: Vec<_> = mounts.iter().map(|m| (m.container_path.as_str(), m.read_only)).collect();
    assert_eq!(seen, [("/e", false), ("/m", true), ("/etc/hosts", false), ("/dev/termination-log", false)]);
    assert_eq!(mounts.last().unwrap().host_path, place.path("containers/web/3"));
    let hosts = fs::read_to_string(place.path("etc-hosts")).unwrap();
    assert!(hosts.starts_with("# Kubernetes-managed hosts file.\n") && hosts.ends_with("10.1.0.2\tweb\n"));
    fs::write(empty.join("data"), "x").unwrap();
    place.volumes.tear_down(&pod.uid).await.unwrap();
    assert!(!place.path("").exists());
    place.volumes.tear_down(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn the_mode_of_an_empty_dir_is_the_containers_once_it_is_made() {
    let place = VolumeFixture::new();
    let pod = with(vec![volume("e", DISK)], vec![]);
    place.volumes.set_up(&pod).await.unwrap();
    let folder = place.path("volumes/kubernetes.io~empty-dir/e");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    // As a new agent does.
    place.volumes.set_up(&pod).await.unwrap();
    let mode = |folder: &Path| fs::metadata(folder).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&folder), 0o700);
    assert!(place.path("plugins/kubernetes.io~empty-dir/e/ready").is_file());
    fs::remove_dir(&folder).unwrap();
    place.volumes.set_up(&pod).await.unwrap();
    assert_eq!(mode(&folder), 0o777);
}

/// nginx's workers, which are no root, could not look into a config map.
#[tokio::test]
async fn a_config_maps_folder_is_open_to_any_user() {
    let place = VolumeFixture::new();
    place.api.put_config_map("c", &[("key", "value")]);
    let pod = with(vec![volume("m", config_map("c"))], vec![]);
    place.volumes.set_up(&pod).await.unwrap();
    let folder = place.path("volumes/kubernetes.io~configmap/m");
    let mode = || fs::metadata(&folder).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o777);
    // As an agent before this one left it, and as an fsGroup has it.
    for (before, after) in [(0o750, 0o777), (0o2777, 0o2777)] {
        fs::set_permissions(&folder, fs::Permissions::from_mode(before)).unwrap();
        place.volumes.set_up(&pod).await.unwrap();
        assert_eq!(mode(), after);
    }
}

#[tokio::test]
async fn a_config_map_is_open_to_whoever_the_container_runs_as() {
    let place = VolumeFixture::new();
    place.api.put_config_map("c", &[("key", "value")]);
    let mut pod = with(vec![volume("m", config_map("c"))], vec![]);
    let folder = place.path("volumes/kubernetes.io~configmap/m");
    let mode = || fs::metadata(&folder).unwrap().permissions().mode() & 0o7777;
    place.volumes.set_up(&pod).await.unwrap();
    assert_eq!(mode(), 0o777);
    // As an agent before this one left it.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o2750)).unwrap();
    pod.security.fs_group = Some(0);
    place.volumes.set_up(&pod).await.unwrap();
    assert_eq!(mode(), 0o2777);
}

#[tokio::test]
async fn an_etc_hosts_that_a_container_blew_up_is_not_read() {
    let place = VolumeFixture::new();
    let pod = with(vec![], vec![]);
    place.volumes.set_up(&pod).await.unwrap();
    place.mounts(&pod, &[]).await.unwrap();
    let path = place.path("etc-hosts");
    let text = fs::read(&path).unwrap();
    // Holes cost the container nothing.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(64 << 20).unwrap();
    let read = || -> u64 {
        let io = fs::read_to_string("/proc/thread-self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let before = read();
    place.volumes.write_hosts(&path, &pod, &["10.1.0.2".to_owned()]).unwrap();
    assert!(read() - before < 1 << 20, "{} bytes were read", read() - before);
    assert_eq!(fs::read(&path).unwrap(), text);
}

#[tokio::test]
async fn content_that_changed_is_brought_up_to_date() {
    let place = VolumeFixture::new();
    place.api.put_config_map("c", &[("key", "1")]);
    let pod = with(vec![volume("m", config_map("c"))], vec![]);
    place.volumes.set_up(&pod).await.unwrap();
    place.api.put_config_map("c", &[("key", "2")]);
    place.volumes.set_up(&pod).await.unwrap();
    let key = place.path("volumes/kubernetes.io~configmap/m/key");
    assert_eq!(fs::read_to_string(key).unwrap(), "2");
}

#[tokio::test]
async fn failures_name_the_volume_and_the_others_are_made() {
    let place = VolumeFixture::new();
    let host = VolumeSource::HostPath { path: "/no/such".into(), kind: HostPathType::Directory };
    let pod = with(vec![volume("m", config_map("c")), volume("h", host), volume("e", DISK)], vec![]);
    let error = place.volumes.set_up(&pod).await.unwrap_err().message;
    assert_eq!(error, "MountVolume.SetUp failed for volume \"m\" : configmap \"c\" not found");
    assert!(place.path("volumes/kubernetes.io~empty-dir/e").exists());
    place.api.put_config_map("c", &[]);
    let error = place.volumes.set_up(&pod).await.unwrap_err().message;
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: /no/such is not a directory"
    );
    let pod = with(vec![], vec![mount("x", "/x")]);
    let error = place.mounts(&pod, &[]).await.unwrap_err().message;
    assert_eq!(error, "cannot find volume \"x\" to mount into container \"web\"");
}

#[tokio::test]
async fn a_sub_path_needs_its_variables_and_stays_below() {
    let place = VolumeFixture::new();
    let expr = |text: &str| VolumeMount { sub_path: SubPath::Expr(text.into()), ..mount("e", "/e") };
    let env = [("UP".to_owned(), "../..".to_owned()), ("NIL".to_owned(), String::new())];
    for (text, message) in [
        ("$(NOPE)/$(NIL)", "missing value for NIL, NOPE"),
        ("a/$(UP)", "unable to provision SubPath `a/../..`: must not contain '..'"),
    ] {
        let pod = with(vec![volume("e", DISK)], vec![expr(text)]);
        assert_eq!(place.mounts(&pod, &env).await.unwrap_err().message, message);
    }
}

#[tokio::test]
async fn recursive_read_only_is_asked_for_only_where_the_runtime_can() {
    let place = VolumeFixture::new();
    let mode = |recursive_read_only| VolumeMount { recursive_read_only, read_only: true, ..mount("e", "/e") };
    let pod = |mode| with(vec![volume("e", DISK)], vec![mode]);
    let mounts = place.mounts(&pod(mode(RecursiveReadOnly::IfPossible)), &[]).await;
    // The pod's folder is made by set_up; here only /etc/hosts is in the way.
    assert!(mounts.is_err());
    place.volumes.set_up(&pod(mode(RecursiveReadOnly::IfPossible))).await.unwrap();
    let mounts = place.mounts(&pod(mode(RecursiveReadOnly::IfPossible)), &[]).await.unwrap();
    assert!(!mounts.first().unwrap().recursive_read_only);
    let error = place.mounts(&pod(mode(RecursiveReadOnly::Enabled)), &[]).await.unwrap_err().message;
    assert!(
        error.contains("requested recursive read-only mode, but it is not supported by the runtime"),
        "{error}"
    );
    let volumes = HostVolumes::new(place.root.path(), place.api.clone(), node(), true);
    let able = VolumeFixture { volumes, ..place };
    for mode in [mode(RecursiveReadOnly::IfPossible), mode(RecursiveReadOnly::Enabled)] {
        let mounts = able.mounts(&pod(mode), &[]).await.unwrap();
        assert!(mounts.first().unwrap().recursive_read_only);
    }
}

#[tokio::test]
async fn last_words_are_the_last_4096_bytes() {
    let place = VolumeFixture::new();
    let pod = with(vec![], vec![]);
    let of = WordsOf { uid: &pod.uid, container: "web", attempt: 3, file: None };
    let words = || place.volumes.last_words(of);
    assert_eq!(words().await.unwrap(), None);
    place.volumes.set_up(&pod).await.unwrap();
    place.mounts(&pod, &[]).await.unwrap();
    let path = place.path("containers/web/3");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    assert_eq!(words().await.unwrap().as_deref(), Some(""));
    fs::write(&path, format!("first{}last", "x".repeat(5000))).unwrap();
    let text = words().await.unwrap().unwrap();
    assert_eq!(text.len(), 4096);
    assert!(text.ends_with("xlast") && !text.contains("first"));
    // A restart of the agent asks for the mounts again: the words stay.
    place.mounts(&pod, &[]).await.unwrap();
    assert!(words().await.unwrap().unwrap().ends_with("xlast"));
}

#[tokio::test]
async fn last_words_are_where_the_runtime_says_but_of_that_pod_only() {
    let place = VolumeFixture::new();
    let pod = with(vec![], vec![]);
    place.volumes.set_up(&pod).await.unwrap();
    place.mounts(&pod, &[]).await.unwrap();
    fs::write(place.path("containers/web/3"), "ours").unwrap();
    // As upstream names them.
    fs::write(place.path("containers/web/6f1c9b02"), "theirs").unwrap();
    let secret = place.root.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    for (file, said) in [
        (place.path("containers/web/6f1c9b02"), "theirs"),
        (place.path("containers/web/3"), "ours"),
        (secret, "ours"),
        (place.path("containers/../../../secret"), "ours"),
        (place.path("containers/none/1"), "ours"),
    ] {
        let of = WordsOf { uid: &pod.uid, container: "web", attempt: 3, file: Some(&file) };
        assert_eq!(place.volumes.last_words(of).await.unwrap().as_deref(), Some(said), "{file:?}");
    }
}

#[tokio::test]
async fn pods_may_be_on_another_disk() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("disk")).unwrap();
    std::os::unix::fs::symlink("disk", root.path().join("pods")).unwrap();
    let api = Arc::new(FakeApi::default());
    let volumes = HostVolumes::new(root.path(), api.clone(), node(), false);
    let place = VolumeFixture { volumes, root, api };
    let pod = with(vec![volume("e", DISK)], vec![mount("e", "/e")]);
    place.volumes.set_up(&pod).await.unwrap();
    // As the kernel's table of mounts would name it.
    let real = place.root.path().canonicalize().unwrap().join("disk/uid-1");
    let mounts = place.mounts(&pod, &[]).await.unwrap();
    assert!(!mounts.is_empty());
    assert!(mounts.iter().all(|mount| mount.host_path.starts_with(&real)), "{mounts:?}");
}

#[test]
fn what_is_behind_a_volume_is_told_when_a_folder_is_mounted() {
    let place = VolumeFixture::new();
    let uid = pod().uid;
    let local = |name: &str| {
        super::VolumeBacking::Local(Box::new(crate::volumes::claim::LocalVolume {
            path: "/disk".into(),
            name: name.into(),
            uid: "pv-uid".into(),
            fs_type: String::new(),
            options: Vec::new(),
            read_only: false,
            claim: None,
        }))
    };
    let whole = super::VolumeBacking::HostPath { path: "/disk".into(), kind: HostPathType::Unset };
    let found = BTreeMap::from([("data".to_owned(), local("pv-1")), ("whole".to_owned(), whole)]);
    place.volumes.claims.lock().unwrap().insert(uid.clone(), found);
    let volumes: &dyn Volumes = &place.volumes;
    assert_eq!(volumes.claim_name(&uid, "data").as_deref(), Some("pv-1"));
    assert_eq!((volumes.claim_name(&uid, "whole"), volumes.claim_name(&uid, "other")), (None, None));
}

#[tokio::test]
async fn an_image_volume_is_the_runtimes_and_read_only() {
    let place = VolumeFixture::new();
    let source =
        VolumeSource::Image { reference: "reg.io/data:v1".into(), pull_policy: PullPolicy::IfNotPresent };
    let part = VolumeMount { sub_path: SubPath::Plain("models/a".into()), ..mount("i", "/part") };
    let pod = with(vec![volume("i", source)], vec![mount("i", "/all"), part]);
    place.volumes.set_up(&pod).await.unwrap();
    let untold = place.mounts(&pod, &[]).await.unwrap_err();
    assert_eq!(untold.message, "the image of volume \"i\" was not looked up");
    let facts = PodFacts::default();
    let images = [("i".to_owned(), "sha256:1".to_owned())];
    let container = pod.containers.first().unwrap();
    let of = MountsOf { pod: &pod, container, attempt: 0, env: &[], facts: &facts, images: &images };
    let mounts = place.volumes.mounts(of).await.unwrap();
    let seen: Vec<_> = mounts
        .iter()
        .filter_map(|mount| mount.image.as_ref().map(|image| (mount, image)))
        .map(|(mount, image)| (mount.container_path.as_str(), image.sub_path.as_str(), mount.read_only))
        .collect();
    assert_eq!(seen, [("/all", "", true), ("/part", "models/a", true)]);
    let image = mounts.first().unwrap().image.as_ref().unwrap();
    assert_eq!((image.id.as_str(), image.written.as_str()), ("sha256:1", "reg.io/data:v1"));
    place.volumes.tear_down(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn volumes_and_what_is_done_with_them_are_counted_by_plugin() {
    let place = VolumeFixture::new();
    let metrics = Arc::new(Metrics::default());
    let volumes = place.volumes.clone().counted_in(metrics.clone());
    let empty = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None };
    let list = vec![
        volume("scratch", empty.clone()),
        volume("late", config_map("late")),
        // No container mounts it.
        volume("unused", empty),
    ];
    let with = Container { mounts: vec![mount("scratch", "/s"), mount("late", "/l")], ..container("web") };
    let pod = Pod { volumes: list, containers: vec![with], ..pod() };
    volumes.set_up(&pod).await.unwrap_err();
    let count = |wanted, there| Count { wanted, there };
    let of = |plugin: &str| volumes.counts().get(plugin).copied();
    assert_eq!(of("kubernetes.io/empty-dir"), Some(count(1, 1)));
    assert_eq!(of("kubernetes.io/configmap"), Some(count(1, 0)));
    let took = |plugin, operation, status| {
        metrics.storage_operation_duration.count([plugin, operation, status, "false"])
    };
    assert_eq!(took("kubernetes.io/empty-dir", "volume_mount", "success"), 1);
    assert_eq!(took("kubernetes.io/configmap", "volume_mount", "fail-unknown"), 1);
    crate::pod::count::volumes(&metrics, &volumes.counts());
    assert_eq!(metrics.total_volumes.get(["kubernetes.io/configmap", "desired_state_of_world"]), Some(1.0));
    assert_eq!(metrics.total_volumes.get(["kubernetes.io/configmap", "actual_state_of_world"]), None);
    volumes.tear_down(&pod.uid).await.unwrap();
    assert_eq!(took("kubernetes.io/empty-dir", "volume_unmount", "success"), 1);
    assert_eq!(took("kubernetes.io/configmap", "volume_unmount", "success"), 0, "it was never there");
    assert_eq!(volumes.counts().len(), 0);
}

#[tokio::test]
async fn mount_options_of_a_host_path_are_refused() {
    use crate::api::PersistentSource;
    let place = VolumeFixture::new();
    place.api.put_claim("c", claim_to("pv-1"));
    let with_options = |mount_options| {
        volume_from(PersistentSource::HostPath { path: "/".into(), kind: String::new(), mount_options })
    };
    let claim = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    let pod = with(vec![volume("data", claim)], vec![]);
    place.api.put_volume("pv-1", with_options(vec!["noexec".to_owned()]));
    let words = "MountVolume.MountOptionSupport check failed for volume \"pv-1\" : mount options are not supported for this volume type";
    assert_eq!(place.volumes.set_up(&pod).await.map_err(|error| error.message), Err(words.to_owned()));
    place.api.put_volume("pv-1", with_options(Vec::new()));
    assert_eq!(place.volumes.set_up(&pod).await.map_err(|error| error.message), Ok(()));
}

#[tokio::test]
async fn a_persistent_volume_of_another_node_is_not_mounted() {
    use gantry_model::pod::placement::{Match, Operator, Term};

    use crate::api::{PersistentSource, PersistentVolume};
    let mut place = VolumeFixture::new();
    let (labels_in, labels) = NodeLabels::channel();
    place.volumes.node = Arc::new(NodeInfo { labels, ..NodeInfo::clone(&place.volumes.node) });
    let tell = |zone: &str| labels_in.send_replace(Some([("zone".to_owned(), zone.to_owned())].into()));
    let source =
        PersistentSource::HostPath { path: "/".into(), kind: String::new(), mount_options: Vec::new() };
    let zone = Match { key: "zone".into(), operator: Operator::In, values: vec!["a".into()] };
    let affinity = Some(vec![Term { labels: vec![zone], fields: vec![] }]);
    let claim = claim_to("pv-1");
    place.api.put_claim("c", claim);
    let elsewhere = PersistentVolume { one_pod: true, access_mode: "RWOP", affinity, ..volume_from(source) };
    place.api.put_volume("pv-1", elsewhere);
    let pod = with(
        vec![volume("data", VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false })],
        vec![],
    );
    let set_up = || async { place.volumes.set_up(&pod).await.map_err(|error| error.message) };
    let told = |why: &str| {
        let failed = format!("MountVolume.NodeAffinity check failed for volume \"pv-1\" : {why}");
        Err::<(), String>(failed)
    };
    assert_eq!(set_up().await, told("error retrieving node: node \"n\" not found"));
    tell("b");
    assert_eq!(set_up().await, told("no matching NodeSelectorTerms"));
    tell("a");
    assert_eq!(set_up().await, Ok(()));
    // As upstream: what is mounted stays, whatever becomes of the node's labels.
    tell("b");
    assert_eq!(set_up().await, Ok(()));
    // A hostPath has no one writer that a kubelet would know of.
    let other = Pod { uid: PodUid::parse("uid-2").unwrap(), ..pod.clone() };
    tell("a");
    assert_eq!(place.volumes.set_up(&other).await, Ok(()));
}

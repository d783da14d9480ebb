//! Volumes of a node that has SELinux, as its seam says: which are mounted with a label, and which the runtime labels.

use std::time::Duration;

use gantry_model::pod::security::SeLinux;

use super::*;
use crate::api::fake::{claim_to, volume_from};
use crate::api::{CsiDriver, CsiSource, PersistentSource, PersistentVolume};
use crate::csi::drivers::Drivers;
use crate::csi::fake::FakeDriver;

pub(super) fn driver(se_linux_mount: bool) -> CsiDriver {
    CsiDriver {
        attach_required: false,
        pod_info: false,
        fs_group_policy: "None".into(),
        modes: vec!["Persistent".into()],
        tokens: vec![],
        tokens_in_secrets: false,
        republish: false,
        se_linux_mount,
        allocatable_period: None,
    }
}

/// A claim of a volume of one pod, of a driver that answers to that name.
pub(super) fn fixture(driver: &FakeDriver, name: &str) -> VolumeFixture {
    let mut place = VolumeFixture::new();
    let drivers = Drivers::with_patience(Duration::from_secs(20), Arc::default());
    let socket = place.root.path().join("d.sock");
    drop(driver.serve(&socket));
    drivers.put(name, &socket);
    let (mounts, blocks) = (Arc::new(driver.clone()), Arc::new(driver.blocks()));
    let places = place.volumes.csi_places();
    let csi = CsiVolumes::open(place.api.clone(), drivers, mounts, blocks, places, "n");
    place.volumes = place.volumes.with_csi(csi);
    place.volumes.labels = Some(LabelPolicy::of_test());
    place.api.put_claim("c", claim_to("pv"));
    let source = CsiSource {
        driver: name.into(),
        handle: "h".into(),
        access_modes: vec!["ReadWriteOncePod".into()],
        ..CsiSource::default()
    };
    let source = PersistentSource::Csi(Box::new(source));
    let volume = PersistentVolume { one_pod: true, access_mode: "RWOP", ..volume_from(source) };
    place.api.put_volume("pv", volume);
    place
}

fn labelled() -> Pod {
    let claim = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    let mut pod = with(vec![volume("data", claim)], vec![mount("data", "/data")]);
    let options = SeLinux { kind: "spc_t".into(), level: "s0:c1,c2".into(), ..SeLinux::default() };
    pod.containers[0].security.se_linux = Some(options);
    pod
}

#[tokio::test]
async fn what_is_mounted_with_its_pods_label_is_not_labelled_by_the_runtime() {
    let context = vec!["context=\"system_u:object_r:container_file_t:s0:c1,c2\"".to_owned()];
    for (takes, opts_out, want) in [(true, false, &context), (false, false, &vec![]), (true, true, &vec![])] {
        let csi = FakeDriver::new("d");
        let place = fixture(&csi, "d");
        place.api.put_csi_driver("d", driver(takes));
        let mut pod = labelled();
        pod.security.se_linux_recursive = opts_out;
        place.volumes.set_up(&pod).await.unwrap();
        assert_eq!(csi.mount_flags()[1], *want, "{takes} {opts_out}");
        let mounts = place.mounts(&pod, &[]).await.unwrap();
        let data = mounts.iter().find(|mount| mount.container_path == "/data").unwrap();
        assert_eq!(data.relabel, want.is_empty(), "{takes} {opts_out}");
        place.volumes.tear_down(&pod.uid).await.unwrap();
    }
}

#[tokio::test]
async fn without_selinux_no_label_is_asked_for() {
    let csi = FakeDriver::new("d");
    let mut place = fixture(&csi, "d");
    place.api.put_csi_driver("d", driver(true));
    place.volumes.labels = None;
    let pod = labelled();
    place.volumes.set_up(&pod).await.unwrap();
    assert_eq!(csi.mount_flags()[1], Vec::<String>::new());
    assert!(place.mounts(&pod, &[]).await.unwrap().iter().all(|mount| !mount.relabel));
    place.volumes.tear_down(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn with_selinux_what_is_the_pods_own_is_labelled_and_nothing_of_the_node() {
    let mut place = VolumeFixture::new();
    place.api.put_config_map("c", &[("key", "value")]);
    let host = VolumeSource::HostPath { path: "/tmp".into(), kind: HostPathType::Unset };
    let volumes = vec![volume("e", DISK), volume("m", config_map("c")), volume("h", host)];
    let pod = with(volumes, vec![mount("e", "/e"), mount("m", "/m"), mount("h", "/h")]);
    place.volumes.set_up(&pod).await.unwrap();
    for on in [true, false] {
        place.volumes.labels = on.then(LabelPolicy::of_test);
        let mounts = place.mounts(&pod, &[]).await.unwrap();
        let given: Vec<_> = mounts.iter().filter(|m| m.relabel).map(|m| m.container_path.as_str()).collect();
        let own = ["/e", "/m", "/etc/hosts", "/dev/termination-log"];
        assert_eq!(given, if on { &own[..] } else { &[] });
    }
}

#[tokio::test]
async fn containers_whose_labels_differ_keep_a_volume_of_one_pod_from_it_and_are_counted_of_others() {
    let mut place = VolumeFixture::new();
    let metrics = Arc::new(Metrics::default());
    place.volumes = place.volumes.counted_in(metrics.clone());
    let source =
        PersistentSource::HostPath { path: "/".into(), kind: String::new(), mount_options: Vec::new() };
    let claim = claim_to("pv");
    place.api.put_claim("c", claim);
    let of = |one_pod, access_mode| PersistentVolume { one_pod, access_mode, ..volume_from(source.clone()) };
    place.api.put_volume("pv", of(true, "RWOP"));
    let claim = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    let mut pod =
        with(vec![volume("data", claim), volume("e", DISK)], vec![mount("data", "/data"), mount("e", "/e")]);
    pod.containers.push(Container { name: "other".into(), ..pod.containers[0].clone() });
    for (container, level) in pod.containers.iter_mut().zip(["s0:c1,c2", "s0:c3,c4"]) {
        container.security.se_linux = Some(SeLinux { level: level.into(), ..SeLinux::default() });
    }
    place.volumes.labels = None;
    place.volumes.set_up(&pod).await.unwrap();
    assert_eq!(metrics.selinux_pod_warnings.get(["inline"]), None, "a node without SELinux");
    place.volumes.labels = Some(LabelPolicy::of_test());
    let told = place.volumes.set_up(&pod).await.unwrap_err();
    let [one, other] =
        ["s0:c1,c2", "s0:c3,c4"].map(|level| format!("system_u:object_r:container_file_t:{level}"));
    let words = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: multiple SELinux labels found";
    assert_eq!((told.reason, told.message), ("FailedMount", format!("{words}: {one},{other}")));
    place.api.put_volume("pv", of(false, "RWX"));
    place.volumes.set_up(&pod).await.unwrap();
    let counted = ["inline", "RWX", "RWOP"].map(|mode| metrics.selinux_pod_warnings.get([mode]));
    assert_eq!(counted, [Some(2.0), Some(1.0), None]);
    assert_eq!(metrics.selinux_pod_errors.get(["RWOP"]), Some(1.0));
}

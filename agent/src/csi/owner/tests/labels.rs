//! Volumes that are mounted with the SELinux label of their pod, on a node that says it has SELinux.

use serde_json::Value;

use super::*;
use crate::csi::label::WantedLabel;

const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";
const OTHER: &str = "system_u:object_r:container_file_t:s0:c3,c4";
const OF: [&str; 2] = ["kubernetes.io/csi/d.example", "RWOP"];

/// Of one pod, with that label.
fn labelled(label: &str) -> WantedVolume {
    let label = Some(WantedLabel { label: label.to_owned(), access_mode: "RWOP" });
    WantedVolume { one_pod: true, label, ..wanted() }
}

/// The same, where several pods may have it.
fn shared(label: &str) -> WantedVolume {
    let label = Some(WantedLabel { label: label.to_owned(), access_mode: "RWO" });
    WantedVolume { label, ..wanted() }
}

impl Bed {
    /// Its driver takes labels.
    fn taking_labels() -> Self {
        let bed = Self::new();
        bed.api.put_csi_driver(DRIVER, CsiDriver { se_linux_mount: true, ..object() });
        bed
    }

    /// What is written down of the label, of the device and of the pod's mount.
    fn noted(&self, pod: &Pod) -> [Value; 2] {
        let device = self.volumes.shared.places.device(DRIVER, "h1");
        [device.parent().unwrap().join("vol_data.json"), self.data(pod)].map(|path| {
            let mut data: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            data["seLinuxMountContext"].take()
        })
    }

    fn is_labelled(&self, pod: &Pod) -> bool {
        self.volumes.is_labelled(&pod.uid, "pv")
    }
}

fn conflicting() -> String {
    let why = format!("conflicting SELinux labels of volume pv: {LABEL:?} and {OTHER:?}");
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: {why}"
    )
}

fn waiting() -> String {
    let why = format!(
        "waiting for unmount of volume {KEY:?}, because it is already mounted to a different pod with a different SELinux label"
    );
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[]: {why}"
    )
}

#[tokio::test]
async fn a_volume_of_one_pod_is_staged_and_published_with_its_pods_label() {
    let bed = Bed::taking_labels();
    let a = pod("a");
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    let flags = vec!["noatime".to_owned(), format!("context=\"{LABEL}\"")];
    assert_eq!(bed.driver.mount_flags(), [flags.clone(), flags]);
    assert_eq!((bed.noted(&a), bed.is_labelled(&a)), ([LABEL.into(), LABEL.into()], true));
    assert_eq!(bed.metrics.selinux_volumes_admitted.get(OF), Some(1.0));
    // A level by chance is another one at each look: the pod keeps its own.
    bed.mount(&a, &labelled(OTHER)).await.unwrap();
    assert_eq!(bed.driver.calls(), ["stage h1", "publish h1 a"]);
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    assert!(!bed.is_labelled(&a));
    bed.empty().await;
}

#[tokio::test]
async fn a_pod_with_another_label_waits_and_gets_the_volume_staged_anew() {
    let bed = Bed::taking_labels();
    let (a, b) = (pod("a"), pod("b"));
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    let error = bed.volumes.mount(&b, &labelled(OTHER), nothing_owned).await.unwrap_err();
    assert_eq!((error.reason, error.message, error.quiet), ("FailedMount", conflicting(), false));
    assert_eq!(bed.metrics.selinux_volume_errors.get(OF), Some(1.0));
    // One with the same label waits as well: it is a volume of one pod.
    let told = bed.mount(&pod("c"), &labelled(LABEL)).await.unwrap_err();
    assert_eq!(told, format!("MountVolume.SetUp failed for volume \"pv\" : {IN_USE}"));
    bed.volumes.unmount_all(&pod("c").uid).await.unwrap();
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    bed.patiently(&b, &labelled(OTHER)).await;
    let calls = ["stage h1", "publish h1 a", "unpublish h1 a", "unstage h1", "stage h1", "publish h1 b"];
    assert_eq!(bed.driver.calls(), calls);
    let flags = vec!["noatime".to_owned(), format!("context=\"{OTHER}\"")];
    assert_eq!(
        (bed.driver.mount_flags(), bed.noted(&b)),
        ([flags.clone(), flags], [OTHER.into(), OTHER.into()])
    );
}

#[tokio::test]
async fn a_device_that_is_not_given_back_keeps_a_pod_with_another_label_waiting() {
    let bed = Bed::taking_labels();
    let (a, b) = (pod("a"), pod("b"));
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    bed.mount(&b, &labelled(OTHER)).await.unwrap_err();
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    bed.driver.fails("unstage", Trouble::Refused(Code::Internal));
    // It is asked again once upstream's wait is over, and is told of the conflict until then.
    let mut told = conflicting();
    while told == conflicting() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        told = bed.mount(&b, &labelled(OTHER)).await.unwrap_err();
    }
    assert_eq!(told, waiting());
    bed.patiently(&b, &labelled(OTHER)).await;
    assert_eq!(bed.driver.calls()[3..], ["unstage h1 refused", "unstage h1", "stage h1", "publish h1 b"]);
}

#[tokio::test]
async fn what_does_not_take_labels_is_mounted_without_and_will_not_work_later_is_counted() {
    let of = ["kubernetes.io/csi/d.example", "RWO"];
    let bed = Bed::taking_labels();
    let (a, b) = (pod("a"), pod("b"));
    bed.mount(&a, &shared(LABEL)).await.unwrap();
    bed.mount(&b, &shared(OTHER)).await.unwrap();
    assert_eq!(bed.metrics.selinux_volume_warnings.get(of), Some(1.0));
    assert_eq!(bed.metrics.selinux_volumes_admitted.get(of), Some(1.0));
    let plain = || [vec!["noatime".to_owned()], vec!["noatime".to_owned()]];
    assert_eq!(
        (bed.driver.mount_flags(), bed.noted(&b), bed.is_labelled(&b)),
        (plain(), [Value::Null, Value::Null], false)
    );
    let bed = Bed::new();
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    assert_eq!(
        (bed.driver.mount_flags(), bed.noted(&a), bed.is_labelled(&a)),
        (plain(), [Value::Null, Value::Null], false)
    );
    assert_eq!(bed.metrics.selinux_volumes_admitted.get(OF), None);
}

#[tokio::test]
async fn a_kubelet_that_takes_over_knows_the_label_and_changes_nothing_beneath_a_pod() {
    let mut bed = Bed::taking_labels();
    let (a, b) = (pod("a"), pod("b"));
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    bed.restart();
    assert_eq!(bed.mount(&b, &labelled(OTHER)).await.unwrap_err(), waiting(), "a pod has it, known or not");
    bed.volumes.unmount_all(&b.uid).await.unwrap();
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    assert!(bed.is_labelled(&a));
    // One that mounted without labels: its pod goes on so.
    let bare = |path: PathBuf| {
        let mut data: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        data.as_object_mut().unwrap().remove("seLinuxMountContext").unwrap();
        std::fs::write(path, data.to_string()).unwrap();
    };
    bare(bed.volumes.shared.places.device(DRIVER, "h1").parent().unwrap().join("vol_data.json"));
    bare(bed.data(&a));
    bed.restart();
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    let plain = vec!["noatime".to_owned()];
    assert_eq!((bed.driver.mount_flags(), bed.is_labelled(&a)), ([plain.clone(), plain], false));
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    bed.empty().await;
}

#[tokio::test]
async fn on_a_node_without_selinux_labels_are_no_matter() {
    let mut bed = Bed::taking_labels();
    let (a, b) = (pod("a"), pod("b"));
    bed.mount(&a, &labelled(LABEL)).await.unwrap();
    bed.restart();
    bed.mount(&b, &wanted()).await.unwrap();
    assert_eq!(bed.driver.mount_flags(), [vec!["noatime".to_owned()], vec!["noatime".to_owned()]]);
}

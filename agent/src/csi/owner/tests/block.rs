//! Raw block volumes, with a driver at the other end of a real socket whose devices are only remembered.

use super::*;
use crate::api::fake::volume_from;
use crate::api::{Claim, ClaimSize, PersistentSource, PersistentVolume};
use crate::block::BlockKernel;
use crate::csi::expand::Expansion;
use crate::csi::steps::WantedClaim;

fn block() -> WantedVolume {
    WantedVolume { block: true, ..wanted() }
}

impl Bed {
    fn places(&self) -> &Places {
        &self.volumes.shared.places
    }

    fn devices(&self) -> PathBuf {
        self.root.path().join("plugins/kubernetes.io/csi/volumeDevices")
    }

    /// Neither the driver nor the disk has anything of it.
    async fn nothing_left(&self) {
        self.empty().await;
        let of_volume = ["pv", "staging/pv", "publish/pv"].map(|path| self.devices().join(path).exists());
        assert_eq!((of_volume, self.driver.blocks().locked()), ([false; 3], Vec::new()));
    }
}

#[tokio::test]
async fn a_device_is_staged_once_mapped_for_each_pod_and_taken_back_after_the_last() {
    let bed = Bed::new();
    bed.api.put_csi_driver(DRIVER, CsiDriver { pod_info: true, ..object() });
    let (mut a, b) = (pod("a"), pod("b"));
    a.security.fs_group = Some(1000);
    bed.driver.can_set_group(true);
    let no_files = |_| -> Owned { Box::pin(std::future::ready(Err("no files".to_owned()))) };
    let mount = async |pod: &Pod| bed.volumes.mount(pod, &block(), no_files).await;
    assert_eq!((mount(&a).await, mount(&a).await, mount(&b).await), (Ok(true), Ok(false), Ok(true)));
    assert_eq!(bed.driver.calls(), ["stage h1", "publish h1 a", "publish h1 b"]);
    let (staged, published) = bed.driver.asked();
    let path = |path: &str| bed.devices().join(path).to_string_lossy().into_owned();
    assert_eq!(staged.staging_target_path, path("staging/pv"));
    assert_eq!(published.staging_target_path, staged.staging_target_path);
    assert_eq!(published.target_path, path("publish/pv/b"));
    assert_eq!(published.volume_context["csi.storage.k8s.io/pod.uid"], "b");
    let kinds = [staged.volume_capability, published.volume_capability]
        .map(|capability| format!("{:?}", capability.unwrap().access_type.unwrap()));
    assert_eq!(kinds, ["Block(BlockVolume)"; 2], "neither a file system nor a group is asked for");
    let text = std::fs::read_to_string(bed.devices().join("pv/data/vol_data.json")).unwrap();
    let attachment = steps::attachment_name("h1", DRIVER, "n1");
    let want = json!({ "attachmentID": attachment, "driverName": DRIVER, "nodeName": "n1", "specVolID": "pv",
        "volumeHandle": "h1" });
    assert_eq!(text, format!("{want}\n"), "upstream's form and order");
    let link = bed.root.path().join("pods/a/volumeDevices/kubernetes.io~csi/pv");
    let target = bed.devices().join("publish/pv/a").canonicalize().unwrap();
    assert_eq!(std::fs::read_link(&link).unwrap(), target);
    let point = |pod: &str| bed.devices().join("pv/dev").join(pod);
    assert_eq!(bed.driver.blocks().locked(), [point("a"), point("b")]);
    bed.volumes.unmount_all(&a.uid).await.unwrap();
    assert!(!link.is_symlink() && !point("a").exists() && point("b").exists());
    assert_eq!(bed.driver.blocks().locked(), [point("b")]);
    // Of a pod that has gone before its driver was called.
    std::fs::write(point("c"), "").unwrap();
    bed.volumes.unmount_all(&b.uid).await.unwrap();
    bed.nothing_left().await;
    assert_eq!(bed.driver.calls()[3..], ["unpublish h1 a", "unpublish h1 b", "unstage h1"]);
}

#[tokio::test]
async fn what_fails_of_a_device_is_told_as_a_map_and_nothing_is_left_of_what_was_refused() {
    let bed = Bed::new();
    let pod = pod("a");
    let told = async || {
        let error = bed.volumes.mount(&pod, &block(), nothing_owned).await.unwrap_err();
        assert_eq!(error.reason, "FailedMapVolume");
        error.message
    };
    bed.driver.fails("stage", Trouble::Refused(Code::InvalidArgument));
    let words = "MapVolume.SetUpDevice failed for volume \"pv\" : rpc error: code = InvalidArgument";
    assert!(told().await.starts_with(words));
    assert!(!bed.devices().join("pv").exists() && !bed.devices().join("staging/pv").exists());
    tokio::time::sleep(Duration::from_millis(600)).await;
    bed.driver.fails("publish", Trouble::Refused(Code::Internal));
    let words = "MapVolume.MapPodDevice failed for volume \"pv\" : rpc error: code = Internal";
    let message = told().await;
    assert!(message.starts_with(words), "{message}");
    assert!(!bed.devices().join("pv/dev/a").exists() && bed.devices().join("pv/data").exists());
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.nothing_left().await;
    assert_eq!(bed.driver.calls().last().map(String::as_str), Some("unstage h1"));
}

/// A published device that cannot be mapped is the driver's to take back.
#[tokio::test]
async fn a_device_that_cannot_be_locked_is_taken_back_from_a_pod_that_never_had_it() {
    let bed = Bed::new();
    let pod = pod("a");
    bed.driver.blocks().fail(Some("losetup failed"));
    let message = bed.mount(&pod, &block()).await.unwrap_err();
    let words = "MapVolume.MapBlockVolume failed for volume \"pv\" : blkUtil.AttachFileDevice failed. ";
    assert!(message.starts_with(words) && message.ends_with("losetup failed"), "{message}");
    bed.driver.blocks().fail(None);
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.nothing_left().await;
    assert_eq!(bed.driver.calls()[2..], ["unpublish h1 a", "unstage h1"]);
}

#[tokio::test]
async fn what_an_earlier_kubelet_has_left_of_a_device_is_taken_over_and_taken_back() {
    let mut bed = Bed::new();
    let (kept, gone, cut) = (pod("a"), pod("b"), pod("c"));
    bed.mount(&kept, &block()).await.unwrap();
    bed.mount(&gone, &block()).await.unwrap();
    // A call that was cut off before its driver had answered.
    bed.driver.fails("publish", Trouble::Hangs);
    let hangs = tokio::time::timeout(Duration::from_millis(300), bed.mount(&cut, &block())).await;
    assert!(hangs.is_err());
    let calls = bed.driver.calls().len();
    bed.restart();
    assert_eq!(bed.volumes.pods(), [&kept, &gone, &cut].map(|pod| pod.uid.clone()).into());
    let perhaps = bed.volumes.attachments().in_use().borrow().perhaps.clone();
    assert_eq!(perhaps, [KEY.to_owned()].into());
    bed.mount(&kept, &block()).await.unwrap();
    bed.volumes.unmount_all(&gone.uid).await.unwrap();
    bed.volumes.unmount_all(&cut.uid).await.unwrap();
    assert_eq!(bed.driver.calls()[calls..], ["stage h1", "publish h1 a", "unpublish h1 b", "unpublish h1 c"]);
    assert_eq!(
        bed.driver.blocks().done().iter().filter(|done| *done == "bind").count(),
        2,
        "bound once each"
    );
    bed.volumes.unmount_all(&kept.uid).await.unwrap();
    bed.nothing_left().await;
}

#[tokio::test]
async fn a_driver_that_is_away_keeps_what_is_known_of_a_device() {
    let bed = Bed::new();
    let pod = pod("a");
    bed.mount(&pod, &block()).await.unwrap();
    bed.drivers.remove(DRIVER);
    let told = bed.volumes.unmount_all(&pod.uid).await.unwrap_err();
    let words = "UnmapVolume.UnmapPodDevice failed for volume \"pv\" : kubernetes.io/csi: blockMapper.UnmapPodDevice failed";
    assert!(told.starts_with(words), "{told}");
    assert!(bed.devices().join("pv/dev/a").exists(), "a later kubelet knows of it");
    assert_eq!(bed.driver.blocks().locked(), Vec::<PathBuf>::new());
    bed.drivers.put(DRIVER, &bed.root.path().join(format!("{DRIVER}.sock")));
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.nothing_left().await;
}

#[tokio::test]
async fn a_device_of_one_pod_is_no_other_pods_and_a_volume_is_not_both_a_device_and_a_folder() {
    let bed = Bed::new();
    let (a, b) = (pod("a"), pod("b"));
    let alone = WantedVolume { one_pod: true, ..block() };
    bed.mount(&a, &alone).await.unwrap();
    let told = bed.mount(&b, &alone).await.unwrap_err();
    assert_eq!(told, format!("MapVolume.SetUpDevice failed for volume \"pv\" : {IN_USE}"));
    let told = bed.mount(&pod("c"), &wanted()).await.unwrap_err();
    assert!(
        told.contains("is here by another PersistentVolume, whose volumeMode or name is another"),
        "{told}"
    );
    let other = WantedVolume { name: "pv-2".to_owned(), ..block() };
    assert!(bed.mount(&pod("d"), &other).await.unwrap_err().contains("is here by another"));
    assert_eq!(bed.driver.calls(), ["stage h1", "publish h1 a"]);
}

#[tokio::test]
async fn a_device_grows_and_its_driver_tells_how_full_it_is() {
    let bed = Bed::new();
    let pod = pod("a");
    bed.driver.can_expand();
    bed.driver.tells_usage([0, 10, 0], [0, 0, 0]);
    let size = ClaimSize {
        version: "7".to_owned(),
        requested: "2Ki".to_owned(),
        capacity: "1Ki".to_owned(),
        allocated: "2Ki".to_owned(),
        status: "NodeResizePending".to_owned(),
    };
    let volume =
        PersistentVolume { capacity: "2Ki".into(), ..volume_from(PersistentSource::Other(String::new())) };
    let expansion = Expansion::of(&size, &volume);
    let claim = WantedClaim {
        namespace: "default".to_owned(),
        name: "data".to_owned(),
        uid: "u-data".to_owned(),
        outgrown: true,
        size,
        expansion,
    };
    bed.api.put_claim("data", Claim::default());
    // The driver looks whether the paths are those that it has staged and published.
    bed.patiently(&pod, &WantedVolume { claim: Some(claim), ..block() }).await;
    assert_eq!(bed.driver.calls(), ["stage h1", "publish h1 a", "expand h1 2048"]);
    let told = bed.volumes.usage(&pod.uid, "pv").await.unwrap().unwrap();
    assert_eq!(told.capacity_bytes, Some(10));
    let point = bed.places().map(&pod.uid, "pv").point();
    assert_eq!(bed.driver.blocks().number(&point).unwrap(), Some(7));
}

/// A driver that does not stage is shown the staging path all the same, as upstream; and nothing of a volume is written
/// down before its driver is there.
#[tokio::test]
async fn a_device_of_a_driver_that_does_not_stage_is_published_and_leaves_nothing() {
    let bed = Bed::new();
    let pod = pod("a");
    bed.drivers.remove(DRIVER);
    let told = bed.mount(&pod, &block()).await.unwrap_err();
    assert!(told.starts_with("MapVolume.SetUpDevice failed for volume \"pv\" : "), "{told}");
    assert!(!bed.devices().exists());
    bed.drivers.put(DRIVER, &bed.root.path().join(format!("{DRIVER}.sock")));
    bed.driver.cannot_stage();
    bed.patiently(&pod, &block()).await;
    let (_, published) = bed.driver.asked();
    assert_eq!(published.staging_target_path, bed.devices().join("staging/pv").to_string_lossy());
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.nothing_left().await;
    assert_eq!(bed.driver.calls(), ["publish h1 a", "unpublish h1 a"]);
}

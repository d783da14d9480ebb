//! Disks of pods that CSI drivers have taken over, with a driver at the other end of a socket.

use gantry_model::pod::volume::MigratedVolume;

use super::labels::{driver, fixture};
use super::*;
use crate::csi::fake::FakeDriver;

const DRIVER: &str = "disk.csi.azure.com";

fn disk() -> MigratedVolume {
    MigratedVolume {
        name: "/subscriptions/s/disks/d".into(),
        driver: DRIVER.into(),
        handle: "/subscriptions/s/disks/d".into(),
        fs_type: "ext4".into(),
        attributes: [("kind".to_owned(), "Managed".to_owned())].into(),
        access_mode: "ReadWriteOnce",
        secret: None,
    }
}

fn using(of: Result<Box<MigratedVolume>, String>) -> Pod {
    with(vec![volume("data", VolumeSource::Migrated(of))], vec![mount("data", "/data")])
}

#[tokio::test]
async fn a_disk_of_an_older_kind_is_its_drivers_in_upstreams_places() {
    let csi = FakeDriver::new(DRIVER);
    let place = fixture(&csi, DRIVER);
    place.api.put_csi_driver(DRIVER, driver(false));
    let pod = using(Ok(Box::new(disk())));
    place.volumes.set_up(&pod).await.unwrap();
    let (staged, published) = csi.asked();
    assert_eq!(csi.calls(), ["stage /subscriptions/s/disks/d", "publish /subscriptions/s/disks/d uid-1"]);
    assert_eq!((staged.volume_id, &published.volume_context["kind"]), (disk().handle, &"Managed".to_owned()));
    assert!(!published.readonly);
    let path = place.path("volumes/kubernetes.io~csi/~subscriptions~s~disks~d/mount");
    assert_eq!(published.target_path, path.to_string_lossy());
    let data = fs::read_to_string(path.parent().unwrap().join("vol_data.json")).unwrap();
    assert!(data.contains(r#""specVolID":"/subscriptions/s/disks/d""#), "{data}");
    assert!(data.contains(r#""volumeLifecycleMode":"Persistent""#), "{data}");
    let mounts = place.mounts(&pod, &[]).await.unwrap();
    let own = mounts.iter().find(|mount| mount.container_path == "/data").unwrap();
    assert_eq!((&own.host_path, own.read_only, own.relabel), (&path, false, true));
    let counts = place.volumes.counts();
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["kubernetes.io/csi:disk.csi.azure.com"]);
    place.volumes.tear_down(&pod.uid).await.unwrap();
    assert!(!place.path("").exists());
    csi.until(|calls| calls.last().is_some_and(|call| call.starts_with("unstage"))).await;
}

#[tokio::test]
async fn a_disk_that_no_driver_can_have_keeps_its_pod_waiting_and_says_why() {
    let place = fixture(&FakeDriver::new(DRIVER), DRIVER);
    let why = "failed to translate in-tree pv to CSI: kind(Dedicated) is not supported in csi migration";
    let told = place.volumes.set_up(&using(Err(why.to_owned()))).await.unwrap_err();
    let words = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]";
    assert_eq!((told.reason, told.message), ("FailedMount", format!("{words}: {why}")));
}

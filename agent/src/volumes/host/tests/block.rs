//! Raw block devices of local volumes, with devices that are only remembered.

use gantry_model::pod::volume::VolumeDevice;

use super::*;
use crate::api::fake::{claim_to, volume_from};
use crate::api::{Claim, PersistentSource, PersistentVolume};
use crate::block::fake::FakeBlocks;
use crate::events::Kind;

struct BlockFixture {
    place: VolumeFixture,
    blocks: FakeBlocks,
    device: PathBuf,
}

impl BlockFixture {
    /// A claim of a local volume that is a device.
    fn new(one_pod: bool) -> Self {
        let (mut place, blocks) = (VolumeFixture::new(), FakeBlocks::default());
        place.volumes.blocks = Arc::new(blocks.clone());
        let device = blocks.device(&place.root.path().join("sda"), 7);
        place.api.put_claim("c", Claim { block: true, ..claim_to("pv") });
        let source = PersistentSource::Local {
            path: device.to_string_lossy().into_owned(),
            fs_type: String::new(),
            mount_options: Vec::new(),
        };
        place.api.put_volume("pv", PersistentVolume { one_pod, ..volume_from(source) });
        Self { place, blocks, device }
    }

    fn volumes(&self) -> &dyn Volumes {
        &self.place.volumes
    }

    async fn devices(&self, pod: &Pod) -> Result<Vec<MappedDevice>, String> {
        let container = pod.containers.first().unwrap();
        self.volumes().devices(pod, container).await.map_err(|error| error.message)
    }

    fn point(&self, uid: &str) -> PathBuf {
        self.place.root.path().join("plugins/kubernetes.io~local-volume/volumeDevices/pv").join(uid)
    }
}

fn with_device(read_only: bool, path: &str) -> Pod {
    let claim = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only };
    let mut pod = with(vec![volume("data", claim)], vec![]);
    let web = pod.containers.first_mut().unwrap();
    web.devices = vec![VolumeDevice { volume: "data".into(), path: path.into() }];
    pod
}

#[tokio::test]
async fn a_local_device_is_mapped_for_its_pod_and_unmapped_at_its_end() {
    let fixture = BlockFixture::new(false);
    let pod = with_device(false, "/dev/xvda");
    assert!(fixture.devices(&pod).await.unwrap_err().starts_with("cannot find volume \"data\" to pass into"));
    fixture.volumes().set_up(&pod).await.unwrap();
    let link = fixture.place.path("volumeDevices/kubernetes.io~local-volume/pv");
    let shown = link.to_string_lossy().into_owned();
    assert_eq!(fixture.devices(&pod).await.unwrap(), [("/dev/xvda".to_owned(), shown, "mrw".to_owned())]);
    let permissions = fixture.devices(&with_device(true, "/dev/xvda")).await.unwrap().remove(0).2;
    assert_eq!((permissions.as_str(), fs::read_link(&link).unwrap()), ("r", fixture.device.clone()));
    let relative = fixture.devices(&with_device(false, "xvda")).await.unwrap_err();
    assert_eq!(relative, "error DevicePath `xvda` must be an absolute path");
    assert_eq!(fixture.blocks.locked(), [fixture.point("uid-1")]);
    // Told once, and a device that has gone since takes nothing from the pod.
    let folder = fixture.point("uid-1").parent().unwrap().display().to_string();
    let told = fixture.volumes().notes().take(&pod.uid);
    let words = format!("MapVolume.MapPodDevice succeeded for volume \"pv\" globalMapPath {folder:?}");
    assert_eq!((told.len(), &told[0].note.message), (2, &words));
    assert_eq!((told[0].note.reason.as_ref(), told[0].note.kind), ("SuccessfulMountVolume", Kind::Normal));
    fixture.blocks.vanish(&fixture.device);
    fixture.volumes().set_up(&pod).await.unwrap();
    assert_eq!(fixture.volumes().notes().take(&pod.uid), []);
    // An agent that knows nothing of it takes it back.
    let mut next = HostVolumes::new(fixture.place.root.path(), fixture.place.api.clone(), node(), false);
    next.blocks = Arc::new(fixture.blocks.clone());
    next.reclaim(&pod.uid).await.unwrap();
    assert_eq!(fixture.blocks.done(), ["bind", "lock", "unlock", "unbind"]);
    assert!(!fixture.point("uid-1").parent().unwrap().exists() && !fixture.place.path("").exists());
}

#[tokio::test]
async fn a_device_that_cannot_be_mapped_is_told_as_such_and_tried_again() {
    let fixture = BlockFixture::new(true);
    let pod = with_device(false, "/dev/xvda");
    fixture.blocks.fail(Some("losetup -f failed"));
    let error = fixture.volumes().set_up(&pod).await.unwrap_err();
    assert_eq!(error.reason, "FailedMapVolume");
    let words = "MapVolume.MapBlockVolume failed for volume \"pv\" : blkUtil.AttachFileDevice failed. ";
    assert!(error.message.starts_with(words), "{error}");
    fixture.blocks.fail(None);
    fixture.volumes().set_up(&pod).await.unwrap();
    let other = Pod { uid: PodUid::parse("uid-2").unwrap(), ..with_device(false, "/dev/xvda") };
    let error = fixture.volumes().set_up(&other).await.unwrap_err();
    let words =
        "MapVolume.SetUpDevice failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode";
    assert!(error.reason == "FailedMapVolume" && error.message.starts_with(words), "{error}");
    fixture.volumes().tear_down(&pod.uid).await.unwrap();
    fixture.volumes().set_up(&other).await.unwrap();
    assert_eq!(fixture.blocks.locked(), [fixture.point("uid-2")]);
}

#[tokio::test]
async fn a_mount_of_a_device_is_refused() {
    let fixture = BlockFixture::new(false);
    let mut pod = with_device(false, "/dev/xvda");
    pod.containers.push(Container { mounts: vec![mount("data", "/data")], ..container("log") });
    let error = fixture.volumes().set_up(&pod).await.unwrap_err();
    assert!(error.message.ends_with("volume data has volumeMode Block, but is specified in volumeMounts"));
    assert_eq!(fixture.blocks.done(), Vec::<String>::new());
}

#[tokio::test]
async fn a_device_tells_how_large_it_is_and_no_more() {
    let fixture = BlockFixture::new(false);
    let pod = with_device(false, "/dev/xvda");
    fixture.volumes().set_up(&pod).await.unwrap();
    fs::write(fixture.point("uid-1"), "0123456789").unwrap();
    let usage = fixture.volumes().usage(&pod.uid, "data").await.unwrap().unwrap();
    assert_eq!((usage.capacity_bytes, usage.used_bytes, usage.driver.as_str()), (Some(10), None, "block"));
    assert_eq!(fixture.volumes().claim_name(&pod.uid, "data"), None, "nobody weighs a folder");
    let count = fixture.volumes().counts().remove("kubernetes.io/local-volume");
    assert_eq!(count, Some(Count { wanted: 1, there: 1 }));
}

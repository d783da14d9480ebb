//! Local volumes whose claims are smaller than they are, with programs in place of resize2fs and others. A real disk is in the
//! kernel tier.

use gantry_model::pod::volume::VolumeDevice;

use super::iscsi::machine::IscsiFixture;
use super::*;
use crate::api::fake::{claim_to, volume_from};
use crate::api::{Claim, ClaimSize, PersistentSource, PersistentVolume};
use crate::csi::steps::{EXPAND, EXPAND_IN_USE};
use crate::volumes::claim::LocalVolume;

const PLACE: &str = "plugins/kubernetes.io/local-volume/mounts/pv";

struct GrowthFixture {
    machine: IscsiFixture,
    api: Arc<FakeApi>,
}

/// With 1Ki of what may be 2Ki.
fn claim(block: bool) -> Claim {
    let size = ClaimSize {
        version: "7".into(),
        requested: "1Ki".into(),
        capacity: "1Ki".into(),
        ..ClaimSize::default()
    };
    Claim { block, size, ..claim_to("pv") }
}

impl GrowthFixture {
    fn new(block: bool) -> Self {
        let machine = IscsiFixture::new();
        let api = machine.place.api.clone();
        let path = machine.blocks.device(&machine.root().join("disk0"), 7);
        api.put_claim("c", claim(block));
        let source = PersistentSource::Local {
            path: path.to_string_lossy().into_owned(),
            fs_type: String::new(),
            mount_options: Vec::new(),
        };
        let volume = PersistentVolume { capacity: "2Ki".into(), ..volume_from(source) };
        api.put_volume("pv", volume);
        Self { machine, api }
    }

    fn volumes(&self) -> &HostVolumes {
        &self.machine.place.volumes
    }

    /// As the pod's claim leads to it.
    async fn local(&self, read_only: bool) -> LocalVolume {
        let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only };
        let (pod, data, claim) = (pod(), volume("data", source), ClaimRef::Named("c".into()));
        match self.volumes().claim(&pod, &data, &claim).await.unwrap() {
            VolumeBacking::Local(of) | VolumeBacking::LocalBlock(of) => *of,
            other => panic!("{other:?}"),
        }
    }

    async fn grow(&self, of: &LocalVolume, step: &'static str) -> Result<(), String> {
        let place = self.machine.root().join(PLACE);
        let grown = self.volumes().grow_local(&pod(), of, Some(&place), step).await;
        grown.map_err(|failed| format!("{} {}", failed.reason(), failed.told("data")))
    }

    /// What the claim was told, of its status.
    fn told(&self) -> Vec<serde_json::Value> {
        self.api.claim_patches().into_iter().map(|(_, mut patch)| patch["status"].take()).collect()
    }

    fn events(&self) -> Vec<(String, String)> {
        let notes = self.volumes().notes.take(&pod().uid).into_iter().map(|told| told.note);
        notes.map(|note| (note.reason.into_owned(), note.message)).collect()
    }
}

#[tokio::test]
async fn a_file_system_is_made_as_large_as_its_disk_by_the_program_of_its_kind() {
    let fixture = GrowthFixture::new(false);
    let (disk, place) = (fixture.machine.root().join("disk0"), fixture.machine.root().join(PLACE));
    fs::write(&disk, [0; 8192]).unwrap();
    let grow = async || fixture.volumes().disk_programs.grow(&disk, &place).await;
    grow().await.unwrap();
    let look = "blkid -p -s TYPE -s PTTYPE -o export disk0".to_owned();
    assert_eq!(fixture.machine.calls(), std::slice::from_ref(&look), "it is empty");
    for (kind, call) in [
        ("ext3", "resize2fs disk0".to_owned()),
        ("ext4", "resize2fs disk0".to_owned()),
        ("xfs", format!("xfs_growfs -d {PLACE}")),
        ("btrfs", format!("btrfs filesystem resize max {PLACE}")),
    ] {
        fixture.machine.script("found", &format!("TYPE={kind}\n"));
        grow().await.unwrap();
        assert_eq!(fixture.machine.calls(), [look.clone(), call]);
    }
    fixture.machine.script("resize.sh", "echo no room; exit 1\n");
    let shown = place.display();
    let words = format!("resize of device {shown} failed: exit status 1. btrfs output: no room\n");
    assert_eq!(grow().await, Err(words));
    fixture.machine.script("found", "TYPE=vfat\n");
    let words = format!(
        "ResizeFS.Resize - resize of format vfat is not supported for device {} mounted at {shown}",
        disk.display()
    );
    assert_eq!(grow().await, Err(words));
}

#[tokio::test]
async fn a_disk_grows_before_its_pod_has_it_and_its_claim_is_told() {
    let fixture = GrowthFixture::new(false);
    fixture.machine.script("found", "TYPE=ext4\n");
    let of = fixture.local(false).await;
    fixture.machine.script("resize.sh", "echo busy; exit 1\n");
    let disk = of.path.display();
    let why = format!("resize of device {disk} failed: exit status 1. resize2fs output: busy\n");
    let words =
        format!("FailedMount MountVolume.Setup failed while expanding volume for volume \"pv\" : {why}");
    assert_eq!(fixture.grow(&of, EXPAND).await, Err(words));
    let words =
        format!("VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : {why}");
    assert_eq!(fixture.grow(&of, EXPAND_IN_USE).await, Err(words));
    assert_eq!((fixture.told(), fixture.events()), (vec![], vec![]), "nobody has a status for it");
    fixture.machine.script("resize.sh", "");
    fixture.grow(&of, EXPAND).await.unwrap();
    assert_eq!(fixture.told().pop().unwrap()["capacity"]["storage"], "2Ki");
    let words = "MountVolume.NodeExpandVolume succeeded for volume \"pv\" n".to_owned();
    assert_eq!(fixture.events(), [("FileSystemResizeSuccessful".to_owned(), words)]);
    fixture.machine.calls();
    let grown = Claim { size: ClaimSize { capacity: "2Ki".into(), ..claim(false).size }, ..claim(false) };
    fixture.api.put_claim("c", grown);
    fixture.grow(&fixture.local(false).await, EXPAND).await.unwrap();
    assert_eq!((fixture.machine.calls(), fixture.events()), (vec![], vec![]), "it has its size");
}

/// A controller that asks for another size meanwhile gets its way once the first has failed twice.
#[tokio::test]
async fn a_claim_that_a_controller_follows_is_told_of_each_failure() {
    let fixture = GrowthFixture::new(false);
    fixture.machine.script("found", "TYPE=ext4\n");
    fixture.machine.script("resize.sh", "exit 1\n");
    let status = "NodeResizePending".to_owned();
    let size = ClaimSize { allocated: "2Ki".into(), requested: "3Ki".into(), status, ..claim(false).size };
    fixture.api.put_claim("c", Claim { size, ..claim(false) });
    let of = fixture.local(false).await;
    for _ in 0..2 {
        fixture.grow(&of, EXPAND).await.unwrap_err();
    }
    let told = fixture.told();
    let states = told.iter().map(|status| &status["allocatedResourceStatuses"]["storage"]);
    let states: Vec<_> = states.map(|state| state.as_str().unwrap_or_default()).collect();
    assert_eq!(states, ["NodeResizeInProgress", "", "NodeResizeInProgress", "NodeResizeInfeasible"]);
    assert!(told[1]["conditions"][0]["message"].as_str().unwrap().contains("exit status 1"));
}

#[tokio::test]
async fn a_volume_that_is_only_read_does_not_grow() {
    let fixture = GrowthFixture::new(false);
    fixture.machine.script("found", "TYPE=ext4\n");
    let of = fixture.local(true).await;
    assert!(!of.may_grow());
    fixture.grow(&of, EXPAND).await.unwrap();
    let words = "MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only file system";
    assert_eq!(fixture.events(), [("FileSystemResizeFailed".to_owned(), words.to_owned())]);
    assert_eq!((fixture.told(), fixture.machine.calls()), (vec![], vec![]));
    assert_eq!(fixture.volumes().growing_local().await, []);
}

#[tokio::test]
async fn a_device_has_the_room_already_and_its_claim_is_told() {
    let fixture = GrowthFixture::new(true);
    let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    let mut pod = with(vec![volume("data", source)], vec![]);
    let device = VolumeDevice { volume: "data".into(), path: "/dev/xvda".into() };
    pod.containers.first_mut().unwrap().devices = vec![device];
    fixture.volumes().set_up(&pod).await.unwrap();
    assert_eq!(fixture.told().pop().unwrap()["capacity"]["storage"], "2Ki");
    let reasons: Vec<String> = fixture.events().into_iter().map(|(reason, _)| reason).collect();
    let mapped = "SuccessfulMountVolume";
    assert_eq!(reasons, [mapped, mapped, "FileSystemResizeSuccessful"]);
    assert_eq!(fixture.machine.calls(), Vec::<String>::new());
    // While it runs its claim is looked at.
    assert_eq!(fixture.volumes().growing_local().await, [pod.uid.clone()]);
    let grown = Claim { size: ClaimSize { capacity: "2Ki".into(), ..claim(true).size }, ..claim(true) };
    fixture.api.put_claim("c", grown);
    assert_eq!(fixture.volumes().growing_local().await, []);
}

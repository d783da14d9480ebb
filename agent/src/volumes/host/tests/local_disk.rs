//! Disks of the node as `local` volumes, with programs in place of blkid, mkfs, mount and umount. Real disks are in the kernel
//! tier.

use std::time::Duration;

use super::iscsi::machine::IscsiFixture;
use super::*;
use crate::volumes::claim::LocalVolume;

struct LocalFixture {
    machine: IscsiFixture,
    volume: LocalVolume,
    /// Of the disk.
    place: PathBuf,
}

impl LocalFixture {
    fn new() -> Self {
        let machine = IscsiFixture::new();
        let (path, options) = (machine.root().join("disk0"), vec!["noatime".to_owned()]);
        fs::write(&path, [0; 8192]).unwrap();
        let volume = LocalVolume {
            path,
            name: "pv".into(),
            uid: "pv-uid".into(),
            fs_type: String::new(),
            options,
            read_only: false,
            claim: None,
        };
        let place = machine.place.volumes.disk_place("pv");
        Self { machine, volume, place }
    }

    async fn mount(&self) -> Result<(), DiskFailure> {
        self.machine.place.volumes.mount_local_disk(&self.volume, &self.place).await
    }

    /// As a pod's bind would be in the kernel's table.
    fn write_binds(&self, pod: &str) {
        let point = self.machine.root().join("pods").join(pod).join("volumes/kubernetes.io~local-volume/pv");
        let line = format!("{} {}\n", self.place.display(), point.display());
        fs::write(self.machine.root().join("binds"), line).unwrap();
    }

    fn leave(&self) {
        let volumes = &self.machine.place.volumes;
        volumes.leave_local_disks(volumes.list_local_disks().unwrap());
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..6000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never {what}: {:?}", self.machine.calls());
    }

    fn is_at_rest(&self) -> bool {
        self.machine.place.volumes.local_disks.is_empty()
    }
}

const PLACE: &str = "plugins/kubernetes.io/local-volume/mounts/pv";

#[tokio::test]
async fn a_disk_of_the_node_is_formatted_and_mounted_once() {
    let fixture = LocalFixture::new();
    fixture.mount().await.unwrap();
    let calls = [
        "blkid -p -s TYPE -s PTTYPE -o export disk0".to_owned(),
        "mkfs.ext4 -F -m0 disk0".to_owned(),
        format!("mount -t ext4 -o noatime,defaults disk0 {PLACE}"),
    ];
    assert_eq!(fixture.machine.calls(), calls);
    fixture.mount().await.unwrap();
    assert_eq!(fixture.machine.calls(), Vec::<String>::new(), "it is there");
}

#[tokio::test]
async fn a_disk_that_cannot_be_mounted_is_told_and_leaves_no_place() {
    let fixture = LocalFixture::new();
    fixture.machine.script("mount.sh", "echo no such thing >&2; exit 32\n");
    let DiskFailure { why, mismatch } = fixture.mount().await.unwrap_err();
    let root = fixture.machine.root();
    let words = format!(
        "local: failed to mount device {0}/disk0 at {0}/{PLACE} (fstype: ext4), error ",
        root.display()
    );
    assert!(why.starts_with(&words) && why.contains("no such thing"), "{why}");
    assert!(!fixture.place.exists() && fixture.machine.mounted().is_empty());
    assert!(!mismatch, "it was empty");
    fixture.machine.script("found", "TYPE=ext4\n");
    assert!(!fixture.mount().await.unwrap_err().mismatch, "it has what is asked for");
    fixture.machine.script("found", "TYPE=xfs\n");
    assert!(fixture.mount().await.unwrap_err().mismatch);
    fixture.machine.script("fsck.sh", "exit 4\n");
    assert!(!fixture.mount().await.unwrap_err().mismatch, "it was not mount that failed");
}

#[test]
fn only_a_disk_with_another_file_system_is_told_of_its_volume() {
    let failure = DiskFailure { why: "mount failed: exit status 32".to_owned(), mismatch: true };
    let note = mismatch_note("pv", &failure).unwrap();
    let message = "MountVolume failed for volume \"pv\" mount failed: exit status 32";
    assert_eq!((&*note.reason, &*note.message), ("FailedMountOnFilesystemMismatch", message));
    assert_eq!(mismatch_note("pv", &DiskFailure { mismatch: false, ..failure }), None);
}

#[tokio::test]
async fn a_folder_that_does_not_take_its_options_is_not_mounted() {
    let fixture = LocalFixture::new();
    let (volumes, folder) = (&fixture.machine.place.volumes, fixture.machine.root().join("disk"));
    let volume = LocalVolume { path: folder.clone(), ..fixture.volume.clone() };
    let point = volumes.local_target(&PodUid::parse("uid-1").unwrap(), "pv");
    let shown = "pods/uid-1/volumes/kubernetes.io~local-volume/pv";
    volumes.give_options(&volume, &folder, &point).await.unwrap();
    assert_eq!(fixture.machine.calls(), [format!("mount -o bind,remount,noatime disk {shown}")]);
    fixture.machine.script("mount.sh", "exit 32\n");
    volumes.give_options(&volume, &folder, &point).await.unwrap_err();
    let calls = [format!("mount -o bind,remount,noatime disk {shown}"), format!("umount {shown}")];
    assert_eq!(fixture.machine.calls(), calls);
}

#[tokio::test]
async fn a_disk_is_taken_off_once_no_pod_has_it_until_that_has_worked() {
    let fixture = LocalFixture::new();
    fixture.mount().await.unwrap();
    fixture.machine.calls();
    fixture.write_binds("uid-1");
    fixture.leave();
    fixture.until("looked at", LocalFixture::is_at_rest).await;
    // Whoever looks has the disk's turn.
    drop(fixture.machine.place.volumes.turns.of(&fixture.place).lock().await);
    assert_eq!(fixture.machine.calls(), Vec::<String>::new(), "a pod has it");
    fs::write(fixture.machine.root().join("binds"), "").unwrap();
    fixture
        .machine
        .script("umount.sh", "[ -e ROOT/failed ] || { : >ROOT/failed; echo busy >&2; exit 32; }\n");
    fixture.leave();
    fixture.until("taken off", |fixture| !fixture.place.exists() && fixture.is_at_rest()).await;
    assert_eq!(fixture.machine.calls(), [format!("umount {PLACE}"), format!("umount {PLACE}")]);
    assert!(fixture.machine.mounted().is_empty());
}

//! A machine with an iSCSI target: programs in place of iscsiadm, blkid, fsck, mkfs, mount and umount that keep a table of
//! their own, and a `/sys` in a folder. Real sessions are in the small VM.

use std::time::Duration;

use gantry_model::pod::volume::IscsiVolume;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::super::*;
use crate::api::fake::{claim_to, volume_from};
use crate::api::{Claim, IscsiSource, PersistentSource, PersistentVolume};
use crate::block::fake::FakeBlocks;
use crate::volumes::disk::DiskPrograms;
use crate::volumes::host_program::HostProgram;
use crate::volumes::iscsi::session::IscsiHost;
use crate::volumes::mount_program::MountProgram;

pub(super) const IQN: &str = "iqn.2003-01.io.k8s:disk";
pub(super) const PORTAL: &str = "10.0.0.1:3260";
/// Of the disk with LUN 0, below the root.
pub(super) const PLACE: &str =
    "plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.2003-01.io.k8s:disk-lun-0";

/// Notes each call and does as told. A login makes a session of host 3 and the devices of two disks, a logout takes them.
const ISCSIADM: &str = "echo iscsiadm \"$@\" >>ROOT/calls
[ ! -e ROOT/iscsiadm.sh ] || . ROOT/iscsiadm.sh
session=ROOT/sys/class/iscsi_host/host3/device/session1
case \"$*\" in
*'iface -I'*show) printf 'iface.iscsi_ifacename = default\\niface.transport_name = tcp\\niface.initiatorname = <empty>\\n' ;;
*--login)
    connection=$session/connection1:0/iscsi_connection/connection1:0
    mkdir -p $session/iscsi_session/session1 $connection ROOT/sys/class/scsi_host/host3 ROOT/by-path
    echo IQN >$session/iscsi_session/session1/targetname
    echo 10.0.0.1 >$connection/address; echo 3260 >$connection/port
    : >ROOT/sys/class/scsi_host/host3/scan
    for lun in 0 1; do
        mkdir -p $session/target3:0:0/3:0:0:$lun/block/sd$lun ROOT/sys/block/sd$lun/device
        : >ROOT/sys/block/sd$lun/device/delete
        [ -e ROOT/disk$lun ] || head -c 8192 /dev/zero >ROOT/disk$lun
        ln -sf ROOT/disk$lun ROOT/by-path/ip-10.0.0.1:3260-iscsi-IQN-lun-$lun
    done ;;
*--logout*)
    [ -e $session ] || exit 21
    rm -rf $session ROOT/by-path ROOT/sys/class/scsi_host/host3 ;;
esac
";
const BLKID: &str = "echo blkid \"$@\" >>ROOT/calls
[ -e ROOT/found ] || exit 2
cat ROOT/found
";
const FSCK: &str = "echo fsck \"$@\" >>ROOT/calls
[ ! -e ROOT/fsck.sh ] || . ROOT/fsck.sh
";
const MKFS: &str = "echo mkfs.ext4 \"$@\" >>ROOT/calls
echo TYPE=ext4 >ROOT/found
";
const RESIZE: &str = "echo $(basename $0) \"$@\" >>ROOT/calls
[ ! -e ROOT/resize.sh ] || . ROOT/resize.sh
";
/// The last two words are what is mounted, and where.
const MOUNT: &str = "echo mount \"$@\" >>ROOT/calls
[ ! -e ROOT/mount.sh ] || . ROOT/mount.sh
for word; do source=$target; target=$word; done
until mkdir ROOT/lock 2>/dev/null; do sleep 0.01; done
echo \"$target\" >>ROOT/table
case \"$*\" in *bind*) echo \"$source $target\" >>ROOT/binds ;; esac
rmdir ROOT/lock
";
const UMOUNT: &str = "echo umount \"$@\" >>ROOT/calls
[ ! -e ROOT/umount.sh ] || . ROOT/umount.sh
for target; do :; done
until mkdir ROOT/lock 2>/dev/null; do sleep 0.01; done
grep -vxF \"$target\" ROOT/table >ROOT/table.new
mv ROOT/table.new ROOT/table
grep -v \" $target\\$\" ROOT/binds >ROOT/binds.new
mv ROOT/binds.new ROOT/binds
rmdir ROOT/lock
";

/// See the module.
pub(in super::super) struct IscsiFixture {
    pub(in super::super) place: VolumeFixture,
    pub(in super::super) blocks: FakeBlocks,
}

/// Of the machine that the folder is in.
fn file(folder: &Path, name: &str) -> io::Result<String> {
    let file = folder.ancestors().map(|above| above.join(name)).find(|file| file.is_file());
    fs::read_to_string(file.ok_or(io::ErrorKind::NotFound)?)
}

fn table(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let text = file(folder, "table")?;
    Ok(text.lines().rev().map(PathBuf::from).filter(|point| point.starts_with(folder)).collect())
}

fn copies(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let text = file(folder, "binds")?;
    let of = |line: &str| {
        let (source, target) = line.split_once(' ')?;
        (Path::new(source) == folder).then(|| PathBuf::from(target))
    };
    Ok(text.lines().filter_map(of).collect())
}

impl IscsiFixture {
    pub(in super::super) fn new() -> Self {
        let (place, blocks) = (VolumeFixture::new(), FakeBlocks::default());
        let mut this = Self { place, blocks };
        for name in ["table", "binds", "calls"] {
            fs::write(this.root().join(name), "").unwrap();
        }
        fs::create_dir(this.root().join("pods")).unwrap();
        this.place.volumes = this.next();
        this
    }

    pub(in super::super) fn root(&self) -> PathBuf {
        self.place.root.path().to_owned()
    }

    fn program(&self, name: &str, script: &str) -> HostProgram {
        let (path, root) = (self.root().join(name), self.root().to_string_lossy().into_owned());
        fs::write(&path, script.replace("ROOT", &root).replace("IQN", IQN)).unwrap();
        // By a shell of its own: a file that was just written may be held open by a child of another test.
        HostProgram::new(&["/bin/sh", path.to_str().unwrap()], Duration::from_secs(600))
    }

    /// A kubelet that remembers nothing.
    pub(in super::super) fn next(&self) -> HostVolumes {
        let mut next = HostVolumes::new(&self.root(), self.place.api.clone(), node(), false);
        let (mount, umount) = (self.program("mount", MOUNT), self.program("umount", UMOUNT));
        next.served.program = MountProgram { mount, force: umount.clone(), umount, table, copies };
        self.program("mkfs.ext4", MKFS);
        next.disk_programs = DiskPrograms {
            blkid: self.program("blkid", BLKID),
            fsck: self.program("fsck", FSCK),
            mkfs: self.program("mkfs.", ""),
            resize2fs: self.program("resize2fs", RESIZE),
            xfs_growfs: self.program("xfs_growfs", RESIZE),
            btrfs: self.program("btrfs", RESIZE),
        };
        next.iscsi.host = IscsiHost {
            iscsiadm: self.program("iscsiadm", ISCSIADM),
            multipath: self.program("multipath", ""),
            sys: self.root().join("sys"),
            by_path: self.root().join("by-path"),
            pause: Duration::from_millis(1),
            looks: 3,
            multipath_looks: 2,
        };
        next.blocks = Arc::new(self.blocks.clone());
        next
    }

    pub(super) fn volumes(&self) -> &dyn Volumes {
        &self.place.volumes
    }

    /// What a program does first.
    pub(in super::super) fn script(&self, name: &str, script: &str) {
        let root = self.root();
        fs::write(root.join(name), script.replace("ROOT", &root.to_string_lossy())).unwrap();
    }

    /// Programs that were run, since the last time that this was asked.
    pub(in super::super) fn calls(&self) -> Vec<String> {
        let (file, root) = (self.root().join("calls"), format!("{}/", self.root().display()));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, "").unwrap();
        let text = text.replace(&root, "").replace(IQN, "IQN").replace(PORTAL, "PORTAL");
        text.lines().map(str::to_owned).collect()
    }

    pub(in super::super) fn mounted(&self) -> Vec<PathBuf> {
        table(&self.root().join("pods"))
            .unwrap()
            .into_iter()
            .chain(table(&self.root().join("plugins")).unwrap())
            .collect()
    }

    /// Until nothing of any disk is here, or what is left.
    pub(super) async fn until_gone(&self) {
        for _ in 0..6000 {
            let left = crate::volumes::iscsi::list_disks(&self.root().join("plugins")).unwrap();
            if left.is_empty() && self.place.volumes.iscsi.is_empty() {
                assert!(!self.root().join("by-path").exists(), "a session stays");
                assert!(self.mounted().is_empty(), "{:?}", self.mounted());
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("a disk stays: {:?}", self.calls());
    }

    /// A claim of a PersistentVolume of the target.
    pub(super) fn claim(
        &self,
        change: impl FnOnce(&mut IscsiVolume),
        options: &[&str],
        block: bool,
        one_pod: bool,
    ) {
        let api = &self.place.api;
        let claim = Claim { block, ..claim_to("pv") };
        api.put_claim("c", claim);
        let mut volume = disk(0);
        change(&mut volume);
        let mount_options = options.iter().map(|option| (*option).to_owned()).collect();
        let source = PersistentSource::Iscsi(Box::new(IscsiSource { volume, mount_options }));
        let access_mode = if one_pod { "RWOP" } else { "RWO" };
        api.put_volume("pv", PersistentVolume { one_pod, access_mode, ..volume_from(source) });
    }
}

pub(super) fn disk(lun: i32) -> IscsiVolume {
    IscsiVolume {
        target_portal: "10.0.0.1".into(),
        iqn: IQN.into(),
        lun,
        interface: "default".into(),
        ..IscsiVolume::default()
    }
}

/// A pod with that disk as its own.
pub(super) fn pod_with(uid: &str, lun: i32, read_only: bool) -> Pod {
    let source = VolumeSource::Iscsi(IscsiVolume { read_only, ..disk(lun) });
    let pod = with(vec![volume("data", source)], vec![mount("data", "/data")]);
    Pod { uid: PodUid::parse(uid).unwrap(), ..pod }
}

/// A pod with the claim.
pub(super) fn pod_of_claim(uid: &str, read_only: bool) -> Pod {
    let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only };
    let pod = with(vec![volume("data", source)], vec![mount("data", "/data")]);
    Pod { uid: PodUid::parse(uid).unwrap(), ..pod }
}

/// A Node that says so.
pub(super) fn node_with(in_use: &[&str], attached: &[&str]) -> Node {
    let attached: Vec<_> = attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
    serde_json::from_value(json!({"status": {"volumesInUse": in_use, "volumesAttached": attached}})).unwrap()
}

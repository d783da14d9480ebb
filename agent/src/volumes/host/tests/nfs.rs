//! Volumes of NFS servers, with programs in place of mount(8) and umount(8) that keep a table of their own. Real mounts are
//! in the kernel tier.

use std::os::unix::fs::symlink;
use std::time::Duration;

use gantry_model::pod::volume::NfsVolume;

use super::*;
use crate::api::fake::{claim_to, volume_from};
use crate::api::{Claim, NfsSource, PersistentSource, PersistentVolume};
use crate::volumes::host_program::HostProgram;
use crate::volumes::mount_program::MountProgram;
use crate::volumes::{VolumeOrigin, orphans};

/// Notes each call, and does as told; else it mounts.
const MOUNT: &str = "echo mount \"$@\" >>ROOT/calls
[ ! -e ROOT/mount.sh ] || . ROOT/mount.sh
for target; do :; done
echo \"$target\" >>ROOT/table
";
/// The same; with a fifo `hang` it waits for a writer, unless it is forced.
const UMOUNT: &str = "echo umount \"$@\" >>ROOT/calls
[ ! -e ROOT/umount.sh ] || . ROOT/umount.sh
for target; do :; done
grep -vxF \"$target\" ROOT/table >ROOT/table.new
mv ROOT/table.new ROOT/table
";

struct NfsFixture(VolumeFixture);

/// The folder's own table: one line a mount.
fn table(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let file = folder.ancestors().map(|above| above.join("table")).find(|file| file.is_file());
    let text = fs::read_to_string(file.ok_or(io::ErrorKind::NotFound)?)?;
    let points = text.lines().rev().map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(folder)).collect())
}

impl NfsFixture {
    fn new() -> Self {
        let mut place = VolumeFixture::new();
        let root = place.root.path().to_string_lossy().into_owned();
        let program = |name: &str, script: &str| {
            let path = format!("{root}/{name}");
            fs::write(&path, script.replace("ROOT", &root)).unwrap();
            // By a shell of its own: a file that was just written may be held open by a child of another test.
            HostProgram { words: vec!["/bin/sh".to_owned(), path], patience: Duration::from_secs(600) }
        };
        let (mount, umount) = (program("mount", MOUNT), program("umount", UMOUNT));
        let mut force = umount.clone();
        force.words.push("-f".to_owned());
        place.volumes.served.program =
            MountProgram { mount, umount, force, table, copies: |_| Ok(Vec::new()) };
        fs::write(format!("{root}/table"), "").unwrap();
        Self(place)
    }

    fn volumes(&self) -> &dyn Volumes {
        &self.0.volumes
    }

    /// What a program does first.
    fn script(&self, name: &str, script: &str) {
        let root = self.0.root.path();
        fs::write(root.join(name), script.replace("ROOT", &root.to_string_lossy())).unwrap();
    }

    fn unscript(&self, name: &str) {
        fs::remove_file(self.0.root.path().join(name)).unwrap();
    }

    /// Programs that were run, with targets below the pod's volumes of servers.
    fn calls(&self) -> Vec<String> {
        let folder = format!("{}/", self.0.path("volumes/kubernetes.io~nfs").display());
        let text = fs::read_to_string(self.0.root.path().join("calls")).unwrap_or_default();
        text.lines().map(|line| line.replace(&folder, "")).collect()
    }

    fn mounted(&self) -> Vec<PathBuf> {
        table(self.0.root.path()).unwrap()
    }

    fn target(&self, name: &str) -> PathBuf {
        self.0.path("volumes/kubernetes.io~nfs").join(name)
    }

    /// A claim of a PersistentVolume with these options.
    fn claim(&self, options: &[&str], block: bool) {
        let api = &self.0.api;
        api.put_claim("c", Claim { block, ..claim_to("pv") });
        let mount_options = options.iter().map(|option| (*option).to_owned()).collect();
        let source = NfsSource { server: "fd00::1".into(), path: "/e".into(), mount_options };
        let source = PersistentSource::Nfs(source);
        let volume = PersistentVolume { one_pod: true, access_mode: "RWOP", ..volume_from(source) };
        api.put_volume("pv", volume);
    }
}

fn share(read_only: bool) -> VolumeSource {
    VolumeSource::Nfs(NfsVolume { server: "nas".into(), path: "/e".into(), read_only })
}

fn of_claim(read_only: bool) -> VolumeSource {
    VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only }
}

fn with_share() -> Pod {
    with(vec![volume("data", share(false))], vec![mount("data", "/data")])
}

#[tokio::test]
async fn an_export_is_mounted_once_in_upstreams_folder_and_goes_with_its_pod() {
    let fixture = NfsFixture::new();
    let pod = with(vec![volume("data", share(true)), volume("e", DISK)], vec![mount("data", "/data")]);
    let metrics = Arc::new(Metrics::default());
    let volumes = fixture.0.volumes.clone().counted_in(metrics.clone());
    volumes.set_up(&pod).await.unwrap();
    volumes.set_up(&pod).await.unwrap();
    assert_eq!(fixture.calls(), ["mount -t nfs -o ro nas:/e data"]);
    assert_eq!(fs::metadata(fixture.target("data")).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(volumes.waits(&pod.uid), []);
    let mounts = fixture.0.mounts(&pod, &[]).await.unwrap();
    assert_eq!((mounts[0].host_path.clone(), mounts[0].read_only), (fixture.target("data"), true));
    let usage = volumes.usage(&pod.uid, "data").await.unwrap().unwrap();
    assert!(usage.driver == "statfs" && usage.capacity_bytes > Some(0), "{usage:?}");
    volumes.tear_down(&pod.uid).await.unwrap();
    assert_eq!(fixture.calls().last().unwrap(), "umount data");
    assert!(fixture.mounted().is_empty() && !fixture.0.path("").exists());
    assert_eq!(volumes.usage(&pod.uid, "data").await, Ok(None));
    for operation in ["volume_mount", "volume_unmount"] {
        let took = ["kubernetes.io/nfs", operation, "success", "false"];
        assert!(metrics.storage_operation_duration.count(took) > 0, "{operation}");
    }
}

#[tokio::test]
async fn a_claim_of_an_export_has_its_mount_options_and_the_claims_read_only() {
    let fixture = NfsFixture::new();
    fixture.claim(&["nfsvers=4.1", "hard"], false);
    let pod = with(vec![volume("data", of_claim(true))], vec![mount("data", "/data")]);
    fixture.volumes().set_up(&pod).await.unwrap();
    assert_eq!(fixture.calls(), ["mount -t nfs -o hard,nfsvers=4.1,ro [fd00::1]:/e pv"]);
    let mounts = fixture.0.mounts(&pod, &[]).await.unwrap();
    assert_eq!((mounts[0].host_path.clone(), mounts[0].read_only), (fixture.target("pv"), true));
    assert!(fixture.volumes().usage(&pod.uid, "data").await.unwrap().is_some());
    // As upstream, which knows who has a volume only where a device is mounted.
    let other = Pod { uid: PodUid::parse("uid-2").unwrap(), ..pod.clone() };
    fixture.volumes().set_up(&other).await.unwrap();
    fixture.claim(&[], true);
    let error =
        fixture.volumes().set_up(&with(vec![volume("data", of_claim(false))], vec![])).await.unwrap_err();
    let words = "of kind nfs, which has no block devices: use a local, iscsi or csi volume";
    assert!(error.message.ends_with(words), "{error}");
}

#[tokio::test]
async fn a_mount_that_fails_is_told_in_upstreams_words_and_leaves_nothing() {
    let fixture = NfsFixture::new();
    fixture.script("mount.sh", "echo mount.nfs: access denied by server >&2; exit 32\n");
    let pod = with_share();
    let error = fixture.volumes().set_up(&pod).await.unwrap_err();
    let target = fixture.target("data");
    let words = format!(
        "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nas:/e {}\nOutput: mount.nfs: access denied by server\n",
        target.display()
    );
    assert_eq!(error.message, format!("MountVolume.SetUp failed for volume \"data\" : {words}"));
    assert_eq!((error.reason, error.quiet, target.exists()), ("FailedMount", false, false));
    let waits = fixture.volumes().waits(&pod.uid);
    let from = VolumeOrigin::Export("nas:/e".to_owned());
    assert_eq!((waits.len(), &waits[0].from, &waits[0].why), (1, &from, &words));
    // It was mounted all the same.
    fixture.script("mount.sh", "for target; do :; done; echo \"$target\" >>ROOT/table; exit 32\n");
    fixture.volumes().set_up(&pod).await.unwrap_err();
    assert!(fixture.mounted().is_empty() && !target.exists());
    fixture.unscript("mount.sh");
    fixture.volumes().set_up(&pod).await.unwrap();
    assert_eq!((fixture.mounted(), fixture.volumes().waits(&pod.uid)), (vec![target], vec![]));
}

#[tokio::test]
async fn a_machine_without_mount_is_told_as_go_tells_it() {
    let mut fixture = NfsFixture::new();
    fixture.0.volumes.served.program.mount.words = vec!["/no/such/mount".to_owned()];
    let error = fixture.volumes().set_up(&with_share()).await.unwrap_err();
    let words =
        " : mount failed: exec: \"mount\": executable file not found in $PATH\nMounting command: mount\n";
    assert!(error.message.contains(words), "{error}");
}

/// Until the kernel has ended it; nobody here waits for it.
fn is_over(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[tokio::test]
async fn a_server_that_does_not_answer_holds_up_its_volume_alone() {
    let mut fixture = NfsFixture::new();
    // It has a child, as mount has mount.nfs.
    let hangs = "mkfifo ROOT/hang; sh -c 'echo $$ >ROOT/pid; mv ROOT/pid ROOT/child; read x <ROOT/hang'";
    fixture.script("mount.sh", &format!("case \"$*\" in *dead*) {hangs} ;; esac\n"));
    let server = "dead".to_owned();
    let dead = VolumeSource::Nfs(NfsVolume { server, path: "/e".into(), read_only: false });
    let child = fixture.0.root.path().join("child");
    let pod = with(vec![volume("a", dead), volume("b", share(false)), volume("c", DISK)], vec![]);
    let others = async {
        let disk = fixture.0.path("volumes/kubernetes.io~empty-dir/c");
        while fixture.mounted() != [fixture.target("b")] || !disk.is_dir() || !child.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        result = fixture.volumes().set_up(&pod) => panic!("it is mounted: {result:?}"),
        () = others => {}
    }
    // The kubelet ends, and with it what it waits for.
    let pid = fs::read_to_string(&child).unwrap();
    while !is_over(&pid) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Nobody waits for ever.
    fixture.0.volumes.served.program.mount.patience = Duration::from_millis(100);
    let error = fixture.volumes().set_up(&pod).await.unwrap_err();
    let words = "MountVolume.SetUp failed for volume \"a\" : mount failed: signal: killed\n";
    assert!(error.message.starts_with(words), "{error}");
    assert!(error.message.ends_with("its server does not answer"), "{error}");
}

#[tokio::test]
async fn an_unmount_that_hangs_is_forced_and_one_that_fails_keeps_the_pods_folder() {
    let mut fixture = NfsFixture::new();
    let pod = with_share();
    fixture.volumes().set_up(&pod).await.unwrap();
    fixture.script("umount.sh", "echo umount.nfs: device is busy; exit 16\n");
    let error = fixture.volumes().tear_down(&pod.uid).await.unwrap_err();
    let words = "UnmountVolume.TearDown failed for volume \"data\" : unmount failed: exit status 16\nUnmounting arguments: ";
    assert!(error.message.starts_with(words), "{error}");
    assert!(error.message.ends_with("/data\nOutput: umount.nfs: device is busy\n"), "{error}");
    assert!(fixture.target("data").exists());
    fixture.0.volumes.served.program.umount.patience = Duration::from_millis(100);
    fixture.script("umount.sh", "[ $1 = -f ] || { mkfifo ROOT/hang; read x <ROOT/hang; }\n");
    fixture.volumes().tear_down(&pod.uid).await.unwrap();
    // Killed before it has said so, perhaps.
    let calls = fixture.calls();
    assert_eq!(calls.last().unwrap(), "umount -f data");
    assert!(fixture.mounted().is_empty() && !fixture.0.path("").exists());
}

#[tokio::test]
async fn what_a_killed_kubelet_has_mounted_is_taken_over_or_taken_back() {
    let fixture = NfsFixture::new();
    let pod = with_share();
    fixture.volumes().set_up(&pod).await.unwrap();
    // Of the next kubelet, which remembers nothing.
    let next = || {
        let mut next = HostVolumes::new(fixture.0.root.path(), fixture.0.api.clone(), node(), false);
        next.served.program = fixture.0.volumes.served.program.clone();
        next
    };
    next().set_up(&pod).await.unwrap();
    assert_eq!(fixture.calls().len(), 1, "it is mounted");
    assert_eq!(orphans::check(&fixture.0.path(""), false), Ok(()));
    assert_eq!(next().list_orphans().await.unwrap(), std::slice::from_ref(&pod.uid));
    // One that mounted it a second time was killed in the call.
    let target = fixture.target("data").display().to_string();
    fs::write(fixture.0.root.path().join("table"), format!("{target}\n{target}\n")).unwrap();
    next().reclaim(&pod.uid).await.unwrap();
    assert_eq!(fixture.calls()[1..], ["umount data", "umount data"]);
    assert!(fixture.mounted().is_empty() && !fixture.0.path("").exists());
    // And before it was mounted.
    fs::create_dir_all(fixture.target("data")).unwrap();
    next().reclaim(&pod.uid).await.unwrap();
    assert!(fixture.calls().len() == 3 && !fixture.0.path("").exists());
}

#[tokio::test]
async fn a_link_in_place_of_the_folder_of_exports_leads_nowhere() {
    let fixture = NfsFixture::new();
    let (pod, kept) = (with_share(), tempfile::tempdir().unwrap());
    fs::write(kept.path().join("data"), "precious").unwrap();
    fs::create_dir_all(fixture.0.path("volumes")).unwrap();
    symlink(kept.path(), fixture.0.path("volumes/kubernetes.io~nfs")).unwrap();
    fixture.volumes().reclaim(&pod.uid).await.unwrap();
    assert!(fixture.calls().is_empty() && kept.path().join("data").exists());
}

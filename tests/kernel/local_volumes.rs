//! Folders and disks of the node as volumes of pods, where they need root: bound for each pod, and of the first pod's group.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gantry_agent::api::fake::{FakeApi, claim_to, volume_from};
use gantry_agent::api::{Claim, ClaimSize, PersistentSource, PersistentVolume};
use gantry_agent::manifest;
use gantry_agent::volumes::Volumes;
use gantry_agent::volumes::host::HostVolumes;
use gantry_model::pod::Pod;
use gantry_model::pod::volume::{ClaimRef, Volume, VolumeSource};
use gantry_tests::leakcheck::mounts;
use gantry_tests::not_run::not_run;
use gantry_tests::place;

use crate::block::{Disk, volumes};

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {securityContext: {fsGroup: 4242}, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec: {securityContext: {fsGroup: 4343}, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec: {securityContext: {fsGroup: 4444}, containers: [{name: c, image: i}]}
";

fn objects(folder: &Path) -> Arc<FakeApi> {
    let api = Arc::new(FakeApi::default());
    api.put_claim("c", claim_to("pv"));
    api.put_volume("pv", persistent(folder));
    api
}

fn persistent(folder: &Path) -> PersistentVolume {
    volume_from(PersistentSource::Local {
        path: folder.to_string_lossy().into_owned(),
        fs_type: String::new(),
        mount_options: vec!["noatime".to_owned()],
    })
}

/// An API server's pods alone have claims.
fn with_claim(pod: Pod, read_only: bool) -> Pod {
    let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only };
    Pod { volumes: vec![Volume { name: "data".into(), source }], ..pod }
}

#[test]
fn a_local_volume_has_the_group_of_the_first_pod_that_writes_to_it() -> Result<()> {
    place::require_own_namespaces()?;
    let root = tempfile::tempdir()?;
    let root = root.path().canonicalize()?;
    let (disk, kubelet, file) = (root.join("disk"), root.join("kubelet"), root.join("pods.yaml"));
    fs::create_dir(&disk)?;
    fs::create_dir(&kubelet)?;
    fs::write(disk.join("file"), "x")?;
    fs::write(&file, PODS)?;
    let pods = manifest::load(&[file]).context("the manifest is right")?.pods;
    let [one, other, reader] = &pods[..] else { panic!("three pods") };
    let [one, other, reader] =
        [(one, false), (other, false), (reader, true)].map(|(pod, reads)| with_claim(pod.clone(), reads));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let own = volumes(&kubelet, &objects(&disk));
    let group =
        || -> Result<[u32; 2]> { Ok([fs::metadata(&disk)?.gid(), fs::metadata(disk.join("file"))?.gid()]) };
    let bound = |pod: &Pod| -> Result<usize> {
        let point = kubelet.join("pods").join(pod.uid.as_str()).join("volumes/kubernetes.io~local-volume/pv");
        Ok(mounts()?.iter().filter(|mount| mount.point == point).count())
    };
    runtime.block_on(own.set_up(&reader))?;
    ensure!((bound(&reader)?, group()?) == (1, [0, 0]), "it only reads");
    runtime.block_on(own.tear_down(&reader.uid))?;
    runtime.block_on(own.set_up(&one))?;
    ensure!((bound(&one)?, group()?) == (1, [4242, 4242]));
    let mounted = rustix::fs::statvfs(
        kubelet.join("pods").join(one.uid.as_str()).join("volumes/kubernetes.io~local-volume/pv"),
    )?;
    ensure!(mounted.f_flag.contains(rustix::fs::StatVfsMountFlags::NOATIME), "mountOptions of the volume");
    fs::rename(&disk, root.join("away"))?;
    runtime.block_on(own.set_up(&one)).context("it has its volume, whatever becomes of the path")?;
    fs::rename(root.join("away"), &disk)?;
    runtime.block_on(own.set_up(&other))?;
    ensure!((bound(&other)?, group()?) == (1, [4242, 4242]), "one has it");
    runtime.block_on(own.tear_down(&one.uid))?;
    runtime.block_on(own.tear_down(&other.uid))?;
    runtime.block_on(own.set_up(&other))?;
    ensure!((bound(&other)?, group()?) == (1, [4343, 4343]), "nobody else has it any more");
    runtime.block_on(own.tear_down(&other.uid))?;
    let left: Vec<PathBuf> =
        mounts()?.into_iter().map(|mount| mount.point).filter(|point| point.starts_with(&kubelet)).collect();
    ensure!(left.is_empty() && disk.join("file").exists(), "{left:?}");
    Ok(())
}

/// A kubelet's place with a disk of the node.
struct DiskFixture {
    root: tempfile::TempDir,
    disk: Disk,
    runtime: tokio::runtime::Runtime,
    pods: Vec<Pod>,
}

impl DiskFixture {
    fn new() -> Result<Self> {
        place::require_own_namespaces()?;
        let root = tempfile::tempdir()?;
        let file = root.path().join("pods.yaml");
        fs::create_dir(root.path().join("kubelet"))?;
        fs::write(&file, PODS)?;
        let pods = manifest::load(&[file]).context("the manifest is right")?.pods;
        let pods = pods.into_iter().map(|pod| with_claim(pod, false)).collect();
        let disk = Disk::new(&root.path().join("disk.img"), 16 << 20)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { root, disk, runtime, pods })
    }

    fn kubelet(&self) -> Result<PathBuf> {
        Ok(self.root.path().canonicalize()?.join("kubelet"))
    }

    /// One that remembers nothing.
    fn volumes(&self) -> Result<HostVolumes> {
        let volumes = volumes(&self.kubelet()?, &objects(&self.disk.0));
        self.runtime.block_on(async { volumes.begin() }).map_err(anyhow::Error::msg)?;
        Ok(volumes)
    }

    fn disk_place(&self) -> Result<PathBuf> {
        Ok(self.kubelet()?.join("plugins/kubernetes.io/local-volume/mounts/pv"))
    }

    fn volume_of(&self, pod: &Pod) -> Result<PathBuf> {
        Ok(self.kubelet()?.join("pods").join(pod.uid.as_str()).join("volumes/kubernetes.io~local-volume/pv"))
    }

    /// Mount points of the disk.
    fn points(&self) -> Result<Vec<PathBuf>> {
        let kubelet = self.kubelet()?;
        Ok(mounts()?
            .into_iter()
            .map(|mount| mount.point)
            .filter(|point| point.starts_with(&kubelet))
            .collect())
    }

    fn until_taken_off(&self) -> Result<()> {
        let place = self.disk_place()?;
        let gone = async {
            for _ in 0..6000 {
                if !place.exists() {
                    return true;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            false
        };
        ensure!(self.runtime.block_on(gone), "the disk stays: {:?}", self.points()?);
        ensure!(self.points()?.is_empty(), "{:?}", self.points()?);
        Ok(())
    }
}

#[test]
fn a_local_disk_is_formatted_once_mounted_for_all_pods_and_taken_off_with_the_last() -> Result<()> {
    let fixture = DiskFixture::new()?;
    let [one, other, _] = &fixture.pods[..] else { panic!("three pods") };
    let (own, runtime) = (fixture.volumes()?, &fixture.runtime);
    runtime.block_on(own.set_up(one))?;
    runtime.block_on(own.set_up(one))?;
    let volume = fixture.volume_of(one)?;
    ensure!(fixture.points()? == [fixture.disk_place()?, volume.clone()], "{:?}", fixture.points()?);
    let table = mounts()?;
    let found = table.iter().find(|mount| mount.point == volume).context("it is mounted")?;
    ensure!(found.kind == "ext4" && fs::metadata(&volume)?.gid() == 4242, "{found:?}");
    fs::write(volume.join("file"), "x")?;
    runtime.block_on(own.set_up(other))?;
    ensure!(fs::read_to_string(fixture.volume_of(other)?.join("file"))? == "x");
    runtime.block_on(own.tear_down(&one.uid))?;
    ensure!(
        fixture.points()? == [fixture.disk_place()?, fixture.volume_of(other)?],
        "{:?}",
        fixture.points()?
    );
    runtime.block_on(own.tear_down(&other.uid))?;
    fixture.until_taken_off()?;
    runtime.block_on(own.set_up(other))?;
    ensure!(fs::read_to_string(fixture.volume_of(other)?.join("file"))? == "x", "it was formatted once");
    runtime.block_on(own.tear_down(&other.uid))?;
    fixture.until_taken_off()
}

/// The kernel lets nobody else make a mounted ext4 larger.
fn may_grow() -> Result<bool> {
    let own = rustix::thread::capabilities(None).context("read the capabilities")?;
    Ok(own.effective.contains(rustix::thread::CapabilitySet::SYS_RESOURCE))
}

/// While a pod has it, and before one gets it.
#[test]
fn a_local_disk_grows_with_its_persistent_volume() -> Result<()> {
    let fixture = DiskFixture::new()?;
    if !may_grow()? {
        not_run("ext4 grows under CAP_SYS_RESOURCE, which this place lacks: the small VM has it");
        return Ok(());
    }
    let one = fixture.pods.first().context("a pod")?;
    let (api, file) = (objects(&fixture.disk.0), fixture.root.path().join("disk.img"));
    let (own, runtime) = (volumes(&fixture.kubelet()?, &api), &fixture.runtime);
    let claim = |capacity: &str| {
        let size = ClaimSize { capacity: capacity.into(), requested: "16Mi".into(), ..ClaimSize::default() };
        Claim { size, ..claim_to("pv") }
    };
    let bytes = || -> Result<u64> {
        let found = rustix::fs::statvfs(fixture.disk_place()?)?;
        Ok(found.f_blocks * found.f_frsize)
    };
    api.put_claim("c", claim("16Mi"));
    runtime.block_on(own.set_up(one))?;
    let first = bytes()?;
    for (capacity, told) in [("24Mi", 1), ("32Mi", 2)] {
        fixture.disk.grow(&file, u64::try_from(gantry_model::quantity::parse_units(capacity)?)?)?;
        let before = bytes()?;
        let volume = PersistentVolume { capacity: capacity.into(), ..persistent(&fixture.disk.0) };
        api.put_volume("pv", volume);
        if capacity == "32Mi" {
            runtime.block_on(own.tear_down(&one.uid))?;
            fixture.until_taken_off()?;
        }
        runtime.block_on(own.set_up(one))?;
        ensure!(bytes()? > before && bytes()? > first, "{capacity}: {} bytes of {before}", bytes()?);
        let patches = api.claim_patches();
        let (_, last) = patches.last().context("the claim is told")?;
        ensure!(patches.len() == told && last["status"]["capacity"]["storage"] == capacity, "{patches:?}");
        api.put_claim("c", claim(capacity));
    }
    runtime.block_on(own.tear_down(&one.uid))?;
    fixture.until_taken_off()
}

#[test]
fn a_local_disk_that_an_earlier_kubelet_mounted_stays_while_a_pod_has_it() -> Result<()> {
    let fixture = DiskFixture::new()?;
    let one = fixture.pods.first().context("a pod")?;
    fixture.runtime.block_on(fixture.volumes()?.set_up(one))?;
    let next = fixture.volumes()?;
    fixture.runtime.block_on(next.set_up(one))?;
    ensure!(fixture.points()? == [fixture.disk_place()?, fixture.volume_of(one)?], "{:?}", fixture.points()?);
    fixture.runtime.block_on(next.tear_down(&one.uid))?;
    fixture.until_taken_off()?;
    // Killed between the mount and the bind.
    fixture.runtime.block_on(next.set_up(one))?;
    rustix::mount::unmount(fixture.volume_of(one)?, rustix::mount::UnmountFlags::NOFOLLOW)?;
    let _last = fixture.volumes()?;
    fixture.until_taken_off()
}

#[test]
fn a_local_volume_that_is_a_file_is_told() -> Result<()> {
    let fixture = DiskFixture::new()?;
    let one = fixture.pods.first().context("a pod")?;
    let file = fixture.root.path().join("disk.img");
    let own = volumes(&fixture.kubelet()?, &objects(&file));
    let told =
        fixture.runtime.block_on(own.set_up(one)).map_or_else(|error| error.message, |()| String::new());
    let words =
        "MountVolume.MountDevice failed for volume \"pv\" : only directory and block device are supported";
    ensure!(told == words, "{told}");
    Ok(())
}

//! Raw block devices of local volumes where they need root: the bind mount, and the loop device that keeps a device open.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gantry_agent::api::fake::{FakeApi, claim_to, volume_from};
use gantry_agent::api::{Api, Claim, PersistentSource};
use gantry_agent::manifest;
use gantry_agent::node::NodeInfo;
use gantry_agent::volumes::Volumes;
use gantry_agent::volumes::host::HostVolumes;
use gantry_model::pod::Pod;
use gantry_model::pod::volume::{ClaimRef, Volume, VolumeDevice, VolumeSource};
use gantry_tests::leakcheck::mounts;
use gantry_tests::place;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: c, image: i}
";

/// A file as a device; gone with this.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    pub(crate) fn new(file: &Path, bytes: u64) -> Result<Self> {
        fs::File::create(file)?.set_len(bytes)?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output()?;
        ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self(String::from_utf8(output.stdout)?.trim().into()))
    }

    /// Its file has become larger.
    pub(crate) fn grow(&self, file: &Path, bytes: u64) -> Result<()> {
        fs::File::options().write(true).open(file)?.set_len(bytes)?;
        let status = Command::new("losetup").arg("--set-capacity").arg(&self.0).status()?;
        ensure!(status.success(), "losetup: {status}");
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// Loop devices over that very file.
fn locks(path: &Path) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir("/sys/block").context("list block devices")? {
        // One that is not in use has no such file.
        let over = fs::read_to_string(entry?.path().join("loop/backing_file")).unwrap_or_default();
        found += usize::from(Path::new(over.trim()) == path);
    }
    Ok(found)
}

pub(crate) fn volumes(root: &Path, api: &Arc<FakeApi>) -> HostVolumes {
    let api: Arc<dyn Api> = api.clone();
    HostVolumes::new(root, api, Arc::new(NodeInfo { name: "n".into(), ..NodeInfo::default() }), false)
}

fn objects(device: &Path) -> Arc<FakeApi> {
    let api = Arc::new(FakeApi::default());
    let claim = Claim { block: true, ..claim_to("pv") };
    api.put_claim("c", claim);
    let volume = volume_from(PersistentSource::Local {
        path: device.to_string_lossy().into_owned(),
        fs_type: String::new(),
        mount_options: Vec::new(),
    });
    api.put_volume("pv", volume);
    api
}

/// An API server's pods alone have claims.
fn with_device(mut pod: Pod) -> Pod {
    let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    pod.volumes = vec![Volume { name: "raw".into(), source }];
    for container in &mut pod.containers {
        container.devices = vec![VolumeDevice { volume: "raw".into(), path: "/dev/xvda".into() }];
    }
    pod
}

#[test]
fn a_local_device_is_bound_and_kept_open_until_its_pod_has_ended() -> Result<()> {
    place::require_own_namespaces()?;
    let root = tempfile::tempdir()?;
    let root = root.path().canonicalize()?;
    let disk = Disk::new(&root.join("disk.img"), 1 << 20)?;
    let file = root.join("pod.yaml");
    fs::write(&file, POD)?;
    let pods = manifest::load(&[file]).context("the manifest is right")?.pods;
    let pod = &with_device(pods.into_iter().next().context("a pod")?);
    let (api, kubelet) = (objects(&disk.0), root.join("kubelet"));
    fs::create_dir(&kubelet)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let own = volumes(&kubelet, &api);
    runtime.block_on(own.set_up(pod))?;
    runtime.block_on(own.set_up(pod))?;
    let uid = pod.uid.as_str();
    let point = kubelet.join("plugins/kubernetes.io~local-volume/volumeDevices/pv").join(uid);
    let found = fs::symlink_metadata(&point)?;
    ensure!(found.file_type().is_block_device() && found.rdev() == fs::metadata(&disk.0)?.rdev());
    ensure!(mounts()?.iter().filter(|mount| mount.point == point).count() == 1, "it is bound once");
    ensure!(locks(&point)? == 1, "one loop device keeps it open");
    let container = pod.containers.first().context("a container")?;
    let (path, host, permissions) = runtime.block_on(own.devices(pod, container))?.remove(0);
    ensure!((path.as_str(), permissions.as_str()) == ("/dev/xvda", "mrw"), "{path} {permissions}");
    ensure!(fs::metadata(&host)?.rdev() == found.rdev(), "{host} leads elsewhere");
    let usage = runtime.block_on(own.usage(&pod.uid, "raw")).map_err(anyhow::Error::msg)?;
    ensure!(usage.and_then(|usage| usage.capacity_bytes) == Some(1 << 20));
    // By an agent that knows nothing of it.
    let next = volumes(&kubelet, &api);
    ensure!(runtime.block_on(next.list_orphans())? == std::slice::from_ref(&pod.uid));
    runtime.block_on(next.reclaim(&pod.uid))?;
    ensure!(locks(&point)? == 0 && !point.parent().is_some_and(Path::exists), "it is kept open");
    ensure!(mounts()?.iter().all(|mount| !mount.point.starts_with(&kubelet)));
    ensure!(!kubelet.join("pods").join(uid).exists() && disk.0.exists());
    Ok(())
}

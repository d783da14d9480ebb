//! Raw block volumes: a claim of `volumeMode: Block` is a device in its pod, and what is written to it the next pod reads.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::mounts;
use gantry_tests::poll::poll;
use serde_json::{Value, json};

use super::driver::InstalledDriver;
use super::{await_no_folder, claim};
use crate::spec::{IDLE, PATIENCE, Spec, pod};

const DEVICE: &str = "/dev/xvda";

/// A pod that has the claim `raw` as a device.
fn with_device(name: &str, read_only: bool, script: &str) -> Value {
    let mut user = pod(name, script);
    user["spec"]["restartPolicy"] = json!("OnFailure");
    user["spec"]["volumes"] =
        json!([{ "name": "raw", "persistentVolumeClaim": { "claimName": "raw", "readOnly": read_only } }]);
    user["spec"]["containers"][0]["volumeDevices"] = json!([{ "name": "raw", "devicePath": DEVICE }]);
    user
}

pub(crate) fn block(spec: &Spec<'_>) -> Result<()> {
    let driver = InstalledDriver::install(spec, "block.gantry.test")?;
    let mut wanted = claim(&driver.name);
    wanted["volumeMode"] = json!("Block");
    spec.apply(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "raw" },
        "spec": wanted,
    }))?;
    // The first start fails after it has written: its next one has the device, too.
    let write = format!(
        "test -b {DEVICE} || exit 3; [ \"$(head -c 7 {DEVICE})\" = written ] && exit 0; printf written >{DEVICE} && sync; exit 1"
    );
    spec.apply(with_device("writer", false, &write))?;
    spec.await_value(&["pod/writer"], "{.status.phase}", "Succeeded")?;
    let restarts = spec.value(&["pod/writer"], "{.status.containerStatuses[0].restartCount}")?;
    ensure!(restarts == "1", "it has started {restarts} times again");
    spec.await_event("writer", "SuccessfulMountVolume", "MapVolume.MapPodDevice succeeded for volume")?;
    let writer = spec.value(&["pod/writer"], "{.metadata.uid}")?;
    spec.kubectl(&["delete", "pod", "writer", "--timeout=60s"])?;
    await_no_folder(&writer)?;
    driver.await_idle()?;
    spec.start_pod(with_device("reader", true, IDLE))?;
    let (read, refused) = (format!("head -c 7 {DEVICE}"), format!("printf x >{DEVICE}"));
    ensure!(spec.shell("reader", &read)? == "written", "the device has lost what was written");
    ensure!(spec.shell("reader", &refused).is_err(), "a claim that is only read was written to");
    let reader = spec.value(&["pod/reader"], "{.metadata.uid}")?;
    check_map(spec, &reader)?;
    // A kubelet that finds a mapped device keeps it.
    spec.kill_kubelet()?;
    spec.await_value(
        &["pod/reader"],
        "{.status.containerStatuses[0].restartCount} {.status.phase}",
        "0 Running",
    )?;
    // Some time passes until upstream's knows its pods again.
    poll("the device after the kubelet's restart", PATIENCE, || match spec.shell("reader", &read) {
        Ok(text) if text == "written" => Ok(()),
        Ok(text) => Err(format!("it has {text:?}")),
        Err(error) => Err(format!("{error:#}")),
    })?;
    spec.kubectl(&["delete", "pod", "reader", "--timeout=120s"])?;
    await_no_folder(&reader)?;
    driver.await_idle()?;
    let volume = spec.value(&["pvc/raw"], "{.spec.volumeName}")?;
    let places = ["", "staging", "publish"].map(|folder| devices().join(folder).join(&volume));
    let left: Vec<_> = places.iter().filter(|path| path.exists()).collect();
    ensure!(left.is_empty(), "the node has something of a volume that nobody has: {left:?}");
    let left = loops_over(&devices())?;
    ensure!(left.is_empty(), "a lock is left: {left:?}");
    spec.kubectl(&["delete", "pvc", "raw", "--timeout=60s"])?;
    driver.await_empty()?;
    driver.remove()
}

fn devices() -> PathBuf {
    PathBuf::from("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices")
}

/// In upstream's places: bound, linked, and kept open by a loop device.
fn check_map(spec: &Spec<'_>, uid: &str) -> Result<()> {
    let volume = spec.value(&["pvc/raw"], "{.spec.volumeName}")?;
    let data = devices().join(&volume).join("data/vol_data.json");
    let text = std::fs::read_to_string(&data).with_context(|| data.display().to_string())?;
    ensure!(text.contains(&format!("\"specVolID\":\"{volume}\"")), "{text}");
    let point = devices().join(&volume).join("dev").join(uid);
    let published = devices().join("publish").join(&volume).join(uid);
    for path in [&point, &published] {
        ensure!(mounts()?.iter().any(|mount| mount.point == *path), "nothing is bound at {}", path.display());
    }
    let link =
        Path::new("/var/lib/kubelet/pods").join(uid).join("volumeDevices/kubernetes.io~csi").join(&volume);
    let target = std::fs::read_link(&link).with_context(|| link.display().to_string())?;
    ensure!(target == published, "{} leads to {}", link.display(), target.display());
    let locks = loops_over(&point)?;
    ensure!(locks.len() == 1, "{locks:?} over {}", point.display());
    Ok(())
}

/// What loop devices are over, at or below that path.
fn loops_over(path: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block").context("list block devices")? {
        // One that is not in use has no such file.
        let backing = entry?.path().join("loop/backing_file");
        let over = std::fs::read_to_string(backing).unwrap_or_default();
        if Path::new(over.trim()).starts_with(path) {
            found.push(over.trim().to_owned());
        }
    }
    Ok(found)
}

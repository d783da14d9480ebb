//! CSI from claim to container: a driver of the tests' own on the node, and the controllers beside it. What the driver is
//! made of, and that its sidecars are stand-ins for upstream's, is said in `driver`.

pub(crate) mod block;
mod driver;
pub(crate) mod growth;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::csi::claim;
use gantry_tests::cluster::programs;
use gantry_tests::poll::poll;
use serde_json::{Value, json};

use self::driver::InstalledDriver;
use crate::spec::{IDLE, PATIENCE, Spec, pod};

const STORES: [&str; 3] = ["store-0", "store-1", "store-2"];

pub(crate) fn stateful_set(spec: &Spec<'_>) -> Result<()> {
    let driver = InstalledDriver::install(spec, "set.gantry.test")?;
    spec.apply(store(&driver.name))?;
    let ready = || spec.kubectl(&["rollout", "status", "statefulset/store", "--timeout=180s"]);
    ready()?;
    let attached = spec.value(&["volumeattachments"], &driver.of_attachments("status.attached"))?;
    ensure!(attached == "true true true", "{attached:?}");
    for name in STORES {
        spec.shell(name, "echo of $(hostname) >/data/word && sync")?;
    }
    // Others of the same names have the same volumes.
    let uids = spec.value(&["pods", "--selector=app=store"], "{.items[*].metadata.uid}")?;
    spec.kubectl(&[&["delete", "pod", "--timeout=90s"], &STORES[..]].concat())?;
    ready()?;
    let now = spec.value(&["pods", "--selector=app=store"], "{.items[*].metadata.uid}")?;
    ensure!(uids.split(' ').all(|uid| !now.contains(uid)), "{now} has one of {uids}");
    for name in STORES {
        let word = spec.shell(name, "cat /data/word")?;
        ensure!(word == format!("of {name}\n"), "{name} has {word:?}");
    }
    spec.kubectl(&["scale", "statefulset/store", "--replicas=0"])?;
    spec.await_value(&["pods", "--selector=app=store"], "{.items[*].metadata.name}", "")?;
    driver.await_idle()?;
    ensure!(driver.volumes()?.len() == 3, "a volume has gone with its pod: {:?}", driver.volumes()?);
    spec.kubectl(&["delete", "statefulset/store"])?;
    spec.kubectl(&["delete", "pvc", "--all", "--timeout=60s"])?;
    driver.await_empty()?;
    let of = format!("{{.items[?(@.spec.storageClassName==\"{}\")].metadata.name}}", driver.name);
    spec.await_value(&["persistentvolumes"], &of, "")?;
    for uid in uids.split(' ').chain(now.split(' ')) {
        await_no_folder(uid)?;
    }
    driver.remove()
}

fn await_no_folder(uid: &str) -> Result<()> {
    let folder = Path::new("/var/lib/kubelet/pods").join(uid);
    poll("the pod's folder to go", PATIENCE, || {
        if folder.exists() { Err(format!("{} is there", folder.display())) } else { Ok(()) }
    })
}

fn store(class: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": "store" },
        "spec": {
            "serviceName": "store",
            "replicas": 3,
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "app": "store" } },
            "template": {
                "metadata": { "labels": { "app": "store" } },
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{
                        "name": "main",
                        "image": "busybox",
                        "command": ["sh", "-c", IDLE],
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    }],
                },
            },
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": claim(class) }],
        },
    })
}

pub(crate) fn inline(spec: &Spec<'_>) -> Result<()> {
    let driver = InstalledDriver::install(spec, "inline.gantry.test")?;
    let mut owner = pod("owner", IDLE);
    owner["spec"]["volumes"] = json!([{ "name": "own", "csi": { "driver": driver.name } }]);
    owner["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "own", "mountPath": "/own" }]);
    spec.start_pod(owner)?;
    spec.shell("owner", "echo mine >/own/word")?;
    let volumes = driver.volumes()?;
    ensure!(volumes.len() == 1 && volumes.iter().all(|one| one["ephemeral"] == true), "{volumes:?}");
    let attachments = spec.value(&["volumeattachments"], &driver.of_attachments("metadata.name"))?;
    ensure!(attachments.is_empty(), "an inline volume is attached: {attachments}");
    let uid = spec.value(&["pod/owner"], "{.metadata.uid}")?;
    spec.kubectl(&["delete", "pod", "owner", "--timeout=60s"])?;
    driver.await_empty()?;
    await_no_folder(&uid)?;
    driver.remove()
}

/// Starts `keeper`, a pod that has the claim `data` of that class.
fn start_keeper(spec: &Spec<'_>, class: &str) -> Result<()> {
    spec.apply(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data" },
        "spec": claim(class),
    }))?;
    spec.start_pod(keeper())
}

fn keeper() -> Value {
    let mut keeper = pod("keeper", IDLE);
    keeper["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    keeper["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    keeper
}

pub(crate) fn killed(spec: &Spec<'_>) -> Result<()> {
    let driver = InstalledDriver::install(spec, "killed.gantry.test")?;
    start_keeper(spec, &driver.name)?;
    spec.shell("keeper", "echo kept >/data/word && sync")?;
    driver.kill_and_hold()?;
    spec.kubectl(&["delete", "pod", "keeper", "--wait=false"])?;
    stays(spec)?;
    spec.kill_kubelet()?;
    stays(spec)?;
    driver.release()?;
    spec.await_value(&["pods", "--selector=app=keeper"], "{.items[*].metadata.name}", "")?;
    driver.await_idle()?;
    // The driver has registered with the new kubelet, and what was written is there.
    driver.await_on_node(true)?;
    spec.start_pod(keeper())?;
    let word = spec.shell("keeper", "cat /data/word")?;
    ensure!(word == "kept\n", "{word:?}");
    // A kubelet that finds a mounted volume keeps it.
    spec.kill_kubelet()?;
    spec.await_value(
        &["pod/keeper"],
        "{.status.containerStatuses[0].restartCount} {.status.phase}",
        "0 Running",
    )?;
    spec.kubectl(&["delete", "pod", "keeper", "--timeout=120s"])?;
    spec.kubectl(&["delete", "pvc", "data", "--timeout=60s"])?;
    driver.await_empty()?;
    driver.remove()
}

/// Ten seconds in which the pod, whose container ends in one, does not go: its mount is the driver's to take back.
fn stays(spec: &Spec<'_>) -> Result<()> {
    std::thread::sleep(Duration::from_secs(10));
    let named = spec.value(&["pods", "--selector=app=keeper"], "{.items[*].metadata.name}")?;
    ensure!(named == "keeper", "the pod went before its volume");
    Ok(())
}

/// Upstream's suite for CSI drivers, on the tests' own: with folders and with block devices.
pub(crate) fn sanity(spec: &Spec<'_>) -> Result<()> {
    let folder = spec.folder()?;
    let secrets = folder.join("secrets.yaml");
    let kinds =
        ["CreateVolume", "DeleteVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"];
    let text: String =
        kinds.iter().map(|kind| format!("{kind}Secret: {{ key: never-to-be-logged }}\n")).collect();
    std::fs::write(&secrets, text)?;
    for kind in ["mount", "block"] {
        let own = folder.join(kind);
        std::fs::create_dir_all(&own)?;
        passes(&own, kind, &secrets).with_context(|| format!("with {kind} volumes"))?;
    }
    Ok(())
}

fn passes(folder: &Path, kind: &str, secrets: &Path) -> Result<()> {
    let endpoint = format!("unix://{}", folder.join("csi.sock").display());
    let log = folder.join("driver.log");
    let file = std::fs::File::create(&log)?;
    let state = folder.join("state");
    let mut driver = Command::new(programs::path("hostpathplugin")?)
        .args(["--nodeid=one", "--enable-attach", "--endpoint", &endpoint, "--statedir"])
        .arg(&state)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("start the driver")?;
    let suite = Command::new(programs::path("csi-sanity")?)
        .args(["--ginkgo.no-color", "--csi.endpoint", &endpoint, "--csi.testvolumeaccesstype", kind])
        .args(["--csi.testvolumesize=16777216", "--csi.testvolumeexpandsize=33554432"])
        .arg("--csi.mountdir")
        .arg(folder.join("mount"))
        .arg("--csi.stagingdir")
        .arg(folder.join("staging"))
        .arg("--csi.secrets")
        .arg(secrets)
        .output();
    driver.kill()?;
    driver.wait()?;
    let suite = suite.context("run the suite")?;
    let said = String::from_utf8_lossy(&suite.stdout);
    ensure!(suite.status.success(), "{said}");
    let ran = said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    ensure!(ran.is_some_and(|ran| ran >= 57), "{ran:?} of 57 ran: {said}");
    let log = std::fs::read_to_string(&log)?;
    ensure!(log.contains("/csi.v1.Node/NodeStageVolume") && !log.contains("never-to-be-logged"), "{log}");
    let left = std::fs::read_to_string(state.join("state.json"))?;
    ensure!(left == "{}", "volumes are left: {left}");
    Ok(())
}

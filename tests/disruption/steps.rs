//! The kubelet is killed at each durable step of a CSI volume: at the place itself, by a kubelet that is built with
//! failpoints (docs/adr/0024-failpoints.md). The next one goes on. The pod has its volume, mounted once, or both are gone, and
//! the driver was never asked out of turn. Every place has its case at unit level; here are those around the driver's calls.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::csi::{self, CsiInstall, DRIVER_CONTAINER, DRIVER_SET, KUBELET};
use gantry_tests::leakcheck::mounts;
use gantry_tests::place;
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, NAMESPACE, PATIENCE};
use crate::pods::{IDLE, pod};

const DRIVER: &str = "steps.gantry.test";
const RHYTHM: Duration = Duration::from_millis(250);
/// Come to while the pod starts.
const STARTING: [&str; 5] =
    ["csi.stage-folder", "csi.stage-noted", "csi.staged", "csi.publish-noted", "csi.published"];
/// Come to while it goes, and after.
const GOING: [&str; 4] = ["csi.unpublished", "csi.mount-gone", "csi.note-gone", "csi.unstaged"];

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let places = fixture.cluster.folder().join("failpoints");
    std::fs::create_dir_all(&places)?;
    with_failpoints(fixture, &places)?;
    let driver = install(fixture)?;
    for site in STARTING {
        let start = Instant::now();
        arm(&places, site)?;
        fixture.apply(vec![keeper()])?;
        killed(fixture, &places, site)?;
        mounted_once(fixture, &driver).with_context(|| format!("after {site}"))?;
        fixture.kubectl(&["delete", "pod", "keeper", "--timeout=180s"])?;
        await_unstaged(&driver).with_context(|| format!("after {site}"))?;
        println!("{site}: mounted once, then gone ({} s)", start.elapsed().as_secs());
    }
    for site in GOING {
        let start = Instant::now();
        fixture.apply(vec![keeper()])?;
        mounted_once(fixture, &driver)?;
        arm(&places, site)?;
        fixture.kubectl(&["delete", "pod", "keeper", "--wait=false"])?;
        killed(fixture, &places, site)?;
        fixture.await_that(&["pods", "-l", "app=keeper"], "{.items[*].metadata.name}", str::is_empty)?;
        await_unstaged(&driver).with_context(|| format!("after {site}"))?;
        println!("{site}: gone ({} s)", start.elapsed().as_secs());
    }
    remove(fixture, &driver)
}

/// The next kubelet has failpoints.
fn with_failpoints(fixture: &mut ClusterFixture, places: &Path) -> Result<()> {
    let own = fixture.cluster.folder().join("bin-failpoints");
    std::fs::create_dir_all(&own)?;
    let program = own.join("kubelet");
    std::os::unix::fs::symlink(place::bin_dir()?.join(place::FAILPOINTS).join("gantry"), &program)?;
    let process = fixture.cluster.kubelet()?.process();
    process.stop()?;
    process.instead(program, ("GANTRY_FAILPOINTS", places.into()));
    process.restart()?;
    fixture.cluster.await_ready()
}

fn install(fixture: &ClusterFixture) -> Result<CsiInstall> {
    let driver = CsiInstall {
        name: DRIVER.to_owned(),
        namespace: NAMESPACE.to_owned(),
        state: fixture.cluster.folder().join("csi"),
        attach: true,
        binding: "WaitForFirstConsumer",
        server: Some(fixture.cluster.server()),
    };
    let objects: Vec<Value> = driver.beside().into_iter().chain(driver.inside()).collect();
    fixture.any().apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))?;
    fixture.kubectl(&["rollout", "status", DRIVER_SET, "--timeout=180s"])?;
    fixture.apply(vec![json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data" },
        "spec": csi::claim(DRIVER),
    })])?;
    Ok(driver)
}

fn keeper() -> Value {
    let mut keeper = pod("keeper", IDLE);
    keeper["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    keeper["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    keeper
}

fn arm(places: &Path, site: &str) -> Result<()> {
    Ok(std::fs::write(places.join(site), "crash")?)
}

/// Waits until the kubelet has come there and was killed, and starts the next one.
fn killed(fixture: &mut ClusterFixture, places: &Path, site: &str) -> Result<()> {
    let reached = places.join(format!("{site}.reached"));
    poll_every(RHYTHM, site, PATIENCE, || match reached.exists() {
        true => Ok(()),
        false => Err("nobody comes there".to_owned()),
    })?;
    std::fs::remove_file(&reached)?;
    let process = fixture.cluster.kubelet()?.process();
    process.kill()?;
    process.restart()
}

/// The pod runs, and its volume is staged once and published once.
fn mounted_once(fixture: &ClusterFixture, driver: &CsiInstall) -> Result<()> {
    fixture.await_ready("app=keeper", 1)?;
    let points = points(driver)?;
    let staged = points.iter().filter(|point| point.starts_with(driver.staging_folder())).count();
    ensure!(points.len() == 2 && staged == 1, "not one mount of the node and one of the pod: {points:?}");
    Ok(())
}

/// Where volumes of the driver's are mounted, each as often as it is.
fn points(driver: &CsiInstall) -> Result<Vec<PathBuf>> {
    let published =
        |path: &Path| path.starts_with(KUBELET) && path.to_string_lossy().contains("/kubernetes.io~csi/");
    let staged = driver.staging_folder();
    let all = mounts()?.into_iter().map(|mount| mount.point);
    Ok(all.filter(|point| point.starts_with(&staged) || published(point)).collect())
}

/// Waits until the driver has nothing here any more, nor has the node's disk.
fn await_unstaged(driver: &CsiInstall) -> Result<()> {
    poll_every(RHYTHM, "the volume to be given back", PATIENCE, || {
        let text = |error: anyhow::Error| format!("{error:#}");
        let points = points(driver).map_err(text)?;
        let volumes = driver.volumes().map_err(text)?;
        let folders = match std::fs::read_dir(driver.staging_folder()) {
            Ok(entries) => entries.count(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.to_string()),
        };
        match points.is_empty() && folders == 0 && volumes.iter().all(csi::is_given_back) {
            true => Ok(()),
            false => Err(format!("mounts {points:?}, {folders} folders, volumes {volumes:?}")),
        }
    })
}

fn remove(fixture: &ClusterFixture, driver: &CsiInstall) -> Result<()> {
    let said = fixture.kubectl(&["logs", DRIVER_SET, "--container", DRIVER_CONTAINER])?;
    ensure!(said.contains("NodePublishVolume"), "the driver's log has none of its calls");
    let refused = said.lines().find(|line| line.contains("FailedPrecondition"));
    ensure!(refused.is_none(), "the driver was asked out of turn: {refused:?}");
    fixture.kubectl(&["delete", "pvc", "data", "--timeout=120s"])?;
    poll_every(RHYTHM, "the volume to be deleted", PATIENCE, || match driver.volumes() {
        Ok(left) if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    })?;
    fixture.kubectl(&["delete", DRIVER_SET, "--timeout=60s"])?;
    fixture.clear()
}

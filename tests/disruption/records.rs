//! Three pods of a StatefulSet write numbered records to claims of a CSI driver and sync each. Kubelet, runtime and driver
//! are killed, the kubelet is swapped for upstream's and back, the node is drained, its power is cut. No acknowledged record
//! may be lost, nothing is mounted twice, containers run on where nobody ended them, and nothing is left at last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::csi::{self, CsiInstall, DRIVER_CONTAINER, DRIVER_SET, KUBELET};
use gantry_tests::cluster::kubelet::KubeletKind;
use gantry_tests::cluster::records;
use gantry_tests::leakcheck::mounts;
use gantry_tests::poll::poll_every;
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, Containers, NAMESPACE, PATIENCE};

const DRIVER: &str = "records.gantry.test";
const PODS: [&str; 3] = ["store-0", "store-1", "store-2"];
/// So many records each pod writes between two disturbances.
const MORE: u64 = 50;
const RHYTHM: Duration = Duration::from_millis(250);
/// Of the boot after the power cut.
const NEXT_BOOT: &str = "5eb0c2a4-9d4f-4c1e-8f0e-0d5a1d3c7b11";

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let loops = loop_devices()?;
    let store = RecordStore::install(fixture)?;
    store.grow()?;
    let steps: [(&str, Disturbance); 7] = [
        ("the kubelet is killed", kill_kubelet),
        ("the runtime is killed", kill_runtime),
        ("the driver is killed", kill_driver),
        ("the kubelet is swapped for upstream's", swap_to_upstream),
        ("and back", swap_back),
        ("the node is drained", drain),
        ("the power is cut", cut_power),
    ];
    for (what, disturb) in steps {
        let start = Instant::now();
        disturb(fixture, &store).with_context(|| what.to_owned())?;
        let acknowledged = store.grow().with_context(|| format!("after {what}"))?;
        store.check_mounts()?;
        println!(
            "{what}: {acknowledged:?} records acknowledged, none lost ({} s)",
            start.elapsed().as_secs()
        );
    }
    store.remove(fixture)?;
    let left = loop_devices()?;
    ensure!(left == loops, "loop devices are over {left:?}, before over {loops:?}");
    fixture.clear()
}

type Disturbance = fn(&mut ClusterFixture, &RecordStore) -> Result<()>;

fn kill_kubelet(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    let (before, lease) = (store.snapshot(fixture)?, fixture.lease_renew_time()?);
    fixture.cluster.kill_kubelet()?;
    fixture.await_lease_renewal(&lease)?;
    store.grow()?;
    store.check_kept(fixture, &before)
}

fn kill_runtime(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    let before = store.snapshot(fixture)?;
    fixture.cluster.runtime().kill()?;
    store.grow()?;
    // Whatever the kubelet thought of a runtime that was away.
    fixture.cluster.await_ready()?;
    fixture.await_ready("app=store", PODS.len())?;
    store.check_kept(fixture, &before)
}

/// A pod goes and comes while the driver does.
fn kill_driver(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    let before = store.snapshot(fixture)?;
    store.driver.kill()?;
    let is_other = |now: &Containers| {
        let of = |all: &Containers| {
            all.iter().find(|((_, name), _)| name == DRIVER_CONTAINER).map(|(_, one)| one.clone())
        };
        of(now).is_some_and(|one| Some(one) != of(&before.containers))
    };
    poll_every(RHYTHM, "another driver", PATIENCE, || {
        let now = fixture.containers().map_err(|error| format!("{error:#}"))?;
        if is_other(&now) { Ok(()) } else { Err(format!("{now:?}")) }
    })?;
    store.grow()?;
    store.check_kept(fixture, &before)?;
    store.driver.kill()?;
    renew(fixture, PODS[0])
}

/// What one kubelet has mounted the other one unmounts.
fn swap_to_upstream(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    swap(fixture, store, KubeletKind::Upstream)?;
    renew(fixture, PODS[1])
}

fn swap_back(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    swap(fixture, store, fixture.chosen)?;
    renew(fixture, PODS[1])?;
    renew(fixture, PODS[2])
}

fn swap(fixture: &mut ClusterFixture, store: &RecordStore, kind: KubeletKind) -> Result<()> {
    let before = store.snapshot(fixture)?;
    fixture.swap_to(kind)?;
    store.grow()?;
    store.check_kept(fixture, &before)
}

/// Deletes a pod and waits until another one of its name is ready.
fn renew(fixture: &ClusterFixture, pod: &str) -> Result<()> {
    fixture.kubectl(&["delete", "pod", pod, "--timeout=180s"])?;
    fixture.await_ready("app=store", PODS.len())
}

fn drain(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    let node = fixture.cluster.node();
    fixture.any().run(&["cordon", &node])?;
    fixture.any().run(&["drain", &node, "--ignore-daemonsets", "--timeout=180s"])?;
    store.await_given_back(fixture)?;
    let acknowledged = store.check_records()?;
    println!("drained with {acknowledged:?} records");
    fixture.any().run(&["uncordon", &node])?;
    fixture.await_ready("app=store", PODS.len())
}

fn cut_power(fixture: &mut ClusterFixture, store: &RecordStore) -> Result<()> {
    let before = fixture.containers()?;
    fixture.cluster.cycle_power(NEXT_BOOT)?;
    let path = "{.status.nodeInfo.bootID}";
    let node = fixture.cluster.node();
    fixture.any().await_value(&["get", "node", &node], path, PATIENCE, |id| id == NEXT_BOOT)?;
    // Ready was the last word of the boot before.
    poll_every(RHYTHM, "other containers", PATIENCE, || {
        let now = fixture.containers().map_err(|error| format!("{error:#}"))?;
        let stays = before.iter().any(|(key, one)| now.get(key).is_none_or(|other| other == one));
        if stays { Err(format!("{now:?}")) } else { Ok(()) }
    })?;
    store.check_records()?;
    fixture.await_ready("app=store", PODS.len())
}

/// What stays as it is while nobody ends a pod.
#[derive(Debug, PartialEq)]
struct KeptVolumes {
    containers: Containers,
    mounts: BTreeMap<PathBuf, usize>,
}

/// The StatefulSet and its driver.
struct RecordStore {
    driver: CsiInstall,
    acks: PathBuf,
    /// What each pod writes, where the driver has it: past every mount.
    records: Vec<PathBuf>,
}

impl RecordStore {
    fn install(fixture: &ClusterFixture) -> Result<Self> {
        let folder = fixture.cluster.folder();
        let driver = CsiInstall {
            name: DRIVER.to_owned(),
            namespace: NAMESPACE.to_owned(),
            state: folder.join("csi"),
            attach: true,
            binding: "WaitForFirstConsumer",
            server: Some(fixture.cluster.server()),
        };
        let mut store = Self { driver, acks: folder.join("acks"), records: Vec::new() };
        std::fs::create_dir_all(&store.acks)?;
        let objects: Vec<Value> = store.driver.beside().into_iter().chain(store.driver.inside()).collect();
        fixture.any().apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))?;
        fixture.kubectl(&["rollout", "status", DRIVER_SET, "--timeout=180s"])?;
        fixture.apply(vec![store.set()])?;
        fixture.await_ready("app=store", PODS.len())?;
        for pod in PODS {
            let claim = ["get", "pvc", "-n", NAMESPACE, &format!("data-{pod}")];
            let volume = fixture.any().value(&claim, "{.spec.volumeName}")?;
            store.records.push(store.driver.data(&volume)?.join(records::RECORDS));
        }
        Ok(store)
    }

    fn set(&self) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": { "name": "store" },
            "spec": {
                "serviceName": "store",
                "replicas": PODS.len(),
                "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": { "app": "store" } },
                "template": {
                    "metadata": { "labels": { "app": "store" } },
                    "spec": {
                        "terminationGracePeriodSeconds": 5,
                        "containers": [{
                            "name": "main",
                            "image": "busybox",
                            "command": ["sh", "-c", records::script("$NAME", "/data", "/acks")],
                            "env": [{ "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                            "volumeMounts": [
                                { "name": "data", "mountPath": "/data" },
                                { "name": "acks", "mountPath": "/acks" },
                            ],
                        }],
                        "volumes": [{ "name": "acks", "hostPath": { "path": self.acks, "type": "Directory" } }],
                    },
                },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": csi::claim(&self.driver.name) }],
            },
        })
    }

    /// How many records each pod has acknowledged; all of them are in its volume.
    fn check_records(&self) -> Result<Vec<u64>> {
        let one = |(pod, records): (&&str, &PathBuf)| {
            let acks = read(&self.acks.join(pod))?;
            records::check(pod, &acks, &read(records)?)
        };
        PODS.iter().zip(&self.records).map(one).collect()
    }

    /// Waits until each pod has acknowledged more, and none of it is lost.
    fn grow(&self) -> Result<Vec<u64>> {
        let from = self.check_records()?;
        for (pod, from) in PODS.iter().zip(from) {
            poll_every(RHYTHM, &format!("{MORE} more records of {pod}"), PATIENCE, || {
                let acks = read(&self.acks.join(pod)).map_err(|error| format!("{error:#}"))?;
                let now = acks.lines().count() as u64;
                if now >= from + MORE { Ok(()) } else { Err(format!("{from} were, {now} are")) }
            })?;
        }
        self.check_records()
    }

    fn snapshot(&self, fixture: &ClusterFixture) -> Result<KeptVolumes> {
        self.check_mounts()?;
        let mut mounts = fixture.count_mounts()?;
        mounts.extend(self.targets()?);
        Ok(KeptVolumes { containers: fixture.containers()?, mounts })
    }

    /// The same containers, but for the driver's own, which may have been killed, and the same mounts.
    fn check_kept(&self, fixture: &ClusterFixture, before: &KeptVolumes) -> Result<()> {
        let without = |all: &Containers| -> Containers {
            let others = all.iter().filter(|((_, name), _)| name != DRIVER_CONTAINER);
            others.map(|(key, one)| (key.clone(), one.clone())).collect()
        };
        let now = self.snapshot(fixture)?;
        let (was, is) = (without(&before.containers), without(&now.containers));
        ensure!(was == is, "other containers run: {is:#?} instead of {was:#?}");
        ensure!(
            now.mounts == before.mounts,
            "other mounts: {:#?} instead of {:#?}",
            now.mounts,
            before.mounts
        );
        Ok(())
    }

    /// How often each place of a volume of the driver's is mounted: where it is staged, and where it is published.
    fn targets(&self) -> Result<BTreeMap<PathBuf, usize>> {
        let staged = self.driver.staging_folder();
        let published =
            |path: &Path| path.starts_with(KUBELET) && path.to_string_lossy().contains("/kubernetes.io~csi/");
        let mut found = BTreeMap::new();
        for mount in
            mounts()?.into_iter().filter(|one| one.point.starts_with(&staged) || published(&one.point))
        {
            *found.entry(mount.point).or_default() += 1;
        }
        Ok(found)
    }

    /// Each volume is staged once and published once.
    fn check_mounts(&self) -> Result<()> {
        let targets = self.targets()?;
        let staged = targets.keys().filter(|path| path.starts_with(self.driver.staging_folder())).count();
        ensure!(
            targets.values().all(|times| *times == 1) && staged == PODS.len() && targets.len() == 2 * staged,
            "not one mount for each volume and pod: {targets:#?}"
        );
        Ok(())
    }

    /// Waits until no volume is attached, staged or published, and nothing of it is on the node.
    fn await_given_back(&self, fixture: &ClusterFixture) -> Result<()> {
        poll_every(RHYTHM, "the volumes to be given back", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let volumes = self.driver.volumes().map_err(text)?;
            if let Some(kept) = volumes.iter().find(|volume| !csi::is_given_back(volume)) {
                return Err(kept.to_string());
            }
            let targets = self.targets().map_err(text)?;
            let staged = entries(&self.driver.staging_folder()).map_err(text)?;
            let field = self.driver.of_attachments("metadata.name");
            let attached = fixture.any().value(&["get", "volumeattachments"], &field).map_err(text)?;
            if targets.is_empty() && staged.is_empty() && attached.is_empty() {
                return Ok(());
            }
            Err(format!("mounts {targets:?}, folders {staged:?}, attachments {attached:?}"))
        })
    }

    /// Deletes all of it; nothing is left, and the driver was never asked out of turn.
    fn remove(&self, fixture: &ClusterFixture) -> Result<()> {
        fixture.kubectl(&["delete", "statefulset", "store"])?;
        fixture.await_that(&["pods", "-l", "app=store"], "{.items[*].metadata.name}", str::is_empty)?;
        self.await_given_back(fixture)?;
        self.check_records()?;
        fixture.kubectl(&["delete", "pvc", "--all", "--timeout=120s"])?;
        fixture.any().await_value(
            &["get", "persistentvolumes"],
            "{.items[*].metadata.name}",
            PATIENCE,
            str::is_empty,
        )?;
        ensure!(self.driver.volumes()?.is_empty(), "the driver has {:?}", self.driver.volumes()?);
        self.check_calls()?;
        poll_every(RHYTHM, "folders of pods to go", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let uids =
                fixture.any().value(&["get", "pods", "-A"], "{.items[*].metadata.uid}").map_err(text)?;
            let mut left = entries(&PathBuf::from(KUBELET).join("pods")).map_err(text)?;
            left.retain(|uid| !uids.contains(uid.as_str()));
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })?;
        fixture.kubectl(&["delete", DRIVER_SET, "--timeout=60s"]).map(drop)
    }

    /// By the logs of each life of the driver.
    fn check_calls(&self) -> Result<()> {
        let mut calls = 0;
        for pod in entries(Path::new("/var/log/pods"))?
            .iter()
            .filter(|name| name.starts_with(&format!("{NAMESPACE}_driver-")))
        {
            let folder = Path::new("/var/log/pods").join(pod).join(DRIVER_CONTAINER);
            for log in entries(&folder)? {
                let text = read(&folder.join(log))?;
                calls += text.matches("NodePublishVolume").count();
                let refused = text.lines().find(|line| line.contains("FailedPrecondition"));
                ensure!(refused.is_none(), "the driver was asked out of turn: {refused:?}");
            }
        }
        ensure!(calls >= PODS.len(), "the driver's logs have {calls} calls");
        Ok(())
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The names in a folder; one that is not there has none.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let at = || folder.display().to_string();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(at),
    };
    entries.map(|entry| Ok(entry.with_context(at)?.file_name().to_string_lossy().into_owned())).collect()
}

/// The files that loop devices of this machine are over.
fn loop_devices() -> Result<BTreeSet<String>> {
    let of = |name: String| {
        std::fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()
    };
    // One that is not in use has no such file.
    Ok(entries(Path::new("/sys/block"))?.into_iter().filter_map(of).collect())
}

//! The StatefulSet and its driver, and what it has written. Owns their objects, what the serial line tells of records, and
//! the look at the disk; never touches the machine. Called by [`super`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::csi::{self, CsiInstall, DRIVER_SET};
use gantry_tests::cluster::kubectl::Kubectl;
use gantry_tests::cluster::records;
use serde_json::{Value, json};

use crate::vm::disk;

pub(super) const PODS: [&str; 3] = ["store-0", "store-1", "store-2"];
const DRIVER: &str = "power.gantry.test";
/// On the machine's disk.
const STATE: &str = "/var/csi";
/// Begins a line of an acknowledged record: `ack POD NUMBER SUM`.
const ACK: &str = "ack ";

/// How many records each pod has acknowledged, by the serial line.
pub(super) fn count(lines: &[String]) -> [usize; 3] {
    PODS.map(|pod| acknowledged(lines, pod).lines().count())
}

/// Those of a pod, as [`records::check`] reads them. A line that another one was written into is none.
fn acknowledged(lines: &[String], pod: &str) -> String {
    let own = lines.iter().filter_map(|line| line.strip_prefix(ACK)?.strip_prefix(pod)?.strip_prefix(' '));
    let is_whole = |record: &&str| {
        record.split_once(' ').is_some_and(|(number, sum)| {
            number.parse::<u64>().is_ok()
                && sum.len() == 64
                && sum.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    own.filter(is_whole).map(|record| format!("{record}\n")).collect()
}

#[derive(Debug)]
pub(super) struct RecordSet {
    driver: CsiInstall,
}

impl RecordSet {
    /// `server` is the API server's address, which the machine reaches.
    pub(super) fn new(server: String) -> Self {
        let driver = CsiInstall {
            name: DRIVER.to_owned(),
            namespace: "default".to_owned(),
            state: PathBuf::from(STATE),
            attach: true,
            binding: "WaitForFirstConsumer",
            server: Some(server),
        };
        Self { driver }
    }

    /// Driver, then pods; until all are ready.
    pub(super) fn install(&self, kubectl: &Kubectl, patience: Duration) -> Result<()> {
        let [account, mut pods] = self.driver.inside();
        // The pods' network ends at the machine.
        pods["spec"]["template"]["spec"]["hostNetwork"] = true.into();
        let objects: Vec<Value> = self.driver.beside().into_iter().chain([account, pods]).collect();
        kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))?;
        let timeout = format!("--timeout={}s", patience.as_secs());
        kubectl.run(&["rollout", "status", DRIVER_SET, &timeout])?;
        kubectl.apply(&set())?;
        kubectl.run(&["rollout", "status", "statefulset/store", &timeout]).map(drop)
    }

    /// The StatefulSet goes; until its volumes are given back.
    pub(super) fn remove(&self, kubectl: &Kubectl, patience: Duration) -> Result<()> {
        kubectl.run(&["delete", "statefulset", "store"])?;
        let of_pods = ["get", "pods", "-l", "app=store"];
        kubectl.await_value(&of_pods, "{.items[*].metadata.name}", patience, str::is_empty)?;
        let field = self.driver.of_attachments("metadata.name");
        kubectl.await_value(&["get", "volumeattachments"], &field, patience, str::is_empty).map(drop)
    }

    /// What is on the machine's disk, which was off, beside what was acknowledged. Returns how many records that were.
    pub(super) fn check_disk(&self, var: &Path, out: &Path, lines: &[String]) -> Result<Vec<u64>> {
        let name = STATE.strip_prefix("/var").unwrap_or(STATE);
        disk::read_folder(var, name, out)?;
        let folder = out.join(name.trim_start_matches('/'));
        let text = read(&folder.join("state.json"))?;
        let volumes: serde_json::Map<String, Value> =
            serde_json::from_str(&text).context("the driver's state")?;
        ensure!(volumes.len() == PODS.len(), "the driver has {text}");
        let mut found = Vec::new();
        for volume in volumes.values() {
            ensure!(csi::is_given_back(volume), "the driver still has {volume}");
            let id = volume["id"].as_str().context("a volume without an ID")?;
            let records = read(&folder.join("volumes").join(id).join(records::RECORDS))?;
            // Whose it is, each record says.
            let pod = records.split(' ').nth(1).unwrap_or_default().to_owned();
            found.push(records::check(&pod, &acknowledged(lines, &pod), &records)?);
        }
        ensure!(found.iter().all(|count| *count > 0), "{found:?} records were acknowledged");
        Ok(found)
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn set() -> Value {
    let script = records::script_with("$NAME", "/data", r#"echo "ack $NAME $n $sum" >/serial"#);
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
                        "command": ["sh", "-c", script],
                        "env": [{ "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                        "securityContext": { "privileged": true },
                        "volumeMounts": [
                            { "name": "data", "mountPath": "/data" },
                            { "name": "serial", "mountPath": "/serial" },
                        ],
                    }],
                    "volumes": [{ "name": "serial", "hostPath": { "path": "/dev/ttyS0", "type": "CharDevice" } }],
                },
            },
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": csi::claim(DRIVER) }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_acknowledge_a_record() {
        let sum = "a".repeat(64);
        let lines = [
            format!("ack store-0 1 {sum}"),
            format!("ack store-0 2 {}", &sum[1..]),
            format!("ack store-1 1 {sum}"),
            format!("ack store-0 3 {sum}overload: x"),
            "[  1.0] ack".to_owned(),
        ];
        assert_eq!(acknowledged(&lines, "store-0"), format!("1 {sum}\n"));
        assert_eq!(count(&lines), [1, 1, 0]);
    }
}

//! Pods with an identity: one on each node, and some with names and volumes of their own.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::spec::{IDLE, Spec};

pub(crate) fn daemon_set(spec: &Spec<'_>) -> Result<()> {
    let label = format!("{}=wanted", spec.namespace);
    let node = ["label", "node", "gantry-node"];
    spec.apply(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": {
                    "containers": [{ "name": "main", "image": "busybox", "command": ["sh", "-c", IDLE] }],
                    "nodeSelector": { &spec.namespace: "wanted" },
                },
            },
        },
    }))?;
    let outcome = with_daemon_set(spec, &label);
    let unlabelled = spec.any().run(&[&node[..], &[&format!("{}-", spec.namespace)]].concat());
    outcome?;
    unlabelled?;
    // The node is not one of its own any more.
    spec.await_value(&["daemonset/agent"], "{.status.currentNumberScheduled}", "0")?;
    spec.await_value(&["pods"], "{.items[*].metadata.name}", "").map(drop)
}

fn with_daemon_set(spec: &Spec<'_>, label: &str) -> Result<()> {
    spec.await_value(
        &["daemonset/agent"],
        "{.status.observedGeneration} {.status.desiredNumberScheduled}",
        "1 0",
    )?;
    spec.any().run(&["label", "node", "gantry-node", label])?;
    spec.await_value(&["daemonset/agent"], "{.status.numberReady}", "1")?;
    let first = spec.value(&["pods"], "{.items[*].metadata.name}")?;
    spec.kubectl(&["delete", "pod", &first, "--timeout=60s"])?;
    spec.await_that(&["pods"], "{.items[*].metadata.name}", |name| !name.is_empty() && name != first)?;
    spec.await_value(&["daemonset/agent"], "{.status.numberReady}", "1")?;
    spec.kubectl(&["set", "env", "daemonset/agent", "WORD=changed"])?;
    spec.kubectl(&["rollout", "status", "daemonset/agent", "--timeout=120s"])?;
    let word = spec.kubectl(&["exec", "daemonset/agent", "--", "sh", "-c", "echo $WORD"])?;
    ensure!(word == "changed\n", "{word:?}");
    Ok(())
}

pub(crate) fn stateful_set(spec: &Spec<'_>) -> Result<()> {
    let folder = spec.folder()?;
    spec.apply_beside(json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": { "name": spec.namespace },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }))?;
    for number in 0..2 {
        let disk = folder.join(format!("disk-{number}"));
        std::fs::create_dir_all(&disk)?;
        spec.apply_beside(volume(spec, number, &disk.display().to_string()))?;
    }
    spec.apply(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "store" },
        "spec": { "clusterIP": "None", "selector": { "app": "store" }, "ports": [{ "port": 80 }] },
    }))?;
    spec.apply(store(spec))?;
    spec.kubectl(&["rollout", "status", "statefulset/store", "--timeout=120s"])?;
    let names = spec.value(&["pods"], "{.items[*].metadata.name}")?;
    ensure!(names == "store-0 store-1", "{names:?}");
    for name in ["store-0", "store-1"] {
        spec.shell(name, "[ $(hostname) = $NAME ] && echo of $NAME >/data/word")?;
    }
    // By its name in DNS, which is the Service's and its own.
    let fqdn = format!("store-1.store.{}.svc.cluster.local", spec.namespace);
    let address = spec.value(&["pod/store-1"], "{.status.podIP}")?;
    let hosts = spec.shell("store-1", "cat /etc/hosts")?;
    ensure!(hosts.contains(&format!("{address}\t{fqdn}\tstore-1")), "{hosts:?}");
    spec.shell("store-0", &format!("until nslookup {fqdn} | grep -q {address}; do sleep 1; done"))?;
    // Another pod of the same name has the same volume; and one that comes back after a scale to nothing.
    let uid = spec.value(&["pod/store-1"], "{.metadata.uid}")?;
    spec.kubectl(&["delete", "pod", "store-1", "--timeout=60s"])?;
    spec.await_that(&["pod/store-1"], "{.metadata.uid}", |now| !now.is_empty() && now != uid)?;
    spec.kubectl(&["rollout", "status", "statefulset/store", "--timeout=120s"])?;
    ensure!(spec.shell("store-1", "cat /data/word")? == "of store-1\n");
    spec.kubectl(&["scale", "statefulset/store", "--replicas=0"])?;
    spec.await_value(&["pods"], "{.items[*].metadata.name}", "")?;
    let words = (0..2).map(|number| std::fs::read_to_string(folder.join(format!("disk-{number}/word"))));
    let mut words = words.collect::<std::io::Result<Vec<_>>>()?;
    words.sort();
    ensure!(words == ["of store-0\n", "of store-1\n"], "{words:?}");
    spec.kubectl(&["scale", "statefulset/store", "--replicas=1"])?;
    spec.await_value(&["statefulset/store"], "{.status.readyReplicas}", "1")?;
    ensure!(spec.shell("store-0", "cat /data/word")? == "of store-0\n");
    Ok(())
}

fn volume(spec: &Spec<'_>, number: usize, path: &str) -> Value {
    let on = json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["gantry-node"] }]);
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": format!("{}-{number}", spec.namespace) },
        "spec": {
            "capacity": { "storage": "10Mi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": spec.namespace,
            "local": { "path": path },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": on }] } },
        },
    })
}

fn store(spec: &Spec<'_>) -> Value {
    let name = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": "store" },
        "spec": {
            "serviceName": "store",
            "replicas": 2,
            "selector": { "matchLabels": { "app": "store" } },
            "template": {
                "metadata": { "labels": { "app": "store" } },
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{
                        "name": "main",
                        "image": "busybox",
                        "command": ["sh", "-c", IDLE],
                        "env": [{ "name": "NAME", "valueFrom": name }],
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": spec.namespace,
                    "resources": { "requests": { "storage": "10Mi" } },
                },
            }],
        },
    })
}

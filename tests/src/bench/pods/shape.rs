//! What pods look like that a bench makes. Pure. Called by `bench::pods`.

use std::str::FromStr;

use anyhow::bail;
use serde_json::{Value, json};

use crate::cluster::images;

/// One form of pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodShape {
    /// One container that waits
    #[default]
    Plain,
    /// Five of them
    Containers,
    /// One with ten volumes: emptyDir, configMap, secret, projected and downwardAPI, two each
    Volumes,
    /// One with a startup probe that runs a program and a readiness probe over HTTP
    Probes,
    /// One that ends at once, and is started again
    Crash,
}

impl FromStr for PodShape {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let all = [Self::Plain, Self::Containers, Self::Volumes, Self::Probes, Self::Crash];
        match all.into_iter().find(|shape| shape.name() == name) {
            Some(shape) => Ok(shape),
            None => bail!("{name} is no shape of pod: {}", all.map(Self::name).join(", ")),
        }
    }
}

impl PodShape {
    /// As the command line has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Containers => "containers",
            Self::Volumes => "volumes",
            Self::Probes => "probes",
            Self::Crash => "crash",
        }
    }

    /// Bound to the node: what a scheduler takes is no matter of a node.
    pub(super) fn pod(self, namespace: &str, number: usize, node: &str) -> Value {
        let mut spec = json!({ "nodeName": node, "terminationGracePeriodSeconds": 1 });
        let pause = |name: String| json!({ "name": name, "image": images::PAUSE });
        spec["containers"] = match self {
            Self::Plain => json!([pause("pause".to_owned())]),
            Self::Containers => (0..5).map(|number| pause(format!("pause-{number}"))).collect(),
            Self::Volumes => json!([with_mounts(pause("pause".to_owned()))]),
            Self::Probes => json!([probed()]),
            Self::Crash => {
                json!([{ "name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["false"] }])
            }
        };
        if self == Self::Volumes {
            spec["volumes"] = volumes();
        }
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("pod-{number}"), "namespace": namespace, "labels": { "bench": "pods" } },
            "spec": spec,
        })
    }

    /// What its pods refer to.
    pub(super) fn objects(self, namespace: &str) -> Value {
        let named = |kind: &str| {
            json!({
                "apiVersion": "v1", "kind": kind,
                "metadata": { "name": "bench", "namespace": namespace },
            })
        };
        let (mut settings, mut secret) = (named("ConfigMap"), named("Secret"));
        settings["data"] = json!({ "one": "1", "two": "2" });
        secret["stringData"] = json!({ "one": "1", "two": "2" });
        match self {
            Self::Volumes => json!({ "apiVersion": "v1", "kind": "List", "items": [settings, secret] }),
            Self::Plain | Self::Containers | Self::Probes | Self::Crash => Value::Null,
        }
    }
}

fn volumes() -> Value {
    let labels = json!([{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }]);
    let two = |number: usize| {
        [
            json!({ "name": format!("empty-{number}"), "emptyDir": {} }),
            json!({ "name": format!("settings-{number}"), "configMap": { "name": "bench" } }),
            json!({ "name": format!("secret-{number}"), "secret": { "secretName": "bench" } }),
            json!({ "name": format!("downward-{number}"), "downwardAPI": { "items": labels.clone() } }),
            json!({ "name": format!("projected-{number}"), "projected": { "sources": [
                { "configMap": { "name": "bench" } },
                { "secret": { "name": "bench", "items": [{ "key": "two", "path": "secret" }] } },
                { "downwardAPI": { "items": labels.clone() } },
            ] } }),
        ]
    };
    (0..2).flat_map(two).collect()
}

fn with_mounts(mut container: Value) -> Value {
    let volumes = volumes();
    let names = volumes.as_array().into_iter().flatten().map(|volume| volume["name"].clone());
    let mount = |name: Value| {
        let path = format!("/volumes/{}", name.as_str().unwrap_or_default());
        json!({ "name": name, "mountPath": path })
    };
    container["volumeMounts"] = names.map(mount).collect();
    container
}

fn probed() -> Value {
    json!({
        "name": "web",
        "image": AGNHOST,
        "imagePullPolicy": "IfNotPresent",
        "args": ["netexec", "--http-port=8080", "--udp-port=-1"],
        "startupProbe": { "exec": { "command": ["/bin/true"] }, "periodSeconds": 1, "failureThreshold": 60 },
        "readinessProbe": { "httpGet": { "path": "/hostname", "port": 8080 }, "periodSeconds": 1 },
    })
}

const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_volumes_are_mounted_and_a_shape_is_known_by_its_name() {
        let pod = PodShape::Volumes.pod("ns", 3, "node");
        let of = |field: &str| pod["spec"]["containers"][0][field].as_array().map_or(0, Vec::len);
        assert_eq!((of("volumeMounts"), pod["spec"]["volumes"].as_array().unwrap().len()), (10, 10));
        assert_eq!("crash".parse::<PodShape>().unwrap(), PodShape::Crash);
        let said = "round".parse::<PodShape>().unwrap_err().to_string();
        assert!(said.contains("plain, containers"), "{said}");
    }
}

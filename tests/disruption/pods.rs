//! The pods that endure: twenty with everything that a node keeps for them, and small ones. Owns the objects; never applies
//! them. Called by the specs.

use serde_json::{Value, json};

/// Does nothing until it is asked to end, and then ends at once.
pub(crate) const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 1; done";
/// Serves its folder; ends at once when it is asked to.
const SERVE: &str = "trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait";
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// Of them belong to a Deployment.
const REPLICAS: usize = 4;
/// All of them.
pub(crate) const TWENTY: usize = 20;
/// They carry it.
pub(crate) const LABEL: (&str, &str) = ("set", "twenty");

/// A pod of one busybox container, `main`.
pub(crate) fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "containers": [{ "name": "main", "image": "busybox", "command": ["sh", "-c", script] }],
            "terminationGracePeriodSeconds": 1,
        },
    })
}

/// Twenty pods, and what their volumes are filled from.
pub(crate) fn twenty() -> Vec<Value> {
    let mut objects = Vec::new();
    for index in 0..=TWENTY - REPLICAS {
        let name = format!("kept-{index}");
        let meta = json!({ "name": name });
        objects.push(
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": { "word": name } }),
        );
        objects.push(
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": { "word": name } }),
        );
        let labels = json!({ "app": name, LABEL.0: LABEL.1 });
        let spec = spec(index, &name);
        objects.push(if index < TWENTY - REPLICAS {
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": { "name": name, "labels": labels },
                "spec": spec,
            })
        } else {
            json!({
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": meta,
                "spec": {
                    "replicas": REPLICAS,
                    "selector": { "matchLabels": { "app": name } },
                    "template": { "metadata": { "labels": labels }, "spec": spec },
                },
            })
        });
    }
    objects
}

/// The kind of its probes goes round; every second has a sidecar, every third an init container, every fifth a hostPort.
fn spec(index: usize, name: &str) -> Value {
    let (action, serves_grpc) = match index % 4 {
        0 => (json!({ "exec": { "command": ["cat", "/scratch/there"] } }), false),
        1 => (json!({ "httpGet": { "path": "/", "port": 8080 } }), false),
        2 => (json!({ "tcpSocket": { "port": 8080 } }), false),
        _ => (json!({ "grpc": { "port": 5000 } }), true),
    };
    let mut main = if serves_grpc {
        json!({ "name": "main", "image": AGNHOST, "args": ["grpc-health-checking"] })
    } else {
        json!({
            "name": "main",
            "image": "busybox",
            "command": ["sh", "-c", format!("touch /scratch/there; mkdir -p /www; echo yes >/www/index.html; {SERVE}")],
        })
    };
    for (probe, failures) in [("startupProbe", 30), ("readinessProbe", 3), ("livenessProbe", 3)] {
        let mut own = action.clone();
        own["periodSeconds"] = json!(5);
        own["timeoutSeconds"] = json!(5);
        own["failureThreshold"] = json!(failures);
        main[probe] = own;
    }
    main["volumeMounts"] = json!([
        { "name": "scratch", "mountPath": "/scratch" },
        { "name": "memory", "mountPath": "/memory" },
        { "name": "config", "mountPath": "/config" },
        { "name": "config", "mountPath": "/word", "subPath": "word" },
        { "name": "secret", "mountPath": "/secret" },
    ]);
    if index.is_multiple_of(5) && !serves_grpc && index < TWENTY - REPLICAS {
        main["ports"] = json!([{ "containerPort": 8080, "hostPort": 18080 + index }]);
    }
    let idle = |name: &str, script: &str| json!({ "name": name, "image": "busybox", "command": ["sh", "-c", script] });
    let mut before = Vec::new();
    if index.is_multiple_of(3) {
        before.push(idle("first", "echo done"));
    }
    if index % 2 == 1 {
        let mut side = idle("side", IDLE);
        side["restartPolicy"] = json!("Always");
        side["startupProbe"] = json!({ "exec": { "command": ["true"] }, "timeoutSeconds": 5 });
        before.push(side);
    }
    json!({
        "initContainers": before,
        "containers": [main],
        "securityContext": if index.is_multiple_of(4) { json!({ "fsGroup": 2000 }) } else { json!({}) },
        "terminationGracePeriodSeconds": 1,
        "volumes": [
            { "name": "scratch", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "config", "configMap": { "name": name } },
            { "name": "secret", "secret": { "secretName": name } },
        ],
    })
}

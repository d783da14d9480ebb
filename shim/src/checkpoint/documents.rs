//! What an archive says of its container beside criu's images: the files that checkpointctl, podman and containerd
//! read, by their names for them (checkpointctl's lib/metadata.go). Pure.

use gantry_proto::cri;
use serde_json::{Map, Value, json};

use crate::store::record::{ContainerRecord, SandboxRecord};
use gantry_monitor::monitor::timestamp;

/// `config.dump`. `runtime`: who makes the container.
pub(super) fn config(
    record: &ContainerRecord,
    sandbox: &SandboxRecord,
    image: &str,
    runtime: &str,
    now: i64,
) -> Value {
    let pod = &sandbox.pod;
    json!({
        "id": record.id,
        // Containerd's name of a container.
        "name": format!("{}_{}_{}_{}_{}", record.name, pod.name, pod.namespace, pod.uid, record.attempt),
        "rootfsImage": image,
        "rootfsImageRef": record.image_ref,
        "rootfsImageName": image,
        "runtime": runtime,
        "createdTime": timestamp(record.created_at),
        "checkpointedTime": timestamp(now),
        // Go's zero.
        "restoredTime": "0001-01-01T00:00:00Z",
        "restored": false,
    })
}

/// `status`, which is containerd's own.
pub(super) fn own_status(record: &ContainerRecord) -> Value {
    json!({
        "Version": "v1",
        "Pid": record.started.map_or(0, |started| started.process.pid),
        "CreatedAt": record.created_at,
        "StartedAt": record.started.map_or(0, |started| started.at),
        "FinishedAt": 0,
        "ExitCode": 0,
        "Reason": "",
        "Message": "",
        "Restore": false,
    })
}

/// `status.dump`: CRI's ContainerStatus as Go writes it.
pub(super) fn status(of: &cri::ContainerStatus) -> Value {
    let metadata = of.metadata.clone().unwrap_or_default();
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| {
        if is_non_empty(&value) {
            out.insert(key.to_owned(), value);
        }
    };
    put("id", json!(of.id));
    put("metadata", without_empty(json!({ "name": metadata.name, "attempt": metadata.attempt })));
    put("state", json!(of.state));
    put("created_at", json!(of.created_at));
    put("started_at", json!(of.started_at));
    put("image", image(of.image.as_ref()));
    put("image_ref", json!(of.image_ref));
    put("labels", json!(of.labels));
    put("annotations", json!(of.annotations));
    put("mounts", of.mounts.iter().map(mount).collect());
    put("log_path", json!(of.log_path));
    put("image_id", json!(of.image_id));
    put("user", user(of.user.as_ref()));
    put("stop_signal", json!(of.stop_signal));
    Value::Object(out)
}

fn mount(of: &cri::Mount) -> Value {
    without_empty(json!({
        "container_path": of.container_path,
        "host_path": of.host_path,
        "readonly": of.readonly,
        "propagation": of.propagation,
        "recursive_read_only": of.recursive_read_only,
        "image": image(of.image.as_ref()),
        "image_sub_path": of.image_sub_path,
    }))
}

fn image(of: Option<&cri::ImageSpec>) -> Value {
    let of = of.cloned().unwrap_or_default();
    without_empty(
        json!({ "image": of.image, "user_specified_image": of.user_specified_image, "annotations": of.annotations }),
    )
}

fn user(of: Option<&cri::ContainerUser>) -> Value {
    let Some(linux) = of.and_then(|user| user.linux.as_ref()) else { return Value::Null };
    json!({ "linux": without_empty(json!({
        "uid": linux.uid, "gid": linux.gid, "supplemental_groups": linux.supplemental_groups
    })) })
}

/// Without what Go leaves out: all that is as if nobody had said it.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(all) => {
            Value::Object(all.into_iter().filter(|(_, value)| is_non_empty(value)).collect())
        }
        other => other,
    }
}

fn is_non_empty(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_i64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_as_go_writes_it_without_what_nobody_said() {
        let of = cri::ContainerStatus {
            id: "c".into(),
            metadata: Some(cri::ContainerMetadata { name: "web".into(), attempt: 0 }),
            state: cri::ContainerState::ContainerRunning.into(),
            created_at: 5,
            image: Some(cri::ImageSpec { image: "busybox".into(), ..Default::default() }),
            mounts: vec![cri::Mount { container_path: "/d".into(), readonly: true, ..Default::default() }],
            ..Default::default()
        };
        let expected = json!({
            "id": "c", "metadata": { "name": "web" }, "state": 1, "created_at": 5,
            "image": { "image": "busybox" }, "mounts": [{ "container_path": "/d", "readonly": true }],
        });
        assert_eq!(status(&of), expected);
    }
}

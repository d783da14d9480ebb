//! `gantry inspect`: what the runtime says of a pod's sandbox and containers when it is asked for everything. Owns the
//! form, which is crictl's as far as it goes; never interprets it. Called by main.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::cri::{
    ContainerState, ContainerStatus, ContainerStatusRequest, ListPodSandboxRequest, Mount, PodSandbox,
    PodSandboxFilter, PodSandboxState, PodSandboxStatus, PodSandboxStatusRequest,
};
use gantry_proto::operator::Pod;
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::args::{InspectArgs, ObjectFormat};
use crate::{client, exec, output, runtime_client};

/// The label that CRI clients give the pod's UID by.
const POD_UID: &str = "io.kubernetes.pod.uid";

pub(crate) async fn inspect(args: InspectArgs) -> Result<()> {
    let socket = &args.pod.agent.agent_socket;
    let pod = client::find_pod(&mut client::dial(socket).await?, &args.pod).await?;
    let mut runtime = runtime_client::runtime(runtime_client::dial_agent(socket).await?);
    let found = match args.container.as_deref() {
        Some(name) => {
            let (container, _) = exec::choose(&pod, Some(name))?;
            if container.id.is_empty() {
                bail!("container {name} has not started: {} {}", container.reason, container.message);
            }
            container_of(&mut runtime, &container.id).await?
        }
        None => whole(&mut runtime, &pod).await?,
    };
    let text = match args.output {
        ObjectFormat::Json => output::json(&found)?,
        ObjectFormat::Yaml => output::yaml(&found)?,
    };
    Ok(output::print(text.as_bytes())?)
}

/// The newest sandbox, and each container that has started.
async fn whole(runtime: &mut RuntimeServiceClient<Channel>, pod: &Pod) -> Result<Value> {
    let label_selector = BTreeMap::from([(POD_UID.to_owned(), pod.uid.clone())]);
    let filter = PodSandboxFilter { label_selector, ..PodSandboxFilter::default() };
    let ask = ListPodSandboxRequest { filter: Some(filter) };
    let list = runtime_client::answer(runtime.list_pod_sandbox(ask).await)?.items;
    let sandbox = match list.into_iter().max_by_key(|sandbox| sandbox.created_at) {
        Some(newest) => sandbox_of(runtime, newest).await?,
        None => Value::Null,
    };
    let mut containers = Vec::new();
    for container in pod.init_containers.iter().chain(&pod.containers).filter(|c| !c.id.is_empty()) {
        containers.push(container_of(runtime, &container.id).await?);
    }
    Ok(json!({ "sandbox": sandbox, "containers": containers }))
}

async fn sandbox_of(runtime: &mut RuntimeServiceClient<Channel>, sandbox: PodSandbox) -> Result<Value> {
    let ask = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id, verbose: true };
    let answer = runtime_client::answer(runtime.pod_sandbox_status(ask).await)?;
    Ok(json!({ "status": answer.status.as_ref().map(sandbox_status), "info": info(&answer.info) }))
}

async fn container_of(runtime: &mut RuntimeServiceClient<Channel>, id: &str) -> Result<Value> {
    let ask = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let answer = runtime_client::answer(runtime.container_status(ask).await)?;
    Ok(json!({ "status": answer.status.as_ref().map(container_status), "info": info(&answer.info) }))
}

/// Runtimes put JSON into the entry `info`, as containerd does: it stands here as what it is. Other entries stand
/// beside it.
fn info(told: &BTreeMap<String, String>) -> Value {
    let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
    let mut all: serde_json::Map<String, Value> =
        told.iter().map(|(key, text)| (key.clone(), value(text))).collect();
    match all.remove("info") {
        Some(Value::Object(mut inner)) => {
            inner.extend(all);
            Value::Object(inner)
        }
        Some(other) => {
            all.insert("info".to_owned(), other);
            Value::Object(all)
        }
        None => Value::Object(all),
    }
}

fn sandbox_status(status: &PodSandboxStatus) -> Value {
    let metadata = status.metadata.clone().unwrap_or_default();
    let network = status.network.clone().unwrap_or_default();
    let more: Vec<String> = network.additional_ips.into_iter().map(|ip| ip.ip).collect();
    json!({
        "id": status.id,
        "metadata": {
            "name": metadata.name, "uid": metadata.uid, "namespace": metadata.namespace, "attempt": metadata.attempt,
        },
        "state": PodSandboxState::try_from(status.state).map(|state| state.as_str_name()).unwrap_or_default(),
        "createdAt": time(status.created_at),
        "network": { "ip": network.ip, "additionalIps": more },
        "labels": status.labels,
        "annotations": status.annotations,
        "runtimeHandler": status.runtime_handler,
    })
}

fn container_status(status: &ContainerStatus) -> Value {
    let metadata = status.metadata.clone().unwrap_or_default();
    let image = status.image.clone().unwrap_or_default();
    let linux = status.resources.as_ref().and_then(|resources| resources.linux.clone());
    json!({
        "id": status.id,
        "metadata": { "name": metadata.name, "attempt": metadata.attempt },
        "state": ContainerState::try_from(status.state).map(|state| state.as_str_name()).unwrap_or_default(),
        "createdAt": time(status.created_at),
        "startedAt": time(status.started_at),
        "finishedAt": time(status.finished_at),
        "exitCode": status.exit_code,
        "reason": status.reason,
        "message": status.message,
        "image": { "image": image.image, "userSpecifiedImage": image.user_specified_image },
        "imageRef": status.image_ref,
        "imageId": status.image_id,
        "labels": status.labels,
        "annotations": status.annotations,
        "mounts": status.mounts.iter().map(mount).collect::<Vec<_>>(),
        "logPath": status.log_path,
        "resources": linux.map(|linux| json!({ "linux": {
            "cpuPeriod": linux.cpu_period,
            "cpuQuota": linux.cpu_quota,
            "cpuShares": linux.cpu_shares,
            "cpusetCpus": linux.cpuset_cpus,
            "cpusetMems": linux.cpuset_mems,
            "memoryLimitInBytes": linux.memory_limit_in_bytes,
            "memorySwapLimitInBytes": linux.memory_swap_limit_in_bytes,
            "oomScoreAdj": linux.oom_score_adj,
            "unified": linux.unified,
        } })),
    })
}

fn mount(mount: &Mount) -> Value {
    json!({
        "containerPath": mount.container_path,
        "hostPath": mount.host_path,
        "readonly": mount.readonly,
        "recursiveReadOnly": mount.recursive_read_only,
    })
}

/// RFC 3339; none for a moment that has not come.
fn time(nanos: i64) -> Option<String> {
    let moment = (nanos != 0).then(|| jiff::Timestamp::from_nanosecond(i128::from(nanos)).ok()).flatten();
    moment.map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_json_stands_as_json() {
        let told = |entries: &[(&str, &str)]| {
            let map = entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
            info(&map)
        };
        assert_eq!(told(&[("info", r#"{"pid":7}"#), ("note", "text")]), json!({ "pid": 7, "note": "text" }));
        assert_eq!(told(&[("info", "[1]")]), json!({ "info": [1] }));
        assert_eq!(told(&[]), json!({}));
    }

    #[test]
    fn a_status_has_crictls_names() {
        let status = ContainerStatus {
            id: "c".into(),
            state: 1,
            started_at: 1_000_000_000,
            ..ContainerStatus::default()
        };
        let shown = container_status(&status);
        assert_eq!(
            (&shown["state"], &shown["startedAt"]),
            (&json!("CONTAINER_RUNNING"), &json!("1970-01-01T00:00:01Z"))
        );
        assert_eq!((&shown["finishedAt"], &shown["resources"]), (&Value::Null, &Value::Null));
        let shown = sandbox_status(&PodSandboxStatus { state: 1, ..PodSandboxStatus::default() });
        assert_eq!(shown["state"], "SANDBOX_NOTREADY");
    }
}

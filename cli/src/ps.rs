//! `gantry ps`: the pods of a running agent. Owns the table and the JSON form; never
//! interprets a status. Called by main.

use anyhow::Result;
use gantry_proto::operator::{Container, ListPodsRequest, Pod};
use serde::Serialize;

use crate::args::{PsArgs, PsFormat};
use crate::{client, output};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonPod<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    phase: &'a str,
    status: &'a str,
    ip: &'a str,
    started_at: String,
    message: &'a str,
    containers: Vec<JsonContainer<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonContainer<'a> {
    name: &'a str,
    id: &'a str,
    image: &'a str,
    state: &'a str,
    reason: &'a str,
    message: &'a str,
    /// Only of a container that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    restart_count: u32,
    ready: bool,
    log_path: &'a str,
}

pub(crate) async fn ps(args: PsArgs) -> Result<()> {
    let mut client = client::dial(&args.agent.agent_socket).await?;
    let mut pods = client::answer(client.list_pods(ListPodsRequest {}).await)?.pods;
    pods.retain(|pod| args.namespace.as_ref().is_none_or(|namespace| pod.namespace == *namespace));
    let text = match args.output {
        PsFormat::Json => serde_json::to_string_pretty(&pods.iter().map(json).collect::<Vec<_>>())? + "\n",
        PsFormat::Table => table(&pods),
    };
    Ok(output::print(text.as_bytes())?)
}

fn table(pods: &[Pod]) -> String {
    let header = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "IP"].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    for pod in pods {
        let ready = pod.containers.iter().filter(|c| c.ready).count();
        let restarts: u32 = pod.containers.iter().map(|c| c.restart_count).sum();
        rows.push(vec![
            pod.namespace.clone(),
            pod.name.clone(),
            format!("{ready}/{}", pod.containers.len()),
            pod.status.clone(),
            restarts.to_string(),
            if pod.ip.is_empty() { "<none>".to_owned() } else { pod.ip.clone() },
        ]);
    }
    let mut text = output::table(&rows);
    for pod in pods.iter().filter(|pod| !pod.message.is_empty()) {
        text.push_str(&format!("{}/{}: {}\n", pod.namespace, pod.name, output::one_line(&pod.message)));
    }
    text
}

fn json(pod: &Pod) -> JsonPod<'_> {
    JsonPod {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
        phase: &pod.phase,
        status: &pod.status,
        ip: &pod.ip,
        started_at: jiff::Timestamp::from_nanosecond(i128::from(pod.started_at_unix_nanos))
            .map(|time| time.to_string())
            .unwrap_or_default(),
        message: &pod.message,
        containers: pod.containers.iter().map(json_container).collect(),
    }
}

fn json_container(container: &Container) -> JsonContainer<'_> {
    JsonContainer {
        name: &container.name,
        id: &container.id,
        image: &container.image,
        state: &container.state,
        reason: &container.reason,
        message: &container.message,
        exit_code: (container.state == "terminated").then_some(container.exit_code),
        restart_count: container.restart_count,
        ready: container.ready,
        log_path: &container.log_path,
    }
}

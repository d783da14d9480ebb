//! Reaching a running agent. Owns dialling and the errors people see; never changes a
//! pod. Called by ps, logs, stop and timeline.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use gantry_proto::operator::operator_client::OperatorClient;
use gantry_proto::operator::{ListPodsRequest, Pod};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::args::PodFlags;

/// A client of the agent behind `socket`.
pub(crate) async fn dial(socket: &Path) -> Result<OperatorClient<Channel>> {
    let path = std::path::absolute(socket).with_context(|| format!("find {}", socket.display()))?;
    let channel = Endpoint::from_shared(format!("unix://{}", path.display()))
        .with_context(|| format!("{} is no path of a socket", socket.display()))?
        .connect()
        .await
        // tonic repeats the cause at each level; once is enough.
        .map_err(|error| anyhow!("{}", anyhow::Error::from(error).root_cause()))
        .with_context(|| {
            format!(
                "no agent answers at {}: start one with `gantry run FILE`, or say where with --agent-socket",
                socket.display()
            )
        })?;
    Ok(OperatorClient::new(channel).max_decoding_message_size(16 << 20))
}

/// The agent's answer, or what it says went wrong.
pub(crate) fn answer<T>(result: Result<tonic::Response<T>, Status>) -> Result<T> {
    match result {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(anyhow!("{}", status.message())),
    }
}

/// The pod as the agent has it now.
pub(crate) async fn find_pod(client: &mut OperatorClient<Channel>, flags: &PodFlags) -> Result<Pod> {
    let pods = answer(client.list_pods(ListPodsRequest {}).await)?.pods;
    let PodFlags { pod, namespace, .. } = flags;
    let known: Vec<String> = pods.iter().map(|p| format!("{}/{}", p.namespace, p.name)).collect();
    pods.into_iter()
        .find(|p| p.name == *pod && p.namespace == *namespace)
        .with_context(|| format!("this agent has no pod {namespace}/{pod}; it has {}", known.join(", ")))
}

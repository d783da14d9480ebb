//! Reaching a runtime: through a running agent, which passes CRI calls on, or on its own socket.
//! Owns the choice and the errors people see; never a call. Called by images, pull, rmi, stats and
//! exec.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use tonic::Status;
use tonic::transport::Channel;

use crate::args::RuntimeEndpoint;
use crate::client::{connect, only_root};

/// As the kubelet sets it.
const MAX_MESSAGE: usize = 16 << 20;
/// Where `gantry runtime` serves unless told otherwise.
const RUNTIME_SOCKET: &str = "/run/gantry/gantry.sock";

/// Who was found where the runtime that is meant would be.
pub(crate) enum RuntimeSearch {
    /// It, or the agent that passes calls on.
    Runtime(Channel),
    /// Nobody listens; and how to say so.
    Nobody(anyhow::Error),
}

/// A channel to the runtime that is meant.
pub(crate) async fn dial(endpoint: &RuntimeEndpoint) -> Result<Channel> {
    match find(endpoint, Path::new(RUNTIME_SOCKET)).await? {
        RuntimeSearch::Runtime(channel) => Ok(channel),
        RuntimeSearch::Nobody(error) => Err(error),
    }
}

/// The runtime that is meant: the one that was named, the agent's, or the one that serves at `usual`.
///
/// # Errors
/// When the one that was named does not answer, and when this user may not ask.
pub(crate) async fn find(endpoint: &RuntimeEndpoint, usual: &Path) -> Result<RuntimeSearch> {
    if let Some(address) = &endpoint.container_runtime_endpoint {
        let connected = connect(address).await.map_err(|error| {
            let absent = || {
                format!("no runtime answers at {address}: start one with `gantry runtime --socket {address}`")
            };
            let text = only_root(&error, "runtime", address).unwrap_or_else(absent);
            error.context(text)
        });
        return connected.map(RuntimeSearch::Runtime);
    }
    let agent = std::path::absolute(&endpoint.agent_socket)
        .with_context(|| format!("find {}", endpoint.agent_socket.display()))?;
    let mut last = None;
    for (who, socket) in [("agent", agent.as_path()), ("runtime", usual)] {
        match connect(&unix(socket)).await {
            Ok(channel) => return Ok(RuntimeSearch::Runtime(channel)),
            Err(error) => {
                // Nobody else is asked then: it would not be the one that is meant.
                if let Some(text) = only_root(&error, who, socket.display()) {
                    return Err(error.context(text));
                }
                last = Some(error);
            }
        }
    }
    let text = format!(
        "neither an agent answers at {} nor a runtime at {}: start one with `gantry run FILE` or `gantry runtime`, or \
         pass a socket with --agent-socket or --container-runtime-endpoint",
        agent.display(),
        usual.display()
    );
    Ok(RuntimeSearch::Nobody(last.map_or_else(|| anyhow!("{text}"), |error| error.context(text.clone()))))
}

/// A channel to the runtime of the agent that serves there.
pub(crate) async fn dial_agent(socket: &Path) -> Result<Channel> {
    let path = std::path::absolute(socket).with_context(|| format!("find {}", socket.display()))?;
    connect(&unix(&path)).await.with_context(|| format!("no agent answers at {}", path.display()))
}

/// A channel to the runtime whose own socket this is.
pub(crate) async fn dial_runtime(socket: &Path) -> Result<Channel> {
    connect(&unix(socket)).await.with_context(|| format!("no runtime answers at {}", socket.display()))
}

fn unix(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// The image half of CRI.
pub(crate) fn images(channel: Channel) -> ImageServiceClient<Channel> {
    ImageServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE)
}

/// The container half of CRI.
pub(crate) fn runtime(channel: Channel) -> RuntimeServiceClient<Channel> {
    RuntimeServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE)
}

/// The runtime's answer, or what it says went wrong.
pub(crate) fn answer<T>(result: Result<tonic::Response<T>, Status>) -> Result<T> {
    match result {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(anyhow!("{}", status.message())),
    }
}

//! Reaching a running agent. Owns dialling and the errors people see; never changes a
//! pod. Called by ps, logs, stop and timeline.

use std::fmt::Display;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use gantry_proto::operator::operator_client::OperatorClient;
use gantry_proto::operator::{ListPodsRequest, Pod};
use serde_json::Value;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::args::{PodFlags, Target};

/// A client of the agent behind `socket`.
pub(crate) async fn dial(socket: &Path) -> Result<OperatorClient<Channel>> {
    let path = std::path::absolute(socket).with_context(|| format!("find {}", socket.display()))?;
    let channel = connect(&format!("unix://{}", path.display())).await.map_err(|error| {
        let absent = || {
            format!(
                "no agent answers at {}: start one with `gantry run FILE`, or pass its socket with --agent-socket",
                socket.display()
            )
        };
        let text = only_root(&error, "agent", socket.display()).unwrap_or_else(absent);
        error.context(text)
    })?;
    Ok(OperatorClient::new(channel).max_decoding_message_size(16 << 20))
}

/// A channel to whoever serves at this address. tonic repeats the cause at each level; once is enough.
pub(crate) async fn connect(address: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(address.to_owned());
    let connected = endpoint.with_context(|| format!("{address} is no address"))?.connect().await;
    connected.map_err(|error| {
        let error = anyhow::Error::from(error);
        let cause = error.root_cause();
        match cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            Some(number) => io::Error::from_raw_os_error(number).into(),
            None => anyhow!("{cause}"),
        }
    })
}

/// What to do when it is this user who may not; none when the cause is another one.
pub(crate) fn only_root(error: &anyhow::Error, who: &str, at: impl Display) -> Option<String> {
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    error.downcast_ref::<io::Error>().is_some_and(denied).then(|| {
        format!("only root may talk to the {who} at {at}: run it as root, as in `{}`", this_with_sudo())
    })
}

/// What was typed, as root.
pub(crate) fn this_with_sudo() -> String {
    with_sudo(&std::env::args().collect::<Vec<_>>())
}

/// The same command as root; only its first word that is no flag, as the rest may be long.
fn with_sudo(line: &[String]) -> String {
    match line.iter().skip(1).find(|word| !word.starts_with('-')) {
        Some(command) => format!("sudo gantry {command} …"),
        None => "sudo gantry …".to_owned(),
    }
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
    pod(client, &flags.target()?).await
}

/// The same by its full name.
pub(crate) async fn pod(client: &mut OperatorClient<Channel>, target: &Target) -> Result<Pod> {
    let found = pods(client, std::slice::from_ref(target)).await?;
    found.into_iter().next().with_context(|| format!("no pod {target}"))
}

/// All of them, in this order.
pub(crate) async fn pods(client: &mut OperatorClient<Channel>, targets: &[Target]) -> Result<Vec<Pod>> {
    let pods = answer(client.list_pods(ListPodsRequest::default()).await)?.pods;
    let is = |pod: &&Pod, target: &Target| pod.name == target.name && pod.namespace == target.namespace;
    let known = || pods.iter().map(|p| format!("{}/{}", p.namespace, p.name)).collect::<Vec<_>>();
    let find = |target: &Target| {
        let found = pods.iter().find(|pod| is(pod, target)).cloned();
        found.with_context(|| no_pod(&target.to_string(), &known()))
    };
    targets.iter().map(find).collect()
}

/// The pod as Kubernetes' object, of a list that was asked for with objects.
pub(crate) fn object(pod: &Pod) -> Result<Value> {
    if pod.object.is_empty() {
        bail!(
            "the agent is older than this program and tells no Kubernetes object: end it, and start it again"
        );
    }
    serde_json::from_str(&pod.object).with_context(|| format!("read what the agent says of pod {}", pod.name))
}

/// `this agent has no pod default/web; it has none`.
pub(crate) fn no_pod(wanted: &str, known: &[String]) -> String {
    let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("this agent has no pod {wanted}; it has {has}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_is_not_there_keeps_its_cause() {
        let error = connect("unix:///nonexistent/agent.sock").await.unwrap_err();
        let cause = error.downcast_ref::<io::Error>().unwrap();
        assert_eq!(cause.kind(), io::ErrorKind::NotFound);
        assert_eq!(only_root(&error, "agent", "/x"), None);
    }

    #[test]
    fn who_may_not_is_told_to_be_root() {
        let error = anyhow::Error::from(io::Error::from_raw_os_error(13));
        let text = only_root(&error, "agent", "/run/gantry/agent.sock").unwrap();
        assert!(text.starts_with("only root may talk to the agent at /run/gantry/agent.sock: "), "{text}");
        let line = |words: &[&str]| with_sudo(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["/usr/bin/gantry", "-v", "ps", "-o", "wide"]), "sudo gantry ps …");
        assert_eq!(line(&["gantry"]), "sudo gantry …");
    }

    #[test]
    fn what_an_agent_has_is_told_also_when_it_is_nothing() {
        assert_eq!(no_pod("default/web", &[]), "this agent has no pod default/web; it has none");
        let known = ["default/a".to_owned(), "b/c".to_owned()];
        assert_eq!(no_pod("x/y", &known), "this agent has no pod x/y; it has default/a, b/c");
    }
}

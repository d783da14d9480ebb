//! `gantry stop`: ends pods and shows how their containers ended. Owns the wording; never
//! waits on anything but the agent. Called by main.

use std::process::ExitCode;

use anyhow::Result;
use gantry_proto::operator::{Container, ListPodsRequest, Pod, StopPodRequest};
use tokio::task::JoinSet;

use crate::args::StopArgs;
use crate::{client, output};

pub(crate) async fn stop(args: StopArgs) -> Result<ExitCode> {
    let StopArgs { pods, all, namespace, agent, grace } = args;
    let mut client = client::dial(&agent.agent_socket).await?;
    let mut names = pods;
    if all {
        let list = client::answer(client.list_pods(ListPodsRequest {}).await)?.pods;
        names = list.into_iter().filter(|pod| pod.namespace == namespace).map(|pod| pod.name).collect();
    }
    // All at once: each takes as long as its grace period.
    let mut stopping = JoinSet::new();
    for name in names {
        let mut client = client.clone();
        let ask = StopPodRequest { namespace: namespace.clone(), name: name.clone(), grace_seconds: grace };
        stopping.spawn(async move { (name, client::answer(client.stop_pod(ask).await)) });
    }
    let mut code = ExitCode::SUCCESS;
    while let Some(stopped) = stopping.join_next().await {
        let (name, answer) = stopped?;
        match answer {
            Ok(answer) => output::print(endings(&answer.pod.unwrap_or_default()).as_bytes())?,
            Err(error) => {
                output::say(&format!("error: stop pod {name}: {error:#}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn endings(pod: &Pod) -> String {
    let mut text = format!("pod {}/{} stopped and removed\n", pod.namespace, pod.name);
    for container in pod.init_containers.iter().filter(|c| c.role == "sidecar").chain(&pod.containers) {
        text.push_str(&format!("  {}: {}\n", container.name, ending(container)));
    }
    text
}

/// `exit code 143 (Error)`.
fn ending(container: &Container) -> String {
    let Container { state, reason, message, exit_code, .. } = container;
    let mut text = match (state.as_str(), reason.as_str()) {
        ("terminated", "") => format!("exit code {exit_code}"),
        ("terminated", reason) => format!("exit code {exit_code} ({reason})"),
        (_, reason) => format!("never ran ({reason})"),
    };
    if !message.is_empty() {
        text.push_str(&format!(": {}", output::one_line(message)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_name_code_and_reason() {
        let container = |state: &str, reason: &str, message: &str, exit_code| {
            ending(&Container {
                state: state.into(),
                reason: reason.into(),
                message: message.into(),
                exit_code,
                ..Container::default()
            })
        };
        assert_eq!(container("terminated", "Error", "", 143), "exit code 143 (Error)");
        assert_eq!(
            container("waiting", "ErrImagePull", "x: not found", 0),
            "never ran (ErrImagePull): x: not found"
        );
    }
}

//! `gantry stop`: ends a pod and shows how its containers ended. Owns the wording; never
//! waits on anything but the agent. Called by main.

use anyhow::Result;
use gantry_proto::operator::{Container, StopPodRequest};

use crate::args::{PodFlags, StopArgs};
use crate::{client, output};

pub(crate) async fn stop(args: StopArgs) -> Result<()> {
    let StopArgs { pod: PodFlags { pod, namespace, agent }, grace } = args;
    let mut client = client::dial(&agent.agent_socket).await?;
    let ask = StopPodRequest { namespace, name: pod, grace_seconds: grace };
    let pod = client::answer(client.stop_pod(ask).await)?.pod.unwrap_or_default();
    let mut text = format!("pod {}/{} stopped and removed\n", pod.namespace, pod.name);
    for container in &pod.containers {
        text.push_str(&format!("  {}: {}\n", container.name, ending(container)));
    }
    Ok(output::print(text.as_bytes())?)
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

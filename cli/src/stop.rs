//! `gantry stop`: ends pods and shows how their containers ended. Owns the wording; never
//! waits on anything but the agent. Called by main.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gantry_agent::manifest;
use gantry_proto::operator::{Container, ListPodsRequest, Pod, StopPodRequest};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::args::{StopArgs, Target, or_default};
use crate::{choice, client, manifests, output};

/// What takes longer is said.
const SOON: Duration = Duration::from_secs(2);
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
const KILLING: &str = "still stopping: containers are killed, and then their pods are removed";
const STILL: &str = "still stopping: a container that goes on after SIGTERM is killed when the grace period of its pod \
                     (terminationGracePeriodSeconds, 30 s by default) is over; `gantry stop --grace 0` kills at once";

pub(crate) async fn stop(args: StopArgs) -> Result<ExitCode> {
    let StopArgs { pods, files, all, selector, all_namespaces, namespace, agent, grace } = args;
    let described = manifest::load_texts(&manifests::read(&files).await?)?.pods;
    let mut client = client::dial(&agent.agent_socket).await?;
    let named = pods.iter().map(|pod| pod.target(namespace.as_deref()));
    let mut targets = named.collect::<Result<Vec<Target>>>()?;
    targets.extend(described.into_iter().map(|pod| Target { namespace: pod.namespace, name: pod.name }));
    if all || selector.is_some() {
        let list = client::answer(client.list_pods(ListPodsRequest::default()).await)?.pods;
        targets = match selector {
            Some(selector) => choice::by_labels(list, &selector, namespace.as_deref(), all_namespaces)?,
            None if all_namespaces => list.into_iter().map(target).collect(),
            None => all_of(list, or_default(namespace.as_deref())),
        };
    }
    // All at once: each takes as long as its grace period.
    let mut stopping = JoinSet::new();
    for target in targets {
        let mut client = client.clone();
        let Target { namespace, name } = target.clone();
        let ask = StopPodRequest { namespace, name, grace_seconds: grace };
        stopping.spawn(async move { (target, client::answer(client.stop_pod(ask).await)) });
    }
    let mut code = ExitCode::SUCCESS;
    let mut has_told = false;
    while !stopping.is_empty() {
        let Ok(Some(stopped)) = timeout(if has_told { FOR_EVER } else { SOON }, stopping.join_next()).await
        else {
            has_told = true;
            output::say(if grace == Some(0) { KILLING } else { STILL });
            continue;
        };
        let (target, answer) = stopped?;
        match answer {
            Ok(answer) => output::print(endings(&answer.pod.unwrap_or_default()).as_bytes())?,
            Err(error) => {
                output::say(&format!("error: stop pod {target}: {error:#}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// Every pod of the namespace; says so when there is none.
fn all_of(list: Vec<Pod>, namespace: &str) -> Vec<Target> {
    let (here, elsewhere) = of_namespace(list, namespace);
    if here.is_empty() {
        output::say(&nothing_in(namespace, &elsewhere));
    }
    here
}

fn target(pod: Pod) -> Target {
    Target { namespace: pod.namespace, name: pod.name }
}

/// Those of the namespace, and the others.
fn of_namespace(list: Vec<Pod>, namespace: &str) -> (Vec<Target>, Vec<Target>) {
    list.into_iter().map(target).partition(|target| target.namespace == namespace)
}

/// `no pod in namespace default; others are in a, b: name one with -n`.
fn nothing_in(namespace: &str, elsewhere: &[Target]) -> String {
    let others: BTreeSet<&str> = elsewhere.iter().map(|target| target.namespace.as_str()).collect();
    let mut text = format!("no pod in namespace {namespace}");
    if !others.is_empty() {
        let others: Vec<&str> = others.into_iter().collect();
        text.push_str(&format!("; others are in {}: name one with -n", others.join(", ")));
    }
    text
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
    fn all_of_a_namespace_may_be_none() {
        let pod = |namespace: &str| Pod { namespace: namespace.into(), name: "web".into(), ..Pod::default() };
        let (here, elsewhere) = of_namespace(vec![pod("b"), pod("a"), pod("b")], "default");
        assert!(here.is_empty());
        assert_eq!(
            nothing_in("default", &elsewhere),
            "no pod in namespace default; others are in a, b: name one with -n"
        );
        assert_eq!(nothing_in("x", &[]), "no pod in namespace x");
        assert_eq!(of_namespace(vec![pod("b"), pod("a")], "a").0.len(), 1);
    }

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

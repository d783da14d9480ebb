//! `gantry wait`: until pods are in a state, as kubectl's. Owns what fits and the words; never changes a pod. Called by
//! main.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gantry_proto::operator::operator_client::OperatorClient;
use gantry_proto::operator::{ListPodsRequest, Pod};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;

use crate::args::{Goal, Target, WaitArgs, or_default};
use crate::{choice, client, jsonpath, output};

const OBJECTS: ListPodsRequest = ListPodsRequest { objects: true };

/// Names each pod as it gets there; 1 when the time is over first.
pub(crate) async fn wait(args: WaitArgs) -> Result<ExitCode> {
    let end = Instant::now() + args.timeout;
    let mut client = client::dial(&args.agent.agent_socket).await?;
    let mut left = targets(&mut client, &args).await?;
    if args.timeout.is_zero() {
        let pods = client::answer(client.list_pods(OBJECTS).await)?.pods;
        settle(&mut left, &pods, &args.goal)?;
    } else {
        let mut changes = client::answer(client.watch_pods(OBJECTS).await)?;
        while !left.is_empty() {
            let Ok(list) = timeout_at(end, changes.message()).await else { break };
            let Some(list) = list.context("follow the agent's pods")? else {
                bail!("the agent has ended");
            };
            settle(&mut left, &list.pods, &args.goal)?;
        }
    }
    for pod in &left {
        output::say(&format!("error: timed out waiting for the condition on pods/{}", pod.name));
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The pods that are meant; those that are gone already are what a wait for it wants.
async fn targets(client: &mut OperatorClient<Channel>, args: &WaitArgs) -> Result<Vec<Target>> {
    let namespace = args.namespace.as_deref();
    let pods = client::answer(client.list_pods(ListPodsRequest::default()).await)?.pods;
    if let Some(selector) = &args.selector {
        return match choice::by_labels(pods, selector, namespace, args.all_namespaces) {
            Err(_) if args.goal == Goal::Delete => Ok(Vec::new()),
            chosen => chosen,
        };
    }
    let target = |pod: Pod| Target { namespace: pod.namespace, name: pod.name };
    if args.all {
        let here = |pod: &Pod| args.all_namespaces || pod.namespace == or_default(namespace);
        let all: Vec<Target> = pods.into_iter().filter(here).map(target).collect();
        if all.is_empty() && args.goal != Goal::Delete {
            bail!("no matching resources found");
        }
        return Ok(all);
    }
    let named: Vec<Target> = args.pods.iter().map(|pod| pod.target(namespace)).collect::<Result<_>>()?;
    let is_there = |wanted: &Target| pods.iter().any(|pod| is(pod, wanted));
    if let (Some(missing), false) =
        (named.iter().find(|pod| !is_there(pod)), matches!(args.goal, Goal::Delete | Goal::Create))
    {
        let known: Vec<String> = pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        bail!("{}", client::no_pod(&missing.to_string(), &known));
    }
    Ok(named)
}

fn is(pod: &Pod, target: &Target) -> bool {
    pod.namespace == target.namespace && pod.name == target.name
}

/// Takes out those that have got there, and names them.
fn settle(left: &mut Vec<Target>, pods: &[Pod], goal: &Goal) -> Result<()> {
    let mut still = Vec::new();
    for target in std::mem::take(left) {
        let pod = pods.iter().find(|pod| is(pod, &target));
        if fits(pod, goal, &target)? {
            output::print(format!("pod/{} condition met\n", target.name).as_bytes())?;
        } else {
            still.push(target);
        }
    }
    *left = still;
    Ok(())
}

fn fits(pod: Option<&Pod>, goal: &Goal, target: &Target) -> Result<bool> {
    let (wanted, object) = match (goal, pod) {
        (Goal::Delete, pod) => return Ok(pod.is_none()),
        (Goal::Create, pod) => return Ok(pod.is_some()),
        (_, None) => bail!("pod {target} was deleted while waiting for it"),
        (wanted, Some(pod)) => (wanted, client::object(pod)?),
    };
    Ok(match wanted {
        Goal::Condition(name, value) => {
            let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let same =
                |field: &Value, text: &str| field.as_str().unwrap_or_default().eq_ignore_ascii_case(text);
            let named = conditions.iter().find(|condition| same(&condition["type"], name));
            named.is_some_and(|condition| same(&condition["status"], value))
        }
        Goal::Path(path, value) => match (path.find(&object).as_slice(), value) {
            ([], _) => false,
            ([_], None) => true,
            ([found], Some(value)) => {
                if found.is_object() || found.is_array() {
                    bail!("jsonpath {path} leads to a list or an object of pod {target}: name a value of it");
                }
                jsonpath::text(found) == *value
            }
            ([_, ..], _) => {
                bail!("given jsonpath expression matches more than one value: {path} of pod {target}")
            }
        },
        Goal::Delete | Goal::Create => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str, ready: &str) -> Pod {
        let object = serde_json::json!({ "status": { "phase": phase, "conditions": [
            { "type": "Ready", "status": ready }, { "type": "Initialized", "status": "True" },
        ] } });
        Pod { namespace: "default".into(), name: "web".into(), object: object.to_string(), ..Pod::default() }
    }

    #[test]
    fn a_pod_fits_as_kubectl_has_it() {
        let target = Target { namespace: "default".into(), name: "web".into() };
        let fits = |pod: Option<&Pod>, goal: &str| super::fits(pod, &goal.parse().unwrap(), &target);
        let running = pod("Running", "False");
        for (goal, want) in [
            ("condition=ready", false),
            ("condition=Ready=false", true),
            ("condition=initialized", true),
            ("condition=Other", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath={.status.phase}=Failed", false),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.podIP}", false),
            ("delete", false),
            ("create", true),
        ] {
            assert_eq!(fits(Some(&running), goal).unwrap(), want, "{goal}");
        }
        assert!(fits(None, "delete").unwrap() && !fits(None, "create").unwrap());
        for wrong in ["jsonpath={.status.conditions[*].type}=x", "jsonpath={.status.conditions}=x"] {
            assert!(fits(Some(&running), wrong).is_err(), "{wrong}");
        }
        let gone = fits(None, "condition=Ready").unwrap_err().to_string();
        assert_eq!(gone, "pod default/web was deleted while waiting for it");
        let old = Pod { object: String::new(), ..running };
        assert!(fits(Some(&old), "condition=Ready").unwrap_err().to_string().contains("older"));
    }
}

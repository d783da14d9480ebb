//! `gantry ps` and `gantry events`: the pods of a running agent and what happened to them. Owns the
//! tables, with kubectl's columns, and following changes; what is said beside a table goes to stderr. Never interprets a
//! status. Called by main.

mod form;

use std::io::IsTerminal;

use anyhow::{Context, Result};
use gantry_model::clock::{Clock, SystemClock};
use gantry_proto::operator::{Container, Event, ListPodsRequest, Pod};

use crate::args::{EventsArgs, ListFormat, Only, PodName, PsArgs, PsFormat};
use crate::output::colour::{self, Colour};
use crate::{client, left, output, pull, runtime_client};

/// Once, or again with each change.
pub(crate) async fn ps(args: PsArgs) -> Result<()> {
    let mut client = client::dial(&args.agent.agent_socket).await.map_err(left::told)?;
    let ask = ListPodsRequest { objects: matches!(args.output, PsFormat::Json | PsFormat::Yaml) };
    if !args.watch {
        let pods = client::answer(client.list_pods(ask).await)?.pods;
        if let Some(problem) = missing(&pods, &args.pods, &args.only) {
            anyhow::bail!("{problem}");
        }
        if let Some(namespace) =
            args.only.namespace.as_ref().filter(|name| pods.iter().all(|p| p.namespace != **name))
        {
            output::say(&format!("no pod in namespace {namespace}"));
        }
        let left = match args.pods.is_empty() {
            true => left::beside(&args.agent.agent_socket, &pods).await,
            false => None,
        };
        let Shown { text, notes } = render(with_pulls(pods, &args).await, &args)?;
        output::print(text.as_bytes())?;
        notes.iter().chain(&left).for_each(|note| output::say(note));
        return Ok(());
    }
    let mut changes = client::answer(client.watch_pods(ask).await)?;
    let live = std::io::stdout().is_terminal() && args.output.is_table();
    while let Some(list) = changes.message().await.context("follow the agent's pods")? {
        let Shown { text, notes } = render(with_pulls(list.pods, &args).await, &args)?;
        let clear = if live { output::CLEAR } else { "" };
        output::print(format!("{clear}{text}").as_bytes())?;
        notes.iter().for_each(|note| output::say(note));
    }
    Ok(())
}

/// Says of pods that wait for an image how far it has come. A runtime that doesn't tell is no reason to
/// show nothing.
async fn with_pulls(mut pods: Vec<Pod>, args: &PsArgs) -> Vec<Pod> {
    let waits = |container: &Container| container.state == "waiting" && container.image_id.is_empty();
    let silent = |pod: &Pod| pod.phase == "Pending" && pod.message.is_empty();
    if !pods.iter().any(silent) {
        return pods;
    }
    let Ok(channel) = runtime_client::dial_agent(&args.agent.agent_socket).await else { return pods };
    let images = runtime_client::images(channel);
    for pod in pods.iter_mut().filter(|pod| silent(pod)) {
        for container in pod.init_containers.iter().chain(&pod.containers).filter(|c| waits(c)) {
            if let Some(progress) = pull::look(images.clone(), pull::spec(&container.image)).await {
                pod.message = pull::message(&progress);
                break;
            }
        }
    }
    pods
}

/// What happened, oldest first, as `kubectl get events`.
pub(crate) async fn events(args: EventsArgs) -> Result<()> {
    let EventsArgs { pods: names, only, output: format, agent } = args;
    let mut client = client::dial(&agent.agent_socket).await?;
    let mut pods = client::answer(client.list_pods(ListPodsRequest::default()).await)?.pods;
    if let Some(problem) = missing(&pods, &names, &only) {
        anyhow::bail!("{problem}");
    }
    pods.retain(|pod| shown(pod, &names, &only));
    let mut list: Vec<(&Pod, &Event)> =
        pods.iter().flat_map(|pod| pod.events.iter().map(move |event| (pod, event))).collect();
    list.sort_by_key(|(_, event)| event.last_unix_nanos);
    let now = SystemClock::new().wall_nanos();
    let text = match format {
        ListFormat::Json => output::json(&form::events(&list))?,
        ListFormat::Yaml => output::yaml(&form::events(&list))?,
        ListFormat::Table => events_table(&list, false, now),
        ListFormat::Wide => events_table(&list, true, now),
    };
    Ok(output::print(text.as_bytes())?)
}

/// With the columns of `kubectl get events -A`.
fn events_table(list: &[(&Pod, &Event)], wide: bool, now: i64) -> String {
    let mut head = vec!["NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT"];
    head.extend(wide.then_some("SUBOBJECT"));
    head.push("MESSAGE");
    let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
    for (pod, event) in list {
        let seen = output::age((now - event.last_unix_nanos) / 1_000_000_000);
        let first = output::age((now - event.first_unix_nanos) / 1_000_000_000);
        let mut row = vec![
            pod.namespace.clone(),
            if event.count > 1 { format!("{seen} (x{} over {first})", event.count) } else { seen },
            event.r#type.clone(),
            event.reason.clone(),
            format!("pod/{}", pod.name),
        ];
        row.extend(wide.then(|| form::field_path(pod, event).unwrap_or_default()));
        row.push(output::one_line(&event.message));
        rows.push(row);
    }
    output::table(&rows)
}

/// What was asked for by name and is not there.
fn missing(pods: &[Pod], names: &[PodName], only: &Only) -> Option<String> {
    let here = |pod: &Pod| only.namespace.as_ref().is_none_or(|namespace| pod.namespace == *namespace);
    let there = |name: &PodName| pods.iter().any(|pod| here(pod) && name.is(&pod.namespace, &pod.name));
    let missing: Vec<String> = names.iter().filter(|name| !there(name)).map(PodName::to_string).collect();
    let known: Vec<String> = pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    let place = only.namespace.as_ref().map_or_else(String::new, |namespace| format!("{namespace}/"));
    missing.first().map(|name| match name.contains('/') {
        true => client::no_pod(name, &known),
        false => client::no_pod(&format!("{place}{name}"), &known),
    })
}

/// Whether it is among those that were asked for.
fn shown(pod: &Pod, names: &[PodName], only: &Only) -> bool {
    only.fits(pod) && (names.is_empty() || names.iter().any(|name| name.is(&pod.namespace, &pod.name)))
}

/// What stands on stdout, for people and programs, and what is said of it on stderr.
struct Shown {
    text: String,
    notes: Vec<String>,
}

fn render(mut pods: Vec<Pod>, args: &PsArgs) -> Result<Shown> {
    pods.retain(|pod| shown(pod, &args.pods, &args.only));
    let named = args.pods.len() == 1;
    let notes = if args.output.is_table() { notes(&pods) } else { Vec::new() };
    let text = match args.output {
        PsFormat::Json => output::json(&form::pods(&pods, named)?)?,
        PsFormat::Yaml => output::yaml(&form::pods(&pods, named)?)?,
        PsFormat::Name => pods.iter().map(|pod| format!("pod/{}\n", pod.name)).collect(),
        PsFormat::Table | PsFormat::Wide => {
            let rows = rows(&pods, args.output == PsFormat::Wide, SystemClock::new().wall_nanos());
            let colourful = colour::wanted();
            output::table_in_colours(&rows, |column, cell| {
                (colourful && column == STATUS).then(|| Colour::of_status(cell)).flatten()
            })
        }
    };
    Ok(Shown { text, notes })
}

/// `default/web: back-off …`: why pods are not going on.
fn notes(pods: &[Pod]) -> Vec<String> {
    let told = pods.iter().filter(|pod| !pod.message.is_empty());
    told.map(|pod| format!("{}/{}: {}", pod.namespace, pod.name, output::one_line(&pod.message))).collect()
}

/// The column with colours.
const STATUS: usize = 3;

fn rows(pods: &[Pod], wide: bool, now: i64) -> Vec<Vec<String>> {
    let mut header = vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"];
    if wide {
        header.extend(["NODE", "QOS", "IMAGES", "UID"]);
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let or_none = |text: &str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
    for pod in pods {
        // As kubectl: sidecars count, init containers that end do not.
        let counted =
            || pod.containers.iter().chain(pod.init_containers.iter().filter(|c| c.role == "sidecar"));
        let mut row = vec![
            pod.namespace.clone(),
            pod.name.clone(),
            format!("{}/{}", counted().filter(|c| c.ready).count(), counted().count()),
            pod.status.clone(),
            restarts(counts(pod), now),
            output::age((now - pod.started_at_unix_nanos) / 1_000_000_000),
            or_none(&pod.ip),
        ];
        if wide {
            let images: Vec<&str> = pod.containers.iter().map(|c| c.image.as_str()).collect();
            row.extend([or_none(&pod.node), or_none(&pod.qos), images.join(","), pod.uid.clone()]);
        }
        rows.push(row);
    }
    rows
}

/// Whose restarts count, as in kubectl's printer: init containers up to the one that is not done while the
/// pod is not initialized, then the others and the sidecars.
fn counts(pod: &Pod) -> Vec<&Container> {
    let done = |c: &Container| match c.role.as_str() {
        "sidecar" => c.started,
        _ => c.state == "terminated" && c.exit_code == 0,
    };
    let initialized = pod.conditions.iter().any(|c| c.r#type == "Initialized" && c.holds);
    let inits = &pod.init_containers;
    match inits.iter().position(|c| !done(c)) {
        Some(at) if !initialized => inits.iter().take(at + 1).collect(),
        _ => inits.iter().filter(|c| c.role == "sidecar").chain(&pod.containers).collect(),
    }
}

/// `3 (12s ago)`: how often, and when the last of them was.
fn restarts(containers: Vec<&Container>, now: i64) -> String {
    let (mut count, mut last) = (0_u32, 0_i64);
    for container in containers {
        count = count.saturating_add(container.restart_count);
        last = last.max(container.last_exit.as_ref().map_or(0, |exit| exit.finished_at_unix_nanos));
    }
    match (count, last) {
        (0, _) => "0".to_owned(),
        (count, 0) => count.to_string(),
        (count, last) => format!("{count} ({} ago)", output::age((now - last) / 1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use gantry_proto::operator::{Condition, Exit};

    use crate::args::{Cli, Command};

    fn args(line: &[&str]) -> PsArgs {
        match Cli::try_parse_from(["gantry", "ps"].iter().chain(line)).unwrap().command {
            Command::Ps(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn named(namespace: &str, name: &str) -> Pod {
        Pod { namespace: namespace.into(), name: name.into(), ..Pod::default() }
    }

    #[test]
    fn a_pod_that_is_asked_for_and_not_there_is_an_error() {
        let pods = [named("default", "web"), named("shop", "web")];
        let missing = |pods: &[Pod], args: &PsArgs| missing(pods, &args.pods, &args.only);
        assert_eq!(missing(&pods, &args(&[])), None);
        assert_eq!(missing(&pods, &args(&["pod/web", "shop/web"])), None);
        let has = "it has default/web, shop/web";
        let want = |name: &str| Some(format!("this agent has no pod {name}; {has}"));
        assert_eq!(missing(&pods, &args(&["web", "nope"])), want("nope"));
        assert_eq!(missing(&pods, &args(&["a/web"])), want("a/web"));
        assert_eq!(missing(&pods, &args(&["-n", "a", "web"])), want("a/web"));
        let shown = render(pods.to_vec(), &args(&["-o", "name", "shop/web"])).unwrap();
        assert_eq!(shown.text, "pod/web\n");
    }

    #[test]
    fn what_is_said_of_a_pod_is_no_row_of_the_table() {
        let stuck = Pod { message: "back-off\n5s".into(), ..named("default", "web") };
        let shown = |line: &[&str]| render(vec![stuck.clone(), named("shop", "db")], &args(line)).unwrap();
        for line in [&[][..], &["-o", "wide"]] {
            let shown = shown(line);
            assert_eq!(shown.text.lines().count(), 1 + 2, "{}", shown.text);
            assert_eq!(shown.notes, ["default/web: back-off 5s"]);
        }
        assert!(shown(&["-o", "name"]).notes.is_empty());
    }

    #[test]
    fn restarts_of_init_containers_count_until_the_pod_is_initialized() {
        let container = |role: &str, state: &str, restart_count| Container {
            role: role.into(),
            state: state.into(),
            restart_count,
            ..Container::default()
        };
        let side = Container { started: true, ..container("sidecar", "running", 2) };
        let mut pod = Pod {
            containers: vec![container("regular", "waiting", 0)],
            init_containers: vec![
                container("init", "terminated", 1),
                side,
                container("init", "waiting", 3),
                container("init", "waiting", 7),
            ],
            ..Pod::default()
        };
        assert_eq!(restarts(counts(&pod), 0), "6");
        pod.conditions =
            vec![Condition { r#type: "Initialized".into(), holds: true, ..Condition::default() }];
        assert_eq!(restarts(counts(&pod), 0), "2");
        pod.conditions.clear();
        pod.init_containers.truncate(2);
        pod.containers = vec![container("regular", "running", 4)];
        assert_eq!(restarts(counts(&pod), 0), "6", "none is in the way any more");
    }

    #[test]
    fn columns_as_kubectl_has_them() {
        let second = 1_000_000_000;
        let container = |role: &str, ready, restart_count, finished| Container {
            role: role.into(),
            ready,
            restart_count,
            last_exit: Some(Exit { finished_at_unix_nanos: finished, ..Exit::default() }),
            ..Container::default()
        };
        let pod = Pod {
            namespace: "default".into(),
            name: "web".into(),
            status: "Running".into(),
            ip: "10.88.0.2".into(),
            started_at_unix_nanos: 100 * second,
            containers: vec![container("regular", true, 1, 130 * second)],
            init_containers: vec![
                container("init", true, 5, 0),
                container("sidecar", false, 2, 150 * second),
            ],
            conditions: vec![Condition { r#type: "Initialized".into(), holds: true, ..Condition::default() }],
            ..Pod::default()
        };
        let want = "\
NAMESPACE   NAME   READY   STATUS    RESTARTS      AGE   IP
default     web    1/2     Running   3 (10s ago)   60s   10.88.0.2
";
        assert_eq!(output::table(&rows(&[pod], false, 160 * second)), want);
    }

    #[test]
    fn events_have_kubectls_columns() {
        let second = 1_000_000_000;
        let pod = named("shop", "web");
        let event = |count, container: &str, first, last| Event {
            r#type: "Warning".into(),
            reason: "BackOff".into(),
            message: "Back-off restarting\nfailed container".into(),
            container: container.into(),
            count,
            first_unix_nanos: first * second,
            last_unix_nanos: last * second,
        };
        let (once, often) = (event(1, "", 90, 90), event(4, "c", 40, 95));
        let list = [(&pod, &once), (&pod, &often)];
        let want = "\
NAMESPACE   LAST SEEN          TYPE      REASON    OBJECT    MESSAGE
shop        10s                Warning   BackOff   pod/web   Back-off restarting failed container
shop        5s (x4 over 60s)   Warning   BackOff   pod/web   Back-off restarting failed container
";
        assert_eq!(events_table(&list, false, 100 * second), want);
        let wide = events_table(&list, true, 100 * second);
        assert!(wide.contains("SUBOBJECT") && wide.contains("spec.containers{c}"), "{wide}");
    }
}

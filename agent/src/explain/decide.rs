//! Cause and remedy of each stuck state. Pure: facts in, findings out, the most important first.

use gantry_model::pod::probe::{Handler, PortRef, Probe};
use gantry_model::pod::{Container, Pod, Role};

use super::look::ExplainInputs;
use super::{Finding, claims, devices, endings, pulls, resizes, shutdown, volumes};
use crate::events::{Event, Kind};
use crate::eviction::message as eviction;
use crate::pod::status::{ContainerState, ContainerStatus};
use crate::pod_workers::oom_survivor::REASON;
use crate::runtime::Exit;
use crate::timeline::Span;
use crate::timeline::render::millis;

/// How many events may be quoted.
const EVENTS: usize = 4;

/// Everything that keeps the pod from being Ready, or made it end.
#[must_use]
pub(crate) fn decide(facts: &ExplainInputs<'_>) -> Vec<Finding> {
    let status = facts.status;
    let mut findings = Vec::new();
    if status.api_reason == eviction::REASON {
        findings.push(explain_eviction(facts));
    }
    findings.extend(shutdown::explain(status, events(facts, "", &[])));
    findings.extend(devices::explain_refusal(status, events(facts, "", &[])));
    findings.extend(volumes::explain_refusal(status, events(facts, "", &[])));
    if !status.is_over() {
        findings.extend(devices::explain_wait(facts.pod, status, facts.now));
        findings.extend(devices::explain_health(status));
        findings.extend(claims::explain(facts));
        findings.extend(sandbox(facts));
        findings.extend(volumes::explain(facts));
    }
    for container in status.all_containers() {
        findings.extend(one(facts, container));
    }
    if !status.is_over() {
        findings.extend(resizes::all(facts));
    }
    if findings.is_empty() && !status.message.is_empty() {
        findings.push(Finding {
            container: String::new(),
            state: status.reason.clone(),
            cause: status.message.clone(),
            remedy: "this is what the agent says of it; its events are below".to_owned(),
            evidence: events(facts, "", &[]),
        });
    }
    findings
}

/// The node was short of something, and this pod was the one that it could do without best.
fn explain_eviction(facts: &ExplainInputs<'_>) -> Finding {
    let message = &facts.status.api_message;
    let about = |what: &str| message.contains(&format!("low on resource: {what}."));
    let limited = ["Usage of EmptyDir volume", "Pod ephemeral local storage", "exceeded its local ephemeral"];
    let remedy = match () {
        () if limited.iter().any(|words| message.contains(words)) => {
            "write less to the container's own files, logs and emptyDirs, or raise the limit that is named (emptyDir.sizeLimit, resources.limits.ephemeral-storage)"
        }
        () if about("memory") => {
            "ask for the memory that it uses (resources.requests.memory): who stays within that goes last; or give the node more, or fewer pods"
        }
        () if about("ephemeral-storage") || about("inodes") => {
            "write less to the container's own files, logs and emptyDirs, ask for it (resources.requests.ephemeral-storage), or give the node a larger disk"
        }
        () if about("pids") => {
            "look for a program that starts processes without end, limit them (podPidsLimit), or raise kernel.pid_max"
        }
        () => {
            "the node's conditions say what it is short of; a pod that a controller owns is made again elsewhere"
        }
    };
    Finding {
        container: String::new(),
        state: eviction::REASON.to_owned(),
        cause: message.trim_end().to_owned(),
        remedy: remedy.to_owned(),
        evidence: events(facts, "", &[]),
    }
}

fn one(facts: &ExplainInputs<'_>, status: &ContainerStatus) -> Option<Finding> {
    let spec = facts.pod.container(&status.name);
    match &status.state {
        ContainerState::Waiting { reason, message } => waiting(facts, status, spec, reason, message),
        ContainerState::Running { .. } if !status.ready => not_ready(facts, status, spec),
        ContainerState::Running { .. } => {
            past_oom(facts, status, spec).or_else(|| explain_survived_oom(facts, status, spec))
        }
        ContainerState::Terminated(exit) if exit.code != 0 => {
            Some(explain_exit(facts, status, &exit.reason, spec, exit))
        }
        ContainerState::Terminated(_) => None,
    }
}

fn waiting(
    facts: &ExplainInputs<'_>,
    status: &ContainerStatus,
    spec: Option<&Container>,
    reason: &str,
    message: &str,
) -> Option<Finding> {
    let plain = |cause: String, remedy: &str| {
        Some(finding(status, reason, cause, remedy.to_owned(), quote(facts, status, message)))
    };
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "RegistryUnavailable"
        | "SignatureValidationFailed"
        | "ImageInspectError" => {
            let registry =
                super::look::registry_of(&status.image).and_then(|host| facts.registries.get(&host));
            let (cause, remedy) = pulls::explain(&status.image, message, registry);
            Some(finding(status, reason, cause, remedy, quote(facts, status, message)))
        }
        "InvalidImageName" => plain(
            format!("{:?} is no image name", status.image),
            "write it as [registry/]name[:tag], lower case, without http://",
        ),
        "ErrImageNeverPull" => plain(
            format!("{} is not on this node, and imagePullPolicy is Never", status.image),
            &format!("`gantry pull {}`, or set imagePullPolicy: IfNotPresent", status.image),
        ),
        "CreateContainerConfigError" => plain(
            "something that the container's description refers to is missing".to_owned(),
            config_remedy(message),
        ),
        "CrashLoopBackOff" | "RunContainerError" | "PostStartHookError" => match &status.last_exit {
            Some(exit) => Some(explain_exit(facts, status, reason, spec, exit)),
            None => plain("it could not be started".to_owned(), "the runtime's words are below"),
        },
        "CreateContainerError" => plain(
            "the runtime refuses to make the container".to_owned(),
            "its words are below; they name the field or the file",
        ),
        _ => creating(facts, status, reason),
    }
}

fn config_remedy(message: &str) -> &'static str {
    if message.contains("configmap") || message.contains("ConfigMap") {
        "add the ConfigMap (and the key) to the files of `gantry run`, or mark the reference optional: true"
    } else if message.contains("secret") || message.contains("Secret") {
        "add the Secret (and the key) to the files of `gantry run`, or mark the reference optional: true"
    } else if message.contains("device plugin") {
        "see whether the pod of the device plugin runs on this node, and its log; the kubelet tries again by itself"
    } else if message.contains("runAsNonRoot") {
        "set securityContext.runAsUser to another user than 0, or use an image with a USER"
    } else {
        "mend the field that the message below names"
    }
}

/// ContainerCreating and PodInitializing say nothing: what is awaited does.
fn creating(facts: &ExplainInputs<'_>, status: &ContainerStatus, reason: &str) -> Option<Finding> {
    if let Some(before) = init_before(facts, status) {
        let cause = format!("it waits for the init container {} to finish", before.name);
        let remedy = format!("see what is said of {}", before.name);
        return Some(finding(status, reason, cause, remedy, Vec::new()));
    }
    let open =
        |name: &str| {
            facts.status.spans.iter().find(|s| {
                s.end == 0 && s.name == name && (s.container.is_empty() || s.container == status.name)
            })
        };
    let for_how_long = |span: &Span| millis(facts.now - span.start);
    if let Some(span) = open("image") {
        let cause = format!("its image {} is being pulled, for {} so far", status.image, for_how_long(span));
        let remedy =
            format!("wait; `gantry ps` and `gantry pull {}` show how far each layer is", status.image);
        let mut evidence: Vec<String> =
            facts.pulls.get(&status.image).map(|so_far| format!("pull: {so_far}")).into_iter().collect();
        evidence.extend(events(facts, &status.name, &["Pulling"]));
        return Some(finding(status, reason, cause, remedy, evidence));
    }
    for (stage, what) in [
        ("volumes", "its volumes are being made"),
        ("sandbox", "its sandbox is being made"),
        ("container.create", "the runtime is making it"),
        ("container.start", "the runtime is starting it"),
    ] {
        if let Some(span) = open(stage) {
            let cause = format!("{what}, for {} so far", for_how_long(span));
            let remedy =
                format!("wait; `gantry timeline {}` shows which step takes the time", in_place(facts.pod));
            return Some(finding(status, reason, cause, remedy, Vec::new()));
        }
    }
    None
}

/// The first init container that is not done and comes before this one.
fn init_before<'a>(facts: &'a ExplainInputs<'_>, status: &ContainerStatus) -> Option<&'a ContainerStatus> {
    let inits = facts.status.init_containers.iter();
    let before = inits.take_while(|init| init.name != status.name);
    before.into_iter().find(|init| match init.role {
        Role::Sidecar => !init.started,
        Role::Init | Role::Regular | Role::Ephemeral => !init.ready,
    })
}

/// It runs, and a probe says no.
fn not_ready(
    facts: &ExplainInputs<'_>,
    status: &ContainerStatus,
    spec: Option<&Container>,
) -> Option<Finding> {
    let spec = spec?;
    let (kind, probe) = match (&spec.probes.startup, &spec.probes.readiness) {
        (Some(startup), _) if !status.started => ("startup", startup),
        (_, Some(readiness)) => ("readiness", readiness),
        _ if status.role == Role::Init => return None,
        _ => return None,
    };
    let mut evidence = events(facts, &status.name, &["Unhealthy"]);
    let mut cause = format!("its {kind} probe ({}) has not succeeded yet", asks(probe));
    let mut remedy =
        "check path and port, and how long the program takes (initialDelaySeconds, failureThreshold)"
            .to_owned();
    let port = port(probe, spec);
    match port.and_then(|port| facts.listening.get(&(status.name.clone(), port)).map(|l| (port, *l))) {
        Some((port, false)) => {
            cause = format!("{cause}: nothing listens on port {port} of the pod now");
            remedy = format!(
                "make the program listen on port {port} on all addresses (0.0.0.0, not 127.0.0.1), or mend the probe's port"
            );
        }
        Some((port, true)) => {
            evidence.push(format!("port {port} of the pod accepts connections now"));
        }
        None => {}
    }
    evidence.extend(log(facts, status));
    Some(finding(status, "not Ready", cause, remedy, evidence))
}

/// It runs now, but the instance before was killed for memory: that comes back.
fn past_oom(
    facts: &ExplainInputs<'_>,
    status: &ContainerStatus,
    spec: Option<&Container>,
) -> Option<Finding> {
    let exit = status.last_exit.as_ref().filter(|exit| exit.reason == "OOMKilled")?;
    Some(explain_exit(facts, status, "OOMKilled", spec, exit))
}

/// It ran out of memory and went on, maybe without a part of it.
fn explain_survived_oom(
    facts: &ExplainInputs<'_>,
    status: &ContainerStatus,
    spec: Option<&Container>,
) -> Option<Finding> {
    let told = |event: &Event| event.note.reason == REASON && event.note.container == status.name;
    if !facts.status.events.iter().any(told) {
        return None;
    }
    let (cause, remedy) = endings::survived_oom(spec);
    Some(finding(status, REASON, cause, remedy, events(facts, &status.name, &[REASON])))
}

/// No sandbox, though one was asked for.
fn sandbox(facts: &ExplainInputs<'_>) -> Option<Finding> {
    let event = newest(facts, "FailedCreatePodSandBox")?;
    let going = facts.status.ips.is_empty() && !facts.status.containers.iter().any(|c| !c.id.is_empty());
    if !going {
        return None;
    }
    let text = event.note.message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let (cause, remedy) = if has(&["no ip addresses available", "no address", "exhausted", "range is full"]) {
        (
            "the address range of the pod network is used up",
            "stop pods that are not needed, or widen the subnet in the CNI configuration; leases are in --cni-data-dir",
        )
    } else if has(&["listens on host port"]) || has(&["port"]) && has(&["in use", "taken", "already"]) {
        (
            "a hostPort that it asks for is taken on this node",
            "choose another hostPort, or stop what holds it (ss -ltnp shows it)",
        )
    } else if has(&["plugin", "cni"]) {
        (
            "the network could not be set up",
            "look at the CNI configuration and its plugins: `gantry doctor` checks them",
        )
    } else {
        ("the runtime could not make the pod's sandbox", "its words are below")
    };
    Some(Finding {
        container: String::new(),
        state: "ContainerCreating".to_owned(),
        cause: cause.to_owned(),
        remedy: remedy.to_owned(),
        evidence: vec![line(event)],
    })
}

fn explain_exit(
    facts: &ExplainInputs<'_>,
    status: &ContainerStatus,
    state: &str,
    spec: Option<&Container>,
    exit: &Exit,
) -> Finding {
    let logs = log_command(facts.pod, status);
    let (cause, remedy) = endings::explain(spec, exit, was_asked(facts, status, exit), &logs);
    let restarted = times(status.restart_count);
    let mut evidence = vec![format!("exit code {} ({}), {restarted}", exit.code, exit.reason)];
    if !exit.message.is_empty() {
        evidence.push(clean(&exit.message));
    }
    evidence.extend(events(facts, &status.name, &["Unhealthy", "Killing", "FailedPostStartHook"]));
    evidence.extend(log(facts, status));
    finding(status, state, cause, remedy, evidence)
}

fn times(restarts: u32) -> String {
    match restarts {
        0 => "never restarted".to_owned(),
        1 => "restarted once".to_owned(),
        count => format!("restarted {count} times"),
    }
}

/// The command that shows what the instance wrote that ended: the newest, or the one before it when a newer
/// one runs.
fn log_command(pod: &Pod, status: &ContainerStatus) -> String {
    let mut command = format!("gantry logs {}", in_place(pod));
    // The only one that runs for good is what is meant without a name.
    if !matches!(pod.containers.as_slice(), [only] if only.name == status.name) {
        command.push_str(&format!(" -c {}", status.name));
    }
    if matches!(status.state, ContainerState::Running { .. }) {
        command.push_str(" -p");
    }
    command
}

/// The pod as commands take it.
fn in_place(pod: &Pod) -> String {
    match pod.namespace.as_str() {
        "default" => pod.name.clone(),
        namespace => format!("{} -n {namespace}", pod.name),
    }
}

/// Whether the agent told the container to end while it ran.
fn was_asked(facts: &ExplainInputs<'_>, status: &ContainerStatus, exit: &Exit) -> bool {
    let killing = |event: &&Event| event.note.container == status.name && event.note.reason == "Killing";
    let mut times = facts.status.events.iter().filter(killing).flat_map(|event| [event.first, event.last]);
    // An event is stamped when the pod's worker takes it, which may be after a quick end.
    let until = exit.finished_at.saturating_add(2_000_000_000);
    times.any(|at| (exit.started_at..=until).contains(&at))
}

fn finding(
    status: &ContainerStatus,
    state: &str,
    cause: String,
    remedy: String,
    evidence: Vec<String>,
) -> Finding {
    Finding { container: status.name.clone(), state: state.to_owned(), cause, remedy, evidence }
}

fn quote(facts: &ExplainInputs<'_>, status: &ContainerStatus, message: &str) -> Vec<String> {
    let mut lines: Vec<String> = Some(clean(message)).filter(|m| !m.is_empty()).into_iter().collect();
    lines.extend(
        events(facts, &status.name, &["Failed", "BackOff"]).into_iter().filter(|l| !l.contains(message)),
    );
    lines
}

fn log(facts: &ExplainInputs<'_>, status: &ContainerStatus) -> Vec<String> {
    facts.lines.get(&status.name).into_iter().flatten().map(|line| format!("log: {line}")).collect()
}

/// The last warnings, and whatever has one of `reasons`; newest last.
fn events(facts: &ExplainInputs<'_>, container: &str, reasons: &[&str]) -> Vec<String> {
    let mut list: Vec<&Event> = facts
        .status
        .events
        .iter()
        .filter(|e| e.note.container == container)
        .filter(|e| e.note.kind == Kind::Warning && reasons.is_empty() || reasons.contains(&&*e.note.reason))
        .collect();
    list.sort_by_key(|event| event.last);
    let surplus = list.len().saturating_sub(EVENTS);
    list.into_iter().skip(surplus).map(line).collect()
}

pub(super) fn newest<'a>(facts: &'a ExplainInputs<'_>, reason: &str) -> Option<&'a Event> {
    facts.status.events.iter().filter(|e| e.note.reason == reason).max_by_key(|e| e.last)
}

pub(super) fn line(event: &Event) -> String {
    let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
    format!("{}{times}: {}", event.note.reason, clean(&event.note.message))
}

fn clean(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn asks(probe: &Probe) -> String {
    let port = |port: &PortRef| match port {
        PortRef::Number(number) => number.to_string(),
        PortRef::Name(name) => name.clone(),
    };
    match &probe.handler {
        Handler::Exec { command } => format!("runs {}", clean(&command.join(" "))),
        Handler::HttpGet(get) => format!("GET {} on port {}", get.path, port(&get.port)),
        Handler::Tcp { port: p, .. } => format!("connects to port {}", port(p)),
        Handler::Grpc { port, service } => format!("gRPC health of {service:?} on port {port}"),
        Handler::Sleep(_) => "sleeps".to_owned(),
    }
}

fn port(probe: &Probe, spec: &Container) -> Option<u16> {
    match &probe.handler {
        Handler::HttpGet(get) => number(&get.port, spec),
        Handler::Tcp { port, .. } => number(port, spec),
        Handler::Grpc { port, .. } => Some(*port),
        Handler::Exec { .. } | Handler::Sleep(_) => None,
    }
}

fn number(port: &PortRef, spec: &Container) -> Option<u16> {
    match port {
        PortRef::Number(number) => Some(*number),
        PortRef::Name(name) => spec.ports.iter().find(|p| p.name == *name).map(|p| p.port),
    }
}

#[cfg(test)]
mod tests;

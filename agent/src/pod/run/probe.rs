//! One try of a probe. Owns how each handler is asked and the events of bad answers; never counts
//! (that is [`crate::pod::probing`]). Called by [`super::effect`].

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::expand::expand;
use gantry_model::failure::FailureKind;
use gantry_model::pod::Container;
use gantry_model::pod::env::EnvValue;
use gantry_model::pod::probe::{Handler, Probe};

use super::{Output, Task, WaitReason};
use crate::events::Kind::Warning;
use crate::pod::probing::ProbeKind;
use crate::probe::{ProbeResult, request};

/// A try that fails by itself, such as a name that cannot be looked up, is repeated at once.
const TRIES: usize = 3;
const SHORTEST: Duration = Duration::from_secs(1);
/// What a command says is kept that far.
const MOST_SAID: usize = 10 << 10;

pub(super) async fn run(
    task: Task<'_>,
    container: &Container,
    id: &str,
    kind: ProbeKind,
    address: &str,
) -> Result<Output, WaitReason> {
    let Some(probe) = kind.of(container) else {
        return Ok(Output::ProbeResult(ProbeResult::Unknown(String::new())));
    };
    let mut verdict = ProbeResult::Unknown(String::new());
    for _ in 0..TRIES {
        verdict = ask(task, container, id, probe, address).await;
        if !matches!(verdict, ProbeResult::Unknown(_)) {
            break;
        }
    }
    let what = kind.as_str();
    match &verdict {
        ProbeResult::Success(_) => {}
        ProbeResult::Warning(text) => {
            let message = format!("{what} probe warning: {text}");
            task.tell_of(container, id, Warning, "ProbeWarning", &message).await;
        }
        ProbeResult::Failure(text) => {
            let message = format!("{what} probe failed: {text}");
            task.tell_of(container, id, Warning, "Unhealthy", &message).await;
        }
        ProbeResult::Unknown(text) => {
            let message = format!("{what} probe errored and resulted in unknown state: {text}");
            task.tell_of(container, id, Warning, "Unhealthy", &message).await;
        }
    }
    Ok(Output::ProbeResult(verdict))
}

async fn ask(task: Task<'_>, container: &Container, id: &str, probe: &Probe, address: &str) -> ProbeResult {
    let timeout = probe.timeout.max(SHORTEST);
    let io = &task.deps.probe_io;
    match &probe.handler {
        Handler::Exec { command } => exec(task, id, &expand_command(container, command), timeout).await,
        Handler::HttpGet(get) => match request::http(get, container, address, "probe") {
            Ok(request) => request::verdict(io.http(request, timeout).await),
            Err(error) => ProbeResult::Unknown(error),
        },
        Handler::Tcp { host, port } => {
            let port = match request::port(port, container) {
                Ok(port) => port,
                Err(error) => return ProbeResult::Unknown(error),
            };
            let host = if host.is_empty() { address } else { host };
            match io.tcp(host.to_owned(), port, timeout).await {
                Ok(()) => ProbeResult::Success(String::new()),
                Err(error) => ProbeResult::Failure(error),
            }
        }
        Handler::Grpc { port, service } => io.grpc(address.to_owned(), *port, service.clone(), timeout).await,
        Handler::Sleep(_) => ProbeResult::Unknown("missing probe handler".to_owned()),
    }
}

/// Upstream's words for a command that did not end in time.
pub(super) fn timed_out(command: &[String], timeout: Duration) -> String {
    format!("command timed out: {:?} timed out after {}", command.join(" "), go_seconds(timeout))
}

/// As Go prints a duration of whole seconds.
fn go_seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

async fn exec(task: Task<'_>, id: &str, command: &[String], timeout: Duration) -> ProbeResult {
    match task.deps.runtime.exec_sync(id, command, timeout).await {
        Ok(output) => {
            let mut said = [output.stdout, output.stderr].concat();
            said.truncate(MOST_SAID);
            let said = String::from_utf8_lossy(&said).into_owned();
            if output.code == 0 { ProbeResult::Success(said) } else { ProbeResult::Failure(said) }
        }
        Err(error) if error.failure().is_some_and(|f| f.kind == FailureKind::TimedOut) => {
            ProbeResult::Failure(timed_out(command, timeout))
        }
        Err(error) => ProbeResult::Unknown(error.in_go()),
    }
}

/// Only what is written in the manifest itself: what is looked up is not for a probe.
fn expand_command(container: &Container, command: &[String]) -> Vec<String> {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for variable in &container.env {
        if let EnvValue::Literal(value) = &variable.value {
            known.insert(&variable.name, value);
        }
    }
    command.iter().map(|word| expand(word, &known)).collect()
}

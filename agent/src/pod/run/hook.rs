//! postStart and preStop. Owns the events, which never say what the hook said (it may be secret),
//! and the wording of the status. Called by [`super::effect`].

use std::time::Duration;

use gantry_model::failure::FailureKind;
use gantry_model::pod::Container;
use gantry_model::pod::probe::{Handler, HttpGet};

use super::container::SHORTEST_GRACE;
use super::{Output, Task, WaitReason, probe, wait_reason};
use crate::events::Kind::Warning;
use crate::probe::{HttpError, request};

/// A hook has no limit of its own; what it runs must end some time.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Go's HTTP client of hooks has no timeout; a server that never answers must not hold a start for
/// ever.
const LONGEST_HTTP: Duration = Duration::from_secs(600);

pub(super) async fn post_start(
    task: Task<'_>,
    container: &Container,
    id: &str,
    address: &str,
) -> Result<Output, WaitReason> {
    let Some(handler) = &container.lifecycle.post_start else { return Ok(Output::Done) };
    match run(task, container, id, address, handler, LONGEST).await {
        Ok(()) => Ok(Output::Done),
        Err(message) => {
            task.tell_of(container, id, Warning, "FailedPostStartHook", "PostStartHook failed").await;
            Err(wait_reason("PostStartHookError", message))
        }
    }
}

/// Ends at the deadline or with the container: the planner goes on without it then.
pub(super) async fn pre_stop(
    task: Task<'_>,
    container: &Container,
    id: &str,
    address: &str,
    deadline: Duration,
) -> Result<Output, WaitReason> {
    let Some(handler) = &container.lifecycle.pre_stop else { return Ok(Output::Done) };
    let left = deadline.saturating_sub(task.deps.clock.mono());
    match run(task, container, id, address, handler, left).await {
        Ok(()) => Ok(Output::Done),
        Err(message) => {
            task.tell_of(container, id, Warning, "FailedPreStopHook", "PreStopHook failed").await;
            Err(wait_reason("FailedPreStopHook", message))
        }
    }
}

/// The message of a failure is the kubelet's.
async fn run(
    task: Task<'_>,
    container: &Container,
    id: &str,
    address: &str,
    handler: &Handler,
    limit: Duration,
) -> Result<(), String> {
    let (name, pod) = (&container.name, task.pod.formatted());
    match handler {
        // What it runs lives as long as its container, which is not killed before that.
        Handler::Exec { command } => exec(task, id, command, limit + SHORTEST_GRACE).await.map_err(|(error, said)| {
            let command = command.join(" ");
            format!(
                "Exec lifecycle hook ([{command}]) for Container {name:?} in Pod {pod:?} failed - error: {error}, message: {said:?}"
            )
        }),
        Handler::HttpGet(get) => {
            http(task, container, get, address, limit.min(LONGEST_HTTP)).await.map_err(|error| {
                let path = &get.path;
                format!("HTTP lifecycle hook ({path}) for Container {name:?} in Pod {pod:?} failed - error: {error}")
            })
        }
        Handler::Sleep(time) => {
            tokio::time::sleep((*time).min(limit)).await;
            if limit < *time {
                task.deps.metrics.lifecycle_sleep_cut.inc([]);
            }
            Ok(())
        }
        // The manifest's converter refuses them; upstream's words are the same.
        Handler::Tcp { .. } | Handler::Grpc { .. } => {
            Err(format!("Cannot run handler: invalid handler: {handler:?}"))
        }
    }
}

async fn exec(task: Task<'_>, id: &str, command: &[String], limit: Duration) -> Result<(), (String, String)> {
    match task.deps.runtime.exec_sync(id, command, limit).await {
        Ok(output) if output.code == 0 => Ok(()),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            Err((format!("command '{}' exited with {}: ", command.join(" "), output.code), said))
        }
        Err(error) if error.failure().is_some_and(|f| f.kind == FailureKind::TimedOut) => {
            Err((probe::timed_out(command, limit), String::new()))
        }
        Err(error) => Err((error.in_go(), String::new())),
    }
}

/// Whatever the page says: that there is an answer is enough. A server without TLS is asked again
/// without.
async fn http(
    task: Task<'_>,
    container: &Container,
    get: &HttpGet,
    address: &str,
    limit: Duration,
) -> Result<(), String> {
    let ask = request::http(get, container, address, "lifecycle")?;
    let answer = match task.deps.probe_io.http(ask.clone(), limit).await {
        Err(HttpError::NotTls(_)) => {
            let mut plain = ask.clone();
            plain.tls = false;
            plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("Authorization"));
            let answer = task.deps.probe_io.http(plain, limit).await;
            if answer.is_ok() {
                task.deps.metrics.lifecycle_http_fallbacks.inc([]);
                let host = format!("{}:{}", ask.host, ask.port);
                let message = format!(
                    "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                );
                task.tell(Warning, "LifecycleHTTPFallback", message).await;
            }
            answer
        }
        answer => answer,
    };
    match answer {
        // Upstream does not look at how the body ends.
        Ok(_) | Err(HttpError::Body(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

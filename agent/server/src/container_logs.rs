//! `/containerLogs`: what a container wrote. Owns the request's parameters and which of a container's
//! lives is meant; reading is in [`backlog`] and [`follow`]. Called by [`super::serve`].

#![expect(clippy::disallowed_methods, reason = "the reader of a log ends when its client goes")]

mod backlog;
mod follow;
mod options;
mod writer;

use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use http::StatusCode;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{self, Answer};
use super::context::ServerContext;
use super::cri::Cri;
use super::query;
use super::route::ContainerRef;
use backlog::{Backlog, ReadOutcome, Rest};
use options::{Bad, Options};
use writer::{Flow, Writer};

/// Pieces on their way to a client; a slow one slows the reading, not the memory.
const AHEAD: usize = 16;

/// Where a log is.
#[derive(Debug, Clone)]
struct Log {
    /// No link leads on from there: pods may write below it.
    root: PathBuf,
    path: PathBuf,
}

/// Answers with the log, or says why there is none.
pub(super) async fn serve(inner: &ServerContext, target: &ContainerRef, asked: &str) -> Answer {
    let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
    let options = match Options::parse(&query::pairs(asked), now) {
        Ok(options) => options,
        Err(Bad::Query) => {
            return answer::text(StatusCode::BAD_REQUEST, "{\"message\": \"Unable to decode query.\"}");
        }
        Err(Bad::Value) => {
            return answer::text(StatusCode::UNPROCESSABLE_ENTITY, "{\"message\": \"Invalid request.\"}");
        }
    };
    let ContainerRef { namespace, pod: name, container, .. } = target;
    let Some(pod) = inner.sources.pods.find(namespace, name) else {
        return answer::text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist"));
    };
    if !has_container(&pod, container) {
        let text = format!("container {container:?} not found in pod {name:?}");
        return answer::text(StatusCode::NOT_FOUND, text);
    }
    if let Some(stream) = options.stream {
        // The gate stands at its default, as /configz says.
        let text = format!(
            "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        );
        return answer::text(StatusCode::BAD_REQUEST, text);
    }
    let id = match which(&pod, container, options.previous) {
        Ok(id) => id,
        Err(text) => return answer::text(StatusCode::BAD_REQUEST, text),
    };
    let cri = Cri::new(&inner.sources.runtime, &inner.sources.metrics);
    let bare = id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned();
    // From here on upstream has begun to answer: what goes wrong is text of the log.
    let Ok(logged) = cri.log_status(&bare).await else {
        return answer::text(StatusCode::OK, format!("unable to retrieve container logs for {id}"));
    };
    let log = match inside(&inner.settings.pod_logs, &logged.path) {
        Ok(log) => log,
        Err(text) => return answer::text(StatusCode::OK, text),
    };
    let (sender, receiver) = mpsc::channel::<Bytes>(AHEAD);
    tokio::spawn(async move {
        if let Err(text) = read(cri, bare, log, options, sender.clone()).await {
            // The client may be gone, too.
            let _ = sender.send(Bytes::from(text)).await;
        }
    });
    let pieces = ReceiverStream::new(receiver).map(Ok::<_, std::convert::Infallible>);
    answer::text(StatusCode::OK, Body::from_stream(pieces))
}

async fn read(
    cri: Cri,
    id: String,
    log: Log,
    options: Options,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), String> {
    let follow = options.follow;
    match so_far(&log, options, sender).await? {
        Some((rest, writer)) if follow => follow::read(&cri, &id, &log, rest, writer).await,
        _ => Ok(()),
    }
}

/// Sends what is there; where to read on, unless it was enough. Clients may be slow, or not read at
/// all: they are waited for here, never on one of the few threads that may block.
async fn so_far(
    log: &Log,
    options: Options,
    sender: mpsc::Sender<Bytes>,
) -> Result<Option<(Rest, Writer)>, String> {
    let mut writer = Writer::new(&options, sender);
    let broke = |error| format!("reading log {} broke off: {error}", log.path.display());
    let at = log.clone();
    let opened = tokio::task::spawn_blocking(move || Backlog::open(&at, &options)).await;
    let mut backlog = opened.map_err(broke)??;
    loop {
        let work = move || (backlog.step(&mut writer), writer);
        let (step, mut back) = tokio::task::spawn_blocking(work).await.map_err(broke)?;
        if back.flush().await == Flow::Enough {
            return Ok(None);
        }
        match step? {
            ReadOutcome::More(more) => (backlog, writer) = (more, back),
            ReadOutcome::End(rest) => return Ok(Some((rest, back))),
            ReadOutcome::Enough => return Ok(None),
        }
    }
}

/// Inside the folder of pods' logs: a runtime that says otherwise shall not make this a way to read
/// any file.
fn inside(root: &Path, path: &str) -> Result<Log, String> {
    let path = Path::new(path);
    let climbs = path.components().any(|part| part == std::path::Component::ParentDir);
    match path.starts_with(root) && !climbs {
        true => Ok(Log { root: root.to_owned(), path: path.to_owned() }),
        false => Err(format!("log file {path:?} is not in {}", root.display())),
    }
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    let init = spec.init_containers.iter().flatten().map(|container| &container.name);
    spec.containers
        .iter()
        .map(|container| &container.name)
        .chain(init)
        .chain(ephemeral)
        .any(|found| found == name)
}

fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    all.into_iter().flatten().flatten().find(|status| status.name == name)
}

/// The ID of the life that is meant, or why there is none, in upstream's words.
fn which(pod: &Pod, container: &str, previous: bool) -> Result<String, String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let of = format!("container {container:?} in pod {name:?}");
    let Some(status) = status_of(pod, container) else { return Err(format!("{of} is not available")) };
    let terminated = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let id = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
    let last = terminated.and_then(|last| id(&last.container_id));
    if previous {
        return last.ok_or_else(|| format!("previous terminated {of} not found"));
    }
    let state = status.state.clone().unwrap_or_default();
    if state.running.is_some() {
        return id(&status.container_id).ok_or_else(|| format!("{of} is not available"));
    }
    if let Some(now) = &state.terminated {
        return id(&now.container_id).or(last).ok_or_else(|| format!("{of} is terminated"));
    }
    if terminated.is_some() {
        return last.ok_or_else(|| format!("{of} is terminated"));
    }
    Err(match state.waiting.map(|waiting| waiting.reason.unwrap_or_default()).as_deref() {
        Some("ErrImagePull") => format!("{of} is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{of} is waiting to start: trying and failing to pull image"),
        Some(reason) => format!("{of} is waiting to start: {reason}"),
        None => format!("{of} is waiting to start - no logs yet"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: &serde_json::Value) -> Pod {
        let status = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": status["state"], "lastState": status["last"], "containerID": status["id"] });
        serde_json::from_value(json!({
            "metadata": { "name": "web" },
            "spec": { "containers": [{ "name": "c" }], "ephemeralContainers": [{ "name": "debug" }] },
            "status": { "containerStatuses": [status] },
        }))
        .unwrap()
    }

    #[test]
    fn which_life_is_meant() {
        let ended = |id| json!({ "terminated": { "exitCode": 1, "containerID": id } });
        let of = |status, previous| which(&pod(&status), "c", previous);
        let waiting = |reason| json!({ "waiting": { "reason": reason } });
        assert_eq!(of(json!({ "state": { "running": {} }, "id": "r://2" }), false).unwrap(), "r://2");
        assert_eq!(of(json!({ "state": ended("r://1") }), false).unwrap(), "r://1");
        assert_eq!(of(json!({ "state": ended(""), "last": ended("r://0") }), false).unwrap(), "r://0");
        let crashed = json!({ "state": waiting("CrashLoopBackOff"), "last": ended("r://1") });
        assert_eq!(of(crashed.clone(), false).unwrap(), "r://1");
        assert_eq!(of(crashed, true).unwrap(), "r://1");
        let err = |status, previous| of(status, previous).unwrap_err();
        let c = "container \"c\" in pod \"web\"";
        assert_eq!(
            err(json!({ "state": { "running": {} } }), true),
            format!("previous terminated {c} not found")
        );
        assert_eq!(err(json!({ "state": ended("") }), false), format!("{c} is terminated"));
        let said = |reason| err(json!({ "state": waiting(reason) }), false);
        assert_eq!(said("ErrImagePull"), format!("{c} is waiting to start: image can't be pulled"));
        assert_eq!(
            said("ImagePullBackOff"),
            format!("{c} is waiting to start: trying and failing to pull image")
        );
        assert_eq!(said("ContainerCreating"), format!("{c} is waiting to start: ContainerCreating"));
        assert_eq!(err(json!({}), false), format!("{c} is waiting to start - no logs yet"));
        assert_eq!(
            which(&pod(&json!({})), "x", false).unwrap_err(),
            "container \"x\" in pod \"web\" is not available"
        );
        assert!(has_container(&pod(&json!({})), "debug") && !has_container(&pod(&json!({})), "x"));
    }

    /// More clients that do not read than there are threads: everything else goes on.
    #[test]
    fn a_client_that_does_not_read_holds_no_thread() {
        let folder = tempfile::tempdir().unwrap();
        let (root, path) = (folder.path().to_owned(), folder.path().join("0.log"));
        let line = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(1000));
        std::fs::write(&path, line.repeat(1000)).unwrap();
        let log = Log { root, path };
        let mut one_thread = tokio::runtime::Builder::new_current_thread();
        let one_thread = one_thread.enable_all().max_blocking_threads(1).build().unwrap();
        one_thread.block_on(async {
            let (sender, mut stalled) = mpsc::channel(1);
            let reads = tokio::spawn(async move { so_far(&log, Options::default(), sender).await });
            let mut first = stalled.recv().await.unwrap().len();
            // The next piece fills the channel, the one after waits.
            while stalled.is_empty() {
                tokio::task::yield_now().await;
            }
            let other = tokio::task::spawn_blocking(|| "done");
            let other = tokio::time::timeout(std::time::Duration::from_secs(20), other).await;
            assert_eq!(other.expect("the thread waits for the client").unwrap(), "done");
            while first < 1001 * 1000 {
                first += stalled.recv().await.unwrap().len();
            }
            assert!(reads.await.unwrap().unwrap().is_some());
        });
    }

    #[test]
    fn a_log_is_read_where_logs_are() {
        let root = Path::new("/var/log/pods");
        assert!(inside(root, "/var/log/pods/a/c/0.log").is_ok());
        for bad in ["/etc/shadow", "/var/log/pods/../../../etc/shadow", "", "0.log"] {
            assert!(inside(root, bad).is_err(), "{bad}");
        }
    }
}

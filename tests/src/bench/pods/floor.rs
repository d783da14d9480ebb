//! The null kubelet: a client that tells of pods what a pod's life needs and runs nothing. What it costs is the floor of
//! any kubelet: one status that makes a pod Ready, and the deletion that ends it. Owns its task and its Node object. Called
//! by `bench::pods`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};

use crate::cluster::NODE;

/// A merge patch.
const MERGE: &str = "application/merge-patch+json";
/// Longer than any bench takes; the watch is not asked for again.
const HOUR: u32 = 3600;

/// The client at work; ends when dropped.
#[derive(Debug)]
pub(super) struct NullKubelet {
    task: tokio::task::JoinHandle<()>,
    wrong: Wrong,
    _tokio: tokio::runtime::Runtime,
}

/// What went wrong, told at the end.
type Wrong = Arc<Mutex<Vec<String>>>;

impl Drop for NullKubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NullKubelet {
    /// Makes the Node with the node's own certificate, and begins to watch its pods.
    pub(super) fn start(folder: &Path, server: &str) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let api = NullKubeletApi { client: client(&folder.join("pki"))?, server: server.to_owned() };
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        tokio.block_on(api.send(Method::POST, "/api/v1/nodes", "application/json", &node))?;
        let wrong = Wrong::default();
        let of_task = wrong.clone();
        let task = tokio.spawn(async move {
            // Nobody's pods become ready any more, which the bench sees.
            let ended = api.serve(&of_task).await;
            note(&of_task, "the watch", ended.and_then(|()| bail!("the API server has ended it")));
        });
        Ok(Self { task, wrong, _tokio: tokio })
    }

    /// Ends it.
    ///
    /// # Errors
    /// With all that went wrong in its life.
    pub(super) fn end(self) -> Result<()> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(wrong.is_empty(), "the null kubelet: {}", wrong.join("; "));
        Ok(())
    }
}

fn note(wrong: &Wrong, what: &str, done: Result<()>) {
    if let Err(error) = done {
        wrong.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{what}: {error:#}"));
    }
}

fn client(pki: &Path) -> Result<Client> {
    let read = |name: &str| {
        let path = pki.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    let pem = [read("node.crt")?, read("node.key")?].concat();
    let identity = Identity::from_pem(&pem).context("the node's certificate")?;
    let builder = Client::builder().identity(identity);
    let authority = Certificate::from_pem(&read("ca.crt")?).context("the cluster's CA")?;
    builder.tls_certs_only([authority]).build().context("an HTTP client")
}

#[derive(Debug, Clone)]
struct NullKubeletApi {
    client: Client,
    server: String,
}

impl NullKubeletApi {
    async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> Result<()> {
        let request = self.client.request(method.clone(), format!("{}{path}", self.server));
        let request = request.header("content-type", kind).body(serde_json::to_vec(body)?);
        let answer = request.timeout(Duration::from_secs(30)).send().await.context("send")?;
        let status = answer.status();
        let text = answer.text().await.unwrap_or_default();
        ensure!(status.is_success(), "{method} {path}: {status}: {text}");
        Ok(())
    }

    /// Lines of the watch, one pod each.
    async fn serve(&self, wrong: &Wrong) -> Result<()> {
        let path = format!(
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D{NODE}&timeoutSeconds={HOUR}&resourceVersion=0"
        );
        let mut answer = self.client.get(format!("{}{path}", self.server)).send().await.context("watch")?;
        ensure!(answer.status().is_success(), "{path}: {}", answer.status());
        let (mut told, mut left) = (BTreeSet::new(), Vec::new());
        while let Some(chunk) = answer.chunk().await.context("watch")? {
            left.extend_from_slice(&chunk);
            while let Some(end) = left.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = left.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).context("a line of the watch")?;
                if let Some(request) = answer_to(&event, &mut told) {
                    let (api, wrong) = (self.clone(), wrong.clone());
                    // It ends with its answer, or with the client.
                    tokio::spawn(async move {
                        let NodeRequest { method, path, kind, body } = request;
                        note(&wrong, &path, api.send(method, &path, kind, &body).await);
                    });
                }
            }
        }
        Ok(())
    }
}

/// What a pod's life needs.
#[derive(Debug)]
struct NodeRequest {
    method: Method,
    path: String,
    kind: &'static str,
    body: Value,
}

/// A new pod is told to run, one that is to go is deleted; each once.
fn answer_to(event: &Value, told: &mut BTreeSet<(String, bool)>) -> Option<NodeRequest> {
    let meta = &event["object"]["metadata"];
    let uid = meta["uid"].as_str().filter(|_| event["type"] != "DELETED")?;
    let goes = meta["deletionTimestamp"].is_string();
    if !told.insert((uid.to_owned(), goes)) {
        return None;
    }
    let (namespace, name) = (meta["namespace"].as_str()?, meta["name"].as_str()?);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    Some(match goes {
        true => NodeRequest {
            method: Method::DELETE,
            path,
            kind: "application/json",
            body: json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": { "uid": uid },
            }),
        },
        false => NodeRequest {
            method: Method::PATCH,
            path: format!("{path}/status"),
            kind: MERGE,
            body: running(&event["object"]),
        },
    })
}

fn running(pod: &Value) -> Value {
    let now = "2026-01-01T00:00:00Z";
    let conditions: Vec<Value> = ["Initialized", "ContainersReady", "Ready", "PodScheduled"]
        .map(|name| json!({ "type": name, "status": "True", "lastTransitionTime": now }))
        .into();
    let container = |container: &Value| {
        json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": true, "started": true,
            "restartCount": 0, "state": { "running": { "startedAt": now } },
        })
    };
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let containers: Vec<Value> = containers.map(container).collect();
    json!({ "status": {
        "phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": containers,
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_costs_one_status_and_one_deletion() {
        let mut told = BTreeSet::new();
        let event = |kind: &str, goes: bool| {
            let mut meta = json!({ "uid": "u", "namespace": "ns", "name": "pod" });
            if goes {
                meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            json!({ "type": kind, "object": {
                "metadata": meta, "spec": { "containers": [{ "name": "c", "image": "i" }] },
            } })
        };
        let first = answer_to(&event("ADDED", false), &mut told).unwrap();
        assert_eq!(
            (first.method, first.path.as_str()),
            (Method::PATCH, "/api/v1/namespaces/ns/pods/pod/status")
        );
        assert_eq!(first.body["status"]["containerStatuses"][0]["name"], "c");
        assert!(answer_to(&event("MODIFIED", false), &mut told).is_none());
        let last = answer_to(&event("MODIFIED", true), &mut told).unwrap();
        assert_eq!((last.method, last.body["gracePeriodSeconds"].as_u64()), (Method::DELETE, Some(0)));
        assert!(answer_to(&event("DELETED", true), &mut told).is_none());
    }
}

//! The operator API: what `gantry ps|stop|timeline|explain …` ask of a running agent. Owns the service;
//! its answers' form is in [`form`]. Never changes a pod but through its handle. Called by `gantry
//! run` and `gantry agent`.

#![expect(clippy::disallowed_methods, reason = "the answer to a watch ends when its client goes")]

pub mod additions;
pub mod cri_proxy;
mod form;
mod object;
pub mod socket;
mod stages;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use gantry_base::error::chain;
use gantry_model::clock::Clock;
use gantry_proto::operator::operator_server::{Operator, OperatorServer};
use gantry_proto::operator::{self as wire};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::explain;
use crate::manifest;
use crate::node::NodeInfo;
use crate::pod::Life;
use crate::pod::worker::PodHandle;
use crate::pod_workers::watcher::Pods;
use crate::runtime_ext::pulls::Pulls;
use crate::volumes::Volumes;
use additions::{Addition, Refused};

/// Ten years: longer graces only overflow something.
const MAX_GRACE: i64 = 10 * 365 * 86_400;
/// Manifests are at most 10 MiB each.
const MAX_REQUEST: usize = 32 << 20;
/// Changes come in bursts; a screen needs no more than this.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// What the service answers from.
#[derive(Clone)]
pub struct OperatorDeps {
    /// The agent's pods, as they change.
    pub pods: Pods,
    /// What is said of the node.
    pub node: Arc<NodeInfo>,
    /// Both clocks.
    pub clock: Arc<dyn Clock>,
    /// The runtime, whose calls are passed on.
    pub runtime: Option<Channel>,
    /// Pulls under way, when the runtime does not tell of them itself.
    pub pulls: Option<Pulls>,
    /// Of the pods: what is waited for.
    pub volumes: Arc<dyn Volumes>,
    /// To whoever owns the set of pods; none where it is an API server's.
    pub additions: Option<mpsc::Sender<Addition>>,
    /// Told when somebody asks the agent to end; whoever adds pods answers with [`Ending::Closed`].
    pub ending: watch::Sender<Ending>,
}

/// Whether the agent was asked to end.
///
/// ```text
/// Not ──Shutdown──► Begun ──who adds pods──► Closed ──every pod is gone──► Over
///  └──────── the agent ends by itself ────────▲
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It goes on.
    Not,
    /// It was; whoever adds pods has not heard of it yet.
    Begun,
    /// No pod is added any more, and those that are there are stopped and removed.
    Closed,
    /// Its pods are gone.
    Over,
}

impl fmt::Debug for OperatorDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorDeps").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The service over an agent's pods.
#[derive(Debug)]
pub struct Service {
    sources: OperatorDeps,
}

impl Service {
    /// Over these.
    #[must_use]
    pub fn new(sources: OperatorDeps) -> OperatorServer<Self> {
        OperatorServer::new(Self { sources }).max_decoding_message_size(MAX_REQUEST)
    }

    fn pods(&self) -> Arc<[PodHandle]> {
        self.sources.pods.borrow().clone()
    }

    fn find(&self, namespace: &str, name: &str) -> Result<PodHandle, Status> {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        let pods = self.pods();
        let named = |handle: &&PodHandle| handle.pod.namespace == namespace && handle.pod.name == name;
        // Of two of one name the later one is meant: the other is on its way out.
        pods.iter().rev().find(named).cloned().ok_or_else(|| {
            let here = pods.iter().filter(|handle| handle.status.borrow().life != Life::Gone);
            let known: Vec<String> = here.map(|handle| handle.pod.full_name()).collect();
            let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Status::not_found(format!("this agent has no pod {namespace}/{name}; it has {has}"))
        })
    }
}

fn grace_of(seconds: Option<i64>) -> Result<Option<Duration>, Status> {
    let bad = || Status::invalid_argument("grace must be 0 seconds or more, at most ten years");
    seconds
        .map(|seconds| {
            let whole = u64::try_from(seconds).ok().filter(|_| seconds <= MAX_GRACE);
            whole.map(Duration::from_secs).ok_or_else(bad)
        })
        .transpose()
}

#[tonic::async_trait]
impl Operator for Service {
    async fn list_pods(
        &self,
        request: Request<wire::ListPodsRequest>,
    ) -> Result<Response<wire::ListPodsResponse>, Status> {
        let objects = request.into_inner().objects;
        Ok(Response::new(form::list(&self.pods(), &self.sources.node.name, objects)))
    }

    async fn watch_pods(
        &self,
        request: Request<wire::ListPodsRequest>,
    ) -> Result<Response<BoxStream<wire::ListPodsResponse>>, Status> {
        // A slow reader gets the newest state late, never a growing queue.
        let (sender, receiver) = mpsc::channel(1);
        let (pods, node) = (self.sources.pods.clone(), self.sources.node.name.clone());
        tokio::spawn(follow(pods, node, request.into_inner().objects, sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(Ok))))
    }

    async fn stop_pod(
        &self,
        request: Request<wire::StopPodRequest>,
    ) -> Result<Response<wire::StopPodResponse>, Status> {
        let wire::StopPodRequest { namespace, name, grace_seconds } = request.into_inner();
        let handle = self.find(&namespace, &name)?;
        handle.kill(grace_of(grace_seconds)?, "stopped through the operator API");
        handle.remove();
        let status = handle.wait(|status| status.life == Life::Gone).await;
        let pod = form::pod(&handle, &status, &self.sources.node.name);
        Ok(Response::new(wire::StopPodResponse { pod: Some(pod) }))
    }

    async fn get_timeline(
        &self,
        request: Request<wire::GetTimelineRequest>,
    ) -> Result<Response<wire::GetTimelineResponse>, Status> {
        let wire::GetTimelineRequest { namespace, name } = request.into_inner();
        let handle = self.find(&namespace, &name)?;
        let spans = stages::of(&handle.pod, &handle.status.borrow());
        let span = |span| form::span(span, self.sources.pulls.as_ref());
        Ok(Response::new(wire::GetTimelineResponse { spans: spans.iter().map(span).collect() }))
    }

    async fn explain_pod(
        &self,
        request: Request<wire::ExplainPodRequest>,
    ) -> Result<Response<wire::ExplainPodResponse>, Status> {
        let wire::ExplainPodRequest { namespace, name } = request.into_inner();
        let handle = self.find(&namespace, &name)?;
        let status = handle.status.borrow().clone();
        let now = self.sources.clock.wall_nanos();
        let waits = self.sources.volumes.waits(&handle.pod.uid);
        let facts = explain::look::look(&handle.pod, &status, self.sources.pulls.as_ref(), waits, now).await;
        let findings = explain::decide::decide(&facts).into_iter().map(form::finding).collect();
        Ok(Response::new(wire::ExplainPodResponse { findings, status: status.reason.clone() }))
    }

    async fn apply_manifests(
        &self,
        request: Request<wire::ApplyManifestsRequest>,
    ) -> Result<Response<wire::ApplyManifestsResponse>, Status> {
        let wire::ApplyManifestsRequest { manifests, replace } = request.into_inner();
        let Some(additions) = &self.sources.additions else {
            let text = "this agent runs the pods of an API server and of its manifest folder: `kubectl apply -f` adds \
                        pods there";
            return Err(Status::failed_precondition(text));
        };
        let texts: Vec<manifest::Text> = manifests.into_iter().map(form::text).collect();
        let loaded = manifest::load_texts(&texts).map_err(|error| Status::invalid_argument(chain(&error)))?;
        let (answer, answered) = oneshot::channel();
        let ends = || Status::unavailable("the agent is about to end");
        let addition = Addition { loaded, replace, answer };
        additions.send(addition).await.map_err(|_| ends())?;
        match answered.await {
            Ok(Ok(added)) => Ok(Response::new(form::to_apply_response(&added))),
            Ok(Err(Refused(why))) => Err(Status::already_exists(why)),
            Err(_) => Err(ends()),
        }
    }

    async fn shutdown(
        &self,
        request: Request<wire::ShutdownRequest>,
    ) -> Result<Response<wire::ShutdownResponse>, Status> {
        let grace = grace_of(request.into_inner().grace_seconds)?;
        let begin = |ending: &mut Ending| {
            let first = *ending == Ending::Not;
            if first {
                *ending = Ending::Begun;
            }
            first
        };
        self.sources.ending.send_if_modified(begin);
        // Only now are the pods looked at: one that was just being added is among them.
        let closed = |ending: &Ending| matches!(ending, Ending::Closed | Ending::Over);
        if self.sources.ending.subscribe().wait_for(closed).await.is_err() {
            return Err(Status::unavailable("the agent has ended"));
        }
        let pods = self.pods();
        for handle in pods.iter() {
            handle.kill(grace, "the agent is being shut down");
            handle.remove();
        }
        let mut left_behind = Vec::new();
        for handle in pods.iter() {
            let status = handle.wait(|status| status.life == Life::Gone).await;
            if status.life != Life::Gone {
                left_behind.push(format!("pod {}: {}", handle.pod.full_name(), status.message));
            }
        }
        self.sources.ending.send_replace(Ending::Over);
        Ok(Response::new(wire::ShutdownResponse { left_behind }))
    }
}

/// Sends the list now and after each change, until nobody reads.
async fn follow(mut pods: Pods, node: String, objects: bool, sender: mpsc::Sender<wire::ListPodsResponse>) {
    loop {
        let handles = pods.borrow_and_update().clone();
        // A worker that has ended would say so at once, again and again.
        let alive = handles.iter().filter(|handle| !handle.is_done());
        let mut changes: Vec<_> = alive.map(|handle| handle.status.clone()).collect();
        changes.iter_mut().for_each(|status| {
            status.mark_unchanged();
        });
        if sender.send(form::list(&handles, &node, objects)).await.is_err() {
            return;
        }
        let any = async {
            let waits = changes.iter_mut().map(|status| Box::pin(status.changed()));
            match waits.len() {
                0 => std::future::pending().await,
                _ => futures_util::future::select_all(waits).await.0,
            }
        };
        // All arms are cancel-safe: a change stays marked, a closed channel stays closed.
        tokio::select! {
            _ = any => {}
            changed = pods.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sender.closed() => return,
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

#[cfg(test)]
mod tests;

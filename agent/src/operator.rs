//! The operator API: what `gantry ps|stop|timeline|logs` asks of a running agent. Owns the
//! service and its mapping to the wire; never changes a pod but through its handle.
//! Called by `gantry run`.

pub mod socket;

use std::time::Duration;

use gantry_proto::operator::operator_server::{Operator, OperatorServer};
use gantry_proto::operator::{self as wire};
use tonic::{Request, Response, Status};

use crate::pod::Life;
use crate::pod::status::{ContainerState, ContainerStatus, PodStatus};
use crate::pod::worker::PodHandle;
use crate::watcher::Pods;

/// Ten years: longer graces only overflow something.
const MAX_GRACE: i64 = 10 * 365 * 86_400;

/// The service over an agent's pods.
#[derive(Debug)]
pub struct Service {
    pods: Pods,
}

impl Service {
    /// Over these pods, as they come and go.
    #[must_use]
    pub fn new(pods: Pods) -> OperatorServer<Self> {
        OperatorServer::new(Self { pods })
    }

    /// Of several of one name the youngest: the others are about to go.
    fn find(&self, namespace: &str, name: &str) -> Result<PodHandle, Status> {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        self.pods
            .borrow()
            .iter()
            .rfind(|handle| handle.pod.namespace == namespace && handle.pod.name == name)
            .cloned()
            .ok_or_else(|| Status::not_found(format!("this agent has no pod {namespace}/{name}")))
    }
}

#[tonic::async_trait]
impl Operator for Service {
    async fn list_pods(
        &self,
        _request: Request<wire::ListPodsRequest>,
    ) -> Result<Response<wire::ListPodsResponse>, Status> {
        // What is gone is in the list only until the next change of it.
        let there = |handle: &&PodHandle| handle.status.borrow().life != Life::Gone;
        let handles: Vec<PodHandle> = self.pods.borrow().iter().filter(there).cloned().collect();
        let pods = handles.iter().map(|handle| pod(handle, &handle.status.borrow())).collect();
        Ok(Response::new(wire::ListPodsResponse { pods }))
    }

    async fn stop_pod(
        &self,
        request: Request<wire::StopPodRequest>,
    ) -> Result<Response<wire::StopPodResponse>, Status> {
        let wire::StopPodRequest { namespace, name, grace_seconds } = request.into_inner();
        let handle = self.find(&namespace, &name)?;
        let grace = match grace_seconds {
            None => None,
            Some(seconds) => Some(
                u64::try_from(seconds)
                    .ok()
                    .filter(|_| seconds <= MAX_GRACE)
                    .map(Duration::from_secs)
                    .ok_or_else(|| {
                        Status::invalid_argument("grace must be 0 seconds or more, at most ten years")
                    })?,
            ),
        };
        handle.kill(grace, "stopped through the operator API");
        handle.remove();
        let status = handle.wait(|status| status.life == Life::Gone).await;
        Ok(Response::new(wire::StopPodResponse { pod: Some(pod(&handle, &status)) }))
    }

    async fn get_timeline(
        &self,
        request: Request<wire::GetTimelineRequest>,
    ) -> Result<Response<wire::GetTimelineResponse>, Status> {
        let wire::GetTimelineRequest { namespace, name } = request.into_inner();
        let spans = self.find(&namespace, &name)?.status.borrow().spans.clone();
        let spans = spans
            .iter()
            .map(|span| wire::Span {
                name: span.name.clone(),
                start_unix_nanos: span.start,
                end_unix_nanos: span.end,
                container: span.container.clone(),
                detail: span.detail.clone(),
            })
            .collect();
        Ok(Response::new(wire::GetTimelineResponse { spans }))
    }
}

fn pod(handle: &PodHandle, status: &PodStatus) -> wire::Pod {
    wire::Pod {
        namespace: handle.pod.namespace.clone(),
        name: handle.pod.name.clone(),
        uid: handle.pod.uid.to_string(),
        phase: status.phase.as_str().to_owned(),
        status: status.reason.clone(),
        ip: status.ip.clone(),
        started_at_unix_nanos: status.started_at,
        containers: status.containers.iter().map(container).collect(),
        message: status.message.clone(),
    }
}

fn container(status: &ContainerStatus) -> wire::Container {
    let (state, reason, message, exit_code) = match &status.state {
        ContainerState::Waiting { reason, message } => ("waiting", reason.clone(), message.clone(), 0),
        ContainerState::Running { .. } => ("running", String::new(), String::new(), 0),
        ContainerState::Terminated(exit) => {
            ("terminated", exit.reason.clone(), exit.message.clone(), exit.code)
        }
    };
    wire::Container {
        name: status.name.clone(),
        id: status.id.clone(),
        image: status.image.clone(),
        state: state.to_owned(),
        reason,
        message,
        exit_code,
        restart_count: status.restart_count,
        ready: status.ready,
        log_path: status.log_path.clone(),
    }
}

#[cfg(test)]
mod tests;

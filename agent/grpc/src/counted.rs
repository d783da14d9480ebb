//! The way to the runtime, with every call counted: how often, how long, how many failed, by the names
//! upstream gives them. Owns the counting; never changes a call. The clients of CRI speak over it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use gantry_metrics::Metrics;
use http::{Request, Response};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::transport::{self, Channel};
use tower::Service;

use crate::traced;

/// See the module.
#[derive(Debug, Clone)]
pub struct Counted<S = Channel> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> Counted<S> {
    /// Counts what goes over `inner`.
    #[must_use]
    pub fn new(inner: S, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics }
    }
}

/// Upstream's name for a call, by its method.
fn operation(method: &str) -> Option<&'static str> {
    Some(match method {
        "Version" => "version",
        "Status" => "status",
        "CreateContainer" => "create_container",
        "StartContainer" => "start_container",
        "StopContainer" => "stop_container",
        "RemoveContainer" => "remove_container",
        "ListContainers" => "list_containers",
        "ContainerStatus" => "container_status",
        "UpdateContainerResources" => "update_container",
        "ReopenContainerLog" => "reopen_container_log",
        "ExecSync" => "exec_sync",
        "Exec" => "exec",
        "Attach" => "attach",
        "RunPodSandbox" => "run_podsandbox",
        "StopPodSandbox" => "stop_podsandbox",
        "RemovePodSandbox" => "remove_podsandbox",
        "PodSandboxStatus" => "podsandbox_status",
        "ListPodSandbox" => "list_podsandbox",
        "ContainerStats" => "container_stats",
        "ListContainerStats" => "list_container_stats",
        "PodSandboxStats" => "podsandbox_stats",
        "ListPodSandboxStats" => "list_podsandbox_stats",
        "PortForward" => "port_forward",
        "UpdatePodSandboxResources" => "update_podsandbox_resources",
        "UpdateRuntimeConfig" => "update_runtime_config",
        "ListImages" => "list_images",
        "ImageStatus" => "image_status",
        "PullImage" => "pull_image",
        "RemoveImage" => "remove_image",
        "ImageFsInfo" => "image_fs_info",
        "CheckpointContainer" => "checkpoint_container",
        "GetContainerEvents" => "get_container_events",
        "ListMetricDescriptors" => "list_metric_descriptors",
        "ListPodSandboxMetrics" => "list_podsandbox_metrics",
        "RuntimeConfig" => "runtime_config",
        _ => return None,
    })
}

/// A call under way. One whose caller goes away has failed, as one whose context was cancelled.
struct Call {
    metrics: Arc<Metrics>,
    operation: Option<&'static str>,
    begun: Instant,
    failed: bool,
}

impl Call {
    fn record_answer(mut self, failed: bool) {
        self.failed = failed;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(operation) = self.operation else { return };
        self.metrics.runtime_operations.inc([operation]);
        self.metrics.runtime_operations_duration.took([operation], self.begun.elapsed());
        if self.failed {
            self.metrics.runtime_operations_errors.inc([operation]);
        }
    }
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = transport::Error>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let operation = operation(method);
        let (metrics, begun) = (self.metrics.clone(), Instant::now());
        let call = Call { metrics, operation, begun, failed: true };
        let span = traced::start(&mut request);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            traced::end(span, &answer);
            // A call that fails has nothing but headers, and says so in them.
            call.record_answer(match &answer {
                Ok(answer) => answer.headers().get("grpc-status").is_some_and(|status| status != "0"),
                Err(_) => true,
            });
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;
    use tower::service_fn;

    use super::*;

    fn request(method: &str) -> Request<Body> {
        Request::builder().uri(format!("/runtime.v1.RuntimeService/{method}")).body(Body::empty()).unwrap()
    }

    fn counts(metrics: &Metrics, operation: &str) -> (Option<f64>, Option<f64>, u64) {
        (
            metrics.runtime_operations.get([operation]),
            metrics.runtime_operations_errors.get([operation]),
            metrics.runtime_operations_duration.count([operation]),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_by_upstreams_names_and_failures_besides() {
        let metrics = Arc::new(Metrics::default());
        let answer = |request: Request<Body>| async move {
            let mut answer = Response::new(Body::empty());
            if request.uri().path().ends_with("StopContainer") {
                answer.headers_mut().insert("grpc-status", HeaderValue::from_static("2"));
            } else if request.uri().path().ends_with("PullImage") {
                tokio::time::sleep(Duration::from_secs(3600)).await;
            }
            Ok::<_, transport::Error>(answer)
        };
        let mut counted = Counted::new(service_fn(answer), metrics.clone());
        counted.call(request("RunPodSandbox")).await.unwrap();
        counted.call(request("StopContainer")).await.unwrap();
        assert_eq!(counts(&metrics, "run_podsandbox"), (Some(1.0), None, 1));
        assert_eq!(counts(&metrics, "stop_container"), (Some(1.0), Some(1.0), 1));
        let pull = counted.call(request("PullImage"));
        assert_eq!(counts(&metrics, "pull_image"), (None, None, 0), "not before it has ended");
        assert!(tokio::time::timeout(Duration::from_secs(1), pull).await.is_err());
        assert_eq!(counts(&metrics, "pull_image"), (Some(1.0), Some(1.0), 1), "given up");
        counted.call(request("NoSuchMethod")).await.unwrap();
    }
}

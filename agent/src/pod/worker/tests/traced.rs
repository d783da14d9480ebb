//! Spans of a pod's work, against a collector and a runtime on loopback; and collectors that keep nothing up.

use std::collections::BTreeMap;

use gantry_model::cgroup::limits::Rules;
use gantry_proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use gantry_proto::cri::{
    ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    RunPodSandboxRequest, RunPodSandboxResponse,
};
use gantry_proto::otlp::{ExportTraceServiceRequest, Span as SentSpan};
use gantry_trace::context::{SpanContext, TRACEPARENT};
use gantry_trace::endpoint::CollectorEndpoint;
use gantry_trace::export::{self, Exporter};
use gantry_trace::sampler::Sampler;
use gantry_trace::span::Tracer;
use gantry_trace::testing::{self, attributes};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::*;
use crate::runtime::cri::{CriRuntime, NodeConfig, REQUEST_TIMEOUT};

const ALL: u32 = 1_000_000;

fn exporter(address: &str, per_million: u32) -> (Tracer, Exporter) {
    let at = CollectorEndpoint::parse(address).unwrap();
    export::start(&at, Sampler { per_million }, "kubelet", &[])
}

/// What came until the exporter's end.
async fn sent(
    exporter: Exporter,
    received: &mut mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
) -> Vec<SentSpan> {
    assert!(exporter.shutdown(secs(60)).await);
    let mut spans = Vec::new();
    while let Ok(request) = received.try_recv() {
        spans.extend(request.resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans));
    }
    spans
}

/// A runtime that has no room for a sandbox; tells the `traceparent` of who asked.
struct Full(mpsc::UnboundedSender<Option<String>>);

#[tonic::async_trait]
impl RuntimeService for Full {
    async fn list_pod_sandbox(
        &self,
        _: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        Ok(Response::new(ListPodSandboxResponse::default()))
    }
    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        Ok(Response::new(ListContainersResponse::default()))
    }
    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let header = request.metadata().get(TRACEPARENT).map(|value| value.to_str().unwrap().to_owned());
        self.0.send(header).unwrap();
        Err(Status::internal("no room"))
    }
}

async fn full_runtime() -> (CriRuntime, mpsc::UnboundedReceiver<Option<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, headers) = mpsc::unbounded_channel();
    let server = Server::builder().add_service(RuntimeServiceServer::new(Full(sender)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let node = NodeConfig {
        pod_logs_dir: "/var/log/pods".into(),
        memory_capacity: 1 << 30,
        page_sizes: vec![],
        resolver: Arc::default(),
        cgroup_v2: true,
        swap: false,
        limited_swap: None,
        seccomp_default: false,
        seccomp_root: "/var/lib/kubelet/seccomp".into(),
        cluster_domain: "cluster.local".into(),
        rules: Rules::default(),
        request_timeout: REQUEST_TIMEOUT,
    };
    (CriRuntime::new(channel, node, Arc::default()), headers)
}

#[tokio::test]
async fn a_sync_arrives_at_the_collector_with_its_calls_of_the_runtime() {
    let (address, mut received) = testing::collector().await.unwrap();
    let (tracer, exporter) = exporter(&address, ALL);
    let (runtime, mut headers) = full_runtime().await;
    let world = World::new();
    let deps = Deps { runtime: Arc::new(runtime), tracer: Some(tracer), ..world.deps() };
    let (worker, handle) = Worker::new(pod(), deps);
    let work = tokio::spawn(worker.run());
    until(&handle, "refused", |s| s.message.contains("no room")).await;
    work.abort();
    work.await.unwrap_err();
    let header = headers.recv().await.unwrap().unwrap();
    let called = SpanContext::parse(&header).unwrap();

    let spans = sent(exporter, &mut received).await;
    let call = spans.iter().find(|span| span.span_id == called.span_id).unwrap();
    assert_eq!(call.name, "runtime.v1.RuntimeService/RunPodSandbox");
    let sync = spans.iter().find(|span| span.span_id == call.parent_span_id).unwrap();
    assert_eq!((sync.name.as_str(), sync.parent_span_id.len()), ("syncPod", 0));
    assert_eq!(
        attributes(sync),
        BTreeMap::from([
            ("k8s.namespace.name", "default"),
            ("k8s.pod", "default/web"),
            ("k8s.pod.name", "web"),
            ("k8s.pod.uid", "uid-1"),
            ("k8s.pod.update_type", "create"),
        ])
    );
    assert!(sync.status.as_ref().unwrap().message.contains("no room"), "{sync:?}");
    assert!(sync.end_time_unix_nano >= call.end_time_unix_nano);
    assert!(
        spans.iter().all(|span| !span.name.ends_with("/ListContainers")),
        "what is observed is no part of it: {spans:?}"
    );
}

/// A whole life, on the fake runtime.
async fn live(world: &mut World) {
    let handle = world.start(pod());
    until_running(&handle).await;
    handle.kill(Some(secs(1)), "test");
    until(&handle, "over", PodStatus::is_over).await;
    handle.remove();
    until(&handle, "gone", |s| s.life == Life::Gone).await;
}

#[tokio::test]
async fn each_part_of_a_life_has_the_span_of_its_name() {
    let (address, mut received) = testing::collector().await.unwrap();
    let (tracer, exporter) = exporter(&address, ALL);
    let mut world = World { tracer: Some(tracer), ..World::new() };
    live(&mut world).await;
    world.kill_agent().await;
    let spans = sent(exporter, &mut received).await;
    let mut names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    names.dedup();
    assert_eq!(names, ["syncPod", "syncTerminatingPod", "syncTerminatedPod"]);
    let typed = |span: &&SentSpan| attributes(span).contains_key("k8s.pod.update_type");
    assert!(spans.iter().filter(typed).all(|span| span.name == "syncPod"));
}

#[tokio::test]
async fn at_a_rate_of_0_nothing_is_sent() {
    let (address, mut received) = testing::collector().await.unwrap();
    let (tracer, exporter) = exporter(&address, 0);
    let mut world = World { tracer: Some(tracer), ..World::new() };
    live(&mut world).await;
    world.kill_agent().await;
    assert_eq!(sent(exporter, &mut received).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_is_down_or_hangs_holds_up_no_pod() {
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [&hung, &gone].map(|listener| listener.local_addr().unwrap().to_string());
    drop(gone);
    for address in addresses {
        let (tracer, exporter) = exporter(&address, ALL);
        let mut world = World { tracer: Some(tracer), ..World::new() };
        live(&mut world).await;
        // Longer than a batch waits and a request may take.
        tokio::time::sleep(secs(30)).await;
        live(&mut world).await;
        assert_eq!(world.runtime.residue(), 0);
        drop(exporter);
    }
}

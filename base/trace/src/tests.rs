//! Against a collector on loopback: what arrives, what is dropped, and what is never waited for.

use std::time::Duration;

use gantry_proto::otlp::span::SpanKind;
use tokio::net::TcpListener;
use tokio_stream::wrappers::UnixListenerStream;

use crate::context::SpanContext;
use crate::endpoint::CollectorEndpoint;
use crate::export::{self, QUEUE};
use crate::sampler::Sampler;
use crate::testing;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const ALL: Sampler = Sampler { per_million: 1_000_000 };
const NONE: Sampler = Sampler { per_million: 0 };
const LONG: Duration = Duration::from_secs(60);

fn at(address: &str) -> CollectorEndpoint {
    CollectorEndpoint::parse(address).unwrap()
}

#[tokio::test]
async fn shutdown_sends_spans_with_parent_attributes_and_resource() {
    let (address, mut received) = testing::collector().await.unwrap();
    let (tracer, exporter) = export::start(&at(&address), ALL, "kubelet", &[("service.name", "kubelet")]);
    let mut parent = tracer.start("syncPod", SpanKind::Internal, None).unwrap();
    parent.set("k8s.pod", "default/web");
    parent.fail("no room");
    let context = *parent.context();
    drop(tracer.start("runtime.v1.RuntimeService/RunPodSandbox", SpanKind::Client, Some(&context)).unwrap());
    drop(parent);
    assert!(exporter.shutdown(LONG).await);

    let request = received.try_recv().unwrap();
    let [of_resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
    assert_eq!(
        of_resource.resource.as_ref().unwrap().attributes,
        [crate::span::attribute("service.name", "kubelet")]
    );
    let [child, root] = of_resource.scope_spans[0].spans.as_slice() else { panic!("{request:?}") };
    assert_eq!((root.name.as_str(), root.parent_span_id.len()), ("syncPod", 0));
    assert_eq!(root.attributes, [crate::span::attribute("k8s.pod", "default/web")]);
    assert_eq!(root.status.as_ref().unwrap().message, "no room");
    assert!(root.end_time_unix_nano >= root.start_time_unix_nano);
    assert_eq!(child.parent_span_id, root.span_id);
    assert_eq!(child.trace_id, context.trace_id);
    assert_eq!(child.kind(), SpanKind::Client);
}

#[tokio::test]
async fn at_a_rate_of_0_only_a_sampled_parent_has_its_spans_sent() {
    let (address, mut received) = testing::collector().await.unwrap();
    let (tracer, exporter) = export::start(&at(&address), NONE, "kubelet", &[]);
    drop(tracer.start("own", SpanKind::Internal, None).unwrap());
    let unsampled = SpanContext { sampled: false, ..SpanContext::parse(PARENT).unwrap() };
    drop(tracer.start("unsampled", SpanKind::Internal, Some(&unsampled)).unwrap());
    drop(tracer.start("sampled", SpanKind::Internal, SpanContext::parse(PARENT).as_ref()).unwrap());
    assert!(exporter.shutdown(LONG).await);
    let request = received.try_recv().unwrap();
    let names: Vec<_> =
        request.resource_spans[0].scope_spans[0].spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["sampled"]);
}

#[tokio::test]
async fn a_collector_on_a_unix_socket_gets_spans() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("otel.sock");
    let incoming = UnixListenerStream::new(tokio::net::UnixListener::bind(&socket).unwrap());
    let (service, mut received) = testing::service();
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let (tracer, exporter) = export::start(&at(&format!("unix://{}", socket.display())), ALL, "kubelet", &[]);
    drop(tracer.root("syncPod").unwrap());
    assert!(exporter.shutdown(LONG).await);
    let request = received.try_recv().unwrap();
    assert_eq!(request.resource_spans[0].scope_spans[0].spans[0].name, "syncPod");
}

/// On one thread the task gets no turn before the loop's end: the queue is all there is.
#[tokio::test]
async fn a_full_queue_drops_and_counts() {
    let (address, mut received) = testing::collector().await.unwrap();
    let (tracer, exporter) = export::start(&at(&address), ALL, "kubelet", &[]);
    for _ in 0..QUEUE + 3 {
        drop(tracer.start("many", SpanKind::Internal, None).unwrap());
    }
    assert_eq!(tracer.dropped(), 3);
    assert!(exporter.shutdown(LONG).await);
    let mut sizes = Vec::new();
    while let Ok(request) = received.try_recv() {
        sizes.push(request.resource_spans[0].scope_spans[0].spans.len());
    }
    assert_eq!(sizes, [512; 4]);
}

/// A listener that accepts and says nothing: the bound ends the wait, not the collector.
#[tokio::test(start_paused = true)]
async fn a_collector_that_hangs_holds_up_a_shutdown_no_longer_than_its_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tracer, exporter) = export::start(&at(&address), ALL, "kubelet", &[]);
    drop(tracer.start("lost", SpanKind::Internal, None).unwrap());
    assert!(!exporter.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test]
async fn a_collector_that_is_down_loses_spans_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (tracer, exporter) = export::start(&at(&address), ALL, "kubelet", &[]);
    drop(tracer.start("lost", SpanKind::Internal, None).unwrap());
    assert!(exporter.shutdown(LONG).await);
}

#[test]
fn traceparent_is_read_as_go_reads_it() {
    let context = SpanContext::parse(PARENT).unwrap();
    assert!(context.sampled);
    assert_eq!(context.traceparent(), PARENT);
    let with = |from: &str, to: &str| SpanContext::parse(&PARENT.replacen(from, to, 1));
    assert!(!with("31-01", "31-00").unwrap().sampled);
    assert!(with("00-0a", "01-0a").is_some());
    assert!(SpanContext::parse(&format!("01{}-more", &PARENT[2..])).is_some());
    for wrong in [
        with("00-0a", "ff-0a"),
        with("0af7", "0AF7"),
        with("0af7", "0af"),
        with("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
        with("b7ad6b7169203331", &"0".repeat(16)),
        with("31-01", "31-03"),
        with("31-01", "31-01-more"),
        with("31-01", "31-0"),
        with("31-01", "31-é"),
        SpanContext::parse(""),
    ] {
        assert_eq!(wrong, None);
    }
}

#[test]
fn the_rate_splits_trace_ids_by_their_low_63_bits() {
    let half = Sampler { per_million: 500_000 };
    let id = |low: u64| {
        let mut id = [0xff; 16];
        id[8..].copy_from_slice(&low.to_be_bytes());
        id
    };
    assert!(half.samples(None, &id((1 << 63) - 1)));
    assert!(!half.samples(None, &id(1 << 63)));
    assert!(ALL.samples(None, &id(u64::MAX)));
    assert!(!NONE.samples(None, &id(0)));
}

/// A collector that takes the connection and says nothing.
#[tokio::test(start_paused = true)]
async fn the_last_spans_hold_up_the_end_of_a_process_for_a_moment_at_most() {
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = hung.local_addr().unwrap().to_string();
    let (tracer, exporter) = export::start(&at(&address), ALL, "kubelet", &[]);
    drop(tracer.root("syncPod"));
    assert!(tokio::time::timeout(Duration::from_secs(4), exporter.end()).await.is_ok());
}

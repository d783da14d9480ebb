//! What a collector of OpenTelemetry is sent of a pod's calls.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::otlp::Span;
use gantry_tests::node::Node;
use gantry_tests::pod::Pod;
use gantry_trace::testing;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_start_of_a_sandbox_is_a_span_with_its_stages_below() -> Result<()> {
    let tokio = tokio::runtime::Runtime::new()?;
    let (collector, mut received) = tokio.block_on(testing::collector())?;
    let mut node = Node::start()?;
    let before = node.snapshot()?;
    let rate = "--tracing-sampling-rate-per-million=1000000".to_owned();
    node.restart_with(&[format!("--tracing-endpoint={collector}"), rate])?;
    Pod::run(&node, "traced")?.remove()?;

    let is_whole = |spans: &[Span]| spans.iter().any(|span| span.name.ends_with("/RemovePodSandbox"));
    let spans = tokio.block_on(async {
        let mut spans = Vec::new();
        let receive = async {
            while !is_whole(&spans) {
                let Some(request) = received.recv().await else { break };
                let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
                spans.extend(scopes.flat_map(|scope| scope.spans));
            }
        };
        tokio::time::timeout(PATIENCE, receive).await.map(|()| spans)
    });
    let spans = spans.context("the spans of a pod's calls")?;
    let of = |name: &str| spans.iter().find(|span| span.name == format!("runtime.v1.RuntimeService/{name}"));
    let run = of("RunPodSandbox").context("no span of RunPodSandbox")?;
    let stages: BTreeSet<&str> = spans
        .iter()
        .filter(|span| span.parent_span_id == run.span_id && span.trace_id == run.trace_id)
        .map(|span| span.name.as_str())
        .collect();
    assert!(["netns", "cni", "pause"].iter().all(|stage| stages.contains(stage)), "{stages:?}");
    let stop = of("StopPodSandbox").context("no span of StopPodSandbox")?;
    assert_ne!(stop.trace_id, run.trace_id, "a call of no trace begins one");
    node.assert_clean(&before)
}

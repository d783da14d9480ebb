//! Spans as OpenTelemetry's protocol has them: an `ExportTraceServiceRequest` in its JSON form (OTLP 1.x, "JSON Protobuf
//! Encoding"). Owns the mapping; never sends anything. Called by the command line.

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::chart::Kind;
use super::{Span, as_tree};

/// `SPAN_KIND_INTERNAL`.
const INTERNAL: u32 = 1;
/// `STATUS_CODE_ERROR`.
const ERROR: u32 = 2;

/// One trace: the pod's start, in it each stage, in that the stages within it. The same start has the same IDs each time,
/// so that a second export adds nothing. A stage that goes on ends at `now` (Unix nanoseconds) and has the attribute
/// `gantry.open`.
#[must_use]
pub fn request(namespace: &str, pod: &str, version: &str, spans: &[Span], now: i64) -> Value {
    let start = spans.iter().map(|span| span.start).min().unwrap_or(now);
    let end_of = |span: &Span| if span.end == 0 { now.max(span.start) } else { span.end.max(span.start) };
    let seed = format!("{namespace}/{pod}/{start}");
    let trace = id(&seed, 16);
    let root = id(&format!("{seed}/root"), 8);
    let ready = spans.iter().find(|span| span.name == "ready").map(end_of);
    let end = ready.or_else(|| spans.iter().map(end_of).max()).unwrap_or(now);
    let mut list = vec![json!({
        "traceId": trace,
        "spanId": root,
        "name": "pod start",
        "kind": INTERNAL,
        "startTimeUnixNano": start.to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": [flag("gantry.ready", ready.is_some())],
    })];
    let mut outer = root.clone();
    for (index, (span, inner)) in as_tree(spans).into_iter().enumerate() {
        let own = id(&format!("{seed}/{index}/{}/{}", span.container, span.name), 8);
        let parent = if inner { &outer } else { &root };
        list.push(one(span, &trace, &own, parent, end_of(span)));
        if !inner {
            outer = own;
        }
    }
    let resource = [text("service.name", "gantry"), text("service.version", version)];
    let of_pod = [("k8s.namespace.name", namespace), ("k8s.pod.name", pod)];
    let of_pod = of_pod.iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| text(key, value));
    let resource: Vec<Value> = resource.into_iter().chain(of_pod).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "gantry.timeline", "version": version }, "spans": list }],
    }] })
}

fn one(span: &Span, trace: &str, own: &str, parent: &str, end: i64) -> Value {
    let mut attributes = vec![text("gantry.stage", Kind::of(&span.name).word())];
    let rest = [("k8s.container.name", &span.container), ("gantry.detail", &span.detail)];
    attributes
        .extend(rest.iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| text(key, value)));
    if span.end == 0 {
        attributes.push(flag("gantry.open", true));
    }
    let mut told = json!({
        "traceId": trace,
        "spanId": own,
        "parentSpanId": parent,
        "name": span.label(),
        "kind": INTERNAL,
        "startTimeUnixNano": span.start.to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": attributes,
    });
    if span.name.ends_with(".failed") {
        told["status"] = json!({ "code": ERROR, "message": span.detail });
    }
    told
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn flag(key: &str, value: bool) -> Value {
    json!({ "key": key, "value": { "boolValue": value } })
}

/// The first bytes of a digest, in hexadecimal.
fn id(seed: &str, bytes: usize) -> String {
    digest(&SHA256, seed.as_bytes()).as_ref().iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &str, container: &str, start: i64, end: i64) -> Span {
        Span { name: name.into(), container: container.into(), start, end, detail: String::new() }
    }

    fn spans_of(request: &Value) -> Vec<Value> {
        request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
    }

    #[test]
    fn stages_are_spans_within_the_pods_start() {
        let failed = Span { detail: "no such image".into(), ..span("image.failed", "web", 5, 9) };
        let all = [
            span("sandbox", "", 10, 20),
            span("sandbox.cni", "", 12, 15),
            span("image", "web", 11, 0),
            failed,
            span("ready", "", 40, 40),
        ];
        let request = request("shop", "web", "0.1.0", &all, 99);
        let resource = request["resourceSpans"][0]["resource"]["attributes"].as_array().unwrap().clone();
        assert!(
            resource.contains(&text("k8s.pod.name", "web"))
                && resource.contains(&text("service.name", "gantry"))
        );
        let spans = spans_of(&request);
        let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
        let root = named("pod start");
        assert_eq!((&root["startTimeUnixNano"], &root["endTimeUnixNano"]), (&json!("5"), &json!("40")));
        assert_eq!(root["traceId"].as_str().unwrap().len(), 32);
        assert_eq!(root["spanId"].as_str().unwrap().len(), 16);
        assert!(root.get("parentSpanId").is_none());
        assert_eq!(named("sandbox")["parentSpanId"], root["spanId"]);
        assert_eq!(named("sandbox.cni")["parentSpanId"], named("sandbox")["spanId"]);
        let open = named("[web] image");
        assert_eq!(open["endTimeUnixNano"], "99");
        let going_on = json!({ "key": "gantry.open", "value": { "boolValue": true } });
        assert!(open["attributes"].as_array().unwrap().contains(&going_on));
        let failed = named("[web] image.failed");
        assert_eq!(failed["status"], json!({ "code": ERROR, "message": "no such image" }));
        let mut ids: Vec<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all.len() + 1);
    }

    #[test]
    fn the_same_start_has_the_same_ids_and_another_has_others() {
        let at = |start| request("shop", "web", "0.1.0", &[span("sandbox", "", start, start + 1)], 99);
        assert_eq!(at(1), at(1));
        assert_ne!(spans_of(&at(1))[0]["traceId"], spans_of(&at(2))[0]["traceId"]);
        let none = request("shop", "web", "0.1.0", &[], 99);
        assert_eq!(spans_of(&none).len(), 1);
    }
}

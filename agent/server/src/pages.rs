//! `/flagz`, `/statusz`, `/debug/…`: pages for people. Owns their form, as upstream's z-pages, text or
//! JSON by the Accept header; never anything else. Called by [`super::serve`].

use axum::body::{Body, to_bytes};
use gantry_metrics::process;
use http::header::ACCEPT;
use http::{HeaderMap, Method, Request, StatusCode};
use serde_json::json;

use super::answer::{self, Answer};
use super::deps::ServerDeps;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting \
                       compatibility guarantees and is for debugging purposes only.";

/// What a client takes: a version of the structured form, or text.
enum Form {
    Text,
    Json(&'static str),
    Neither,
}

fn form(headers: &HeaderMap, kind: &str) -> Form {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accept.trim().is_empty() {
        return Form::Text;
    }
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<&str> = parts.collect();
        if matches!(media, "text/plain" | "text/*" | "*/*") {
            return Form::Text;
        }
        let asks = |version: &str| {
            parameters.contains(&format!("v={version}").as_str())
                && parameters.contains(&"g=config.k8s.io")
                && parameters.contains(&format!("as={kind}").as_str())
        };
        if media == "application/json" {
            for version in ["v1beta1", "v1alpha1"] {
                if asks(version) {
                    return Form::Json(version);
                }
            }
        }
    }
    Form::Neither
}

fn not_acceptable() -> Answer {
    let text = "only the following media types are accepted: text/plain, \
                application/json;g=config.k8s.io;v=v1beta1\n";
    answer::error(StatusCode::NOT_ACCEPTABLE, text)
}

/// The flags in force.
pub(super) fn flagz(sources: &ServerDeps, headers: &HeaderMap) -> Answer {
    match form(headers, "Flagz") {
        Form::Neither => not_acceptable(),
        Form::Json(version) => {
            let flags: serde_json::Map<_, _> =
                sources.flagz.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            answer::json(&json!({
                "kind": "Flagz", "apiVersion": format!("config.k8s.io/{version}"),
                "metadata": { "name": "kubelet" }, "flags": flags,
            }))
        }
        Form::Text => {
            let lines: String =
                sources.flagz.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            answer::text(StatusCode::OK, format!("\nkubelet flagz\n{WARNING}\n\n{lines}"))
        }
    }
}

const PATHS: &[&str] = &[
    "/configz",
    "/debug/flags/v",
    "/flagz",
    "/healthz",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/metrics/resource",
    "/metrics/slis",
];

/// What runs here, and since when.
pub(super) fn statusz(sources: &ServerDeps, headers: &HeaderMap) -> Answer {
    let now = jiff::Timestamp::now();
    let started = process::read().map_or(now, |process| {
        let nanos = std::time::Duration::try_from_secs_f64(process.start_time).unwrap_or_default();
        jiff::Timestamp::UNIX_EPOCH.checked_add(nanos).unwrap_or(now)
    });
    let up = now.as_second().saturating_sub(started.as_second()).max(0);
    let started = format!("{started:.0}");
    // Upstream's own number, without the rest.
    let version = sources.version.trim_start_matches('v').split(['+', '-']).next().unwrap_or_default();
    match form(headers, "Statusz") {
        Form::Neither => not_acceptable(),
        Form::Json(form) => answer::json(&json!({
            "kind": "Statusz", "apiVersion": format!("config.k8s.io/{form}"), "metadata": { "name": "kubelet" },
            "startTime": started, "uptimeSeconds": up, "goVersion": "", "binaryVersion": version,
            "emulationVersion": version, "paths": PATHS,
        })),
        Form::Text => {
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            let paths = PATHS.join(" ");
            answer::text(
                StatusCode::OK,
                format!(
                    "\nkubelet statusz\n{WARNING}\n\nStarted: {started}\nUp: {hours} hr {minutes:02} min \
                     {seconds:02} sec\nBinary version: {version}\nEmulation version: {version}\n\
                     Paths: {paths}\n"
                ),
            )
        }
    }
}

/// Profiles are those of a Go program: there are none here, and that is said, not imitated.
pub(super) fn pprof(name: &str) -> Answer {
    match name {
        "cmdline" => {
            let words: Vec<String> =
                std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
            answer::error(StatusCode::OK, words.join("\0"))
        }
        _ => {
            let text = "this node is no Go program and has no pprof profiles: attach perf to its process\n";
            answer::error(StatusCode::NOT_IMPLEMENTED, text)
        }
    }
}

/// Sets how much is logged.
pub(super) async fn verbosity(sources: &ServerDeps, request: Request<Body>) -> Answer {
    if request.method() != Method::PUT {
        return answer::error(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
    }
    let Ok(body) = to_bytes(request.into_body(), 64).await else {
        return answer::error(StatusCode::BAD_REQUEST, "error reading request body: too long\n");
    };
    let text = String::from_utf8_lossy(&body).trim().to_owned();
    let set =
        text.parse::<u8>().map_err(|error| error.to_string()).and_then(|level| (sources.verbosity)(level));
    match set {
        Ok(()) => answer::text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {text}")),
        Err(why) => {
            let text = format!("failed set klog.logging.verbosity {text}: {why}\n");
            answer::error(StatusCode::BAD_REQUEST, text)
        }
    }
}

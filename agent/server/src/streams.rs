//! `/exec`, `/attach`, `/portForward` and `/run`. Owns what is asked of the runtime for them and
//! upstream's refusals; the bytes go through [`super::proxy`]. Called by [`super::serve`].

use axum::body::Body;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use tonic::{Code, Status};

use super::answer::{self, Answer};
use super::context::ServerContext;
use super::cri::{Cri, StreamRequest, said};
use super::route::ContainerRef;
use super::{proxy, query};

/// A runtime that has too many streams waiting forgets the oldest after so long.
const RETRY: HeaderValue = HeaderValue::from_static("60");

/// As upstream forms a streaming runtime's refusal.
fn refusal_answer(status: &Status) -> Answer {
    let code = match status.code() {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut answer = answer::text(code, said(status));
    if code == StatusCode::TOO_MANY_REQUESTS {
        answer.headers_mut().insert(RETRY_AFTER, RETRY);
    }
    answer
}

fn failure_answer(text: String) -> Answer {
    answer::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn no_pod() -> Answer {
    answer::text(StatusCode::NOT_FOUND, "pod does not exist")
}

/// Which streams, or why it is no request at all.
fn parse_stream_request(pairs: &[(String, String)]) -> Result<StreamRequest, String> {
    let on = |key| query::first(pairs, key) == Some("1");
    let (stdin, stdout, tty) = (on("input"), on("output"), on("tty"));
    // A terminal has one output only.
    let stderr = on("error") && !tty;
    match stdin || stdout || stderr {
        true => Ok(StreamRequest { stdin, stdout, stderr, tty }),
        false => Err("you must specify at least 1 of stdin, stdout, stderr".to_owned()),
    }
}

fn bad(text: String) -> Answer {
    answer::text(StatusCode::BAD_REQUEST, text)
}

fn pairs_of(request: &Request<Body>) -> Vec<(String, String)> {
    query::pairs(request.uri().query().unwrap_or_default())
}

/// Passes the stream on to where the runtime serves it. `subresource` is the metric's word.
pub(super) async fn pass_on(
    inner: &ServerContext,
    subresource: &'static str,
    url: Result<String, Status>,
    request: Request<Body>,
) -> Answer {
    let url = match url {
        Ok(url) => url,
        Err(status) => return refusal_answer(&status),
    };
    if inner.settings.web_sockets && proxy::is_new_web_socket(request.headers(), subresource) {
        inner.sources.metrics.websocket_streaming_requests.inc([subresource]);
    }
    proxy::upgrade(&url, request, inner.settings.stream_idle).await
}

/// Runs a command with streams.
pub(super) async fn exec(inner: &ServerContext, target: &ContainerRef, request: Request<Body>) -> Answer {
    let pairs = pairs_of(&request);
    let wanted = match parse_stream_request(&pairs) {
        Ok(wanted) => wanted,
        Err(text) => return bad(text),
    };
    let ContainerRef { namespace, pod, container, .. } = target;
    if inner.sources.pods.find(namespace, pod).is_none() {
        return no_pod();
    }
    let cri = Cri::new(&inner.sources.runtime, &inner.sources.metrics);
    let id = match cri.running(namespace, pod, container).await {
        Ok(Some(id)) => id,
        Ok(None) => return failure_answer(format!("container not found ({container:?})")),
        Err(status) => return refusal_answer(&status),
    };
    let command = query::all(&pairs, "command").map(str::to_owned).collect();
    pass_on(inner, "exec", cri.exec(id, command, wanted).await, request).await
}

fn has_tty(pod: &Pod, name: &str) -> Option<bool> {
    let spec = pod.spec.as_ref()?;
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| (&c.name, c.tty));
    let others =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|c| (&c.name, c.tty));
    others.chain(ephemeral).find(|(found, _)| *found == name).map(|(_, tty)| tty == Some(true))
}

/// Joins the streams of what runs already.
pub(super) async fn attach(inner: &ServerContext, target: &ContainerRef, request: Request<Body>) -> Answer {
    let wanted = match parse_stream_request(&pairs_of(&request)) {
        Ok(wanted) => wanted,
        Err(text) => return bad(text),
    };
    let ContainerRef { namespace, pod: name, uid, container } = target;
    let Some(pod) = inner.sources.pods.find(namespace, name) else { return no_pod() };
    let full_name = format!("{name}_{namespace}");
    let cri = Cri::new(&inner.sources.runtime, &inner.sources.metrics);
    let id = match cri.running(namespace, name, container).await {
        Ok(Some(id)) => id,
        Ok(None) => return failure_answer(format!("container {container} not found in pod {full_name}")),
        Err(status) => return refusal_answer(&status),
    };
    if !uid.is_empty() && pod.metadata.uid.as_deref() != Some(&inner.sources.pods.translate(uid)) {
        return failure_answer(format!("pod {full_name} not found"));
    }
    // Whether it has a terminal was settled when it was created.
    let Some(tty) = has_tty(&pod, container) else {
        return failure_answer(format!("container {container} not found in pod {full_name}"));
    };
    pass_on(inner, "attach", cri.attach(id, StreamRequest { tty, ..wanted }).await, request).await
}

/// Ports over WebSocket are in the query; over SPDY each stream names its own.
fn ports(pairs: &[(String, String)], request: &Request<Body>) -> Result<Vec<i32>, String> {
    // A tunnel through a WebSocket is SPDY inside: whether that can be had is the runtime's to say.
    if !proxy::is_web_socket(request.headers()) || proxy::is_tunnel(request.headers()) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for value in query::all(pairs, "port") {
        for port in value.split(',') {
            let number: u16 =
                port.parse().map_err(|_| format!("unable to parse {port:?} as a port: invalid syntax"))?;
            if number == 0 {
                return Err(format!("port {port:?} must be > 0"));
            }
            found.push(i32::from(number));
        }
    }
    match found.is_empty() {
        true => Err("query parameter \"port\" is required".to_owned()),
        false => Ok(found),
    }
}

/// Connects to ports inside a pod.
pub(super) async fn port_forward(
    inner: &ServerContext,
    target: &ContainerRef,
    request: Request<Body>,
) -> Answer {
    let ports = match ports(&pairs_of(&request), &request) {
        Ok(ports) => ports,
        Err(text) => return bad(text),
    };
    let ContainerRef { namespace, pod: name, uid, .. } = target;
    let Some(pod) = inner.sources.pods.find(namespace, name) else { return no_pod() };
    let has = pod.metadata.uid.clone().unwrap_or_default();
    if !uid.is_empty() && has != *uid {
        return answer::text(StatusCode::NOT_FOUND, "pod not found");
    }
    let cri = Cri::new(&inner.sources.runtime, &inner.sources.metrics);
    let sandbox = match cri.sandbox(&inner.sources.pods.translate(&has)).await {
        Ok(Some(id)) => id,
        Ok(None) => return failure_answer(format!("pod not found (\"{name}_{namespace}\")")),
        Err(status) => return refusal_answer(&status),
    };
    pass_on(inner, "portforward", cri.port_forward(sandbox, ports).await, request).await
}

/// Runs a command and answers with what it said.
pub(super) async fn run(inner: &ServerContext, target: &ContainerRef, asked: &str) -> Answer {
    let ContainerRef { namespace, pod, container, .. } = target;
    if inner.sources.pods.find(namespace, pod).is_none() {
        return no_pod();
    }
    let cri = Cri::new(&inner.sources.runtime, &inner.sources.metrics);
    let id = match cri.running(namespace, pod, container).await {
        Ok(Some(id)) => id,
        Ok(None) => return failure_answer(format!("container not found ({container:?})")),
        Err(status) => return failure_answer(said(&status)),
    };
    let pairs = query::pairs(asked);
    let command = query::first(&pairs, "cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    match cri.run(id, command).await {
        Ok((output, 0)) => answer::of_type(StatusCode::OK, "application/json", output),
        Ok((output, code)) => {
            let said = String::from_utf8_lossy(&output);
            failure_answer(format!("command terminated with exit code {code}: {said}"))
        }
        Err(status) => failure_answer(said(&status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Vec<(String, String)> {
        query::pairs(query)
    }

    #[test]
    fn a_terminal_has_no_stderr_of_its_own() {
        let all = parse_stream_request(&of("input=1&output=1&error=1&tty=1")).unwrap();
        assert_eq!(all, StreamRequest { stdin: true, stdout: true, stderr: false, tty: true });
        assert_eq!(
            parse_stream_request(&of("error=1&tty=1&output=true")).unwrap_err(),
            "you must specify at least 1 of stdin, stdout, stderr"
        );
        assert!(parse_stream_request(&of("error=1")).unwrap().stderr);
    }

    #[test]
    fn ports_are_in_the_query_of_a_web_socket_only() {
        let spdy = Request::new(Body::empty());
        let mut socket = Request::new(Body::empty());
        socket.headers_mut().insert("connection", HeaderValue::from_static("Upgrade"));
        socket.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
        assert_eq!(ports(&of(""), &spdy).unwrap(), [0; 0]);
        let mut tunnel = Request::new(Body::empty());
        *tunnel.headers_mut() = socket.headers().clone();
        let protocol = HeaderValue::from_static("SPDY/3.1+portforward.k8s.io");
        tunnel.headers_mut().insert("sec-websocket-protocol", protocol);
        assert_eq!(ports(&of(""), &tunnel).unwrap(), [0; 0]);
        assert_eq!(ports(&of("port=80,8080&port=9"), &socket).unwrap(), [80, 8080, 9]);
        for bad in ["", "port=0", "port=x", "port=65536"] {
            assert!(ports(&of(bad), &socket).is_err(), "{bad}");
        }
    }
}

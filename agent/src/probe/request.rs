//! From a handler as written to what is sent, and from an answer to a verdict. Pure: owns default
//! headers, named ports and the wording of verdicts; never sends anything. Called by the worker's
//! probe and hook effects.

use gantry_model::pod::Container;
use gantry_model::pod::probe::{HttpGet, PortRef};

use super::{HttpError, HttpRequest, HttpResponse, ProbeResult};

/// The version of Kubernetes whose kubelet we are.
const VERSION: &str = "1.36";

/// The request of a probe (`purpose` "probe") or of a hook ("lifecycle").
///
/// # Errors
/// When a port's name is none of the container's.
pub fn http(
    get: &HttpGet,
    container: &Container,
    pod_ip: &str,
    purpose: &str,
) -> Result<HttpRequest, String> {
    let mut headers = get.headers.clone();
    let has = |name: &str| get.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !has("User-Agent") {
        headers.push(("User-Agent".to_owned(), format!("kube-{purpose}/{VERSION}")));
    }
    if !has("Accept") {
        headers.push(("Accept".to_owned(), "*/*".to_owned()));
    }
    let host = if get.host.is_empty() { pod_ip } else { &get.host };
    Ok(HttpRequest {
        host: host.to_owned(),
        port: port(&get.port, container)?,
        path: get.path.clone(),
        tls: get.tls,
        headers,
    })
}

/// A port's number.
///
/// # Errors
/// When its name is none of the container's.
pub fn port(port: &PortRef, container: &Container) -> Result<u16, String> {
    match port {
        PortRef::Number(number) => Ok(*number),
        PortRef::Name(name) => {
            let named = container.ports.iter().find(|port| port.name == *name).map(|port| port.port);
            named.or_else(|| name.parse().ok()).ok_or_else(|| format!("port {name} not found"))
        }
    }
}

/// What an answer means to a probe.
#[must_use]
pub fn verdict(answer: Result<HttpResponse, HttpError>) -> ProbeResult {
    match answer {
        Ok(HttpResponse { status: 200..300, body }) => ProbeResult::Success(body),
        Ok(HttpResponse { status: 300..400, body }) => {
            ProbeResult::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        // The page itself is not for everybody's eyes.
        Ok(HttpResponse { status, .. }) => {
            ProbeResult::Failure(format!("HTTP probe failed with statuscode: {status}"))
        }
        Err(HttpError::NoAnswer(text) | HttpError::NotTls(text)) => ProbeResult::Failure(text),
        Err(HttpError::Body(text) | HttpError::Request(text)) => ProbeResult::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Port;

    use super::*;
    use crate::pod::tests::container;

    fn web() -> Container {
        let http = Port {
            name: "http".into(),
            port: 8080,
            protocol: "TCP".into(),
            host_port: 0,
            host_ip: String::new(),
        };
        Container { ports: vec![http], ..container("web") }
    }

    fn get(headers: &[(&str, &str)]) -> HttpGet {
        HttpGet {
            host: String::new(),
            port: PortRef::Name("http".into()),
            path: "/healthz".into(),
            tls: false,
            headers: headers.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        }
    }

    #[test]
    fn headers_ports_and_host_are_filled_in() {
        let request = http(&get(&[]), &web(), "10.0.0.7", "probe").unwrap();
        assert_eq!((request.host.as_str(), request.port), ("10.0.0.7", 8080));
        assert!(request.headers.contains(&("User-Agent".into(), "kube-probe/1.36".into())));
        let request = http(&get(&[("user-agent", "me")]), &web(), "10.0.0.7", "probe").unwrap();
        assert_eq!(
            request.headers,
            [("user-agent", "me"), ("Accept", "*/*")].map(|(k, v)| (k.into(), v.into()))
        );
        let bad = HttpGet { port: PortRef::Name("nope".into()), ..get(&[]) };
        assert_eq!(http(&bad, &web(), "10.0.0.7", "probe").unwrap_err(), "port nope not found");
        assert_eq!(port(&PortRef::Name("81".into()), &web()), Ok(81));
    }

    #[test]
    fn answers_become_verdicts() {
        let answer = |status| verdict(Ok(HttpResponse { status, body: "secret".into() }));
        assert_eq!(answer(204), ProbeResult::Success("secret".into()));
        assert!(matches!(answer(302), ProbeResult::Warning(_)));
        assert_eq!(answer(500), ProbeResult::Failure("HTTP probe failed with statuscode: 500".into()));
        assert_eq!(answer(101), ProbeResult::Failure("HTTP probe failed with statuscode: 101".into()));
        let broken = verdict(Err(HttpError::Body("eof".into())));
        assert_eq!(broken, ProbeResult::Unknown("eof".into()));
    }
}

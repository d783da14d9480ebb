//! What the kubelet writes on a container for its next life, by name and byte for byte as upstream:
//! a kubelet that takes the node over, or back, reads hooks, ports and grace of pods that nobody
//! describes any more from there. Pure. Called by [`super::container_config`].

use std::collections::BTreeMap;

use gantry_model::go_json;
use gantry_model::pod::probe::{Handler, HttpGet, PortRef};
use gantry_model::pod::{Container, Pod, Port};
use serde::Serialize;

use super::observe;

const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";

/// `io.kubernetes.pod.deletionGracePeriod` is not among them: that is a pod's that is to go, and for
/// such a pod no container is made, here as upstream.
pub(super) fn of(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let words = &container.termination_message;
    let policy = if words.fallback_to_logs { "FallbackToLogsOnError" } else { "File" };
    let mut list = BTreeMap::from([
        (observe::HASH.to_owned(), container.hash.clone()),
        ("io.kubernetes.container.restartCount".to_owned(), attempt.to_string()),
        (observe::WORDS.to_owned(), words.path.clone()),
        ("io.kubernetes.container.terminationMessagePolicy".to_owned(), policy.to_owned()),
        ("io.kubernetes.pod.terminationGracePeriod".to_owned(), pod.grace.as_secs().to_string()),
    ]);
    if let Some(hook) = container.lifecycle.pre_stop.as_ref().and_then(Hook::of) {
        list.extend(json(&hook).map(|text| (PRE_STOP.to_owned(), text)));
    }
    if !container.ports.is_empty() {
        let ports: Vec<ContainerPort<'_>> = container.ports.iter().map(ContainerPort::of).collect();
        list.extend(json(&ports).map(|text| (PORTS.to_owned(), text)));
    }
    list
}

fn json(value: &impl Serialize) -> Option<String> {
    match go_json::text(value) {
        Ok(text) => Some(text),
        Err(error) => {
            tracing::error!(%error, "an annotation is left out");
            None
        }
    }
}

/// The order of the fields is Go's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Hook<'a> {
    Exec {
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        command: &'a [String],
    },
    HttpGet {
        #[serde(skip_serializing_if = "str::is_empty")]
        path: &'a str,
        port: Number<'a>,
        #[serde(skip_serializing_if = "str::is_empty")]
        host: &'a str,
        scheme: &'a str,
        #[serde(rename = "httpHeaders", skip_serializing_if = "Vec::is_empty")]
        headers: Vec<Header<'a>>,
    },
    TcpSocket {
        port: Number<'a>,
        #[serde(skip_serializing_if = "str::is_empty")]
        host: &'a str,
    },
    Sleep {
        seconds: u64,
    },
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Number<'a> {
    Of(u16),
    Named(&'a str),
}

impl<'a> Number<'a> {
    fn of(port: &'a PortRef) -> Self {
        match port {
            PortRef::Number(number) => Self::Of(*number),
            PortRef::Name(name) => Self::Named(name),
        }
    }
}

impl<'a> Hook<'a> {
    fn of(handler: &'a Handler) -> Option<Self> {
        Some(match handler {
            Handler::Exec { command } => Self::Exec { command },
            Handler::HttpGet(HttpGet { host, port, path, tls, headers }) => Self::HttpGet {
                path,
                port: Number::of(port),
                host,
                scheme: if *tls { "HTTPS" } else { "HTTP" },
                headers: headers.iter().map(|(name, value)| Header { name, value }).collect(),
            },
            Handler::Tcp { host, port } => Self::TcpSocket { port: Number::of(port), host },
            Handler::Sleep(time) => Self::Sleep { seconds: time.as_secs() },
            // Of probes only.
            Handler::Grpc { .. } => return None,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "is_none")]
    host_port: u16,
    container_port: u16,
    protocol: &'a str,
    #[serde(rename = "hostIP", skip_serializing_if = "str::is_empty")]
    host_ip: &'a str,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none(port: &u16) -> bool {
    *port == 0
}

impl<'a> ContainerPort<'a> {
    fn of(port: &'a Port) -> Self {
        let Port { name, port, protocol, host_port, host_ip } = port;
        Self { name, host_port: *host_port, container_port: *port, protocol, host_ip }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_model::pod::probe::Lifecycle;

    use super::*;
    use crate::pod::tests::{container, pod};

    fn http(tls: bool, headers: Vec<(String, String)>) -> Handler {
        let (host, port, path) = ("10.0.0.1".into(), PortRef::Name("web".into()), "/end?a=1&b=<2>".into());
        Handler::HttpGet(HttpGet { host, port, path, tls, headers })
    }

    /// What `json.Marshal` of Go makes of each handler in k8s.io/api v0.36.3.
    #[test]
    fn a_pre_stop_hook_is_written_as_go_writes_it() {
        let (none, number) = (String::new(), PortRef::Number(80));
        for (handler, text) in [
            (
                Handler::Exec { command: vec!["sh".into(), "-c".into(), "a && b > \"c\"".into()] },
                r#"{"exec":{"command":["sh","-c","a \u0026\u0026 b \u003e \"c\""]}}"#,
            ),
            (Handler::Exec { command: vec![] }, r#"{"exec":{}}"#),
            (
                http(true, vec![("X-A".into(), "1".into()), ("X-B".into(), none.clone())]),
                r#"{"httpGet":{"path":"/end?a=1\u0026b=\u003c2\u003e","port":"web","host":"10.0.0.1","scheme":"HTTPS","httpHeaders":[{"name":"X-A","value":"1"},{"name":"X-B","value":""}]}}"#,
            ),
            (
                http(false, vec![]),
                r#"{"httpGet":{"path":"/end?a=1\u0026b=\u003c2\u003e","port":"web","host":"10.0.0.1","scheme":"HTTP"}}"#,
            ),
            (Handler::Tcp { host: none, port: number }, r#"{"tcpSocket":{"port":80}}"#),
            (Handler::Sleep(Duration::from_secs(5)), r#"{"sleep":{"seconds":5}}"#),
        ] {
            let lifecycle = Lifecycle { pre_stop: Some(handler), ..Lifecycle::default() };
            let list = of(&pod(), &Container { lifecycle, ..container("web") }, 0);
            assert_eq!(list.get(PRE_STOP).map(String::as_str), Some(text));
        }
    }

    #[test]
    fn a_container_has_upstreams_annotations_and_no_others() {
        let port = |name: &str, host_port, host_ip: &str| Port {
            name: name.into(),
            port: 80,
            protocol: "UDP".into(),
            host_port,
            host_ip: host_ip.into(),
        };
        let ports = vec![port("dns", 53, "::1"), port("", 0, "")];
        let pod = Pod { grace: Duration::from_secs(7), ..pod() };
        let list = of(&pod, &Container { ports, ..container("web") }, 3);
        let written: Vec<(&str, &str)> = list.iter().map(|(key, value)| (&**key, &**value)).collect();
        let ports = r#"[{"name":"dns","hostPort":53,"containerPort":80,"protocol":"UDP","hostIP":"::1"},{"containerPort":80,"protocol":"UDP"}]"#;
        assert_eq!(
            written,
            [
                ("io.kubernetes.container.hash", "abc"),
                ("io.kubernetes.container.ports", ports),
                ("io.kubernetes.container.restartCount", "3"),
                ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
                ("io.kubernetes.container.terminationMessagePolicy", "File"),
                ("io.kubernetes.pod.terminationGracePeriod", "7"),
            ]
        );
    }
}

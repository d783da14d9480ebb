//! What is looked at to explain a pod: its status, the ends of its logs, and whether something
//! answers at the ports and registries it depends on. Owns the looking; never judges.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_model::pod::Pod;
use gantry_model::pod::probe::{Handler, PortRef};
use tokio::net::TcpStream;

use crate::logs::follow::LogReader;
use crate::pod::status::PodStatus;
use crate::runtime_ext::pulls::Pulls;
use crate::volumes::VolumeWait;

/// For one connection: what listens on the same machine answers at once.
const PATIENCE: Duration = Duration::from_millis(500);
/// Of a log.
const LINES: usize = 5;
const LINE_CHARS: usize = 200;

/// What is known of a pod at one moment.
#[derive(Debug, Clone)]
pub(crate) struct ExplainInputs<'a> {
    /// As described.
    pub pod: &'a Pod,
    /// As it is.
    pub status: &'a PodStatus,
    /// The last lines of each container's newest log.
    pub lines: BTreeMap<String, Vec<String>>,
    /// Ports of probes, by container: whether something accepts connections there.
    pub listening: BTreeMap<(String, u16), bool>,
    /// Registries of images that cannot be pulled: what came of a connection.
    pub registries: BTreeMap<String, Result<(), String>>,
    /// How far the pulls of images have come, by image; of those that are known.
    pub pulls: BTreeMap<String, String>,
    /// Volumes of drivers and servers that are not there yet.
    pub waits: Vec<VolumeWait>,
    /// Unix nanoseconds.
    pub now: i64,
}

/// Looks at everything that the pod's state makes worth looking at.
pub(crate) async fn look<'a>(
    pod: &'a Pod,
    status: &'a PodStatus,
    pulls: Option<&Pulls>,
    waits: Vec<VolumeWait>,
    now: i64,
) -> ExplainInputs<'a> {
    let mut facts = ExplainInputs {
        pod,
        status,
        lines: BTreeMap::new(),
        listening: BTreeMap::new(),
        registries: BTreeMap::new(),
        pulls: BTreeMap::new(),
        waits,
        now,
    };
    for container in status.all_containers() {
        if !container.log_path.is_empty() {
            facts.lines.insert(container.name.clone(), last_lines(&container.log_path).await);
        }
        if let Some(progress) = pulls.and_then(|pulls| pulls.progress(&container.image)) {
            facts.pulls.insert(container.image.clone(), progress.words());
        }
        let Some(spec) = pod.container(&container.name) else { continue };
        if container.id.is_empty()
            && let Some(host) = registry_of(&container.image)
            && !facts.registries.contains_key(&host)
        {
            let answer = connect(&host).await;
            facts.registries.insert(host, answer);
        }
        if container.ready || status.ip.is_empty() {
            continue;
        }
        let probes = [&spec.probes.startup, &spec.probes.liveness, &spec.probes.readiness];
        for probe in probes.into_iter().flatten() {
            let Some(port) = port_of(&probe.handler, spec) else { continue };
            let answers = connect(&format!("{}:{port}", bracket_ipv6(&status.ip))).await.is_ok();
            facts.listening.insert((container.name.clone(), port), answers);
        }
    }
    facts
}

/// A log that cannot be read has no lines: the explanation goes on without them.
async fn last_lines(path: &str) -> Vec<String> {
    let mut reader = LogReader::new(Path::new(path));
    let mut tail: Vec<String> = Vec::new();
    loop {
        match reader.next().await {
            Ok(lines) if lines.is_empty() => return tail,
            Ok(lines) => {
                tail.extend(lines.iter().map(|line| {
                    let text = String::from_utf8_lossy(&line.text);
                    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LINE_CHARS).collect()
                }));
                let surplus = tail.len().saturating_sub(LINES);
                tail.drain(..surplus);
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "no log to explain with");
                return tail;
            }
        }
    }
}

/// `host:port` of the registry that an image's name means.
pub(super) fn registry_of(image: &str) -> Option<String> {
    let full = gantry_model::names::parse_image(image)?.full;
    // A first part that could not be a host name is the name of an image at Docker's.
    let named = full.split_once('/').map(|(first, _)| first);
    let host =
        named.filter(|first| first.contains(['.', ':']) || *first == "localhost").unwrap_or("docker.io");
    if host.contains(':') {
        return Some(host.to_owned());
    }
    let local = host == "localhost" || host.starts_with("127.");
    let host = if host == "docker.io" { "registry-1.docker.io" } else { host };
    Some(format!("{host}:{}", if local { 80 } else { 443 }))
}

fn port_of(handler: &Handler, container: &gantry_model::pod::Container) -> Option<u16> {
    let by_ref = |port: &PortRef| match port {
        PortRef::Number(number) => Some(*number),
        PortRef::Name(name) => container.ports.iter().find(|p| p.name == *name).map(|p| p.port),
    };
    match handler {
        Handler::HttpGet(get) if get.host.is_empty() => by_ref(&get.port),
        Handler::Tcp { host, port } if host.is_empty() => by_ref(port),
        Handler::Grpc { port, .. } => Some(*port),
        Handler::HttpGet(_) | Handler::Tcp { .. } | Handler::Exec { .. } | Handler::Sleep(_) => None,
    }
}

fn bracket_ipv6(ip: &str) -> String {
    if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() }
}

async fn connect(address: &str) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_by_name() {
        for (image, host) in [
            ("nginx", "registry-1.docker.io:443"),
            ("127.0.0.1:5000/web:v1", "127.0.0.1:5000"),
            ("localhost/web", "localhost:80"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io:443"),
        ] {
            assert_eq!(registry_of(image).as_deref(), Some(host), "{image}");
        }
        assert_eq!(registry_of("UPPER/case"), None);
    }
}

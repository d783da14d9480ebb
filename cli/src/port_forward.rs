//! `gantry port-forward`: ports of a pod on this machine. Owns the listening and what is said of it;
//! the copying is [`crate::remote`]'s. Called by main.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gantry_proto::cri::{
    ListPodSandboxRequest, PodSandboxFilter, PodSandboxState, PodSandboxStateValue, PortForwardRequest,
};
use gantry_proto::operator::ListPodsRequest;
use gantry_proto::operator::operator_client::OperatorClient;
use serde_json::Value;
use tokio::net::TcpListener;
use tonic::transport::Channel;

use crate::args::{PortForwardArgs, PortPair, Remote};
use crate::{client, output, remote, runtime_client};

const POD_UID: &str = "io.kubernetes.pod.uid";

/// Until Ctrl-C, or until the runtime hangs up.
pub(crate) async fn port_forward(args: PortForwardArgs) -> Result<ExitCode> {
    let PortForwardArgs { pod: flags, ports, address } = args;
    let mut operator = client::dial(&flags.agent.agent_socket).await?;
    let pod = client::find_pod(&mut operator, &flags).await?;
    let named = ports.iter().any(|pair| matches!(pair.remote, Remote::Name(_)));
    let spec = if named { spec_of(&mut operator, &pod.uid).await? } else { Value::Null };
    let ports =
        ports.into_iter().map(|pair| resolve_ports(pair, &pod.name, &spec)).collect::<Result<Vec<_>>>()?;
    if pod.phase != "Running" {
        bail!("unable to forward port because pod is not running. Current status={}", pod.phase);
    }
    let channel = runtime_client::dial_agent(&flags.agent.agent_socket).await?;
    let ask = PortForwardRequest {
        pod_sandbox_id: sandbox_of(channel.clone(), &pod.uid).await?,
        port: ports.iter().map(|(_, remote)| i32::from(*remote)).collect(),
    };
    let url = runtime_client::answer(runtime_client::runtime(channel).port_forward(ask).await)?.url;
    let mut listeners = Vec::new();
    for (local, remote) in ports {
        listeners.extend(listen(local, remote, &address).await?);
    }
    let name = flags.target()?.to_string();
    let failed = move |message: String| {
        output::say(&format!("error: {}", failure(&name, &output::one_line(&message))));
    };
    remote::port_forward(&url, listeners, failed).await?;
    Ok(ExitCode::SUCCESS)
}

/// What the pod's file says of it.
async fn spec_of(operator: &mut OperatorClient<Channel>, uid: &str) -> Result<Value> {
    let list = client::answer(operator.list_pods(ListPodsRequest { objects: true }).await)?.pods;
    let pod = list.iter().find(|pod| pod.uid == uid).context("the pod has just ended")?;
    Ok(client::object(pod)?["spec"].take())
}

/// The port here and the one there, as numbers.
fn resolve_ports(pair: PortPair, pod: &str, spec: &Value) -> Result<(u16, u16)> {
    let remote = match pair.remote {
        Remote::Number(number) => number,
        Remote::Name(name) => find_named_port(&name, spec).with_context(|| no_such_port(pod, &name, spec))?,
    };
    Ok((pair.local.unwrap_or(remote), remote))
}

/// Of the first container that has one; sidecars have ports, too.
fn find_named_port(name: &str, spec: &Value) -> Option<u16> {
    let (_, port) = named_ports(spec).find(|(own, _)| *own == name)?;
    port
}

fn no_such_port(pod: &str, name: &str, spec: &Value) -> String {
    let known: Vec<&str> = named_ports(spec).map(|(own, _)| own).collect();
    let has = if known.is_empty() { "none: give its number".to_owned() } else { known.join(", ") };
    format!("Pod '{pod}' does not have a named port '{name}'; it has {has}")
}

fn named_ports(spec: &Value) -> impl Iterator<Item = (&str, Option<u16>)> {
    let containers = ["containers", "initContainers"].into_iter().filter_map(|key| spec[key].as_array());
    let ports = containers.flatten().filter_map(|container| container["ports"].as_array()).flatten();
    let number = |port: &Value| port["containerPort"].as_u64().and_then(|port| u16::try_from(port).ok());
    ports.filter_map(move |port| Some((port["name"].as_str()?, number(port))))
}

/// What the runtime says in upstream's words, without its IDs and its network namespace.
fn failure(pod: &str, message: &str) -> String {
    let told = message.strip_prefix("error forwarding port ").and_then(|rest| {
        let (port, rest) = rest.split_once(" to pod ")?;
        let (_, place) = rest.split_once(" in network namespace \"")?;
        let (_, why) = place.split_once("\": ")?;
        let inside = why.split_once(" inside namespace \"").and_then(|(_, rest)| rest.split_once("\", "));
        let why = inside.map_or(why, |(_, why)| why);
        Some(format!("port {port} of pod {pod}: {why}"))
    });
    told.unwrap_or_else(|| message.to_owned())
}

/// The one that is up now.
async fn sandbox_of(channel: Channel, uid: &str) -> Result<String> {
    let ready = PodSandboxStateValue { state: i32::from(PodSandboxState::SandboxReady) };
    let filter = PodSandboxFilter {
        label_selector: [(POD_UID.to_owned(), uid.to_owned())].into(),
        state: Some(ready),
        ..PodSandboxFilter::default()
    };
    let ask = ListPodSandboxRequest { filter: Some(filter) };
    let list = runtime_client::answer(runtime_client::runtime(channel).list_pod_sandbox(ask).await)?.items;
    let newest = list.into_iter().max_by_key(|sandbox| sandbox.created_at);
    newest.map(|sandbox| sandbox.id).context("the pod has no sandbox that is ready")
}

/// Listens for one port. Of localhost a family that this machine does not have is left out.
async fn listen(mut local: u16, remote: u16, addresses: &[IpAddr]) -> Result<Vec<(TcpListener, u16)>> {
    let localhost = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let (addresses, either) = if addresses.is_empty() { (&localhost[..], true) } else { (addresses, false) };
    let mut listeners = Vec::new();
    for address in addresses {
        match TcpListener::bind((*address, local)).await {
            Ok(listener) => {
                let bound = listener.local_addr().context("ask for the address that was bound")?;
                output::print(format!("Forwarding from {bound} -> {remote}\n").as_bytes())?;
                // The other family of the same localhost has the same port.
                local = if either { bound.port() } else { local };
                listeners.push((listener, remote));
            }
            Err(error) if either && has_no_such_address(&error) => {}
            Err(error) => bail!("listen on port {local} of {address}: {error}"),
        }
    }
    if listeners.is_empty() {
        bail!("this machine's localhost has no address to listen on: name one with --address");
    }
    Ok(listeners)
}

fn has_no_such_address(error: &std::io::Error) -> bool {
    let family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_closed_is_told_of_the_pod_by_its_name() {
        let message = "error forwarding port 99 to pod 848c, uid : failed to execute portforward in network \
                       namespace \"/run/netns/cni-1\": failed to connect to localhost:99 inside namespace \
                       \"848c\", IPv4: dial tcp4 127.0.0.1:99: connect: connection refused";
        assert_eq!(
            failure("default/web", message),
            "port 99 of pod default/web: IPv4: dial tcp4 127.0.0.1:99: connect: connection refused"
        );
        assert_eq!(failure("default/web", "the connection is gone"), "the connection is gone");
    }

    #[test]
    fn a_port_has_the_name_that_a_container_gives_it() {
        let spec = serde_json::json!({
            "initContainers": [{ "name": "side", "ports": [{ "name": "metrics", "containerPort": 9090 }] }],
            "containers": [
                { "name": "a" },
                { "name": "b", "ports": [{ "containerPort": 1 }, { "name": "http", "containerPort": 8080 }] },
            ],
        });
        let pair = |local, name: &str| PortPair { local, remote: Remote::Name(name.to_owned()) };
        let port = |pair| resolve_ports(pair, "web", &spec).map_err(|error| error.to_string());
        assert_eq!(port(pair(None, "http")), Ok((8080, 8080)));
        assert_eq!(port(pair(Some(0), "metrics")), Ok((0, 9090)));
        assert_eq!(port(PortPair { local: None, remote: Remote::Number(80) }), Ok((80, 80)));
        let error = "Pod 'web' does not have a named port 'https'; it has http, metrics";
        assert_eq!(port(pair(Some(1), "https")), Err(error.to_owned()));
        assert!(no_such_port("web", "x", &Value::Null).ends_with("it has none: give its number"));
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named_and_any_free_one_is_the_same_for_both_families() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local = taken.local_addr().unwrap().port();
        let error = listen(local, 80, &[]).await.unwrap_err().to_string();
        assert!(error.contains(&format!("port {local} of 127.0.0.1")), "{error}");
        let free = listen(0, 80, &[]).await.unwrap();
        let ports: Vec<u16> = free.iter().map(|(l, _)| l.local_addr().unwrap().port()).collect();
        let first = *ports.first().unwrap();
        assert!(first != 0 && ports.iter().all(|port| *port == first), "{ports:?}");
    }
}

//! Rows of this machine: whether it can be a node of that cluster. Pure. Called by [`super`].

use gantry_agent::runtime::cri::driver::Driver;
use gantry_model::version;

use super::cluster::endpoints;
use super::warn_mended;
use crate::doctor::join::api::{Api, KubeletFile, ReadFailure};
use crate::doctor::join::node::{Holder, JoinNode, Kubeadm, Port};
use crate::doctor::join::way::NetworkRoute;
use crate::doctor::judge::{fail, ok, warn};
use crate::doctor::look::CniNetwork;
use crate::doctor::{Check, judge};
use crate::join::facts::release;

/// A kubelet may be older than the API server by so many minor releases.
const OLDER: u32 = 3;

pub(super) fn checks(node: &JoinNode, api: &Api, way: Option<&NetworkRoute>) -> Vec<Check> {
    let mut checks = vec![check_joined(node), name(node, api)];
    checks.extend(way.and_then(|way| address(node, way)));
    checks.push(proxy(node, api));
    checks.push(ports(&node.ports));
    checks.push(kubeadm(&node.kubeadm, api));
    if !node.missing.is_empty() {
        let remedy = "apt-get install mount util-linux coreutils";
        checks.push(fail(
            "kubeadm's programs",
            format!("no {} in PATH", node.missing.join(", ")),
            remedy.to_owned(),
        ));
    }
    checks.extend([kubelet(node, api), runtime(node)]);
    let file = api.kubelet();
    checks.extend(node.runtime.as_ref().ok().map(|told| driver(*told, node, file)));
    checks.push(version_of_cgroups(node, file));
    checks.extend(file.and_then(|file| root_of_cgroups(node, file)));
    checks.extend([swap(node, file), network(node), forwarding(node, api)]);
    checks
}

fn check_joined(node: &JoinNode) -> Check {
    if node.joined.is_empty() {
        return ok("joined before", "no".to_owned());
    }
    let files: Vec<String> = node.joined.iter().map(|path| path.display().to_string()).collect();
    let remedy = "it is a node already: `gantry leave`, or `kubeadm reset`, comes first";
    fail("joined before", format!("{} there", files.join(", ")), remedy.to_owned())
}

/// As RFC 1123 has them; the kubelet makes them lower case.
fn is_node_name(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn name(node: &JoinNode, api: &Api) -> Check {
    let name = &node.name;
    let other = "hostnamectl set-hostname NAME, or give kubeadm and `gantry join` --node-name NAME";
    if !is_node_name(name) {
        let seen = format!("{name:?} is no name of a node: letters, digits, dots and dashes are");
        return fail("node name", seen, other.to_owned());
    }
    match api.member.as_ref().map(|member| &member.twin) {
        Some(Ok(Some(true))) => {
            fail("node name", format!("the cluster has a Ready node {name}"), other.to_owned())
        }
        Some(Ok(Some(false))) => warn(
            "node name",
            format!("the cluster has a node {name} that is not Ready"),
            format!("it is taken over; if it is another machine's: {other}"),
        ),
        Some(Ok(None)) => ok("node name", format!("{name}, new to the cluster")),
        Some(Err(ReadFailure::Other(error))) => {
            ok("node name", format!("{name}; the cluster was not asked: {error}"))
        }
        Some(Err(_)) | None => {
            ok("node name", format!("{name}; whether the cluster has it, a token would show"))
        }
    }
}

/// With several links (Vagrant's first is its own) the kubelet takes the address of the default route.
fn address(node: &JoinNode, way: &NetworkRoute) -> Option<Check> {
    let source = way.source.filter(|source| !source.is_loopback())?;
    let given = node.node_ip.as_deref().and_then(|text| text.parse().ok());
    let taken = given.or(node.outward);
    if taken == Some(source) {
        return Some(ok("node address", source.to_string()));
    }
    let taken = taken.map_or_else(|| "none".to_owned(), |ip| ip.to_string());
    Some(warn_mended(
        "node address",
        format!("the kubelet would take {taken}, and the API server is reached from {source}"),
        &format!("KUBELET_EXTRA_ARGS=--node-ip={source} in /etc/default/kubelet"),
    ))
}

fn proxy(node: &JoinNode, api: &Api) -> Check {
    let mut caught: Vec<String> = endpoints(api)
        .into_iter()
        .filter(|at| node.proxies.take(&at.host, at.port))
        .map(|at| at.host.clone())
        .collect();
    let cluster = api.member.as_ref().and_then(|member| member.cluster.as_ref().ok());
    let subnets = cluster.map(|file| [&file.networking.pod_subnet, &file.networking.service_subnet]);
    for subnet in subnets.into_iter().flatten().flat_map(|subnets| subnets.split(',')) {
        let first = subnet.trim().parse::<ipnet::IpNet>().ok().and_then(|network| network.hosts().next());
        if first.is_some_and(|first| node.proxies.take(&first.to_string(), 443)) {
            caught.push(subnet.trim().to_owned());
        }
    }
    if caught.is_empty() {
        let words =
            if node.proxies.https.is_empty() { "none" } else { "HTTPS_PROXY leaves the cluster alone" };
        return ok("proxy", words.to_owned());
    }
    let all: Vec<&str> = caught
        .iter()
        .map(String::as_str)
        .chain(Some(node.proxies.no.as_str()).filter(|no| !no.is_empty()))
        .collect();
    warn(
        "proxy",
        format!("HTTPS_PROXY takes what goes to {}", caught.join(", ")),
        format!("kubeadm would ask the proxy for the cluster: export NO_PROXY={}", all.join(",")),
    )
}

fn ports(ports: &[Port]) -> Check {
    if let Some(error) = ports.iter().find_map(|port| match &port.holder {
        Holder::Unknown(error) => Some(error),
        _ => None,
    }) {
        let remedy = "they are read from /proc/self/net/tcp: mount /proc of this pid namespace";
        return warn("ports", format!("who listens is not known: {error}"), remedy.to_owned());
    }
    let taken: Vec<(String, bool)> =
        ports.iter().filter_map(|port| Some((held(port)?, port.vital))).collect();
    if taken.is_empty() {
        let numbers: Vec<String> = ports.iter().map(|port| port.number.to_string()).collect();
        return ok("ports", format!("{} free", numbers.join(", ")));
    }
    let vital = taken.iter().any(|(_, vital)| *vital);
    let seen: Vec<String> = taken.into_iter().map(|(text, _)| text).collect();
    let remedy =
        "end who listens there (another kubelet: systemctl stop kubelet; a node already: `gantry leave`)";
    if vital {
        fail("ports", seen.join("; "), remedy.to_owned())
    } else {
        warn("ports", seen.join("; "), remedy.to_owned())
    }
}

fn held(port: &Port) -> Option<String> {
    let who = match &port.holder {
        Holder::Nobody | Holder::Unknown(_) => return None,
        Holder::Process(name, pid) => format!("held by {name} ({pid})"),
        Holder::Hidden => "held, by whom only root sees".to_owned(),
    };
    Some(format!("{} ({}) is {who}", port.number, port.purpose))
}

fn kubeadm(kubeadm: &Kubeadm, api: &Api) -> Check {
    let server = api.release();
    let wanted = server
        .map_or_else(|| "of the cluster's release".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    let text = match kubeadm {
        Kubeadm::Absent => {
            let remedy = format!(
                "install kubeadm {wanted} (Kubernetes: Installing kubeadm); its kubelet is not needed"
            );
            return fail("kubeadm", "not in PATH".to_owned(), remedy);
        }
        Kubeadm::Broken(path, error) => {
            let seen = format!("{} does not tell its version: {error}", path.display());
            return fail("kubeadm", seen, format!("install it anew, {wanted}"));
        }
        Kubeadm::Version(text) => text,
    };
    let (Some(own), Some(server)) = (release(text), server) else {
        return ok("kubeadm", format!("{text}; the cluster's release is not known"));
    };
    let seen = format!("{text}, and the cluster is {}.{}", server.0, server.1);
    let remedy = format!("install kubeadm {wanted}");
    // Its own release, and the one before.
    if own.0 != server.0 || !matches!(own.1.checked_sub(server.1), Some(0 | 1)) {
        return fail("kubeadm", seen, remedy);
    }
    ok("kubeadm", seen)
}

fn kubelet(node: &JoinNode, api: &Api) -> Check {
    let path = match &node.kubelet {
        None => {
            let remedy =
                "Gantry's package brings one, and `ln -s /usr/lib/gantry/gantry /usr/bin/kubelet` makes one";
            return fail("kubelet", "not in PATH".to_owned(), remedy.to_owned());
        }
        Some((path, false)) => return ok("kubelet", format!("{}, which is not Gantry's", path.display())),
        Some((path, true)) => path.display(),
    };
    let (Some(server), Some(own)) = (api.release(), release(version::KUBELET)) else {
        return ok("kubelet", format!("{path} is {}; the cluster's release is not known", version::KUBELET));
    };
    let seen = format!("{path} is {}, and the API server is {}.{}", version::KUBELET, server.0, server.1);
    if own > server {
        let remedy = "a kubelet must not be newer: upgrade the control plane first, or run upstream's kubelet of its release \
                      on Gantry's runtime";
        return fail("kubelet", seen, remedy.to_owned());
    }
    if own.0 < server.0 || own.1 + OLDER < server.1 {
        let remedy = "a kubelet more than three releases behind its API server is not supported: a newer Gantry is needed";
        return warn("kubelet", seen, remedy.to_owned());
    }
    ok("kubelet", seen)
}

fn runtime(node: &JoinNode) -> Check {
    match &node.runtime {
        Ok(_) => ok("runtime", format!("answers at {}", node.endpoint)),
        Err(error) => fail(
            "runtime",
            format!("none answers at {}: {error}", node.endpoint),
            "systemctl enable --now gantry, and see `journalctl -u gantry`".to_owned(),
        ),
    }
}

fn driver(runtime: Option<Driver>, node: &JoinNode, file: Option<&KubeletFile>) -> Check {
    let wanted = file.map(|file| file.cgroup_driver.as_deref().unwrap_or(Driver::Cgroupfs.name()));
    if runtime == Some(Driver::Systemd) && !node.systemd {
        let remedy = "without systemd as the init only cgroupfs works: systemd_cgroup = false in /etc/gantry/runtime.toml";
        return fail(
            "cgroup driver",
            "the runtime's is systemd, which does not run here".to_owned(),
            remedy.to_owned(),
        );
    }
    match (runtime, wanted) {
        (Some(runtime), Some(wanted)) if runtime.name() != wanted => warn_mended(
            "cgroup driver",
            format!("the runtime's is {}, and kubelet-config says {wanted}", runtime.name()),
            "a kubelet goes by the runtime's; to have the cluster's, set systemd_cgroup in /etc/gantry/runtime.toml",
        ),
        (Some(runtime), _) => ok("cgroup driver", runtime.name().to_owned()),
        (None, wanted) => warn(
            "cgroup driver",
            "the runtime does not tell".to_owned(),
            format!("it must be the kubelet's: {}", wanted.unwrap_or("see the ConfigMap kubelet-config")),
        ),
    }
}

fn version_of_cgroups(node: &JoinNode, file: Option<&KubeletFile>) -> Check {
    if node.unified {
        return ok("cgroup version", "v2".to_owned());
    }
    if file.is_some_and(|file| file.fail_cgroup_v1 == Some(false)) {
        return ok("cgroup version", "v1, which kubelet-config allows".to_owned());
    }
    warn_mended(
        "cgroup version",
        "v1, on which a kubelet does not start".to_owned(),
        "boot with systemd.unified_cgroup_hierarchy=1, or failCgroupV1: false by `kubeadm join --patches` and \
         --ignore-preflight-errors=SystemVerification",
    )
}

/// kind's kubelets stand below /kubelet, which no other machine has.
fn root_of_cgroups(node: &JoinNode, file: &KubeletFile) -> Option<Check> {
    let wanted = file.cgroup_root.as_deref().filter(|root| !matches!(*root, "" | "/"))?;
    if node.root_of_cgroups {
        return Some(ok("cgroup root", wanted.to_owned()));
    }
    Some(warn_mended(
        "cgroup root",
        format!("kubelet-config says {wanted}, which is not there"),
        "kubeadm join --patches DIR, with `cgroupRoot: /` in DIR/kubeletconfiguration0+merge.yaml",
    ))
}

fn swap(node: &JoinNode, file: Option<&KubeletFile>) -> Check {
    if node.swaps == 0 {
        return ok("swap", "off".to_owned());
    }
    let seen = format!("{} in use", node.swaps);
    if file.is_some_and(|file| file.fail_swap_on == Some(false)) {
        return ok("swap", format!("{seen}, which kubelet-config allows"));
    }
    let by_hand = "swapoff -a, and out of /etc/fstab; or failSwapOn: false by `kubeadm join --patches`";
    warn_mended("swap", format!("{seen}, with which a kubelet does not start"), by_hand)
}

fn network(node: &JoinNode) -> Check {
    match &node.network {
        CniNetwork::None(folder) => {
            ok("network", format!("none in {}: the cluster's own comes with its first pod", folder.display()))
        }
        CniNetwork::List { name, origin, missing } if missing.is_empty() && node.joined.is_empty() => warn(
            "network",
            format!("{name} from {origin} was there before the cluster's"),
            "the first by name is used: remove it if it is not this cluster's (`kubeadm reset` leaves them)"
                .to_owned(),
        ),
        other => judge::network(other),
    }
}

fn forwarding(node: &JoinNode, api: &Api) -> Check {
    let v6 = api.server.as_ref().is_ok_and(|server| server.address.is_ipv6());
    let (name, value) = match v6 {
        true => ("net.ipv6.conf.default.forwarding", node.forwards_v6),
        false => ("net.ipv4.ip_forward", node.forwards_v4),
    };
    match value {
        Some(true) => ok("forwarding", format!("{name} is on")),
        Some(false) => warn_mended("forwarding", format!("{name} is off"), &format!("sysctl -w {name}=1")),
        None => warn("forwarding", format!("{name} cannot be read"), "pods need it to be 1".to_owned()),
    }
}

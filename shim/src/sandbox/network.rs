//! A sandbox's network: namespace and CNI, in a blocking thread each. Owns the order; the plugins do
//! the work. Called by `sandbox::run` and `sandbox::stop`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_cni::CniResult;
use gantry_cni::chain::{self, Attachment, Conflist};

use crate::error::Error;
use crate::node::Node;
use crate::store::record::{Network, SandboxRecord};
use crate::timeline::{Recorder, Span};

/// Interface name inside the pod, as every CRI runtime uses.
pub(crate) const IFNAME: &str = "eth0";

/// The network configuration for a new sandbox: read anew each time, because it comes and goes with
/// the network add-on.
pub(crate) fn conflist(node: &Node) -> Result<Conflist, Error> {
    let conflist = match Conflist::load(&node.config.cni_conf_dir).map_err(Error::Conflist)? {
        Some(conflist) => conflist,
        None if node.config.default_network => Conflist::default_network(),
        None => return Err(Error::NoNetwork(node.config.cni_conf_dir.clone())),
    };
    // Before anything is made: what ADD would refuse, DEL could not undo either.
    chain::check(&conflist, &node.cni_dirs()).map_err(Error::Network)?;
    Ok(conflist)
}

/// What the plugins learn about the pod, as containerd and CRI-O pass it.
pub(super) fn args(record: &SandboxRecord) -> Vec<(String, String)> {
    [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &record.pod.namespace),
        ("K8S_POD_NAME", &record.pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", &record.id),
        ("K8S_POD_UID", &record.pod.uid),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Where the sandbox's namespace will be.
pub(super) fn netns_path(node: &Node, id: &str) -> PathBuf {
    node.config.netns_dir.join(format!("cni-{}", id.get(..32).unwrap_or(id)))
}

/// Makes the namespace at `path`.
pub(super) async fn make_netns(path: PathBuf) -> Result<(), Error> {
    let job = move || {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        gantry_cni::netns::create(path.parent().unwrap_or(Path::new("/")), &name).map(drop)
    };
    tokio::task::spawn_blocking(job).await?.map_err(Error::Netns)
}

/// Runs ADD for every plugin.
pub(super) async fn add(
    node: &Arc<Node>,
    id: &str,
    network: Network,
    spans: Recorder,
) -> Result<CniResult, Error> {
    let (node, id) = (node.clone(), id.to_owned());
    let job = move || {
        let mut on_plugin = |kind: &str, start: i64, end: i64| {
            spans.add(Span { name: format!("cni.{kind}"), start, end, detail: String::new() });
        };
        let attachment =
            Attachment { container_id: &id, netns: &network.netns, ifname: IFNAME, args: network.args };
        let mut stage = spans.stage("cni");
        let result = chain::add(&network.conflist, &attachment, &node.cni_dirs(), &mut on_plugin);
        if let Ok(result) = &result {
            stage.detail(addresses(result).join(" "));
        }
        result
    };
    tokio::task::spawn_blocking(job).await?.map_err(Error::Network)
}

/// DEL with the conflist of ADD, then the namespace. Idempotent; the namespace goes even when a
/// plugin fails, and the plugin's error is kept.
pub(crate) async fn remove(node: &Arc<Node>, id: &str, network: Network) -> Result<(), Error> {
    let (node, id) = (node.clone(), id.to_owned());
    let job = move || {
        let attachment =
            Attachment { container_id: &id, netns: &network.netns, ifname: IFNAME, args: network.args };
        let deleted = chain::del(&network.conflist, &attachment, &node.cni_dirs()).map_err(Error::Network);
        let removed = gantry_cni::netns::remove(&network.netns).map_err(Error::Netns);
        deleted.and(removed)
    };
    tokio::task::spawn_blocking(job).await?
}

/// Addresses of the pod, IPv4 and IPv6 in the plugins' order, without prefix length.
#[must_use]
pub(crate) fn addresses(result: &CniResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.addr().to_string()).collect()
}

/// Removes the bridge of the configured network if neither an address nor a port of it is in use.
pub(super) fn remove_idle(node: &Node) -> Result<(), Error> {
    chain::remove_idle(&conflist(node)?, &node.cni_dirs()).map(drop).map_err(Error::Network)
}

//! A sandbox's network: namespace and CNI, in a blocking thread each. Owns the order; the plugins do
//! the work. Called by `sandbox::run` and `sandbox::stop`, for the node's status, and once at a start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_cni::CniResult;
use gantry_cni::chain::{self, Attachment, CachedAttachment, Conflist, ValidAttachment};
use gantry_failpoint::failpoint;

use crate::config::IFNAME;
use crate::error::Error;
use crate::node::Node;
use crate::sandbox::pod_arguments;
use crate::spec::sandbox::SandboxSpec;
use crate::status::addresses;
use crate::store::record::{NetworkRecord, Process, SandboxRecord};
use gantry_base::timeline::{Recorder, Span};

/// The network configuration for a new sandbox: read anew each time, because it comes and goes with
/// the network add-on.
fn conflist(node: &Node) -> Result<Conflist, Error> {
    match Conflist::load(&node.config.cni_conf_dir).map_err(Error::Conflist)? {
        Some(conflist) => Ok(conflist),
        None if node.config.default_network => Ok(Conflist::default_network()),
        None => Err(Error::NoNetwork(node.config.cni_conf_dir.clone())),
    }
}

/// The network of a new sandbox, before anything of it is made.
pub(super) fn plan(node: &Node, record: &SandboxRecord, spec: &SandboxSpec) -> Result<NetworkRecord, Error> {
    let network = NetworkRecord {
        netns: netns_path(node, &record.id),
        conflist: conflist(node)?,
        args: pod_arguments::args(&record.id, &record.pod),
        capabilities: pod_arguments::capabilities(spec)?,
        external: node.config.prefer_external_cni,
        result: None,
    };
    // What ADD would refuse, DEL could not undo either.
    chain::validate(&network.conflist, &node.cni_dirs(network.external)).map_err(Error::Network)?;
    for capability in ["portMappings", "bandwidth"] {
        if network.capabilities.contains_key(capability) && !network.conflist.has_capability(capability) {
            // As elsewhere: some networks read such wishes from the API instead.
            tracing::warn!(
                sandbox = record.id,
                network = network.conflist.name(),
                capability,
                "no plugin of the network takes what the pod asks for"
            );
        }
    }
    Ok(network)
}

/// Whether the node's network can take another sandbox; the text says what is in the way, even when
/// the network as such works.
pub(crate) async fn status(node: &Arc<Node>) -> (bool, String) {
    let node = node.clone();
    let job = move || {
        let list = conflist(&node)?;
        match chain::status(&list, &node.cni_dirs(node.config.prefer_external_cni)) {
            // The pods that are there are well. A node that is not Ready would lose them.
            Err(error) if error.is_exhausted() => Ok(gantry_base::error::chain(&error)),
            Err(error) => Err(Error::Network(error)),
            Ok(()) => Ok(String::new()),
        }
    };
    match tokio::task::spawn_blocking(job).await.map_err(Error::from).and_then(|outcome| outcome) {
        Ok(message) => (true, message),
        Err(error) => (false, gantry_base::error::chain(&error)),
    }
}

/// Where the sandbox's namespace will be.
fn netns_path(node: &Node, id: &str) -> PathBuf {
    node.config.netns_dir.join(format!("cni-{}", id.get(..32).unwrap_or(id)))
}

/// Makes the namespace at `path`, or puts that of `holder` there.
pub(super) async fn make_netns(path: PathBuf, holder: Option<Process>) -> Result<(), Error> {
    let job = move || {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = path.parent().unwrap_or(Path::new("/"));
        match holder {
            None => gantry_cni::netns::create(folder, &name).map(drop),
            Some(holder) => gantry_cni::netns::bind_process_netns(folder, &name, holder.pid).map(drop),
        }
    };
    tokio::task::spawn_blocking(job).await?.map_err(Error::Netns)
}

fn attachment<'a>(id: &'a str, network: &'a NetworkRecord) -> Attachment<'a> {
    Attachment {
        container_id: id,
        netns: &network.netns,
        ifname: IFNAME,
        args: network.args.clone(),
        capabilities: network.capabilities.clone(),
    }
}

/// Runs ADD for every plugin.
pub(super) async fn add(
    node: &Arc<Node>,
    id: &str,
    network: NetworkRecord,
    spans: Recorder,
) -> Result<CniResult, Error> {
    let (node, id) = (node.clone(), id.to_owned());
    let job = move || {
        let mut on_plugin = |kind: &str, start: i64, end: i64| {
            spans.add(Span { name: format!("cni.{kind}"), start, end, detail: String::new() });
        };
        let mut stage = spans.stage("cni");
        let dirs = node.cni_dirs(network.external);
        let result = chain::add(&network.conflist, &attachment(&id, &network), &dirs, &mut on_plugin);
        if let Ok(result) = &result {
            stage.detail(addresses(result).join(" "));
        }
        result
    };
    tokio::task::spawn_blocking(job).await?.map_err(Error::Network)
}

/// DEL with the conflist of ADD, then the namespace. Idempotent; the namespace goes even when a
/// plugin fails, and the plugin's error is kept.
pub(crate) async fn remove(node: &Arc<Node>, id: &str, network: NetworkRecord) -> Result<(), Error> {
    let (node, id) = (node.clone(), id.to_owned());
    let job = move || {
        let dirs = node.cni_dirs(network.external);
        let deleted =
            chain::del(&network.conflist, &attachment(&id, &network), &dirs).map_err(Error::Network);
        failpoint!("network.deleted"?);
        let removed = gantry_cni::netns::remove(&network.netns).map_err(Error::Netns);
        deleted.and(removed)
    };
    tokio::task::spawn_blocking(job).await?
}

/// Removes the bridge of the configured network if neither an address nor a port of it is in use.
pub(super) fn remove_idle(node: &Node) -> Result<(), Error> {
    let dirs = node.cni_dirs(node.config.prefer_external_cni);
    chain::remove_idle(&conflist(node)?, &dirs).map(drop).map_err(Error::Network)
}

/// Takes back what sandboxes left that have no record any more: cached results, leases, rules
/// (runtime-traps 7.1). For a start, before anything is served: GC and ADD exclude each other. Blocks.
///
/// # Errors
/// All that could not be removed, after everything else was.
pub(crate) fn collect(node: &Node) -> Result<(), Vec<Error>> {
    let dirs = node.cni_dirs(node.config.prefer_external_cni);
    let cached = chain::cached_attachments(&dirs).map_err(|error| vec![Error::Network(error)])?;
    let records: Vec<(String, NetworkRecord)> = node
        .store
        .sandboxes()
        .iter()
        .map(|sandbox| sandbox.record())
        .filter(|record| !record.stopped)
        .filter_map(|record| record.network.clone().map(|network| (record.id.clone(), network)))
        .collect();
    // No configuration today is no error here: status tells it.
    let mut lists: BTreeMap<String, Conflist> =
        conflist(node).into_iter().map(|list| (list.name().to_owned(), list)).collect();
    let of_records = records.iter().map(|(_, network)| network.conflist.clone());
    let of_cache =
        cached.iter().filter(|cached| is_ours(node, cached)).filter_map(|cached| cached.conflist().ok());
    for list in of_records.chain(of_cache) {
        lists.entry(list.name().to_owned()).or_insert(list);
    }
    let errors: Vec<Error> = lists
        .values()
        .filter_map(|list| {
            let of_list = |(_, network): &&(String, NetworkRecord)| network.conflist.name() == list.name();
            let valid: Vec<ValidAttachment> = records
                .iter()
                .filter(of_list)
                .map(|(id, _)| ValidAttachment { container_id: id.clone(), ifname: IFNAME.into() })
                .collect();
            chain::gc(list, &valid, &dirs, &|cached| is_ours(node, cached)).err().map(Error::Network)
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Whether a cached attachment is a dead one of this node. Other runtimes cache in the same folder, and
/// another node on this machine may use the same folders: but no living pod is without its namespace.
fn is_ours(node: &Node, cached: &CachedAttachment) -> bool {
    let path = netns_path(node, &cached.container_id);
    Path::new(&cached.netns) == path && gantry_cni::netns::open(&path).is_err_and(|error| error.is_gone())
}

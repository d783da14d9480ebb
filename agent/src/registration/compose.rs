//! The Node object: what a node says of itself. Pure: owns labels, capacity, addresses' place and
//! everything but the conditions; never reads the machine and never sends. Called by [`super`].

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::cgroup::Together;
use gantry_model::quantity::{self, QuantityError};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::devices::{self, Devices};
use super::machine::MachineInfo;
use super::{Settings, WEB_SOCKETS, amount};
use crate::attachments::InUse;
use crate::config::eviction::Threshold;
use crate::devices::Amount;
use crate::node::Allocatable;
use crate::runtime::about::{Health, StoredImage, Version};

const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const HOSTNAME: &str = "kubernetes.io/hostname";
const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
/// Set again when they are not as they were at start; what else is on the node is others'.
const DEFAULT_LABELS: [&str; 11] = [
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// How our runtime's version begins in the node's status.
const OURS: &str = "gantry://";
/// Of an image in the node's status.
const MOST_NAMES: usize = 5;

/// What is known at this moment.
#[derive(Debug, Clone)]
pub(super) struct NodeInputs<'a> {
    pub(super) settings: &'a Settings,
    pub(super) machine: &'a MachineInfo,
    /// What plugins offer, by resource.
    pub(super) devices: &'a BTreeMap<String, Amount>,
    pub(super) version: Option<&'a Version>,
    pub(super) health: Option<&'a Health>,
    /// None when the runtime did not say.
    pub(super) images: Option<&'a [StoredImage]>,
    /// None when there is none to be found.
    pub(super) addresses: Option<&'a [NodeAddress]>,
    /// Volumes that an earlier kubelet has told to be in use are mounted yet.
    pub(super) foreign_mounts: bool,
    /// Volumes of CSI.
    pub(super) in_use: &'a InUse,
}

/// A node that nobody has heard of, but for its status.
pub(super) fn initial(settings: &Settings, machine: &MachineInfo) -> Node {
    let mut labels = BTreeMap::from([(HOSTNAME.to_owned(), settings.hostname.clone())]);
    for os in [OS, "beta.kubernetes.io/os"] {
        labels.insert(os.to_owned(), "linux".to_owned());
    }
    for arch in [ARCH, "beta.kubernetes.io/arch"] {
        labels.insert(arch.to_owned(), machine.architecture.clone());
    }
    labels.extend(settings.labels.clone());
    let mut taints = settings.taints.clone();
    if settings.external_cloud {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let mut annotations = BTreeMap::new();
    if settings.attach_detach {
        annotations.insert(ATTACH_DETACH.to_owned(), "true".to_owned());
    }
    Node {
        metadata: ObjectMeta {
            name: Some(settings.node_name.clone()),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(settings.provider_id.clone()).filter(|id| !id.is_empty()),
            taints: (!taints.is_empty()).then_some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// A node that is registered already, as it should be at start; `fresh` is [`initial`] with its status.
pub(super) fn reconcile_node(fresh: &Node, existing: &Node, served: &Devices) -> Node {
    let mut node = existing.clone();
    let wanted = fresh.metadata.annotations.as_ref().and_then(|all| all.get(ATTACH_DETACH));
    match wanted {
        Some(value) => {
            node.metadata.annotations.get_or_insert_default().insert(ATTACH_DETACH.to_owned(), value.clone());
        }
        None => {
            node.metadata.annotations.iter_mut().for_each(|all| {
                all.remove(ATTACH_DETACH);
            });
        }
    }
    let labels = node.metadata.labels.get_or_insert_default();
    for name in DEFAULT_LABELS {
        let Some(value) = fresh.metadata.labels.as_ref().and_then(|all| all.get(name)) else { continue };
        labels.insert(name.to_owned(), value.clone());
        if value.is_empty() {
            labels.remove(name);
        }
    }
    let (Some(new), status) = (&fresh.status, node.status.get_or_insert_default()) else { return node };
    devices::reset(status, served);
    let huge = |name: &String| name.starts_with("hugepages-");
    for (old, new) in [(&mut status.capacity, &new.capacity), (&mut status.allocatable, &new.allocatable)] {
        let Some(new) = new else { continue };
        let old = old.get_or_insert_with(|| new.clone());
        old.retain(|name, _| !huge(name) || new.contains_key(name));
        old.extend(
            new.iter().filter(|(name, _)| huge(name)).map(|(name, amount)| (name.clone(), amount.clone())),
        );
    }
    node
}

/// The node with everything in its status set anew but the conditions.
pub(super) fn update_node(node: &Node, facts: &NodeInputs<'_>) -> Node {
    let mut node = node.clone();
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(OS.to_owned(), "linux".to_owned());
    labels.insert(ARCH.to_owned(), facts.machine.architecture.clone());
    provided_ip(&mut node, facts.settings);
    let status = node.status.get_or_insert_default();
    if let Some(addresses) = facts.addresses {
        let theirs =
            facts.settings.external_cloud && status.addresses.as_ref().is_some_and(|all| !all.is_empty());
        if !theirs {
            status.addresses = Some(addresses.to_vec());
        }
    }
    resources(status, facts);
    system(status.node_info.get_or_insert_default(), facts);
    let port = facts.settings.port;
    status.daemon_endpoints = Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port }) });
    status.images =
        facts.images.map(|all| images(all, facts.settings.max_images)).filter(|all| !all.is_empty());
    if let Some(health) = facts.health {
        handlers(status, health);
    }
    status.declared_features =
        Some(declared(facts.settings, status.node_info.as_ref())).filter(|all| !all.is_empty());
    status.volumes_in_use = volumes_in_use(status.volumes_in_use.take().unwrap_or_default(), facts);
    node
}

/// What a scheduler and the API server may count on. Upstream's kubelet translates a WebSocket of version 5 for any
/// runtime; here it goes to the runtime as it is, and so is promised where that speaks it.
fn declared(settings: &Settings, info: Option<&NodeSystemInfo>) -> Vec<String> {
    let straight = info.is_some_and(|info| info.container_runtime_version.starts_with(OURS));
    let web_sockets = (settings.web_sockets && straight).then(|| WEB_SOCKETS.to_owned());
    let mut all: Vec<String> = settings.declared_features.iter().cloned().chain(web_sockets).collect();
    all.sort();
    all
}

/// What is, and what an earlier kubelet has told that may be yet.
fn volumes_in_use(told: Vec<String>, facts: &NodeInputs<'_>) -> Option<Vec<String>> {
    let InUse { sure, perhaps, in_doubt } = facts.in_use;
    let stays = |name: &String| facts.foreign_mounts || *in_doubt || perhaps.contains(name);
    let all: BTreeSet<String> = told.into_iter().filter(stays).chain(sure.iter().cloned()).collect();
    Some(all.into_iter().collect::<Vec<_>>()).filter(|all| !all.is_empty())
}

/// What all pods are held to: all there is, or what is not reserved of it. Unlike what the scheduler is
/// told, with the part that eviction keeps free.
pub(super) fn reserved_resources(settings: &Settings, machine: &MachineInfo) -> Together {
    let free = |name: &str, all: i64, scale: i64| {
        let reserved = if settings.enforce { settings.reserved_of(name, scale) } else { 0 };
        all.saturating_sub(reserved).max(0)
    };
    Together {
        cpu: free("cpu", machine.cores.saturating_mul(1000), 1000),
        memory: Some(free("memory", machine.memory, 1)),
        pids: machine.pids.map(|pids| free("pid", pids, 1)),
        huge_pages: machine.huge_pages.clone(),
    }
}

/// The hint for a cloud's controller; without one, or without a choice, it goes.
fn provided_ip(node: &mut Node, settings: &Settings) {
    let ips: Vec<String> =
        settings.node_ips.iter().filter(|ip| !ip.is_unspecified()).map(ToString::to_string).collect();
    if settings.external_cloud && !ips.is_empty() {
        node.metadata.annotations.get_or_insert_default().insert(PROVIDED_IP.to_owned(), ips.join(","));
    } else if let Some(annotations) = &mut node.metadata.annotations {
        annotations.remove(PROVIDED_IP);
    }
}

fn system(info: &mut NodeSystemInfo, facts: &NodeInputs<'_>) {
    let MachineInfo { machine_id, system_uuid, boot_id, kernel, os_image, swap, .. } = facts.machine;
    info.machine_id.clone_from(machine_id);
    info.system_uuid.clone_from(system_uuid);
    info.boot_id.clone_from(boot_id);
    info.kernel_version.clone_from(kernel);
    info.os_image.clone_from(os_image);
    if *swap > 0 {
        info.swap = Some(NodeSwapStatus { capacity: Some(*swap) });
    }
    info.container_runtime_version = match facts.version {
        Some(Version { name, version }) => format!("{name}://{version}"),
        // What was known stays better than nothing.
        None if info.container_runtime_version.is_empty() => "Unknown://Unknown".to_owned(),
        None => info.container_runtime_version.clone(),
    };
    info.kubelet_version.clone_from(&facts.settings.kubelet_version);
    info.kube_proxy_version = String::new();
    info.operating_system = "linux".to_owned();
    info.architecture.clone_from(&facts.machine.architecture);
}

/// What the machine has, and what of it pods may have. Resources of others stay.
fn resources(status: &mut NodeStatus, facts: &NodeInputs<'_>) {
    let NodeInputs { settings, machine, devices, .. } = facts;
    let capacity = status.capacity.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    let pods = match settings.pods_per_core {
        per if per > 0 => settings.max_pods.min(per.saturating_mul(machine.cores)),
        _ => settings.max_pods,
    };
    let cpu = machine.cores.saturating_mul(1000);
    let mut set = |name: &str, all: i64, free: i64, form: fn(i64) -> Quantity| {
        capacity.insert(name.to_owned(), form(all));
        allocatable.insert(name.to_owned(), form(free.max(0)));
    };
    let free = settings.allocatable(machine);
    set("cpu", cpu, free.cpu, amount::milli);
    set("memory", machine.memory, free.memory, amount::bytes);
    set("pods", pods, pods, amount::count);
    if settings.local_storage {
        set("ephemeral-storage", machine.ephemeral, free.ephemeral, amount::bytes);
    }
    for (size, bytes) in &machine.huge_pages {
        let name = format!("hugepages-{}", amount::bytes(size.saturating_mul(1024)).0);
        let free = bytes - settings.reserved_of(&name, 1);
        set(&name, *bytes, free, amount::bytes);
    }
    for (name, Amount { capacity: all, allocatable: free }) in *devices {
        set(name, *all, *free, amount::count);
    }
    // What others have told of is whole unless they said otherwise.
    allocatable.retain(|name, _| capacity.contains_key(name) || !name.contains('/'));
    for (name, all) in capacity.iter() {
        allocatable.entry(name.clone()).or_insert_with(|| all.clone());
    }
}

impl Settings {
    /// What pods may have of the machine together: without what is reserved, what eviction keeps free,
    /// and pages that are of one size already.
    #[must_use]
    pub(crate) fn allocatable(&self, machine: &MachineInfo) -> Allocatable {
        let huge: i64 = machine.huge_pages.values().sum();
        let cpu = machine.cores.saturating_mul(1000) - self.reserved_of("cpu", 1000);
        let kept = |name: &str, all: i64, evict: Threshold| all - self.reserved_of(name, 1) - evict.of(all);
        let memory = kept("memory", machine.memory, self.evict_memory) - huge;
        let ephemeral = kept("ephemeral-storage", machine.ephemeral, self.evict_storage);
        Allocatable { cpu: cpu.max(0), memory: memory.max(0), ephemeral: ephemeral.max(0) }
    }

    /// Bytes that pods get none of, on a machine with `capacity` bytes.
    pub(crate) fn kept_memory(&self, capacity: i64) -> i64 {
        self.reserved_of("memory", 1).saturating_add(self.evict_memory.of(capacity))
    }

    /// What the system and Kubernetes' own daemons keep, in units or thousandths.
    pub(super) fn reserved_of(&self, name: &str, scale: i64) -> i64 {
        let parse = if scale == 1000 { quantity::parse_milli } else { quantity::parse_units };
        let of = |all: &BTreeMap<String, String>| match all.get(name).map(|text| parse(text)) {
            Some(Ok(amount)) => amount,
            Some(Err(QuantityError::TooLarge { .. })) => i64::MAX,
            _ => 0,
        };
        of(&self.system_reserved).saturating_add(of(&self.kube_reserved))
    }
}

fn images(all: &[StoredImage], most: i32) -> Vec<ContainerImage> {
    let mut all: Vec<&StoredImage> = all.iter().collect();
    // The rest of the key only keeps equal ones from changing places.
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| (&a.digests, &a.tags).cmp(&(&b.digests, &b.tags))));
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let named = all.into_iter().take(most).map(|image| ContainerImage {
        names: Some(image.digests.iter().chain(&image.tags).take(MOST_NAMES).cloned().collect()),
        size_bytes: Some(image.size),
    });
    named.collect()
}

fn handlers(status: &mut NodeStatus, health: &Health) {
    let mut all = health.handlers.clone();
    all.sort();
    let of = all.into_iter().map(|handler| NodeRuntimeHandler {
        name: Some(handler.name),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only),
            user_namespaces: Some(handler.user_namespaces),
        }),
    });
    status.runtime_handlers = Some(of.collect::<Vec<_>>()).filter(|all| !all.is_empty());
    if let Some(features) = health.features {
        let supplemental_groups_policy = Some(features.supplemental_groups_policy);
        status.features = Some(NodeFeatures { supplemental_groups_policy });
    }
}

#[cfg(test)]
mod tests;

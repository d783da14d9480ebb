//! The node in the API: registered once, its status kept true, its lease renewed, its own events
//! told. Owns the Node object's loops; never runs a pod. Called by the kubelet's wiring.
//!
//! what it is: [`machine`] · what is said: [`compose`], [`conditions`] (pure) · whether the runtime is
//! well: [`health`], [`stall`] · what no driver serves any more: [`drivers`] · sign of life: [`lease`] · what pods are held to: [`enforce`].
//!
//! ```text
//! register ──made, or there already──▶ patch status ──every 10 s, if it changed──▶ patch …
//!    └──refused or no answer: 100 ms, doubled to 7 s──┘        └ or nodeStatusReportFrequency is over
//! ```
//! A node that is deleted under us is not made again before the next start, as upstream (trap 14).

#![expect(clippy::disallowed_methods, reason = "lease and status are renewed as long as the kubelet lives")]

mod amount;
mod compose;
mod conditions;
pub(crate) mod devices;
mod drivers;
pub(crate) mod enforce;
pub(crate) mod fits;
pub(crate) mod health;
mod lease;
pub(crate) mod machine;
pub(crate) mod stall;
mod startup;
mod status;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::reflector::{Query, Reflected, reflect};
use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::shutdown::Shutdown;
use gantry_model::signal::Pressures;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Client;
use tokio::sync::watch;

use crate::attachments::InUse;
use crate::config::eviction::Threshold;
use crate::devices::Amount;
use crate::events::sink::Recorder;
use crate::runtime::about::About;
use crate::volumes::Volumes;
use health::Pulse;
use machine::{Addresses, MachineInfo};

/// The feature of a node that takes WebSockets straight, and its gate.
pub(crate) const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";

/// What the operator decides.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    /// Of the Node object.
    pub node_name: String,
    /// Its label and address.
    pub hostname: String,
    /// Whether to make the Node object.
    pub register: bool,
    /// Added, and over the defaults, when it is made.
    pub labels: BTreeMap<String, String>,
    /// When it is made.
    pub taints: Vec<Taint>,
    /// Of the cloud; may be empty.
    pub provider_id: String,
    /// A cloud's controller sets addresses.
    pub external_cloud: bool,
    /// Of --node-ip; may be empty, may be unspecified to choose a family.
    pub node_ips: Vec<IpAddr>,
    /// enableControllerAttachDetach.
    pub attach_detach: bool,
    /// Pods at most.
    pub max_pods: i64,
    /// Of them for each core at most; 0 for no such limit.
    pub pods_per_core: i64,
    /// Quantities by resource.
    pub system_reserved: BTreeMap<String, String>,
    /// Quantities by resource.
    pub kube_reserved: BTreeMap<String, String>,
    /// enforceNodeAllocatable has pods: these are held to what is not reserved.
    pub enforce: bool,
    /// evictionHard of memory.available: kept free of pods.
    pub evict_memory: Threshold,
    /// evictionHard of nodefs.available.
    pub evict_storage: Threshold,
    /// localStorageCapacityIsolation: ephemeral storage is a resource.
    pub local_storage: bool,
    /// Of the kubelet's API.
    pub port: i32,
    /// nodeStatusUpdateFrequency.
    pub status_every: Duration,
    /// nodeStatusReportFrequency.
    pub report_every: Duration,
    /// nodeLeaseDurationSeconds.
    pub lease_seconds: i32,
    /// nodeStatusMaxImages; -1 for all.
    pub max_images: i32,
    /// `v1.36.3+gantry.0.1.0`.
    pub kubelet_version: String,
    /// Sorted; without the one that hangs on the runtime.
    pub declared_features: Vec<String>,
    /// The gate of that one, [`WEB_SOCKETS`].
    pub web_sockets: bool,
}

/// What the rest of the world is to it.
#[derive(Clone)]
pub(crate) struct World {
    /// For the Node object; no other part's requests may hold it up.
    pub client: Client,
    /// For the lease; likewise.
    pub lease: Client,
    /// Called when requests keep failing: new connections are to be made.
    pub troubled: Arc<dyn Fn() + Send + Sync>,
    /// The container runtime.
    pub about: Arc<dyn About>,
    /// How it is: [`health::follow`].
    pub pulse: watch::Receiver<Pulse>,
    /// Read at start.
    pub machine: MachineInfo,
    /// The machine's.
    pub addresses: Arc<dyn Addresses>,
    /// What an earlier kubelet may have left mounted.
    pub volumes: Arc<dyn Volumes>,
    /// Volumes of CSI that are in use.
    pub volumes_in_use: watch::Receiver<InUse>,
    /// For events of the node.
    pub recorder: Recorder,
    /// For heartbeats and transition times.
    pub clock: Arc<dyn Clock>,
    /// What else keeps pods from running; empty when nothing does.
    pub troubles: watch::Receiver<Vec<String>>,
    /// What the node is short of.
    pub pressures: watch::Receiver<Pressures>,
    /// Whether the machine goes down.
    pub shutdown: watch::Receiver<Shutdown>,
    /// Learns with which of these the status was last told.
    pub reported: watch::Sender<Shutdown>,
    /// What plugins offer, by resource.
    pub devices: watch::Receiver<BTreeMap<String, Amount>>,
    /// Counts how long the start of a new node takes.
    pub metrics: Arc<Metrics>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// Begins; the loops end with the process. Returns the node as the API has it: none before it was seen, and while it
/// is not there.
#[must_use]
pub(crate) fn start(settings: Settings, world: World) -> watch::Receiver<Option<Arc<Node>>> {
    let node = follow(world.client.clone(), &settings.node_name);
    let renewal = lease::Renewal {
        client: world.lease.clone(),
        node: settings.node_name.clone(),
        seconds: settings.lease_seconds,
        troubled: world.troubled.clone(),
    };
    tokio::spawn(renewal.run());
    // Ends once it worked, or with the process.
    tokio::spawn(drivers::withdraw(world.client.clone(), settings.node_name.clone(), node.clone()));
    tokio::spawn(status::Reporter::new(settings, world, node.clone()).run());
    node
}

/// The node of that name, as the API has it.
fn follow(client: Client, name: &str) -> watch::Receiver<Option<Arc<Node>>> {
    let query = Query { path: "/api/v1/nodes".to_owned(), field_selector: format!("metadata.name={name}") };
    let mut reflected = reflect::<Node>(client, query);
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        loop {
            let node = first(&reflected.borrow_and_update());
            sender.send_replace(node);
            tokio::select! {
                // A change stays marked until it was looked at.
                changed = reflected.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

fn first(reflected: &Reflected<Node>) -> Option<Arc<Node>> {
    reflected.items.values().next().cloned()
}

#[cfg(test)]
mod tests;

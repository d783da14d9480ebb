//! CSI: drivers of storage, and the volumes that they make for pods. Owns which drivers are registered with this node,
//! what the API server is told of them, and every volume that they have here; what a driver is, its makers know. Drivers
//! come by [`crate::plugins`]; [`crate::volumes`] asks for pods
//! (docs/adr/0044-an-owner-of-csi-volumes.md).
//!
//! who is registered: [`drivers`] · what it is asked: [`driver`] · what the cluster is told: [`node_info`] · whose turn it
//! is: [`owner`] · what is next: [`volume`] (pure) · how many volumes the node takes: [`allocatable`] · with which label: [`label`] (pure) · what that does: [`steps`] · whether it grows: [`expand`] (pure) · what its claim is told of that: [`expander`] · what is kept: [`files`], of devices [`block`]

pub(crate) mod allocatable;
mod block;
mod driver;
pub(crate) mod drivers;
pub(crate) mod expand;
pub(crate) mod expander;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod files;
pub(crate) mod label;
pub(crate) mod node_info;
pub(crate) mod owner;
pub(crate) mod steps;
mod volume;

/// As upstream's plugin is named.
pub(crate) const PLUGIN: &str = "kubernetes.io/csi";

//! What a join makes of what was seen. Pure: facts in, checks out. What `gantry join` sets right itself is a warning, with
//! what to do by hand for those who call kubeadm; what it can't is a failure. Called by [`super`].

mod cluster;
mod node;

use jiff::Timestamp;

use super::api::Api;
use super::node::JoinNode;
use super::way::NetworkRoute;
use crate::doctor::Check;
use crate::doctor::judge::warn;

/// All rows, in the order of a join: the way there, the trust, the machine, the kubelet. `way` leads to the API server.
pub(super) fn checks(node: &JoinNode, api: &Api, way: Option<&NetworkRoute>, now: Timestamp) -> Vec<Check> {
    let mut checks = cluster::checks(api, way, now);
    checks.extend(node::checks(node, api, way));
    checks
}

/// What `gantry join` sets right.
fn warn_mended(name: &'static str, seen: String, by_hand: &str) -> Check {
    warn(name, seen, format!("`gantry join` sees to it; by hand: {by_hand}"))
}

/// Whether it was made by kind: only its kubelets stand below this cgroup, and only its nodes have such names.
fn is_kind(api: &Api) -> bool {
    let root = api.kubelet().and_then(|kubelet| kubelet.cgroup_root.as_deref());
    let host = api.info.as_ref().map(|info| info.cluster.server.host.as_str()).unwrap_or_default();
    root == Some("/kubelet") || host.ends_with("-control-plane") || host.ends_with("-external-load-balancer")
}

#[cfg(test)]
mod tests;

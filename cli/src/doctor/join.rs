//! What a join to a cluster of kubeadm or kind needs. Owns the order of looking: the cluster first, since it says what the
//! node must be able to do; the judging is in [`judge`]. Never changes anything. Called by [`super`] and by `gantry join`.

mod api;
mod judge;
mod node;
mod proxy;
mod way;

use std::path::Path;

use jiff::Timestamp;

pub(crate) use self::api::JoinTarget;
pub(crate) use self::node::HostView;
use super::{Check, CheckStatus, look};
use crate::join::look::CNI_CONF;

/// Every row. Takes seconds when somebody does not answer.
pub(crate) async fn checks(target: &JoinTarget, place: &HostView) -> Vec<Check> {
    let api = api::look(target, &place.name).await;
    let root = api.kubelet().and_then(|kubelet| kubelet.cgroup_root.as_deref()).unwrap_or("/");
    let node = node::look(place, root).await;
    let way = api.address().map(|address| node::way(place, address));
    judge::checks(&node, &api, way.as_ref(), Timestamp::now())
}

/// For `gantry join`, which does not see to these itself, and which kubeadm would stop at or nobody would look at.
const BESIDE: [&str; 8] =
    ["clock", "certificate", "link", "node name", "proxy", "ports", "kubeadm's programs", "network"];

/// What a join should know before it begins, a line each: of the rows that are wrong, those that it neither sees to nor
/// looks at itself.
pub(crate) async fn notes(target: &JoinTarget, runtime: &str, node: &str) -> Vec<String> {
    let network = look::network(Path::new(CNI_CONF), Path::new("/opt/cni/bin"), false);
    let place = HostView { name: node.to_owned(), ..HostView::here(runtime.to_owned(), network) };
    let rows = checks(target, &place).await.into_iter();
    rows.filter(|row| row.verdict != CheckStatus::Ok && BESIDE.contains(&row.name))
        .map(|row| format!("{}: {}: {}", row.name, row.seen, row.remedy))
        .collect()
}

#[cfg(test)]
mod tests;

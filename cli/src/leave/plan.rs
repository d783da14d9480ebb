//! What a leave takes back, in order. Pure: record and facts in, steps out. Called by [`super`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::join::FOREIGN;
use crate::join::record::JoinRecord;
use crate::join::step::JoinChange;

/// The machine before a leave.
#[derive(Debug, Clone, Default)]
pub(super) struct HostState {
    /// Files in /etc/cni/net.d.
    pub(super) cni: Vec<PathBuf>,
    /// Values of sysctls that others may have set.
    pub(super) sysctls: BTreeMap<&'static str, String>,
    /// Of the folders that were not there before, those that are.
    pub(super) folders: Vec<PathBuf>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Undo {
    /// What the join did; of [`JoinChange::Join`] all that kubeadm's reset does.
    JoinChange(JoinChange),
    /// The Node object.
    Node(String),
    /// kubepods and its classes, empty by now.
    Cgroups,
    /// Of kube-proxy and kubelets; tables of nf_tables that were there before stay.
    Rules { before: Vec<String> },
    /// Into the pods' networks.
    Routes(Vec<String>),
    /// A network's configuration that came after the join.
    Network(PathBuf),
    /// What a kubelet or kube-proxy has set.
    Sysctl { name: &'static str, before: String },
    /// A folder of kubeadm's or the kubelet's that was not there before.
    Folder(PathBuf),
    /// Such a folder of logs, with the logs: kubelet and kubeadm leave those of the last pods.
    Logs(PathBuf),
}

/// A kubelet's folders of logs, and of links to them.
const LOGS: [&str; 2] = ["/var/log/containers", "/var/log/pods"];

pub(super) fn plan(record: &JoinRecord, now: &HostState, delete_node: bool) -> Vec<Undo> {
    let mut steps = Vec::new();
    let (kubeadm, own): (Vec<&JoinChange>, Vec<&JoinChange>) =
        record.made.iter().rev().partition(|made| matches!(made, JoinChange::Join { .. }));
    let begun = !kubeadm.is_empty();
    // First: everything else is what it stands on.
    steps.extend(kubeadm.into_iter().cloned().map(Undo::JoinChange));
    if delete_node && record.joined {
        // Behind the kubelet's end: it would make itself a new one.
        steps.push(Undo::Node(record.node.clone()));
    }
    if begun {
        steps.extend([Undo::Cgroups, Undo::Rules { before: record.before.tables.clone() }]);
        if !record.before.pod_subnets.is_empty() {
            steps.push(Undo::Routes(record.before.pod_subnets.clone()));
        }
        let later = now.cni.iter().filter(|path| !record.before.cni.contains(path));
        steps.extend(later.cloned().map(Undo::Network));
        steps.extend(FOREIGN.iter().filter_map(|(name, set)| {
            let before = record.before.sysctls.get(*name)?;
            // Another value is somebody else's by now.
            let theirs = now.sysctls.get(name).is_some_and(|now| now == set && now != before);
            theirs.then(|| Undo::Sysctl { name, before: before.clone() })
        }));
        steps.extend(now.folders.iter().map(|path| {
            let is_of_logs = LOGS.iter().any(|logs| path.as_path() == Path::new(logs));
            if is_of_logs { Undo::Logs(path.clone()) } else { Undo::Folder(path.clone()) }
        }));
    }
    steps.extend(own.into_iter().cloned().map(Undo::JoinChange));
    steps
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JoinChange(made) => made.fmt(f),
            Self::Node(name) => write!(f, "delete the Node {name}"),
            Self::Cgroups => write!(f, "remove the empty cgroups kubepods"),
            Self::Rules { .. } => {
                write!(f, "remove the rules of kube-proxy (chains KUBE-…, tables kube-proxy)")
            }
            Self::Routes(nets) => write!(f, "remove the routes into {}", nets.join(", ")),
            Self::Network(path) => {
                write!(f, "remove {}, which came with the cluster's network", path.display())
            }
            Self::Sysctl { name, before } => write!(f, "set the sysctl {name} back to {before}"),
            Self::Folder(path) => write!(f, "remove the folder {} if it is empty", path.display()),
            Self::Logs(path) => write!(f, "remove the folder {} with the logs of pods", path.display()),
        }
    }
}

#[cfg(test)]
mod tests;

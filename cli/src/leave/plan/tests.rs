//! What a leave takes back, and in which order.

use super::*;
use crate::join::record::Before;

fn record() -> JoinRecord {
    let before = Before {
        cni: vec!["/etc/cni/net.d/old.conflist".into()],
        absent: vec!["/etc/kubernetes/pki".into(), "/etc/kubernetes".into()],
        sysctls: [("kernel.panic", "0"), ("vm.panic_on_oom", "0"), ("vm.overcommit_memory", "2")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        tables: vec!["ip nat".into()],
        pod_subnets: vec!["10.244.0.0/16".into()],
    };
    let mut record = JoinRecord::new("10.0.0.1:6443".into(), "n1".into(), before);
    record.note(JoinChange::Folder("/etc/cni".into()));
    record.note(JoinChange::Sysctl { name: "net.ipv4.ip_forward".into(), before: "0".into() });
    record.note(JoinChange::HostsLine("10.0.0.1 kind-control-plane # gantry join".into()));
    record
}

fn joined() -> JoinRecord {
    let mut record = record();
    record.note(JoinChange::Join { cri_socket: "unix:///run/gantry/gantry.sock".into() });
    record.joined = true;
    record
}

fn now() -> HostState {
    HostState {
        cni: vec!["/etc/cni/net.d/10-kindnet.conflist".into(), "/etc/cni/net.d/old.conflist".into()],
        // Of the first the kubelet's value, of the second the one from before, of the third somebody's.
        sysctls: [("kernel.panic", "10"), ("vm.panic_on_oom", "0"), ("vm.overcommit_memory", "0")]
            .map(|(name, value)| (name, value.to_owned()))
            .into(),
        folders: vec!["/etc/kubernetes/pki".into(), "/etc/kubernetes".into(), "/var/log/pods".into()],
    }
}

fn lines(record: &JoinRecord, delete_node: bool) -> Vec<String> {
    plan(record, &now(), delete_node).iter().map(ToString::to_string).collect()
}

#[test]
fn a_node_leaves_by_kubeadm_first_and_by_our_own_steps_in_reverse() {
    let all = lines(&joined(), true);
    assert_eq!(
        all,
        [
            "kubeadm reset --force --cri-socket unix:///run/gantry/gantry.sock",
            "delete the Node n1",
            "remove the empty cgroups kubepods",
            "remove the rules of kube-proxy (chains KUBE-…, tables kube-proxy)",
            "remove the routes into 10.244.0.0/16",
            "remove /etc/cni/net.d/10-kindnet.conflist, which came with the cluster's network",
            "set the sysctl kernel.panic back to 0",
            "remove the folder /etc/kubernetes/pki if it is empty",
            "remove the folder /etc/kubernetes if it is empty",
            "remove the folder /var/log/pods with the logs of pods",
            "remove from /etc/hosts: 10.0.0.1 kind-control-plane # gantry join",
            "set the sysctl net.ipv4.ip_forward back to 0",
            "remove the folder /etc/cni if it is empty",
        ]
    );
    let without: Vec<_> = all.into_iter().filter(|line| !line.starts_with("delete the Node")).collect();
    assert_eq!(lines(&joined(), false), without);
}

#[test]
fn before_kubeadm_was_called_only_our_own_steps_are_taken_back() {
    assert_eq!(
        lines(&record(), true),
        [
            "remove from /etc/hosts: 10.0.0.1 kind-control-plane # gantry join",
            "set the sysctl net.ipv4.ip_forward back to 0",
            "remove the folder /etc/cni if it is empty",
        ]
    );
}

//! A folder that stands for a machine's root, with one thing wrong.

use std::os::unix::fs::symlink;

use super::*;
use crate::doctor::join::tests::{place, write};

/// A program of the machine under another name: nothing is written that another thread's child could hold open.
fn program(root: &Path, name: &str, of: &str) {
    std::fs::create_dir_all(root.join("bin")).unwrap();
    symlink(of, root.join("bin").join(name)).unwrap();
}

async fn looked(root: &Path) -> JoinNode {
    look(&place(root), "/kubelet").await
}

#[tokio::test]
async fn what_is_there_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    write(
        root,
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/vdb partition 1 0 -2\n/swap file 1 0 -3\n",
    );
    write(root, "proc/sys/net/ipv4/ip_forward", "0\n");
    write(root, "proc/sys/net/ipv6/conf/default/forwarding", "1\n");
    write(root, "etc/kubernetes/kubelet.conf", "");
    write(root, "etc/default/kubelet", "KUBELET_EXTRA_ARGS=\"--v=2 --node-ip=172.18.0.9\"\n");
    write(root, "etc/cni/net.d/10-old.conflist", "no JSON");
    let table = "30 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                 31 24 0:28 / /sys/fs/cgroup/net_cls rw - cgroup cgroup rw,net_cls\n";
    write(root, "proc/self/mountinfo", table);
    std::fs::create_dir_all(root.join("sys/fs/cgroup/kubelet.slice")).unwrap();
    std::fs::create_dir_all(root.join("run/systemd/system")).unwrap();
    program(root, "kubeadm", "/bin/echo");
    program(root, "mount", "/bin/true");
    program(root, "kubelet", std::env::current_exe().unwrap().to_str().unwrap());
    let node = looked(root).await;
    assert_eq!((node.swaps, node.forwards_v4, node.forwards_v6), (2, Some(false), Some(true)));
    assert_eq!(node.joined, [root.join("etc/kubernetes/kubelet.conf")]);
    assert_eq!(node.node_ip.as_deref(), Some("172.18.0.9"));
    assert_eq!(node.kubeadm, Kubeadm::Version("version --output short".into()));
    assert_eq!(node.kubelet, Some((root.join("bin/kubelet"), true)));
    assert_eq!(node.missing, ["losetup", "cp"]);
    assert!(
        matches!(&node.network, CniNetwork::Broken(error) if error.contains("10-old.conflist")),
        "{:?}",
        node.network
    );
    assert!(node.unified && node.root_of_cgroups && node.systemd);
}

#[tokio::test]
async fn what_is_not_there_is_seen_as_missing() {
    let root = tempfile::tempdir().unwrap();
    let node = looked(root.path()).await;
    assert_eq!((node.swaps, node.forwards_v4, node.node_ip), (0, None, None));
    assert_eq!(node.kubeadm, Kubeadm::Absent);
    assert_eq!(node.kubelet, None);
    assert_eq!((node.joined, node.missing), (Vec::new(), PROGRAMS.to_vec()));
    assert!(!node.unified && !node.root_of_cgroups && !node.systemd);
    assert!(node.runtime.is_err(), "{:?}", node.runtime);
    // Without /proc nothing is known of the ports.
    assert!(node.ports.iter().all(|port| matches!(port.holder, Holder::Unknown(_))), "{:?}", node.ports);
}

#[tokio::test]
async fn a_kubeadm_that_fails_is_told_with_what_it_says() {
    let root = tempfile::tempdir().unwrap();
    program(root.path(), "kubeadm", "/bin/ls");
    let Kubeadm::Broken(path, error) = looked(root.path()).await.kubeadm else { panic!("it is broken") };
    assert_eq!(path, root.path().join("bin/kubeadm"));
    assert!(error.contains("exit status: 2"), "{error}");
}

#[test]
fn who_listens_on_a_port_is_found_by_its_socket() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let number = listener.local_addr().unwrap().port();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let held = port(Path::new("/"), number, "a test", true).holder;
    assert_eq!(held, Holder::Process(comm.trim().to_owned(), std::process::id()));
    drop(listener);
    assert_eq!(port(Path::new("/"), number, "a test", true).holder, Holder::Nobody);
}

#[test]
fn a_socket_of_nobody_that_may_be_looked_at_is_hidden() {
    let root = tempfile::tempdir().unwrap();
    let line = "0: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1";
    write(root.path(), "proc/self/net/tcp", &format!("sl local_address\n{line}\n"));
    std::fs::create_dir_all(root.path().join("proc/12/fd")).unwrap();
    symlink("socket:[4712]", root.path().join("proc/12/fd/3")).unwrap();
    assert_eq!(port(root.path(), 10250, "a test", true).holder, Holder::Hidden);
    symlink("socket:[4711]", root.path().join("proc/12/fd/4")).unwrap();
    write(root.path(), "proc/12/comm", "kubelet\n");
    assert_eq!(port(root.path(), 10250, "a test", true).holder, Holder::Process("kubelet".into(), 12));
}

#[test]
fn the_last_node_ip_of_the_last_line_counts() {
    for (text, expected) in [
        ("KUBELET_EXTRA_ARGS=--node-ip=10.0.0.1\nKUBELET_EXTRA_ARGS=--node-ip=10.0.0.2", Some("10.0.0.2")),
        ("KUBELET_EXTRA_ARGS='--node-ip 10.0.0.3 --v=4'", Some("10.0.0.3")),
        ("#KUBELET_EXTRA_ARGS=--node-ip=10.0.0.1", None),
        ("KUBELET_EXTRA_ARGS=", None),
    ] {
        assert_eq!(node_ip(text).as_deref(), expected, "{text}");
    }
}

//! A node and a cluster with nothing wrong, then with one thing: the row names it and says what to do.

use std::collections::BTreeSet;
use std::net::IpAddr;

use gantry_agent::runtime::cri::driver::Driver;
use gantry_kube_client::identity::pair::Leaf;

use jiff::SignedDuration;

use super::*;
use crate::doctor::CheckStatus;
use crate::doctor::join::api::{
    ApiServer, ClusterFile, Info, KubeletFile, Member, Named, Networking, ReadFailure, Signature,
};
use crate::doctor::join::node::{Holder, Kubeadm, Port};
use crate::doctor::join::proxy::Proxies;
use crate::doctor::join::tests::assert_named;
use crate::doctor::join::way::NextHop;
use crate::doctor::look::CniNetwork;
use crate::join::discovery::ClusterInfo;

const DAY: i64 = 24 * 3600;

fn now() -> Timestamp {
    "2026-11-25T12:00:00Z".parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node() -> JoinNode {
    let port = |number, vital| Port { number, purpose: "something", vital, holder: Holder::Nobody };
    JoinNode {
        name: "vm1".into(),
        ports: vec![port(10250, true), port(10256, false)],
        swaps: 0,
        unified: true,
        root_of_cgroups: true,
        systemd: true,
        endpoint: "unix:///run/gantry/gantry.sock".into(),
        runtime: Ok(Some(Driver::Systemd)),
        kubeadm: Kubeadm::Version("v1.36.3".into()),
        kubelet: Some(("/usr/bin/kubelet".into(), true)),
        missing: Vec::new(),
        joined: Vec::new(),
        network: CniNetwork::None("/etc/cni/net.d".into()),
        proxies: Proxies::default(),
        outward: Some(ip("172.18.0.9")),
        node_ip: None,
        forwards_v4: Some(true),
        forwards_v6: Some(false),
    }
}

fn api() -> Api {
    let hash = format!("sha256:{}", "a".repeat(64));
    let after = |days: i64| now() + SignedDuration::from_secs(days * DAY);
    Api {
        endpoint: "172.18.0.2:6443".parse().unwrap(),
        token: Some("abcdef.0123456789abcdef".parse()),
        hashes: vec![hash.parse()],
        server: Ok(ApiServer {
            address: "172.18.0.2:6443".parse().unwrap(),
            leaf: Leaf {
                not_before: after(-1),
                not_after: after(364),
                common_name: "kube-apiserver".into(),
                organizations: BTreeSet::new(),
                dns: ["kind-control-plane".to_owned()].into(),
                ips: [ip("172.18.0.2")].into(),
            },
            bears: true,
        }),
        clock: None,
        version: Some("v1.36.3".into()),
        info: Ok(Info {
            cluster: ClusterInfo {
                server: "kind-control-plane:6443".parse().unwrap(),
                authority: Vec::new(),
            },
            signature: Some(Signature::Good),
            found: vec![hash.parse().unwrap()],
            vouched: Ok(()),
            until: Some(after(3650)),
            bears: true,
            named: Named { addresses: Ok(vec![ip("172.18.0.2")]), reached: Some(Ok(())) },
        }),
        member: Some(Member {
            kubelet: Ok(KubeletFile { cgroup_driver: Some("systemd".into()), ..KubeletFile::default() }),
            cluster: Ok(ClusterFile {
                kubernetes_version: "v1.36.3".into(),
                networking: Networking {
                    pod_subnet: "10.244.0.0/16".into(),
                    service_subnet: "10.96.0.0/16".into(),
                },
            }),
            twin: Ok(None),
        }),
    }
}

fn way() -> NetworkRoute {
    NetworkRoute { source: Some(ip("172.18.0.9")), step: NextHop::Link("eth1".into()) }
}

fn row(node: &JoinNode, api: &Api, way: &NetworkRoute, name: &str) -> Check {
    let all = checks(node, api, Some(way), now());
    all.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no row {name}: {all:#?}")).clone()
}

/// The row, on a node that this was done to.
fn broken(name: &str, change: impl FnOnce(&mut JoinNode)) -> Check {
    let mut node = node();
    change(&mut node);
    row(&node, &api(), &way(), name)
}

/// The row, on a cluster whose kubelets this was done to.
fn configured(name: &str, node: &JoinNode, change: impl FnOnce(&mut KubeletFile)) -> Check {
    let mut api = api();
    if let Some(Ok(file)) = api.member.as_mut().map(|member| member.kubelet.as_mut()) {
        change(file);
    }
    row(node, &api, &way(), name)
}

#[test]
fn nothing_wrong_is_all_right() {
    let wrong: Vec<Check> = checks(&node(), &api(), Some(&way()), now())
        .into_iter()
        .filter(|check| check.verdict != CheckStatus::Ok || !check.remedy.is_empty())
        .collect();
    assert_eq!(wrong, []);
}

#[test]
fn an_earlier_join_is_named() {
    let check = broken("joined before", |node| node.joined = vec!["/etc/kubernetes/kubelet.conf".into()]);
    assert_named(&check, CheckStatus::Fail, "/etc/kubernetes/kubelet.conf", "gantry leave");
}

#[test]
fn a_port_in_use_is_named_with_its_process() {
    let held = |index: usize, holder| broken("ports", |node| node.ports[index].holder = holder);
    let check = held(0, Holder::Process("kubelet".into(), 12));
    assert_named(
        &check,
        CheckStatus::Fail,
        "10250 (something) is held by kubelet (12)",
        "systemctl stop kubelet",
    );
    let check = held(1, Holder::Hidden);
    assert_named(
        &check,
        CheckStatus::Warn,
        "10256 (something) is held, by whom only root sees",
        "end who listens",
    );
    assert_named(
        &held(0, Holder::Unknown("no such file".into())),
        CheckStatus::Warn,
        "no such file",
        "mount /proc",
    );
}

#[test]
fn a_routed_way_to_a_kind_cluster_is_named() {
    let routed =
        NetworkRoute { step: NextHop::Router { gateway: ip("10.0.2.2"), device: "eth0".into() }, ..way() };
    let check = row(&node(), &api(), &routed, "link");
    assert_named(
        &check,
        CheckStatus::Warn,
        "behind 10.0.2.2 (eth0)",
        "disableDefaultCNI: true and an overlay",
    );
    assert!(check.remedy.contains("bridge of docker's network"), "{check:?}");
    let mut other = api();
    if let Ok(info) = &mut other.info {
        info.cluster.server = "api.example.org:6443".parse().unwrap();
    }
    assert_eq!(row(&node(), &other, &routed, "link").verdict, CheckStatus::Ok);
    // Whatever its name, kind's kubelets say so.
    if let Some(Ok(file)) = other.member.as_mut().map(|member| member.kubelet.as_mut()) {
        file.cgroup_root = Some("/kubelet".into());
    }
    assert_eq!(row(&node(), &other, &routed, "link").verdict, CheckStatus::Warn);
}

#[test]
fn an_address_of_another_link_is_named() {
    let check = broken("node address", |node| node.outward = Some(ip("10.0.2.15")));
    assert_named(
        &check,
        CheckStatus::Warn,
        "would take 10.0.2.15",
        "--node-ip=172.18.0.9 in /etc/default/kubelet",
    );
    let check = broken("node address", |node| node.node_ip = Some("10.0.2.15".into()));
    assert_named(&check, CheckStatus::Warn, "would take 10.0.2.15", "--node-ip=172.18.0.9");
    let check = broken("node address", |node| {
        (node.outward, node.node_ip) = (Some(ip("10.0.2.15")), Some("172.18.0.9".into()));
    });
    assert_eq!(check.verdict, CheckStatus::Ok);
}

#[test]
fn a_proxy_in_the_way_is_named() {
    let proxied = |no: &str| {
        broken("proxy", |node| {
            node.proxies = Proxies { https: "http://me:secret@p:3128".into(), no: no.into() }
        })
    };
    let check = proxied("localhost");
    assert_named(
        &check,
        CheckStatus::Warn,
        "172.18.0.2, kind-control-plane, 10.244.0.0/16, 10.96.0.0/16",
        "NO_PROXY=172.18.0.2,kind-control-plane,10.244.0.0/16,10.96.0.0/16,localhost",
    );
    assert!(!format!("{check:?}").contains("secret"));
    let check = proxied("172.18.0.2,kind-control-plane,10.244.0.0/16");
    assert_named(&check, CheckStatus::Warn, "goes to 10.96.0.0/16", "NO_PROXY=");
    assert_eq!(proxied("172.18.0.2,kind-control-plane,10.0.0.0/8").verdict, CheckStatus::Ok);
}

#[test]
fn a_kubeadm_that_is_missing_broken_or_of_another_release_is_named() {
    let with = |kubeadm| broken("kubeadm", |node| node.kubeadm = kubeadm);
    assert_named(&with(Kubeadm::Absent), CheckStatus::Fail, "not in PATH", "install kubeadm 1.36");
    let check = with(Kubeadm::Broken("/usr/bin/kubeadm".into(), "signal: 9".into()));
    assert_named(&check, CheckStatus::Fail, "signal: 9", "install it anew, 1.36");
    let version = |text: &str| with(Kubeadm::Version(text.into()));
    assert_named(&version("v1.38.0"), CheckStatus::Fail, "the cluster is 1.36", "install kubeadm 1.36");
    assert_named(&version("v1.35.9"), CheckStatus::Fail, "the cluster is 1.36", "install kubeadm 1.36");
    assert_eq!(version("v1.37.0").verdict, CheckStatus::Ok, "one release newer is supported");
}

#[test]
fn a_kubelet_that_is_missing_or_of_an_unsupported_release_is_named() {
    assert_named(&broken("kubelet", |node| node.kubelet = None), CheckStatus::Fail, "not in PATH", "ln -s");
    let with = |version: &str, own| {
        let mut api = api();
        api.version = Some(version.into());
        let node = JoinNode { kubelet: Some(("/usr/bin/kubelet".into(), own)), ..node() };
        row(&node, &api, &way(), "kubelet")
    };
    assert_named(
        &with("v1.35.0", true),
        CheckStatus::Fail,
        "the API server is 1.35",
        "upgrade the control plane",
    );
    assert_named(&with("v1.40.0", true), CheckStatus::Warn, "the API server is 1.40", "newer Gantry");
    assert_eq!(with("v1.39.0", true).verdict, CheckStatus::Ok);
    assert_eq!(with("v1.35.0", false).verdict, CheckStatus::Ok, "whose release is not ours");
}

#[test]
fn missing_programs_of_kubeadm_are_named() {
    let check = broken("kubeadm's programs", |node| node.missing = vec!["losetup"]);
    assert_named(&check, CheckStatus::Fail, "no losetup", "apt-get install");
}

#[test]
fn a_runtime_that_does_not_answer_is_named() {
    let check = broken("runtime", |node| node.runtime = Err("connection refused".into()));
    assert_named(
        &check,
        CheckStatus::Fail,
        "unix:///run/gantry/gantry.sock: connection refused",
        "systemctl enable --now gantry",
    );
}

#[test]
fn another_cgroup_driver_is_named() {
    let check = broken("cgroup driver", |node| node.runtime = Ok(Some(Driver::Cgroupfs)));
    assert_named(
        &check,
        CheckStatus::Warn,
        "runtime's is cgroupfs, and kubelet-config says systemd",
        "systemd_cgroup",
    );
    let check = broken("cgroup driver", |node| node.systemd = false);
    assert_named(&check, CheckStatus::Fail, "systemd, which does not run here", "systemd_cgroup = false");
    let check = broken("cgroup driver", |node| node.runtime = Ok(None));
    assert_named(&check, CheckStatus::Warn, "does not tell", "systemd");
    let mut node = node();
    node.runtime = Ok(Some(Driver::Cgroupfs));
    let check = configured("cgroup driver", &node, |file| file.cgroup_driver = None);
    assert_eq!(check.verdict, CheckStatus::Ok, "cgroupfs is a kubelet's default");
}

#[test]
fn cgroup_v1_is_named_unless_the_cluster_allows_it() {
    let check = broken("cgroup version", |node| node.unified = false);
    assert_named(&check, CheckStatus::Warn, "v1", "failCgroupV1: false");
    let node = JoinNode { unified: false, ..node() };
    let check = configured("cgroup version", &node, |file| file.fail_cgroup_v1 = Some(false));
    assert_eq!(check.verdict, CheckStatus::Ok);
}

#[test]
fn a_cgroup_root_of_kind_is_named() {
    let node = JoinNode { root_of_cgroups: false, ..node() };
    let check = configured("cgroup root", &node, |file| file.cgroup_root = Some("/kubelet".into()));
    assert_named(&check, CheckStatus::Warn, "says /kubelet", "`cgroupRoot: /`");
}

#[test]
fn swap_is_named_unless_the_cluster_allows_it() {
    assert_named(&broken("swap", |node| node.swaps = 1), CheckStatus::Warn, "1 in use", "swapoff -a");
    let node = JoinNode { swaps: 1, ..node() };
    let check = configured("swap", &node, |file| file.fail_swap_on = Some(false));
    assert_eq!(check.verdict, CheckStatus::Ok);
}

#[test]
fn a_network_that_is_left_lacks_plugins_or_is_broken_is_named() {
    let list = |missing: &[&str]| CniNetwork::List {
        name: "old".into(),
        origin: "/etc/cni/net.d/10-old.conflist".into(),
        missing: missing.iter().map(|name| (*name).to_owned()).collect(),
    };
    let check = broken("network", |node| node.network = list(&[]));
    assert_named(&check, CheckStatus::Warn, "10-old.conflist was there before", "remove it");
    let check = broken("network", |node| node.network = list(&["flannel"]));
    assert_named(&check, CheckStatus::Fail, "not there: flannel", "--cni-bin-dir");
    let check =
        broken("network", |node| node.network = CniNetwork::Broken("10-old.conflist: no JSON".into()));
    assert_named(&check, CheckStatus::Fail, "no JSON", "remove the file");
}

#[test]
fn forwarding_that_is_off_is_named_for_the_familys_own() {
    let check = broken("forwarding", |node| node.forwards_v4 = Some(false));
    assert_named(&check, CheckStatus::Warn, "net.ipv4.ip_forward is off", "sysctl -w net.ipv4.ip_forward=1");
    let mut api = api();
    if let Ok(server) = &mut api.server {
        server.address = "[fd00::2]:6443".parse().unwrap();
    }
    let check = row(&node(), &api, &way(), "forwarding");
    assert_named(&check, CheckStatus::Warn, "net.ipv6.conf.default.forwarding is off", "sysctl -w net.ipv6");
    assert_named(
        &broken("forwarding", |node| node.forwards_v4 = None),
        CheckStatus::Warn,
        "cannot be read",
        "1",
    );
}

#[test]
fn a_name_that_no_node_can_have_is_named() {
    let check = broken("node name", |node| node.name = "my_vm".into());
    assert_named(&check, CheckStatus::Fail, "my_vm", "set-hostname");
}

#[test]
fn what_an_authority_that_ended_signed_is_of_no_use() {
    let mut api = api();
    if let Ok(info) = &mut api.info {
        info.until = Some(now() - SignedDuration::from_secs(DAY));
    }
    assert_named(
        &row(&node(), &api, &way(), "certificate"),
        CheckStatus::Fail,
        "the authority's own expired",
        "Rotation",
    );
}

#[test]
fn what_could_not_be_looked_at_is_no_failure_of_the_node() {
    let mut api = api();
    api.member = Some(Member {
        kubelet: Err(ReadFailure::Forbidden),
        cluster: Err(ReadFailure::Forbidden),
        twin: Err(ReadFailure::Forbidden),
    });
    let all = checks(&node(), &api, Some(&way()), now());
    let wrong: Vec<&str> =
        all.iter().filter(|check| check.verdict != CheckStatus::Ok).map(|check| check.name).collect();
    assert_eq!(wrong, ["token"]);
}

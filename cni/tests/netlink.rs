//! The chain on real links, leases, rules and namespaces.
//!
//! These tests make bridges and rules in the network namespace that they run in and mounts in the mount namespace, so
//! they must run as root in namespaces of their own, and refuse to run in the host's:
//! `unshare --mount --net --propagation private cargo test -p gantry-cni --test netlink`

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

#[path = "netlink/host.rs"]
mod host;
#[path = "netlink/node.rs"]
mod node;
#[path = "netlink/ports.rs"]
mod ports;
#[path = "netlink/ptp.rs"]
mod ptp;

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};

use gantry_cni::chain::{self, Attachment, Conflist};
use gantry_cni::{CniResult, netns};
use serde_json::json;

use node::{Pod, Sysfs, TestNode, address, explain, links, refuse_the_hosts_namespaces};

#[test]
fn pods_reach_each_other_and_the_gateway_and_leave_nothing() {
    let node = TestNode::new(
        "gt-reach",
        json!({"type": "host-local", "ranges": [[{"subnet": "10.201.0.0/24"}], [{"subnet": "fd00:201::/64"}]]}),
    );
    let (one, two) = (node.pod("one"), node.pod("two"));
    let first = one.add();
    let mac = node.bridge_mac();
    let second = two.add();
    assert_eq!(node.bridge_mac(), mac, "the bridge keeps its address when ports come");
    assert_eq!(first.ips[0].address.to_string(), "10.201.0.2/24");
    assert_eq!(second.ips[1].address.to_string(), "fd00:201::3/64");
    assert_eq!(links(&one.netns), ["eth0", "lo"].map(String::from).into());
    let value = serde_json::to_value(&first).unwrap();
    assert_eq!(value["interfaces"][2]["name"], "eth0");
    assert_eq!(value["interfaces"][2]["mac"], "0a:58:0a:c9:00:02");
    assert_eq!(value["routes"][0], json!({"dst": "0.0.0.0/0", "gw": "10.201.0.1"}));

    for family in [0, 1] {
        let (_listener, at) = two.listen(address(&second, family));
        one.connect(at);
        let gateway = TcpListener::bind((first.ips[family].gateway.unwrap(), 0)).unwrap();
        one.connect(gateway.local_addr().unwrap());
    }
    let (_listener, at) = one.listen("127.0.0.1".parse().unwrap());
    one.connect(at);

    assert_eq!((node.ports(), node.cached_count(), node.leases().len()), (2, 2, 4));
    assert!(!chain::remove_idle(&node.list, &node.dirs).unwrap(), "a bridge in use stays");
    one.del();
    assert_eq!((node.ports(), node.cached_count(), node.leases().len()), (1, 1, 2));
    assert_eq!(links(&one.netns), ["lo"].map(String::from).into());
    one.del();
    two.del();
    assert!(chain::remove_idle(&node.list, &node.dirs).unwrap(), "an idle bridge goes");
    node.assert_empty();
}

#[test]
fn a_port_has_hairpin_mode_and_the_host_forwards() {
    let node = TestNode::new("gt-hairpin", json!({"type": "host-local", "subnet": "10.202.0.0/24"}));
    let pod = node.pod("one");
    let result = pod.add();
    let sys = Sysfs::mount();
    let port = sys.path().join(format!("class/net/{}/brport", result.interfaces[1].name));
    assert_eq!(std::fs::read_to_string(port.join("hairpin_mode")).unwrap().trim(), "1");
    assert_eq!(std::fs::read_to_string(port.join("state")).unwrap().trim(), "3", "BR_STATE_FORWARDING");
    assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
    drop(sys);
    pod.del();
    node.assert_empty();
}

#[test]
fn an_exhausted_range_leaves_no_link() {
    let node = TestNode::new(
        "gt-full",
        json!({"type": "host-local", "subnet": "10.203.0.0/24", "rangeStart": "10.203.0.9", "rangeEnd": "10.203.0.9"}),
    );
    let (one, two) = (node.pod("one"), node.pod("two"));
    one.add();
    let error = explain(&two.add_as("eth0").unwrap_err());
    assert!(error.contains("no free address in 10.203.0.9-10.203.0.9"), "{error}");
    assert_eq!(links(&two.netns), ["lo"].map(String::from).into());
    assert_eq!((node.ports(), node.cached_count(), node.leases().len()), (1, 1, 1));
    two.del();
    assert_eq!(node.leases().len(), 1, "a failed pod's DEL takes no other's lease");
    one.del();
    node.assert_empty();
}

#[test]
fn a_failure_after_the_lease_releases_it() {
    let node = TestNode::new("gt-taken", json!({"type": "host-local", "subnet": "10.204.0.0/24"}));
    let pod = node.pod("one");
    let error = explain(&pod.add_as("lo").unwrap_err());
    assert!(error.contains("cannot make veth pair") && error.contains("File exists"), "{error}");
    node.assert_empty();
}

#[test]
fn a_failure_inside_the_pod_removes_the_link() {
    let routes = json!([{"dst": "192.0.2.0/24", "gw": "198.51.100.1"}]);
    let node =
        TestNode::new("gt-route", json!({"type": "host-local", "subnet": "10.205.0.0/24", "routes": routes}));
    let pod = node.pod("one");
    let error = explain(&pod.add_as("eth0").unwrap_err());
    assert!(error.contains("cannot add the route to 192.0.2.0/24"), "{error}");
    assert_eq!(links(&pod.netns), ["lo"].map(String::from).into());
    node.assert_empty();
}

#[test]
fn del_works_when_the_namespace_is_gone() {
    let node = TestNode::new("gt-gone", json!({"type": "host-local", "subnet": "10.206.0.0/24"}));
    let pod = node.pod("one");
    pod.add();
    netns::remove(&pod.netns).unwrap();
    pod.del();
    node.assert_empty();
}

#[test]
fn del_works_when_only_the_file_of_the_namespace_is_gone() {
    let node = TestNode::new("gt-held", json!({"type": "host-local", "subnet": "10.207.0.0/24"}));
    let pod = node.pod("one");
    let result = pod.add();
    let (_keeps_the_namespace, _) = pod.listen(address(&result, 0));
    netns::remove(&pod.netns).unwrap();
    assert_eq!(node.ports(), 1);
    pod.del();
    node.assert_empty();
}

#[test]
fn del_removes_a_link_whose_host_end_has_another_name() {
    let node = TestNode::new("gt-other", json!({"type": "host-local", "subnet": "10.208.0.0/24"}));
    let pod = node.pod("one");
    pod.add();
    let other = Attachment { container_id: "another", ..pod.attachment("eth0") };
    chain::del(&node.list, &other, &node.dirs).unwrap();
    assert_eq!(links(&pod.netns), ["lo"].map(String::from).into());
    pod.del();
    node.assert_empty();
}

#[test]
fn a_bridge_of_another_network_is_refused() {
    let node = TestNode::new("gt-clash", json!({"type": "host-local", "subnet": "10.209.0.0/24"}));
    let mut other = TestNode::new("gt-clash", json!({"type": "host-local", "subnet": "10.210.0.0/24"}));
    let (mine, theirs) = (node.pod("one"), other.pod("two"));
    mine.add();
    let error = explain(&theirs.add_as("eth0").unwrap_err());
    assert!(error.contains("bridge gt-clash has address 10.209.0.1/24"), "{error}");
    assert_eq!(other.leases(), BTreeSet::new());
    mine.del();
    node.assert_empty();
    drop(theirs);
    other.bridge = "lo".into();
    let list = other.list.raw().to_string().replace("gt-clash", "lo");
    other.list = Conflist::parse(&list, "test").unwrap();
    let error = explain(&other.pod("three").add_as("eth0").unwrap_err());
    assert!(error.contains("lo exists but is not a bridge"), "{error}");
}

#[test]
fn pods_come_and_go_side_by_side() {
    let node = TestNode::new("gt-many", json!({"type": "host-local", "subnet": "10.211.0.0/24"}));
    let mut times: Vec<i64> = Vec::new();
    let added: Vec<(Pod<'_>, CniResult, i64)> = std::thread::scope(|scope| {
        let node = &node;
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    (0..8)
                        .map(|n| {
                            let pod = node.pod(&format!("p{thread}-{n}"));
                            let mut spent = 0;
                            let mut on_plugin = |name: &str, start, end| {
                                spent += if name == "host-local" { 0 } else { end - start };
                            };
                            let result =
                                chain::add(&node.list, &pod.attachment("eth0"), &node.dirs, &mut on_plugin)
                                    .unwrap();
                            (pod, result, spent)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let addresses: BTreeSet<IpAddr> = added.iter().map(|(_, result, _)| address(result, 0)).collect();
    assert_eq!((addresses.len(), node.leases().len(), node.ports()), (32, 32, 32));
    let (_listener, at) = added[0].0.listen(address(&added[0].1, 0));
    added[31].0.connect(at);
    for (pod, _, spent) in &added {
        times.push(*spent);
        pod.del();
    }
    times.sort_unstable();
    println!("ADD, 4 side by side: median {} us, slowest {} us", times[16] / 1000, times[31] / 1000);
    node.assert_empty();
}

#[test]
fn a_namespace_is_made_once_and_removed_without_a_trace() {
    refuse_the_hosts_namespaces();
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().join("netns");
    let path = netns::create(&parent, "a").unwrap();
    assert_eq!(links(&path), ["lo"].map(String::from).into());
    assert!(netns::create(&parent, "a").is_err(), "the name is taken");
    assert_eq!(links(&path).len(), 1, "and the namespace of that name is as it was");
    netns::remove(&path).unwrap();
    netns::remove(&path).unwrap();
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(!mounts.contains(&*path.to_string_lossy()), "{mounts}");
    assert_eq!(parent.read_dir().unwrap().count(), 0);
}

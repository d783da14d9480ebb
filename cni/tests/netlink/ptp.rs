//! Plugin `ptp` and the rarer options of `bridge` on real links.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use gantry_cni::netns;
use serde_json::{Value, json};

use crate::host::{self, seen_by};
use crate::node::{Pod, Sysfs, TestNode, address, explain, links};

fn reach(from: &Pod<'_>, to: IpAddr) -> Result<IpAddr, String> {
    netns::run(&from.netns, || seen_by(SocketAddr::new(to, 7000))).unwrap()
}

fn serve(pod: &Pod<'_>, on: IpAddr) {
    host::tell_callers(netns::run(&pod.netns, || TcpListener::bind((on, 7000))).unwrap().unwrap());
}

#[test]
fn pods_on_point_to_point_links_reach_each_other_through_the_host() {
    let list = json!({"cniVersion": "1.0.0", "name": "gt-ptp", "plugins": [{"type": "ptp", "mtu": 1400, "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.230.0.0/24"}], [{"subnet": "fd00:230::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]});
    let node = TestNode::of("gt-ptp", &list);
    let (one, two) = (node.pod("one"), node.pod("two"));
    let (first, second) = (one.add(), two.add());
    assert_eq!(first.interfaces.len(), 2);
    assert_eq!((first.ips[0].interface, first.ips[0].address.to_string()), (Some(1), "10.230.0.2/24".into()));
    for family in [0, 1] {
        let to = address(&second, family);
        serve(&two, to);
        assert_eq!(reach(&one, to), Ok(address(&first, family)));
        let gateway = first.ips[family].gateway.unwrap();
        let on_gateway = TcpListener::bind((gateway, 0)).unwrap();
        one.connect(on_gateway.local_addr().unwrap());
    }
    // The subnet is behind the gateway, not on the link.
    let routes = host::run("nsenter", &[&format!("--net={}", one.netns.display()), "ip", "-4", "route"]);
    assert!(routes.contains("10.230.0.0/24 via 10.230.0.1 dev eth0 src 10.230.0.2"), "{routes}");
    assert!(routes.contains("10.230.0.1 dev eth0 scope link src 10.230.0.2"), "{routes}");
    assert!(!routes.contains("10.230.0.0/24 dev eth0 proto kernel"), "{routes}");
    let link =
        host::run("nsenter", &[&format!("--net={}", one.netns.display()), "ip", "link", "show", "eth0"]);
    assert!(link.contains("mtu 1400"), "{link}");

    one.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
    host::run("nsenter", &[&format!("--net={}", one.netns.display()), "ip", "route", "del", "default"]);
    let error = explain(&one.check().unwrap_err());
    assert!(error.contains("the route to 0.0.0.0/0 is gone"), "{error}");
    one.del();
    one.del();
    two.del();
    assert_eq!(links(&one.netns), ["lo"].map(String::from).into());
    let host_links = links(Path::new("/proc/self/ns/net"));
    for result in [&first, &second] {
        assert!(!host_links.contains(&result.interfaces[0].name), "{host_links:?}");
    }
    assert_eq!((node.leases().len(), node.cached_count()), (0, 0));
}

#[test]
fn a_failure_of_ptp_leaves_nothing() {
    let list = json!({"cniVersion": "1.0.0", "name": "gt-ptp2", "plugins": [{"type": "ptp", "ipam": {
        "type": "host-local", "subnet": "10.231.0.0/24", "routes": [{"dst": "192.0.2.0/24", "gw": "198.51.100.1"}]}}]});
    let node = TestNode::of("gt-ptp2", &list);
    let pod = node.pod("one");
    let error = explain(&pod.add_as("eth0").unwrap_err());
    assert!(error.contains("cannot add the route to 192.0.2.0/24"), "{error}");
    assert_eq!(links(&pod.netns), ["lo"].map(String::from).into());
    let again = explain(&pod.add_as("eth0").unwrap_err());
    assert_eq!(again, error, "neither link nor lease is in the way of the next try");
    assert_eq!(node.leases().len(), 0);
}

fn bridge(name: &str, subnet: &str, more: Value) -> TestNode {
    let mut fields = json!({"isGateway": true, "ipam": {"type": "host-local", "subnet": subnet}});
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    TestNode::with(name, fields, &[])
}

#[test]
fn isolated_ports_do_not_reach_each_other() {
    let node = bridge("gt-isolated", "10.232.0.0/24", json!({"portIsolation": true}));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let result = one.add();
    two.add();
    let sys = Sysfs::mount();
    let port = sys.path().join(format!("class/net/{}/brport/isolated", result.interfaces[1].name));
    assert_eq!(std::fs::read_to_string(port).unwrap().trim(), "1");
    drop(sys);
    one.del();
    two.del();
    node.assert_empty();
}

#[test]
fn a_forced_address_replaces_the_old_one() {
    let old = bridge("gt-force", "10.233.0.0/24", json!({}));
    let new = bridge("gt-force", "10.234.0.0/24", json!({"forceAddress": true}));
    let pod = old.pod("one");
    pod.add();
    pod.del();
    let pod = new.pod("two");
    pod.add();
    let addresses = host::run("ip", &["-4", "-o", "address", "show", "dev", "gt-force"]);
    assert!(addresses.contains("10.234.0.1/24") && !addresses.contains("10.233.0.1"), "{addresses}");
    pod.del();
    new.assert_empty();
}

#[test]
fn a_promiscuous_bridge_and_a_chosen_hardware_address() {
    let node = TestNode::with(
        "gt-promisc",
        json!({"promiscMode": true, "capabilities": {"mac": true}, "ipam": {"type": "host-local", "subnet": "10.235.0.0/24"}}),
        &[],
    );
    let mut pod = node.pod("one");
    pod.capabilities.insert("mac".into(), json!("02:11:22:33:44:55"));
    let result = pod.add();
    assert_eq!(result.interfaces[2].mac, "02:11:22:33:44:55");
    pod.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
    let link = host::run("ip", &["-d", "link", "show", "gt-promisc"]);
    assert!(link.contains("PROMISC"), "{link}");
    pod.del();
    node.assert_empty();
}

#[test]
fn a_link_may_stay_down_in_the_pod() {
    let node = TestNode::with("gt-down", json!({"disableContainerInterface": true}), &[]);
    let pod = node.pod("one");
    let result = pod.add();
    assert_eq!((result.ips.len(), result.interfaces.len()), (0, 3));
    let link =
        host::run("nsenter", &[&format!("--net={}", pod.netns.display()), "ip", "link", "show", "eth0"]);
    assert!(link.contains("state DOWN"), "{link}");
    pod.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
    pod.del();
    host::run("ip", &["link", "del", "gt-down"]);
}

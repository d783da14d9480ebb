//! Host ports and masquerading, seen from another machine, from the host and from the pod itself.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use gantry_cni::chain::{self, ValidAttachment};
use gantry_cni::netns;
use serde_json::{Value, json};

use crate::host::{self, RemoteHost, seen_by};
use crate::node::{Pod, TestNode, address, explain};

/// The tests of this file change and compare the host's whole ruleset, so they take turns.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

fn dual(v4: &str, v6: &str) -> Value {
    json!({"isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": v4}], [{"subnet": v6}]]}})
}

fn serve(pod: &Pod<'_>, at: &str) {
    let listener = netns::run(&pod.netns, || TcpListener::bind(at)).unwrap().unwrap();
    host::tell_callers(listener);
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_host_port_leads_to_its_pod_from_everywhere_and_goes_without_a_trace() {
    let _turn = turn();
    let before = host::ruleset();
    let node = TestNode::with("gt-ports", dual("10.221.0.0/24", "fd00:221::/64"), &[portmap()]);
    let machine = RemoteHost::new(
        "gt-m1",
        &[("192.0.2.1/24", "192.0.2.9/24"), ("2001:db8:1::1/64", "2001:db8:1::9/64")],
    );
    let ports = json!([{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}]);
    let (pod, other) = (node.pod("web").map(ports), node.pod("other"));
    let result = pod.add();
    other.add();
    pod.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
    serve(&pod, "0.0.0.0:80");
    let v6 = address(&result, 1);
    serve(&pod, &format!("[{v6}]:80"));

    // From another machine, whose address the pod sees.
    assert_eq!(machine.inside(|| seen_by(at("192.0.2.1:8081"))), Ok(ip("192.0.2.9")));
    assert_eq!(machine.inside(|| seen_by(at("[2001:db8:1::1]:8081"))), Ok(ip("2001:db8:1::9")));
    // From the host: by an address of its own, and by 127.0.0.1.
    assert!(seen_by(at("192.0.2.1:8081")).is_ok());
    assert_eq!(seen_by(at("127.0.0.1:8081")), Ok(ip("10.221.0.1")));
    assert!(seen_by(at("[2001:db8:1::1]:8081")).is_ok());
    // From the pod itself, and from its neighbour on the bridge, which would get answers from a stranger otherwise.
    let from = |pod: &Pod<'_>, to: &str| netns::run(&pod.netns, || seen_by(at(to))).unwrap();
    for pod in [&pod, &other] {
        assert_eq!(from(pod, "192.0.2.1:8081"), Ok(ip("10.221.0.1")));
        assert!(from(pod, "[2001:db8:1::1]:8081").is_ok());
    }
    // Straight to the pod nobody is masqueraded.
    assert_eq!(from(&other, "10.221.0.2:80"), Ok(ip("10.221.0.3")));

    other.del();
    assert!(seen_by(at("127.0.0.1:8081")).is_ok(), "another pod's DEL takes no port");
    pod.del();
    pod.del();
    assert!(machine.inside(|| seen_by(at("192.0.2.1:8081"))).is_err());
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

#[test]
fn a_pod_is_masqueraded_beyond_its_subnet_only() {
    let _turn = turn();
    let before = host::ruleset();
    let node = TestNode::with("gt-masq", dual("10.222.0.0/24", "fd00:222::/64"), &[]);
    let machine = RemoteHost::new(
        "gt-m2",
        &[("198.51.100.1/24", "198.51.100.9/24"), ("2001:db8:2::1/64", "2001:db8:2::9/64")],
    );
    let (pod, other) = (node.pod("one"), node.pod("two"));
    pod.add();
    other.add();
    for to in ["198.51.100.9:9000", "[2001:db8:2::9]:9000"] {
        host::tell_callers(machine.inside(|| TcpListener::bind(to)).unwrap());
    }
    serve(&other, "0.0.0.0:9000");
    let from = |to: &str| netns::run(&pod.netns, || seen_by(at(to))).unwrap();
    // The machine knows no way back to the pods: that it answers shows whose address it sees.
    assert_eq!(from("198.51.100.9:9000"), Ok(ip("198.51.100.1")));
    assert_eq!(from("[2001:db8:2::9]:9000"), Ok(ip("2001:db8:2::1")));
    assert_eq!(from("10.222.0.3:9000"), Ok(ip("10.222.0.2")));
    let listed = host::table("gantry-masquerade");
    let rule =
        "ip saddr @pods-10.222.0.0/24 ip daddr != 10.222.0.0/24 ip daddr != 224.0.0.0/4 masquerade comment";
    assert_eq!(listed.matches(rule).count(), 1, "one rule for both: {listed}");
    assert!(listed.contains("test/one"), "comments name the pod: {listed}");
    pod.check().unwrap();
    other.del();
    assert_eq!(
        host::netfilter_sockets(),
        1,
        "the one that is kept: to close it would have taken milliseconds"
    );
    assert_eq!(from("198.51.100.9:9000"), Ok(ip("198.51.100.1")));
    pod.check().unwrap();
    for (set, expected) in [
        ("attachments", "the pod has the addresses [], not ["),
        ("pods-10.222.0.0/24", "has no 10.222.0.2 of the pod"),
    ] {
        let whole = host::run("nft", &["list", "set", "inet", "gantry-masquerade", set]);
        host::run("nft", &["flush", "set", "inet", "gantry-masquerade", set]);
        let error = explain(&pod.check().unwrap_err());
        assert!(error.contains(expected), "{set}: {error}");
        host::run("nft", &[&whole]);
        pod.check().unwrap_or_else(|error| panic!("{set}: {}", explain(&error)));
    }
    host::run("nft", &["flush", "chain", "inet", "gantry-masquerade", "pods"]);
    let error = explain(&pod.check().unwrap_err());
    assert!(error.contains("chain pods has 0 rules of subnet 10.222.0.0/24, not 1"), "{error}");
    pod.del();
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

#[test]
fn a_port_of_another_pod_is_refused_by_port_and_pod() {
    let _turn = turn();
    let before = host::ruleset();
    let node = TestNode::with("gt-taken2", dual("10.223.0.0/24", "fd00:223::/64"), &[portmap()]);
    let ports = || json!([{"hostPort": 8083, "containerPort": 80, "protocol": "tcp"}]);
    let (first, second) = (node.pod("first").map(ports()), node.pod("second").map(ports()));
    first.add();
    let error = explain(&second.add_as("eth0").unwrap_err());
    assert!(
        error.contains("host port 8083/TCP is taken by test/first, so test/second cannot have it"),
        "{error}"
    );
    assert_eq!(node.leases().len(), 2, "the second pod's addresses went back");
    first.check().unwrap();
    first.del();
    second.add();
    second.del();
    let listener = TcpListener::bind("0.0.0.0:8083").unwrap();
    let error = explain(&first.add_as("eth0").unwrap_err());
    assert!(error.contains("a process of the host listens on host port 8083/TCP"), "{error}");
    drop(listener);
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

/// runtime-traps §8: a client that keeps sending keeps its flow, and with it the way to a pod that is gone.
#[test]
fn old_flows_of_udp_are_forgotten_at_add_and_del() {
    let _turn = turn();
    let node = TestNode::with("gt-udp", dual("10.224.0.0/24", "fd00:224::/64"), &[portmap()]);
    let machine = RemoteHost::new("gt-m4", &[("203.0.113.1/24", "203.0.113.9/24")]);
    let ports = || json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]);
    let client = machine.inside(|| UdpSocket::bind("203.0.113.9:4444")).unwrap();
    let to = at("203.0.113.1:5353");
    let answer = |pod: &Pod<'_>, word| {
        let socket = netns::run(&pod.netns, || UdpSocket::bind("0.0.0.0:53")).unwrap().unwrap();
        host::answer_datagrams(socket, word);
    };
    // Tracked before anybody listens: unforwarded, and a flow of its own from then on.
    client.send_to(b"?", to).unwrap();
    for word in ["one", "two"] {
        let pod = node.pod(word).map(ports());
        pod.add();
        answer(&pod, word);
        host::ask_until(&client, to, word);
        pod.del();
    }
    node.assert_empty();
}

#[test]
fn what_listens_on_localhost_stays_out_of_reach_of_pods() {
    let _turn = turn();
    let node = TestNode::with("gt-martian", dual("10.225.0.0/24", "fd00:225::/64"), &[portmap()]);
    let pod = node.pod("one").map(json!([{"hostPort": 8085, "containerPort": 80}]));
    pod.add();
    let secret = TcpListener::bind("127.0.0.1:8086").unwrap();
    host::tell_callers(secret);
    let route = std::fs::read_to_string("/proc/sys/net/ipv4/conf/gt-martian/route_localnet").unwrap();
    assert_eq!(route.trim(), "1", "without it 127.0.0.1:8085 would not reach the pod");
    // CVE-2020-8558: a pod that sends packets for 127.0.0.1 to its gateway.
    netns::run(&pod.netns, || {
        for command in [
            "link set lo down",
            "route add 127.0.0.0/8 via 10.225.0.1 table 200",
            "rule add to 127.0.0.0/8 table 200 pref 5",
            "rule add pref 10 table local",
            "rule del pref 0",
        ] {
            host::run("ip", &command.split(' ').collect::<Vec<_>>());
        }
        std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
    })
    .unwrap();
    let try_it = || {
        let patience = std::time::Duration::from_millis(500);
        let to = at("127.0.0.1:8086");
        netns::run(&pod.netns, || std::net::TcpStream::connect_timeout(&to, patience)).unwrap()
    };
    let error = try_it().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    host::run("nft", &["flush", "chain", "inet", "gantry-hostports", "raw"]);
    try_it().expect("that the rule is what keeps the pod out");
    pod.del();
    node.assert_empty();
}

#[test]
fn gc_takes_rules_of_gone_attachments_and_leaves_other_networks_alone() {
    let _turn = turn();
    let before = host::ruleset();
    let nodes = ["gt-gc1", "gt-gc2"].map(|name| {
        TestNode::with(
            name,
            dual(
                &format!("10.22{}.0.0/24", &name[5..].parse::<u8>().unwrap() + 5),
                &format!("fd00:{name}::/64").replace("gt-gc", "c"),
            ),
            &[portmap()],
        )
    });
    let ports = |port: u16| json!([{"hostPort": port, "containerPort": 80}]);
    let (kept, gone, foreign) = (
        nodes[0].pod("kept").map(ports(8101)),
        nodes[0].pod("gone").map(ports(8102)),
        nodes[1].pod("foreign").map(ports(8103)),
    );
    for pod in [&kept, &gone, &foreign] {
        pod.add();
    }
    let valid = [ValidAttachment { container_id: kept.id.clone(), ifname: "eth0".into() }];
    // A power cut took the cached result of the one that is gone, too.
    std::fs::remove_file(nodes[0].dirs.cache_dir.join(format!("gt-gc1-{}-eth0", gone.id))).unwrap();
    // Another node of this machine has a network of that name, and no attachment.
    let full = host::ruleset();
    chain::gc(&nodes[0].list, &[], &nodes[1].dirs, &|_| true).unwrap();
    assert_eq!(host::ruleset(), full);
    chain::gc(&nodes[0].list, &valid, &nodes[0].dirs, &|_| true).unwrap();
    let listed = host::ruleset();
    for (name, expected) in [("test/kept", true), ("test/gone", false), ("test/foreign", true)] {
        assert_eq!(listed.contains(name), expected, "{name}: {listed}");
    }
    assert_eq!(nodes[0].leases().len(), 2);
    gone.del();
    kept.del();
    foreign.del();
    assert_eq!(host::ruleset(), before);
    nodes.iter().for_each(TestNode::assert_empty);
}

/// As the version before sets wrote it: a rule for each address.
fn in_former_form(address: &str, subnet: &str, comment: &str) {
    let rule = format!("ip saddr {address} ip daddr != {subnet} ip daddr != 224.0.0.0/4 masquerade");
    host::run("nft", &[&format!("add rule inet gantry-masquerade pods {rule} comment \"{comment}\"")]);
}

/// What the comments of a pod's elements say.
fn comment_of(address: &str) -> String {
    let listed = host::table("gantry-masquerade");
    let element = format!("{address} comment \"");
    let comment = listed.split(&element).nth(1).unwrap_or_else(|| panic!("{address}: {listed}"));
    comment.split('"').next().unwrap().into()
}

#[test]
fn rules_of_an_earlier_version_hold_and_go() {
    let _turn = turn();
    let before = host::ruleset();
    let subnet = "10.230.0.0/20";
    let ipam = json!({"type": "host-local", "subnet": subnet});
    let node =
        TestNode::with("gt-former", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}), &[]);
    let machine = RemoteHost::new("gt-m3", &[("198.51.100.1/24", "198.51.100.9/24")]);
    host::tell_callers(machine.inside(|| TcpListener::bind("198.51.100.9:9000")).unwrap());
    let seen = |pod: &Pod<'_>| netns::run(&pod.netns, || seen_by(at("198.51.100.9:9000"))).unwrap();
    let (kept, gone) = (node.pod("kept"), node.pod("gone"));
    kept.add();
    gone.add();
    let comments = ["10.230.0.2", "10.230.0.3"].map(|address| (address, comment_of(address)));
    host::run("nft", &["delete table inet gantry-masquerade"]);
    host::run(
        "nft",
        &["table inet gantry-masquerade {\nchain pods {}\nchain postrouting {\n\
           type nat hook postrouting priority srcnat;\njump pods\n}\n}"],
    );
    comments.iter().for_each(|(address, comment)| in_former_form(address, subnet, comment));
    let check = |pod: &Pod<'_>| pod.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
    [&kept, &gone].into_iter().for_each(check);

    let new = node.pod("new");
    new.add();
    for pod in [&kept, &gone, &new] {
        check(pod);
        assert_eq!(seen(pod), Ok(ip("198.51.100.1")));
    }
    let valid =
        [&kept, &new].map(|pod| ValidAttachment { container_id: pod.id.clone(), ifname: "eth0".into() });
    std::fs::remove_file(node.dirs.cache_dir.join(format!("gt-former-{}-eth0", gone.id))).unwrap();
    chain::gc(&node.list, &valid, &node.dirs, &|_| true).unwrap();
    let listed = host::table("gantry-masquerade");
    for (name, expected) in [("test/kept", true), ("test/gone", false), ("test/new", true)] {
        assert_eq!(listed.contains(name), expected, "{name}: {listed}");
    }
    new.del();
    assert!(!host::table("gantry-masquerade").contains("set "), "the last new one takes the sets with it");
    check(&kept);
    new.add();
    kept.del();
    assert!(!host::table("gantry-masquerade").contains("test/kept"));
    check(&new);
    new.del();
    gone.del();
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

#[test]
fn a_counter_that_is_wrong_costs_no_other_pod_its_address() {
    let _turn = turn();
    let before = host::ruleset();
    let node = TestNode::with("gt-count", dual("10.231.0.0/24", "fd00:231::/64"), &[]);
    let pods = ["one", "two", "three"].map(|name| node.pod(name));
    pods.iter().for_each(|pod| drop(pod.add()));
    let listed = host::table("gantry-masquerade");
    assert!(listed.contains("comment \"3 pods-10.231.0.0/24\""), "{listed}");
    // Too low, and not to be read: both are counted anew when that matters.
    for (wrong, at) in [("1 ", 0), ("many ", 1)] {
        let listed = host::run("nft", &["list", "set", "inet", "gantry-masquerade", "attachments"]);
        let right = if at == 0 { "\"3 pods-" } else { "\"2 pods-" };
        host::run("nft", &["flush", "set", "inet", "gantry-masquerade", "attachments"]);
        host::run("nft", &[&listed.replace(right, &format!("\"{wrong}pods-"))]);
        pods[at].del();
        pods[at + 1..]
            .iter()
            .for_each(|pod| pod.check().unwrap_or_else(|error| panic!("{}", explain(&error))));
        let left = format!("comment \"{} pods-10.231.0.0/24\"", 2 - at);
        assert!(host::table("gantry-masquerade").contains(&left), "{left}");
    }
    pods[2].del();
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

/// CHECK counted rules, and believed their comments.
#[test]
fn a_rule_that_says_something_else_is_not_the_pods_and_neither_is_one_that_nobody_calls() {
    let _turn = turn();
    let before = host::ruleset();
    let node = TestNode::with("gt-check", dual("10.229.0.0/24", "fd00:229::/64"), &[portmap()]);
    let ports = json!([
        {"hostPort": 8301, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8302, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
    ]);
    let pod = node.pod("one").map(ports);
    let check = || pod.check().map_err(|error| explain(&error));
    for (table, chain, from, to) in [
        (
            "gantry-hostports",
            "hostports",
            "dport 8301 dnat ip to 10.229.0.2:80",
            "dport 8301 dnat ip to 10.229.0.9:80",
        ),
        ("gantry-hostports", "hostports", "udp dport 8302", "udp dport 8309"),
        ("gantry-hostports", "hairpin", "ip saddr 127.0.0.0/8", "ip saddr 127.0.0.0/12"),
        ("gantry-masquerade", "pods", "ip daddr != 224.0.0.0/4 masquerade", "ip daddr != 224.0.0.0/4 drop"),
    ] {
        pod.add();
        check().unwrap();
        let whole = host::run("nft", &["-a", "list", "table", "inet", table]);
        let line =
            whole.lines().find(|line| line.contains(from)).unwrap_or_else(|| panic!("{from}: {whole}"));
        let (rule, handle) = line.trim().split_once(" # handle ").unwrap();
        let rule = rule.replacen(from, to, 1);
        host::run("nft", &[&format!("replace rule inet {table} {chain} handle {handle} {rule}")]);
        let error = check().unwrap_err();
        let whose = if chain == "pods" { "subnet 10.229.0.0/24" } else { "the pod" };
        assert!(
            error.contains(&format!("a rule of {whose} in chain {chain} says something else")),
            "{error}"
        );
        pod.del();
    }
    pod.add();
    host::run("nft", &["flush", "chain", "inet", "gantry-hostports", "prerouting"]);
    let error = check().unwrap_err();
    assert!(error.contains("chain prerouting has 0 rules of the frame, not 1"), "{error}");
    pod.del();
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

#[test]
fn ports_come_and_go_side_by_side() {
    let _turn = turn();
    let before = host::ruleset();
    let node = TestNode::with("gt-crowd", dual("10.228.0.0/24", "fd00:228::/64"), &[portmap()]);
    // So many rules that the kernel lists them in parts, between which others begin and end their changes.
    let standing: Vec<_> = (0..24_u16)
        .map(|pod| {
            let ports = json!([{"hostPort": 8100 + pod, "containerPort": 80}]);
            let pod = node.pod(&format!("s{pod}")).map(ports);
            pod.add();
            pod
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..8_u16 {
            let node = &node;
            scope.spawn(move || {
                for round in 0..5 {
                    let port = 8200 + thread;
                    let ports = json!([{"hostPort": port, "containerPort": 80}]);
                    let pod = node.pod(&format!("p{thread}-{round}")).map(ports);
                    pod.add();
                    pod.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
                    pod.del();
                }
            });
        }
    });
    for pod in &standing {
        pod.check().unwrap_or_else(|error| panic!("{}", explain(&error)));
        pod.del();
    }
    assert_eq!(host::ruleset(), before);
    node.assert_empty();
}

#[test]
fn what_others_only_try_out_is_no_rule() {
    let _turn = turn();
    let node = TestNode::with("gt-tried", dual("10.227.0.0/24", "fd00:227::/64"), &[portmap()]);
    let ports = |pod: u16| json!([{"hostPort": 8400 + pod, "containerPort": 80}]);
    let pods: Vec<_> = (0..8).map(|pod| node.pod(&format!("p{pod}")).map(ports(pod))).collect();
    pods.iter().for_each(|pod| drop(pod.add()));
    let done = AtomicBool::new(false);
    let refused: Vec<String> = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Prepared by the kernel as any change, and given up: a list that is told meanwhile has a rule twice.
            while !done.load(Ordering::Relaxed) {
                host::run("nft", &["--check", "add rule inet gantry-hostports hairpin counter"]);
            }
        });
        let checks = (0..40).flat_map(|_| &pods).map(|pod| pod.check());
        let refused = checks.filter_map(Result::err).map(|error| explain(&error)).collect();
        done.store(true, Ordering::Relaxed);
        refused
    });
    assert_eq!(refused, [""; 0]);
    pods.iter().for_each(Pod::del);
    node.assert_empty();
}

//! The parts of a Node that the story of its registration does not show.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::super::tests::{machine, settings};
use super::*;

fn made(settings: &Settings, base: &Node) -> Value {
    let machine = machine();
    serde_json::to_value(update_node(base, &facts(settings, &machine))).unwrap()
}

fn facts<'a>(settings: &'a Settings, machine: &'a MachineInfo) -> NodeInputs<'a> {
    static NO_DEVICES: BTreeMap<String, Amount> = BTreeMap::new();
    let (version, health, images, addresses) = (None, None, None, None);
    let devices = &NO_DEVICES;
    static IN_USE: InUse = InUse { sure: BTreeSet::new(), perhaps: BTreeSet::new(), in_doubt: false };
    let (foreign_mounts, in_use) = (false, &IN_USE);
    NodeInputs { settings, machine, devices, version, health, images, addresses, foreign_mounts, in_use }
}

/// A resource whose plugin has gone is 0, not absent: then the scheduler would take it for the cluster's own.
#[test]
fn devices_are_told_as_their_plugins_have_them() {
    let (settings, machine) = (settings(), machine());
    let offered = [
        ("vendor.com/gpu".to_owned(), Amount { capacity: 3, allocatable: 2 }),
        ("vendor.com/gone".to_owned(), Amount::default()),
    ];
    let devices = offered.into();
    let base: Node = serde_json::from_value(
        json!({ "status": { "capacity": { "vendor.com/gone": "2", "other.com/x": "7" }, "allocatable": { "vendor.com/gone": "2" } } }),
    )
    .unwrap();
    let node = update_node(&base, &NodeInputs { devices: &devices, ..facts(&settings, &machine) });
    let status = serde_json::to_value(node).unwrap()["status"].clone();
    let both = |name: &str| (status["capacity"][name].clone(), status["allocatable"][name].clone());
    assert_eq!(both("vendor.com/gpu"), (json!("3"), json!("2")));
    assert_eq!(both("vendor.com/gone"), (json!("0"), json!("0")));
    assert_eq!(both("other.com/x"), (json!("7"), json!("7")));
}

/// Also what an earlier kubelet has told and left, until it is taken back.
#[test]
fn volumes_are_in_use_as_their_owner_says() {
    let (settings, machine) = (settings(), machine());
    let base: Node =
        serde_json::from_value(json!({ "status": { "volumesInUse": ["left", "over"] } })).unwrap();
    let told = |in_use: &InUse| {
        let inputs = NodeInputs { in_use, ..facts(&settings, &machine) };
        serde_json::to_value(update_node(&base, &inputs)).unwrap()["status"]["volumesInUse"].clone()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let in_use = InUse { sure: names(&["new"]), perhaps: names(&["left", "never told"]), in_doubt: false };
    assert_eq!(told(&in_use), json!(["left", "new"]));
    assert_eq!(told(&InUse { in_doubt: true, ..in_use }), json!(["left", "new", "over"]));
    assert_eq!(told(&InUse::default()), Value::Null);
}

/// A controller may detach what is in no node's list, also by force.
#[test]
fn volumes_are_in_use_while_an_earlier_kubelets_mounts_remain() {
    let (settings, machine) = (settings(), machine());
    let (volume, attached) = ("kubernetes.io/csi/d^v", [json!({ "name": "v", "devicePath": "" })]);
    let base: Node = serde_json::from_value(
        json!({ "status": { "volumesInUse": [volume], "volumesAttached": attached } }),
    )
    .unwrap();
    let mounted = NodeInputs { foreign_mounts: true, ..facts(&settings, &machine) };
    let node = serde_json::to_value(update_node(&base, &mounted)).unwrap();
    assert_eq!(node["status"]["volumesInUse"], json!([volume]));
    assert_eq!(node["status"]["volumesAttached"], json!(attached));
    let node = made(&settings, &base);
    assert_eq!(node["status"].get("volumesInUse"), None);
    assert_eq!(node["status"]["volumesAttached"], json!(attached), "the controller's alone");
}

#[test]
fn taints_and_provider_are_set_when_the_node_is_made() {
    let mut settings = settings();
    settings.external_cloud = true;
    settings.attach_detach = false;
    settings.provider_id = "cloud://1".into();
    settings.taints =
        vec![Taint { key: "k".into(), effect: "NoExecute".into(), value: None, time_added: None }];
    let node = serde_json::to_value(initial(&settings, &machine())).unwrap();
    assert_eq!(node["spec"]["providerID"], "cloud://1");
    let keys: Vec<&Value> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|taint| &taint["key"]).collect();
    assert_eq!(keys, ["k", "node.cloudprovider.kubernetes.io/uninitialized"]);
    assert_eq!(node["metadata"].get("annotations"), None);
}

#[test]
fn reservations_beyond_capacity_leave_nothing_not_less() {
    let mut settings = settings();
    settings.pods_per_core = 10;
    settings.system_reserved =
        BTreeMap::from([("memory".into(), "100Gi".into()), ("cpu".into(), "3".into())]);
    let node = made(&settings, &initial(&settings, &machine()));
    assert_eq!(node["status"]["allocatable"]["memory"], "0");
    assert_eq!(node["status"]["allocatable"]["cpu"], "0");
    assert_eq!(node["status"]["capacity"]["pods"], "20");
}

#[test]
fn a_node_has_no_more_pods_than_it_is_told() {
    // The machine has two cores.
    for (max_pods, pods_per_core, told) in [(7, 0, "7"), (7, 10, "7"), (110, 3, "6")] {
        let settings = Settings { max_pods, pods_per_core, ..settings() };
        let node = made(&settings, &initial(&settings, &machine()));
        assert_eq!(
            (&node["status"]["capacity"]["pods"], &node["status"]["allocatable"]["pods"]),
            (&json!(told), &json!(told))
        );
    }
}

#[test]
fn pods_learn_what_the_node_says_it_gives_them() {
    let mut settings = settings();
    settings.system_reserved =
        BTreeMap::from([("cpu".into(), "500m".into()), ("memory".into(), "1Gi".into())]);
    let free = settings.allocatable(&machine());
    let pages = 2 << 21;
    let memory = (4_i64 << 30) - (1 << 30) - (100 << 20) - pages;
    assert_eq!((free.cpu, free.memory, free.ephemeral), (1500, memory, 900));
}

#[test]
fn a_clouds_addresses_stay_and_the_hint_for_it_comes_and_goes() {
    let mut settings = settings();
    settings.external_cloud = true;
    settings.node_ips = vec!["10.0.0.5".parse().unwrap()];
    let base: Node = serde_json::from_value(
        json!({ "status": { "addresses": [{ "type": "ExternalIP", "address": "1.2.3.4" }] } }),
    )
    .unwrap();
    let machine = machine();
    let own = [NodeAddress { type_: "Hostname".into(), address: "n1".into() }];
    let facts = NodeInputs { addresses: Some(&own), ..facts(&settings, &machine) };
    let node = update_node(&base, &facts);
    let with_hint = serde_json::to_value(&node).unwrap();
    assert_eq!(with_hint["status"]["addresses"][0]["type"], "ExternalIP");
    assert_eq!(with_hint["metadata"]["annotations"][PROVIDED_IP], "10.0.0.5");
    let other = Settings { external_cloud: false, ..settings.clone() };
    let facts = NodeInputs { settings: &other, ..facts };
    let plain = serde_json::to_value(update_node(&node, &facts)).unwrap();
    assert_eq!(plain["metadata"]["annotations"].get(PROVIDED_IP), None);
    assert_eq!(plain["status"]["addresses"][0]["type"], "Hostname");
}

#[test]
fn an_image_list_is_bounded_by_count_and_names() {
    let image = |n: i64| StoredImage {
        digests: (0..4).map(|d| format!("i{n}@sha256:{d}")).collect(),
        tags: (0..4).map(|t| format!("i{n}:{t}")).collect(),
        size: n,
    };
    let all: Vec<StoredImage> = (0..60).map(image).collect();
    let listed = images(&all, 50);
    assert_eq!((listed.len(), listed[0].size_bytes), (50, Some(59)));
    assert_eq!(listed[0].names.as_ref().unwrap().len(), 5);
    assert_eq!(images(&all, -1).len(), 60);
}

/// The API server passes WebSockets on where the node declares it, and translates them elsewhere.
#[test]
fn web_sockets_are_promised_on_a_runtime_that_speaks_them() {
    let (open, machine) = (settings(), machine());
    let version = |name: &str| Version { name: name.to_owned(), version: "1".to_owned() };
    let declared = |settings: &Settings, base: &Node, version: Option<&Version>| {
        let node = update_node(base, &NodeInputs { version, ..facts(settings, &machine) });
        serde_json::to_value(node).unwrap()["status"]["declaredFeatures"].clone()
    };
    let (new, ours, theirs) = (Node::default(), version("gantry"), version("containerd"));
    assert_eq!(declared(&open, &new, Some(&ours)), json!(["ExtendWebSocketsToKubelet"]));
    assert_eq!(declared(&open, &new, Some(&theirs)), Value::Null);
    assert_eq!(declared(&open, &new, None), Value::Null, "nobody knows yet");
    let closed = Settings { web_sockets: false, declared_features: vec!["A".to_owned()], ..open.clone() };
    assert_eq!(declared(&closed, &new, Some(&ours)), json!(["A"]));
    let sorted = Settings { declared_features: vec!["A".to_owned(), "Z".to_owned()], ..open.clone() };
    assert_eq!(declared(&sorted, &new, Some(&ours)), json!(["A", "ExtendWebSocketsToKubelet", "Z"]));
    // A runtime that is away for a moment is the same when it comes back.
    let known = update_node(&new, &NodeInputs { version: Some(&ours), ..facts(&open, &machine) });
    assert_eq!(declared(&open, &known, None), json!(["ExtendWebSocketsToKubelet"]));
    assert_eq!(declared(&open, &known, Some(&theirs)), Value::Null);
}

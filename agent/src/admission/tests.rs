//! Each rule on a node of its own.

use gantry_model::pod::placement::{Match, Operator, Placement, Term, Toleration};
use gantry_model::pod::{
    Container, Namespaces, PodSecurity, PodUid, Port, Requirements, Resources, Security,
};
use gantry_model::requests::requests;

use super::*;
use crate::pod::tests::{container, pod};

fn node() -> Node {
    Node {
        name: "n1".into(),
        labels: BTreeMap::from([("zone".into(), "a".into()), ("cores".into(), "8".into())]),
        allocatable: BTreeMap::from([
            ("cpu".into(), 1000),
            ("memory".into(), 1 << 20),
            ("pods".into(), 3),
            ("ephemeral-storage".into(), 1000),
        ]),
        ..Node::default()
    }
}

fn named(name: &str, cpu: i64) -> Pod {
    let resources = Resources { cpu_request: Some(cpu), ..Resources::default() };
    let containers = vec![Container { resources, ..container("web") }];
    let uid = PodUid::parse(&format!("uid-{name}")).unwrap();
    Pod { name: name.into(), uid, containers, origin: Origin::Api, ..pod() }
}

fn placed(placement: Placement) -> Pod {
    Pod { placement, ..named("p", 0) }
}

fn verdict(pod: &Pod) -> Result<(), String> {
    admit(pod, &[], &node()).map(|room| assert_eq!(room, Room::default())).map_err(|no| no.to_string())
}

fn reason(pod: &Pod, others: &[&Pod], node: &Node) -> String {
    admit(pod, others, node).map_or_else(|no| no.reason, |_| "admitted".to_owned())
}

#[test]
fn resources_are_counted_as_the_scheduler_counts_them() {
    assert_eq!(verdict(&named("a", 1000)), Ok(()));
    let (a, b, c) = (named("a", 600), named("b", 401), named("c", 0));
    assert_eq!(
        admit(&b, &[&a], &node()).unwrap_err(),
        Rejection::new(
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 401, used: 600, capacity: 1000"
        )
    );
    // The number of pods is looked at first.
    assert_eq!(reason(&b, &[&a, &c, &c], &node()), "OutOfpods");
    let asks = |name: &str, amount: &str| {
        let written = Requirements {
            requests: BTreeMap::from([(name.into(), amount.into())]),
            ..Requirements::default()
        };
        Pod { containers: vec![Container { written, ..container("x") }], ..named("x", 0) }
    };
    assert_eq!(reason(&asks("hugepages-2Mi", "2Mi"), &[], &node()), "OutOfhugepages-2Mi");
    // One that the node does not know is the cluster's to count.
    assert_eq!(reason(&asks("example.com/gpu", "1"), &[], &node()), "admitted");
    let mut with_gpu = node();
    with_gpu.allocatable.insert("example.com/gpu".into(), 1);
    let gpu = asks("example.com/gpu", "1");
    assert_eq!(reason(&gpu, &[], &with_gpu), "admitted");
    assert_eq!(reason(&gpu, &[&gpu], &with_gpu), "OutOfexample.com/gpu");
}

#[test]
fn huge_pages_that_only_the_pod_as_a_whole_asks_for_count() {
    let own = Requirements {
        requests: BTreeMap::from([("hugepages-2Mi".to_owned(), "4Mi".to_owned())]),
        ..Requirements::default()
    };
    let pod = Pod { resources: Some(own), ..named("a", 0) };
    assert_eq!(requests(&pod).get("hugepages-2Mi"), Some(&(4 << 20)));
    assert_eq!(reason(&pod, &[], &node()), "OutOfhugepages-2Mi");
}

#[test]
fn overhead_and_the_pods_own_numbers_count() {
    let overhead = BTreeMap::from([("cpu".to_owned(), "500m".to_owned())]);
    let pod = Pod { overhead, ..named("a", 501) };
    assert_eq!(requests(&pod).get("cpu"), Some(&1001));
    assert_eq!(reason(&pod, &[], &node()), "OutOfcpu");
    let own =
        Requirements { requests: BTreeMap::from([("cpu".into(), "100m".into())]), ..Requirements::default() };
    assert_eq!(requests(&Pod { resources: Some(own), ..pod }).get("cpu"), Some(&600));
}

#[test]
fn selector_and_affinity_must_both_fit() {
    let label = |key: &str, operator, values: &[&str]| Match {
        key: key.into(),
        operator,
        values: values.iter().map(|v| (*v).to_owned()).collect(),
    };
    let affine = |labels: Vec<Match>, fields: Vec<Match>| {
        verdict(&placed(Placement { affinity: Some(vec![Term { labels, fields }]), ..Placement::default() }))
    };
    let no = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    for (rule, fits) in [
        (label("zone", In, &["b", "a"]), true),
        (label("zone", NotIn, &["a"]), false),
        (label("other", NotIn, &["a"]), true),
        (label("zone", Exists, &[]), true),
        (label("zone", DoesNotExist, &[]), false),
        (label("cores", Gt, &["7"]), true),
        (label("cores", Lt, &["8"]), false),
        (label("zone", Gt, &["7"]), false),
    ] {
        let want = if fits { Ok(()) } else { Err(no.to_owned()) };
        assert_eq!(affine(vec![rule.clone()], vec![]), want, "{rule:?}");
    }
    assert_eq!(affine(vec![], vec![label("metadata.name", In, &["n1"])]), Ok(()));
    assert!(affine(vec![], vec![label("metadata.name", In, &["n2"])]).is_err());
    assert!(affine(vec![], vec![]).is_err(), "an empty term fits nothing");
    let select = |value: &str| Placement {
        node_selector: BTreeMap::from([("zone".into(), value.into())]),
        ..Placement::default()
    };
    assert_eq!(verdict(&placed(select("a"))), Ok(()));
    assert_eq!(verdict(&placed(select("b"))), Err(no.to_owned()));
}

#[test]
fn taints_that_end_pods_keep_them_out() {
    let taint = |effect: &str| Taint { key: "k".into(), value: "v".into(), effect: effect.into() };
    let on = |taint: Taint, tolerations: Vec<Toleration>, origin| {
        let node = Node { taints: vec![taint], ..node() };
        let pod = placed(Placement { tolerations, ..Placement::default() });
        reason(&Pod { origin, ..pod }, &[], &node)
    };
    let own = |value: &str, exists| Toleration {
        key: "k".into(),
        value: value.into(),
        exists,
        ..Toleration::default()
    };
    let all = Toleration { exists: true, ..Toleration::default() };
    assert_eq!(on(taint("NoSchedule"), vec![], Origin::Api), "admitted");
    assert_eq!(on(taint("NoExecute"), vec![], Origin::Api), "TaintToleration");
    assert_eq!(on(taint("NoExecute"), vec![own("x", false)], Origin::Api), "TaintToleration");
    assert_eq!(on(taint("NoExecute"), vec![own("v", false)], Origin::Api), "admitted");
    assert_eq!(on(taint("NoExecute"), vec![own("", true)], Origin::Api), "admitted");
    assert_eq!(on(taint("NoExecute"), vec![all], Origin::Api), "admitted");
    assert_eq!(on(taint("NoExecute"), vec![], Origin::Static), "admitted");
}

#[test]
fn ports_name_and_system_must_fit() {
    let port =
        Port { name: String::new(), port: 80, protocol: "TCP".into(), host_port: 80, host_ip: String::new() };
    let web = Container { ports: vec![port], ..container("web") };
    let pod = Pod { containers: vec![web], ..named("a", 0) };
    assert_eq!(reason(&pod, &[&pod], &node()), "NodePorts");
    let mut elsewhere = named("a", 0);
    elsewhere.shown.node_name = "n2".into();
    assert_eq!(reason(&elsewhere, &[], &node()), "NodeName");
    let windows = placed(Placement { os: "windows".into(), ..Placement::default() });
    assert_eq!(
        verdict(&windows).unwrap_err(),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
    );
    let mut labelled = named("a", 0);
    labelled.labels.insert("kubernetes.io/os".into(), "windows".into());
    assert_eq!(reason(&labelled, &[], &node()), "PodOSSelectorNodeLabelDoesNotMatch");
}

#[test]
fn sysctls_are_those_that_are_safe_or_allowed() {
    let with = |name: &str, namespaces| {
        let security = PodSecurity { sysctls: vec![(name.into(), "1".into())], ..PodSecurity::default() };
        Pod { security, namespaces, ..named("a", 0) }
    };
    let own = Namespaces::default();
    assert_eq!(Allowed::default().check(&with("net.ipv4.tcp_syncookies", own)), Ok(()));
    assert_eq!(
        Allowed::default().check(&with("kernel.msgmax", own)).unwrap_err().to_string(),
        "SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted"
    );
    let allowed = Allowed::new(vec!["kernel.msg*".replace("msg*", "msgmax"), "net.core.*".into()]).unwrap();
    for name in ["kernel.msgmax", "net.core.somaxconn", "net/core/somaxconn"] {
        assert_eq!(allowed.check(&with(name, own)), Ok(()));
    }
    let on_host = Namespaces { host_network: true, ..own };
    assert_eq!(allowed.check(&with("net.core.somaxconn", on_host)).unwrap_err().reason, "SysctlForbidden");
    assert!(Allowed::new(vec!["vm.swappiness".into()]).unwrap_err().contains("not known to be namespaced"));
}

#[test]
fn what_the_machine_does_not_have_is_refused_by_name() {
    let security = PodSecurity { strict_groups: true, ..PodSecurity::default() };
    let strict = Pod { security, ..named("a", 0) };
    assert_eq!(
        verdict(&strict).unwrap_err(),
        "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node"
    );
    assert_eq!(reason(&strict, &[], &Node { strict_groups: true, ..node() }), "admitted");
    let armed = |profile| {
        let security = Security { app_armor: Some(profile), ..Security::default() };
        Pod { containers: vec![Container { security, ..container("web") }], ..named("a", 0) }
    };
    assert_eq!(verdict(&armed(AppArmor::Unconfined)), Ok(()));
    assert_eq!(
        verdict(&armed(AppArmor::RuntimeDefault)).unwrap_err(),
        "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
    );
    // The pod's own word counts although its only container says otherwise.
    let security = PodSecurity { app_armor: true, ..PodSecurity::default() };
    let pod = Pod { security, ..armed(AppArmor::Unconfined) };
    assert_eq!(reason(&pod, &[], &node()), "AppArmor");
    let has = Node { app_armor: true, ..node() };
    assert_eq!(reason(&pod, &[], &has), "admitted");
    assert_eq!(reason(&armed(AppArmor::Localhost("x".into())), &[], &has), "admitted");
    assert_eq!(
        admit(&armed(AppArmor::Localhost(" ".into())), &[], &has).unwrap_err().to_string(),
        "AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name: \
         \"&AppArmorProfile{Type:Localhost,LocalhostProfile:* ,}\""
    );
}

#[test]
fn a_critical_pod_displaces_those_that_matter_less() {
    let critical = |cpu| {
        let placement = Placement { priority: Some(SYSTEM_CRITICAL), ..Placement::default() };
        Pod { placement, ..named("critical", cpu) }
    };
    let (small, large, other) = (named("small", 300), named("large", 500), critical(200));
    let node = node();
    let displaced = |cpu, others: &[&Pod]| -> Vec<String> {
        let pod = Pod { uid: PodUid::parse("new").unwrap(), ..critical(cpu) };
        admit(&pod, others, &node).unwrap().victims.into_iter().map(|pod| pod.name.clone()).collect()
    };
    assert_eq!(displaced(200, &[&small, &large]), Vec::<String>::new());
    assert_eq!(displaced(400, &[&small, &large]), ["small"]);
    assert_eq!(displaced(600, &[&small, &large]), ["large"]);
    assert_eq!(displaced(1000, &[&small, &large]), ["large", "small"]);
    // Of its own kind nobody goes.
    let refused = admit(&critical(900), &[&other], &node).unwrap_err();
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    assert!(
        refused.message.contains("no set of running pods found to reclaim resources: [(res: cpu, q: 100), ]")
    );
    let mut elsewhere = critical(900);
    elsewhere.shown.node_name = "n2".into();
    assert_eq!(reason(&elsewhere, &[&small, &large], &node), "NodeName");
}

#[test]
fn rejections_are_counted_by_reasons_that_are_known() {
    let labels = ["OutOfcpu", "OutOfexample.com/gpu", "NodeAffinity", "PodFeatureUnsupported"].map(label);
    assert_eq!(labels, ["OutOfcpu", "OutOfExtendedResources", "Other", "PodFeatureUnsupported"]);
}

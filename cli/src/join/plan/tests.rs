//! Each rule of a join's plan.

use serde_json::{Value, json};

use super::super::facts::KubeletConfig;
use super::super::record::Before;
use super::*;

const SOCKET: &str = "unix:///run/gantry/gantry.sock";

/// A machine on which nothing is left to do, for a cluster with kube-proxy.
fn machine() -> JoinHost {
    let settings = [FORWARD, BRIDGE_CALLS].map(|name| (name, "1".to_owned()));
    let files = [
        (MODULES, format!("{HEADING}overlay\nbr_netfilter\nnf_conntrack\n")),
        (SYSCTLS, format!("{HEADING}{FORWARD} = 1\n{BRIDGE_CALLS} = 1\n")),
        (HOSTS, "127.0.0.1 localhost\n".to_owned()),
    ];
    JoinHost {
        root: true,
        kubeadm: Some(("/usr/bin/kubeadm".into(), Some((1, 36)))),
        kubelet: Some(("/usr/bin/kubelet".into(), true)),
        overlay: true,
        br_netfilter: true,
        nf_conntrack: true,
        sysctls: settings.into(),
        unified: true,
        swap: false,
        folders: FOLDERS.map(PathBuf::from).into(),
        files: files.map(|(path, text)| (PathBuf::from(path), text)).into(),
        server: vec!["10.0.0.1".parse().unwrap()],
        endpoint: vec!["10.0.0.1".parse().unwrap()],
        way: Some("10.0.0.7".parse().unwrap()),
        traces: Vec::new(),
        runtime: Ok(CgroupDriver::Systemd),
    }
}

fn cluster() -> ClusterFacts {
    ClusterFacts {
        endpoint: "10.0.0.1:6443".parse().unwrap(),
        server: "api.example:6443".parse().unwrap(),
        version: "v1.36.3".to_owned(),
        pod_subnets: vec!["10.244.0.0/16".to_owned()],
        kube_proxy: true,
        kubelet: KubeletConfig {
            cgroup_driver: "systemd".to_owned(),
            runtime_endpoint: SOCKET.to_owned(),
            client_ca_file: "/etc/kubernetes/pki/ca.crt".to_owned(),
            ..KubeletConfig::default()
        },
    }
}

fn wanted() -> JoinRequest {
    JoinRequest {
        node_name: None,
        node_ip: None,
        cri_socket: SOCKET.to_owned(),
        ignored_checks: Vec::new(),
        ca_hashes: vec!["sha256:00".to_owned()],
        token: Some("abcdef.0123456789abcdef".to_owned()),
    }
}

fn steps(machine: &JoinHost, cluster: &ClusterFacts) -> Vec<JoinStep> {
    plan(machine, cluster, &wanted(), None).unwrap().steps
}

/// All but the last, which is always kubeadm.
fn before_kubeadm(machine: &JoinHost, cluster: &ClusterFacts) -> Vec<String> {
    let mut steps = steps(machine, cluster);
    assert!(matches!(steps.pop(), Some(JoinStep::Join { .. })), "kubeadm comes last");
    steps.iter().map(ToString::to_string).collect()
}

fn document(machine: &JoinHost, cluster: &ClusterFacts, wanted: &JoinRequest) -> Value {
    let plan = plan(machine, cluster, wanted, None).unwrap();
    let Some(JoinStep::Join { content, .. }) = plan.steps.last() else { panic!("no call of kubeadm") };
    serde_json::from_str(content).unwrap()
}

/// The one problem that there is.
fn problem(
    machine: &JoinHost,
    cluster: &ClusterFacts,
    wanted: &JoinRequest,
    record: Option<&JoinRecord>,
) -> String {
    let problems = plan(machine, cluster, wanted, record).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.into_iter().next().unwrap()
}

#[test]
fn a_machine_that_is_prepared_has_kubeadm_alone() {
    assert_eq!(before_kubeadm(&machine(), &cluster()), Vec::<String>::new());
    assert_eq!(
        document(&machine(), &cluster(), &wanted()),
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "JoinConfiguration",
            "discovery": { "bootstrapToken": {
                "apiServerEndpoint": "10.0.0.1:6443",
                "caCertHashes": ["sha256:00"],
                "token": "abcdef.0123456789abcdef",
            }},
            "nodeRegistration": {
                "criSocket": SOCKET,
                "kubeletExtraArgs": [{ "name": "node-ip", "value": "10.0.0.7" }],
            },
        })
    );
}

#[test]
fn a_bare_machine_is_prepared_from_the_kernel_up() {
    let machine = JoinHost {
        overlay: false,
        br_netfilter: false,
        nf_conntrack: false,
        sysctls: [(FORWARD, "0".to_owned())].into(),
        folders: vec!["/etc/modules-load.d".into(), "/etc/sysctl.d".into(), FOLDER.into()],
        files: [(PathBuf::from(HOSTS), String::new())].into(),
        ..machine()
    };
    assert_eq!(
        before_kubeadm(&machine, &cluster()),
        [
            "load the kernel module overlay",
            "load the kernel module br_netfilter",
            "load the kernel module nf_conntrack",
            "write /etc/modules-load.d/gantry-join.conf: overlay; br_netfilter; nf_conntrack",
            "set the sysctl net.ipv4.ip_forward to 1 (was 0)",
            "write /etc/sysctl.d/99-gantry-join.conf: net.ipv4.ip_forward = 1; \
             net.bridge.bridge-nf-call-iptables = 1",
            "make the folder /etc/cni",
            "make the folder /etc/cni/net.d",
            "make the folder /opt/cni",
            "make the folder /opt/cni/bin",
        ]
    );
}

#[test]
fn bridges_pass_packets_to_iptables_where_kube_proxy_is() {
    let bridged =
        JoinHost { sysctls: [(FORWARD, "1".to_owned()), (BRIDGE_CALLS, "0".to_owned())].into(), ..machine() };
    let line = "set the sysctl net.bridge.bridge-nf-call-iptables to 1 (was 0)";
    assert_eq!(before_kubeadm(&bridged, &cluster()), [line]);
    let without = ClusterFacts { kube_proxy: false, ..cluster() };
    assert_eq!(
        before_kubeadm(&JoinHost { br_netfilter: false, nf_conntrack: false, ..bridged }, &without),
        [
            "write /etc/modules-load.d/gantry-join.conf: overlay",
            "write /etc/sysctl.d/99-gantry-join.conf: net.ipv4.ip_forward = 1",
        ]
    );
}

#[test]
fn ipv6_is_forwarded_where_pods_or_node_have_it() {
    let dual = ClusterFacts { pod_subnets: vec!["10.244.0.0/16".into(), "fd00::/48".into()], ..cluster() };
    let mut machine = machine();
    machine.sysctls.extend([(FORWARD_V6, "0".to_owned()), (FORWARD_V6_DEFAULT, "0".to_owned())]);
    let lines = before_kubeadm(&machine, &dual);
    assert_eq!(lines[0], "set the sysctl net.ipv6.conf.all.forwarding to 1 (was 0)");
    assert_eq!(lines[1], "set the sysctl net.ipv6.conf.default.forwarding to 1 (was 0)");
    assert_eq!(before_kubeadm(&machine, &cluster()), Vec::<String>::new());
}

#[test]
fn a_name_that_does_not_lead_to_the_api_server_gets_a_line() {
    let kind = ClusterFacts { server: "kind-control-plane:6443".parse().unwrap(), ..cluster() };
    let nameless = JoinHost { server: Vec::new(), ..machine() };
    let line = "10.0.0.1 kind-control-plane # gantry join";
    assert_eq!(before_kubeadm(&nameless, &kind), [format!("add to /etc/hosts: {line}")]);
    let mut again = nameless.clone();
    again.files.insert(HOSTS.into(), format!("127.0.0.1 localhost\n{line}\n"));
    assert_eq!(before_kubeadm(&again, &kind), Vec::<String>::new(), "once");
    let lost = JoinHost { endpoint: Vec::new(), ..nameless };
    assert!(
        problem(&lost, &kind, &wanted(), None).starts_with("neither kind-control-plane nor 10.0.0.1 stands")
    );
}

#[test]
fn what_of_the_clusters_kubelet_config_does_not_fit_is_patched() {
    let patch = |machine: &JoinHost, kubelet: KubeletConfig| {
        let all = steps(machine, &ClusterFacts { kubelet, ..cluster() });
        let found = all.iter().find_map(|step| match step {
            JoinStep::File { path, content } if path == Path::new(PATCH) => Some(content.clone()),
            _ => None,
        });
        let Some(JoinStep::Join { content, .. }) = all.last() else { panic!() };
        let named = serde_json::from_str::<Value>(content).unwrap().get("patches").cloned();
        assert_eq!(named, found.as_ref().map(|_| json!({ "directory": PATCHES })));
        found.map(|text| serde_json::from_str::<Value>(&text).unwrap())
    };
    let theirs = || cluster().kubelet;
    assert_eq!(patch(&machine(), theirs()), None);
    // kind's.
    let kind = KubeletConfig { cgroup_root: "/kubelet".into(), runtime_endpoint: String::new(), ..theirs() };
    let expected = json!({ "cgroupRoot": "/", "containerRuntimeEndpoint": SOCKET });
    assert_eq!(patch(&machine(), kind), Some(expected));
    assert_eq!(patch(&machine(), KubeletConfig { cgroup_root: "/".into(), ..theirs() }), None);
    let cgroupfs = JoinHost { runtime: Ok(CgroupDriver::Cgroupfs), ..machine() };
    assert_eq!(patch(&cgroupfs, theirs()), Some(json!({ "cgroupDriver": "cgroupfs" })));
    // Swap and cgroup v1 are the machine's, and stay.
    let swap = JoinHost { swap: true, ..machine() };
    assert_eq!(patch(&swap, theirs()), Some(json!({ "failSwapOn": false })));
    assert_eq!(patch(&swap, KubeletConfig { fail_swap_on: Some(false), ..theirs() }), None);
    let v1 = JoinHost { unified: false, ..machine() };
    assert_eq!(patch(&v1, theirs()), Some(json!({ "failCgroupV1": false })));
    assert_eq!(patch(&v1, KubeletConfig { fail_cgroup_v1: Some(false), ..theirs() }), None);
    let both = plan(&JoinHost { swap: true, ..v1 }, &cluster(), &wanted(), None).unwrap();
    assert_eq!(both.notes.len(), 2, "{:?}", both.notes);
}

#[test]
fn on_cgroup_v1_the_check_that_refuses_it_is_ignored() {
    let ignored = |unified: bool, minor: u32, wishes: &[&str]| {
        let release = (1, minor);
        let machine = JoinHost {
            unified,
            kubeadm: Some(("/usr/bin/kubeadm".into(), Some(release))),
            kubelet: Some(("/usr/bin/kubelet".into(), false)),
            ..machine()
        };
        let wanted =
            JoinRequest { ignored_checks: wishes.iter().map(ToString::to_string).collect(), ..wanted() };
        let cluster = ClusterFacts { version: format!("v1.{minor}.0"), ..cluster() };
        document(&machine, &cluster, &wanted)["nodeRegistration"]["ignorePreflightErrors"].clone()
    };
    assert_eq!(ignored(true, 36, &[]), json!(null));
    assert_eq!(ignored(false, 36, &[]), json!(["SystemVerification"]));
    assert_eq!(ignored(false, 36, &["Swap"]), json!(["Swap", "SystemVerification"]));
    assert_eq!(ignored(false, 36, &["systemverification"]), json!(["systemverification"]));
    assert_eq!(ignored(false, 36, &["all"]), json!(["all"]), "kubeadm takes it only alone");
    assert_eq!(ignored(false, 34, &[]), json!(null), "that one warns");
}

#[test]
fn wishes_are_passed_on_in_the_words_of_that_kubeadm() {
    let wishes = JoinRequest {
        node_name: Some("n1".into()),
        node_ip: Some("192.168.1.5".parse().unwrap()),
        ignored_checks: vec!["Swap".into()],
        ..wanted()
    };
    let registration = &document(&machine(), &cluster(), &wishes)["nodeRegistration"];
    assert_eq!(registration["name"], "n1");
    assert_eq!(registration["kubeletExtraArgs"], json!([{ "name": "node-ip", "value": "192.168.1.5" }]));
    assert_eq!(registration["ignorePreflightErrors"], json!(["Swap"]));
    let old = JoinHost {
        kubeadm: Some(("/usr/bin/kubeadm".into(), Some((1, 30)))),
        kubelet: Some(("/usr/bin/kubelet".into(), false)),
        ..machine()
    };
    let document = document(&old, &ClusterFacts { version: "v1.30.2".into(), ..cluster() }, &wishes);
    assert_eq!(document["apiVersion"], "kubeadm.k8s.io/v1beta3");
    assert_eq!(document["nodeRegistration"]["kubeletExtraArgs"], json!({ "node-ip": "192.168.1.5" }));
    let elsewhere = KubeletConfig { client_ca_file: "/etc/pki/ca.crt".into(), ..cluster().kubelet };
    let moved = super::super::document::join(
        &machine(),
        &ClusterFacts { kubelet: elsewhere, ..cluster() },
        &wanted(),
        None,
        Some((1, 36)),
        None,
    );
    assert_eq!(moved["caCertPath"], "/etc/pki/ca.crt");
}

#[test]
fn a_token_is_made_where_none_was_given() {
    let none = JoinRequest { token: None, ..wanted() };
    let plan = plan(&machine(), &cluster(), &none, None).unwrap();
    assert_eq!(plan.steps[0], JoinStep::Token);
    assert_eq!(plan.steps.len(), 2);
}

#[test]
fn a_join_that_failed_is_cleared_first_and_one_that_did_not_is_refused() {
    let mut record = JoinRecord::new("10.0.0.1:6443".into(), "n1".into(), Before::default());
    let left = JoinHost { traces: vec!["/etc/kubernetes/pki/ca.crt".into()], ..machine() };
    let other = problem(&left, &cluster(), &wanted(), None);
    assert!(other.contains("/etc/kubernetes/pki/ca.crt") && other.contains("kubeadm reset"), "{other}");
    assert!(problem(&left, &cluster(), &wanted(), Some(&record)).contains("not by gantry join"));
    record.note(JoinChange::Join { cri_socket: SOCKET.into() });
    let again = plan(&left, &cluster(), &wanted(), Some(&record)).unwrap();
    assert_eq!(again.steps[0], JoinStep::Reset { cri_socket: SOCKET.into() });
    record.joined = true;
    let text = problem(&left, &cluster(), &wanted(), Some(&record));
    assert!(text.starts_with("this machine has joined 10.0.0.1:6443 already"), "{text}");
}

#[test]
fn what_is_in_the_way_is_named_with_its_remedy() {
    let say = |machine: JoinHost| problem(&machine, &cluster(), &wanted(), None);
    assert!(say(JoinHost { root: false, ..machine() }).contains("sudo gantry join"));
    let text = say(JoinHost { kubeadm: None, ..machine() });
    assert!(text.contains("apt-get install kubeadm") && text.contains("repository of v1.36"), "{text}");
    let text = say(JoinHost { kubelet: None, ..machine() });
    assert!(text.contains("ln -s /usr/lib/gantry/gantry /usr/bin/kubelet"), "{text}");
    let text = say(JoinHost { runtime: Err("connection refused".into()), ..machine() });
    assert!(text.contains(SOCKET) && text.contains("systemctl enable --now gantry"), "{text}");
    for way in [None, Some("127.0.0.1".parse().unwrap())] {
        assert!(say(JoinHost { way, ..machine() }).contains("--node-ip"));
    }
    let all = JoinHost { kubeadm: None, kubelet: None, ..machine() };
    assert_eq!(plan(&all, &cluster(), &wanted(), None).unwrap_err().len(), 2, "all at once");
}

#[test]
fn kubeadm_joins_to_its_own_release_and_the_one_before() {
    let of = |kubeadm: Release, version: &str, own: bool| {
        let machine = JoinHost {
            kubeadm: Some(("/usr/bin/kubeadm".into(), Some(kubeadm))),
            kubelet: Some(("/usr/bin/kubelet".into(), own)),
            ..machine()
        };
        plan(&machine, &ClusterFacts { version: version.to_owned(), ..cluster() }, &wanted(), None).err()
    };
    assert_eq!(of((1, 36), "v1.36.0", true), None);
    assert_eq!(of((1, 37), "v1.37.1", true), None);
    assert_eq!(of((1, 36), "v1.35.9", false), None);
    for (kubeadm, version) in [((1, 36), "v1.37.0"), ((1, 37), "v1.35.1"), ((1, 36), "v2.36.0")] {
        let text = of(kubeadm, version, false).unwrap().concat();
        assert!(text.contains(version) && text.contains("own release and the one before"), "{text}");
    }
    let text = of((1, 35), "v1.35.0", true).unwrap().concat();
    assert!(text.contains("a kubelet must not be newer"), "{text}");
    assert!(of((1, 36), "", false).is_some());
}

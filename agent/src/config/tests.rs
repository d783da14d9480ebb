//! The configuration as a whole: against upstream's own lists, and what wins over what.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::*;

pub(crate) mod ledger;
mod reserved;

const V1: Host = Host { unified: false };
const V2: Host = Host { unified: true };

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn loaded(arguments: &[String]) -> Loaded {
    match load(arguments, V2, |_| {}).unwrap() {
        Order::Run(loaded) => *loaded,
        other => panic!("{other:?}"),
    }
}

fn refusal(arguments: &str) -> String {
    load(&words(arguments), V2, |_| {}).unwrap_err().to_string()
}

#[test]
fn a_limit_of_requests_is_known_by_who_set_it() {
    let folder = tempfile::tempdir().unwrap();
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("{head}{text}")).unwrap();
        path.display().to_string()
    };
    let bare = file("bare.yaml", "");
    let set = file("set.yaml", "kubeAPIQPS: 50\n");
    let drop_ins = folder.path().join("drop-ins");
    file("drop-ins/10.conf", "kubeAPIBurst: 100\n");
    for (flags, is_set) in [
        (format!("--config {bare}"), false),
        (format!("--config {set}"), true),
        (format!("--config {bare} --kube-api-qps=50"), true),
        (format!("--config {bare} --config-dir {}", drop_ins.display()), true),
    ] {
        let Loaded { config, is_api_limit_set, .. } = loaded(&words(&flags));
        assert_eq!((is_api_limit_set, config.kube_api_qps), (is_set, Some(50)), "{flags}");
    }
}

#[test]
fn an_empty_file_gives_upstreams_defaults_as_configz_shows_them() {
    let mut config = KubeletConfiguration::default();
    config.set_defaults(&Gates::default());
    let mut upstream: Value = serde_json::from_str(include_str!("upstream/defaults.json")).unwrap();
    // The one default that is ours.
    assert_eq!(upstream["serializeImagePulls"].take(), true);
    upstream["serializeImagePulls"] = false.into();
    assert_eq!(configz(&config)["kubeletconfig"], upstream);
}

/// Sets one leaf of the configuration to something else.
fn another(value: &Value, kind: &str) -> Value {
    match kind {
        "bool" | "*bool" => json!(value != &json!(true)),
        "*float64" => json!(0.5),
        "v1.VerbosityLevel" => json!(7),
        "v1.VModuleConfiguration" => json!([{ "filePattern": "a", "verbosity": 7 }]),
        "struct" => json!({ "a": 1 }),
        kind if kind.ends_with("Duration") => json!("7m7s"),
        kind if kind.contains("int") && !kind.contains('[') => json!(7),
        "[]int32" => json!([7]),
        "[]string" => json!(["x"]),
        "map[string]string" => json!({ "a": "b" }),
        "map[string]bool" => json!({ "a": true }),
        "map[string][]string" => json!({ "a": ["b"] }),
        "[]v1beta1.ShutdownGracePeriodByPodPriority" => {
            json!([{ "priority": 7, "shutdownGracePeriodSeconds": 7 }])
        }
        "[]v1beta1.MemoryReservation" => json!([{ "numaNode": 7, "limits": { "memory": "7Mi" } }]),
        "[]v1.Taint" => json!([{ "key": "a", "value": "b", "effect": "NoSchedule" }]),
        kind if kind.starts_with("[]") => json!([{ "a": 1 }]),
        _ => json!("x"),
    }
}

#[test]
fn every_field_of_upstream_is_read_and_written() {
    for line in include_str!("upstream/fields.tsv").lines() {
        let (path, kind) = line.split_once('\t').unwrap();
        let mut value = json!({});
        let new = another(&Value::Null, kind);
        set(&mut value, path, new.clone());
        let (config, unknown) = file::decode(value.as_object().cloned().unwrap()).unwrap();
        assert_eq!(unknown, Vec::<String>::new(), "{path}");
        let found = path.split('.').fold(&to_json(&config), |value, name| &value[name]).clone();
        assert_eq!(found, new, "{path} {kind}");
    }
}

#[test]
fn every_flag_that_sets_a_field_sets_it() {
    let fields: BTreeSet<&str> =
        include_str!("upstream/fields.tsv").lines().filter_map(|line| line.split('\t').next()).collect();
    let mut none = Vec::new();
    for flag in flag::all().iter().filter(|flag| !flag.field.is_empty()) {
        let known =
            fields.iter().any(|field| *field == flag.field || field.starts_with(&format!("{}.", flag.field)));
        assert!(known, "--{} sets {}", flag.name, flag.field);
        let text = match flag.kind {
            // The one whose default is ours.
            "bool" if flag.default == "true" && flag.field != "serializeImagePulls" => "false",
            "bool" => "true",
            "int32" | "int64" | "Level" => "7",
            "duration" => "7m7s",
            "ip" => "192.0.2.7",
            "[]v1.Taint" => "a=b:NoExecute",
            "reserved-memory" => "0:memory=7Mi",
            "mapStringBool" => "EventedPLEG=true",
            "mapStringString" if flag.name.starts_with("eviction-hard") || flag.name == "eviction-soft" => {
                "a<7"
            }
            "mapStringString" => "a=7",
            "colonSeparatedMultimapStringString" => "a:b",
            "pattern=N,..." => "a=7",
            _ => "seven",
        };
        let mut config = KubeletConfiguration::default();
        config.set_defaults(&Gates::default());
        config.set_legacy_defaults();
        let before = to_json(&config);
        apply(&flag::parse(&[format!("--{}={text}", flag.name)]).unwrap(), &mut config).unwrap();
        if to_json(&config) == before {
            none.push(flag.name);
        }
    }
    assert!(none.is_empty(), "these change nothing: {none:?}");
}

#[test]
fn without_any_file_the_old_defaults_hold() {
    let Loaded { config, .. } = loaded(&[]);
    assert_eq!(config.authentication.anonymous.enabled, Some(true));
    assert_eq!(config.authentication.webhook.enabled, Some(false));
    assert_eq!((config.authorization.mode.as_str(), config.read_only_port), ("AlwaysAllow", 10255));
    assert!(config.eviction_hard.is_empty());
}

#[test]
fn a_file_turns_the_old_defaults_off_and_flags_win_over_all() {
    let folder = tempfile::tempdir().unwrap();
    let (file, drop_ins) = (folder.path().join("config.yaml"), folder.path().join("drop"));
    fs::create_dir_all(drop_ins.join("15-more")).unwrap();
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    fs::write(
        &file,
        format!("{head}maxPods: 1\nport: 1\nstaticPodPath: pods\nfeatureGates: {{ComponentFlagz: true}}\nclusterDNS: [1.1.1.1]\n"),
    )
    .unwrap();
    fs::write(drop_ins.join("10-a.conf"), format!("{head}maxPods: 2\nclusterDNS: [2.2.2.2, 3.3.3.3]\n"))
        .unwrap();
    fs::write(drop_ins.join("15-more/b.conf"), format!("{head}maxPods: 3\nregistryBurst: 7\n")).unwrap();
    fs::write(drop_ins.join("20-c.conf"), format!("{head}registryBurst: null\nevictionHard: {{a.b: 1%}}\n"))
        .unwrap();
    fs::write(drop_ins.join("30-d.yaml"), "nonsense").unwrap();
    let base = format!("--config {} --config-dir {}", file.display(), drop_ins.display());
    let Loaded { config, notes, .. } =
        loaded(&words(&format!("{base} --port=5 --feature-gates=RotateKubeletServerCertificate=true")));
    assert_eq!((config.max_pods, config.port, config.registry_burst), (3, 5, 10));
    assert_eq!(config.static_pod_path, folder.path().join("pods").to_str().unwrap());
    assert_eq!(config.cluster_dns, ["2.2.2.2", "3.3.3.3"]);
    assert_eq!(config.feature_gates.len(), 2);
    assert_eq!(config.eviction_hard.len(), 6, "the default thresholds and the drop-in's");
    assert_eq!(config.authorization.mode, "Webhook");
    assert!(notes.iter().any(|note| note.ends_with("30-d.yaml")), "{notes:?}");
}

#[test]
fn a_drop_in_must_say_what_it_is_and_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.conf");
    let asked = format!("--config-dir {}", folder.path().display());
    fs::write(&path, "maxPods: 2\n").unwrap();
    assert!(refusal(&asked).contains("Object 'Kind' is missing"), "{}", refusal(&asked));
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    fs::write(&path, format!("{head}maxPods: 2\nmaxPods: 3\n")).unwrap();
    assert!(refusal(&asked).contains("strict decoding error"), "{}", refusal(&asked));
}

#[test]
fn an_unknown_field_of_a_file_is_noted_and_the_rest_holds() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(
        &file,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 2\nmaxpods: 3\n",
    )
    .unwrap();
    let Loaded { config, notes, .. } = loaded(&words(&format!("--config {}", file.display())));
    assert_eq!(config.max_pods, 2);
    let note = &notes[0];
    assert!(note.starts_with("Using lenient decoding as strict decoding failed"), "{note}");
    assert!(note.contains("unknown field \"maxpods\""), "{note}");
}

#[test]
fn kubeadms_file_and_flags_are_taken_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    // As `kubeadm join` writes both.
    fs::write(&file, include_str!("upstream/kubeadm.yaml")).unwrap();
    let flags = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
                 --kubeconfig=/etc/kubernetes/kubelet.conf \
                 --container-runtime-endpoint=unix:///var/run/containerd/containerd.sock";
    let Loaded { config, notes, .. } = loaded(&words(&format!("{flags} --config={}", file.display())));
    assert_eq!(notes, Vec::<String>::new());
    let mut upstream: Value = serde_json::from_str(include_str!("upstream/defaults.json")).unwrap();
    for (path, value) in [
        ("authentication.x509.clientCAFile", json!("/etc/kubernetes/pki/ca.crt")),
        ("cgroupDriver", json!("systemd")),
        ("clusterDNS", json!(["10.96.0.10"])),
        ("clusterDomain", json!("cluster.local")),
        ("containerRuntimeEndpoint", json!("unix:///var/run/containerd/containerd.sock")),
        (
            "evictionHard",
            json!({
                "imagefs.available": "15%", "imagefs.inodesFree": "5%", "memory.available": "100Mi",
                "nodefs.available": "10%", "nodefs.inodesFree": "5%"
            }),
        ),
        ("rotateCertificates", json!(true)),
        // The one default that is ours.
        ("serializeImagePulls", json!(false)),
        ("staticPodPath", json!("/etc/kubernetes/manifests")),
    ] {
        set(&mut upstream, path, value);
    }
    assert_eq!(configz(&config)["kubeletconfig"], upstream);
}

#[test]
fn a_file_that_wants_no_thresholds_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let thresholds = |text: &str| {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&file, format!("{head}{text}\n")).unwrap();
        let config = loaded(&words(&format!("--config={}", file.display()))).config;
        (config.eviction_hard.len(), configz(&config)["kubeletconfig"].get("evictionHard").is_some())
    };
    assert_eq!(thresholds("evictionHard: {}"), (0, false));
    assert_eq!(thresholds("evictionHard: {memory.available: 1Gi}"), (1, true));
    for usual in ["", "evictionHard: null", "evictionHard: {}\nmergeDefaultEvictionSettings: true"] {
        assert_eq!(thresholds(usual), (5, true), "{usual}");
    }
    assert_eq!(
        thresholds("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true"),
        (5, true)
    );
}

#[test]
fn flags_that_change_nothing_are_told() {
    let told = |text: &str| loaded(&words(text)).notes;
    assert_eq!(told("--housekeeping-interval=1s --maximum-dead-containers=-1"), Vec::<String>::new());
    assert_eq!(
        told("--housekeeping-interval=7s"),
        ["--housekeeping-interval changes nothing: usage is read when it is asked for, not collected"]
    );
    for (name, why) in refused::INERT_FLAGS {
        let kind = flag::all().iter().find(|flag| flag.name == name).unwrap().kind;
        let value = match kind {
            "bool" => "true",
            "duration" => "7m7s",
            "int" | "int32" => "7",
            _ => "x",
        };
        assert_eq!(told(&format!("--{name}={value}")), [format!("--{name} changes nothing: {why}")]);
    }
}

#[test]
fn a_quota_period_of_ones_own_needs_its_gate() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let closed = |period: &str| {
        let text =
            format!("{head}featureGates: {{CustomCPUCFSQuotaPeriod: false}}\ncpuCFSQuotaPeriod: {period}\n");
        fs::write(&file, text).unwrap();
        load(&words(&format!("--config={}", file.display())), V2, |_| {}).map_err(|error| error.to_string())
    };
    assert!(matches!(closed("100ms"), Ok(Order::Run(_))));
    assert_eq!(
        closed("20ms").unwrap_err(),
        "failed to validate kubelet configuration, error: invalid configuration: cpuCFSQuotaPeriod \
         (--cpu-cfs-quota-period) 20ms requires feature gate CustomCPUCFSQuotaPeriod"
    );
}

#[test]
fn errors_are_told_in_upstreams_words() {
    let gates = "failed to set feature gates from initial flags-based config: ";
    assert_eq!(
        refusal("--feature-gates=Nonsense=true"),
        format!("{gates}unrecognized feature gate: Nonsense")
    );
    assert_eq!(
        refusal("--feature-gates=NodeSwap=false --node-labels=kubernetes.io/x=y"),
        format!("{gates}cannot set feature gate NodeSwap to false, feature is locked to true")
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let invalid = |text: &str| {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&file, format!("{head}{text}\n")).unwrap();
        let told = refusal(&format!("--config={}", file.display()));
        told.strip_prefix("failed to validate kubelet configuration, error: ").unwrap_or(&told).to_owned()
    };
    assert_eq!(
        invalid("featureGates: {Nonsense: true}"),
        format!("{gates}unrecognized feature gate: Nonsense")
    );
    assert_eq!(
        invalid("registerWithTaints: [{key: k, value: v, effect: E}]"),
        "invalid taint: {k v E <nil>}"
    );
    assert_eq!(
        invalid("topologyManagerScope: x"),
        "invalid configuration: topologyManagerScope (--topology-manager-scope) \"x\" must be one of: \"container\", \
         or \"pod\""
    );
    for period in ["999us", "1001ms"] {
        assert!(
            invalid(&format!("cpuCFSQuotaPeriod: {period}"))
                .ends_with("must be between 1ms and 1sec, inclusive")
        );
    }
    let images = "containerRuntimeEndpoint: unix:///a\nimageServiceEndpoint: unix:///b";
    assert!(invalid(images).contains("imageServiceEndpoint \"unix:///b\" is not supported"));
    assert!(invalid("topologyManagerPolicy: x").contains(
        "topologyManagerPolicy (--topology-manager-policy) \"x\" must be one of: [\"none\" \"best-effort\" \
         \"restricted\" \"single-numa-node\"]"
    ));
    assert!(
        invalid("memorySwap: {swapBehavior: x}")
            .contains("memorySwap.swapBehavior \"x\" must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"")
    );
    assert_eq!(refusal("--nonsense"), "failed to parse kubelet flag: unknown flag: --nonsense");
    assert_eq!(refusal("run"), "unknown command run");
    assert_eq!(
        refusal("--port=0"),
        "failed to validate kubelet configuration, error: invalid configuration: port (--port) 0 must be between 1 and \
         65535, inclusive"
    );
    let both = refusal("--port=0 --max-pods=-1");
    assert!(both.contains("error: [invalid configuration: maxPods"), "{both}");
    assert!(
        refusal("--config /nowhere.yaml").contains("failed to read kubelet config file \"/nowhere.yaml\"")
    );
}

#[test]
fn a_tracing_that_cannot_be_is_refused_in_upstreams_words() {
    let problems = |tracing: Value| {
        let mut config = KubeletConfiguration::default();
        config.set_defaults(&Gates::default());
        config.tracing = serde_json::from_value(tracing).unwrap();
        let flags = KubeletFlags::from_given(&ParsedFlags::default());
        validate::problems(&config, &flags, &Gates::default(), V2)
    };
    let rate = |rate: i32| problems(json!({ "samplingRatePerMillion": rate }));
    let of_rate = "tracing.samplingRatePerMillion: Invalid value";
    assert_eq!(rate(-1), [format!("{of_rate}: -1: sampling rate must be positive")]);
    let too_many = "sampling rate per million must be less than or equal to one million";
    assert_eq!(rate(1_000_001), [format!("{of_rate}: 1000001: {too_many}")]);
    for fine in
        [json!({}), json!({ "samplingRatePerMillion": 0 }), json!({ "samplingRatePerMillion": 1_000_000 })]
    {
        assert_eq!(problems(fine), Vec::<String>::new());
    }
    let endpoint = |endpoint: &str| problems(json!({ "endpoint": endpoint }));
    for fine in ["localhost:4317", "dns:///otel:4317", "unix:///run/otel.sock"] {
        assert_eq!(endpoint(fine), Vec::<String>::new());
    }
    for (url, scheme) in [("http://localhost:4317", "http"), ("//localhost:4317", "")] {
        assert_eq!(
            endpoint(url),
            [format!(
                "tracing.endpoint: Invalid value: {url:?}: unsupported scheme: {scheme}.  Options are none, dns, unix, \
                 or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
            )]
        );
    }
    assert_eq!(
        endpoint("localhost:x"),
        [
            "tracing.endpoint: Invalid value: \"dns://localhost:x\": parse \"dns://localhost:x\": invalid port \":x\" after host"
        ]
    );
    for taken_by_upstream in ["unix-abstract:///otel", "dns://8.8.8.8/otel:4317", ""] {
        assert_eq!(
            endpoint(taken_by_upstream),
            [format!(
                "tracing.endpoint {taken_by_upstream:?} is not supported by this kubelet: a collector is host:port, \
                 dns:///host:port or unix:///path, without TLS"
            )]
        );
    }
}

#[test]
fn a_kubelet_does_not_start_on_cgroup_v1_unless_it_is_told_to() {
    let error = load(&[], V1, |_| {}).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "error: kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and \
             will be removed in a future release"
        ),
        "{error}"
    );
    load(&words("--fail-cgroupv1=false"), V1, |_| {}).unwrap();
}

#[test]
fn what_cannot_be_done_is_refused_by_name_and_eviction_thresholds_are_no_note() {
    let error = refusal("--cgroups-per-qos=false --enforce-node-allocatable=");
    assert!(error.contains("cgroupsPerQOS false is not supported"), "{error}");
    let Loaded { notes, .. } =
        loaded(&words("--eviction-hard=memory.available<1Gi --eviction-soft=memory.available<2Gi"));
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn flags_that_cannot_be_done_are_refused_by_name() {
    for (flag, _) in refused::FLAGS {
        let error = refusal(&format!("--{flag}=/x"));
        assert!(error.contains(&format!("--{flag} is not supported by this kubelet")), "{error}");
    }
}

#[test]
fn every_refused_field_is_refused_and_every_inert_one_is_noted() {
    let kinds: BTreeMap<&str, &str> =
        include_str!("upstream/fields.tsv").lines().filter_map(|line| line.split_once('\t')).collect();
    let flags = KubeletFlags::from_given(&ParsedFlags::default());
    let changed = |path: &str| {
        let mut config = KubeletConfiguration::default();
        config.set_defaults(&Gates::default());
        let mut value = to_json(&config);
        let old = path.split('.').fold(&value, |value, name| &value[name]).clone();
        let new = another(&old, kinds.get(path).copied().unwrap_or("struct"));
        set(&mut value, path, new);
        serde_json::from_value::<KubeletConfiguration>(value).unwrap()
    };
    for (path, _) in refused::FIELDS {
        let found = refused::problems(&changed(path), &flags, V2);
        assert!(found.iter().any(|problem| problem.starts_with(path)), "{path}: {found:?}");
    }
    for (path, _) in refused::INERT {
        let found = refused::inert(&changed(path));
        assert!(found.iter().any(|note| note.contains(path)), "{path}: {found:?}");
    }
}

#[test]
fn help_and_versions_are_asked_for() {
    assert!(matches!(load(&words("-h"), V1, |_| {}).unwrap(), Order::Help));
    assert!(matches!(load(&words("--version"), V1, |_| {}).unwrap(), Order::Version { raw: false }));
    assert!(matches!(load(&words("--version=raw"), V1, |_| {}).unwrap(), Order::Version { raw: true }));
    assert!(flag::usage().matches("\n  ").count() > 149);
}

//! Each part hears what flags and files say.

use std::collections::BTreeMap;
use std::path::Path;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::eviction::Threshold;
use crate::config::{self, Host, Loaded, Order};

use super::*;

fn loaded(text: &str, flags: &str) -> Loaded {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("gantry-wiring-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    std::fs::write(&file, format!("{head}{text}")).unwrap();
    let words = format!("--config {} {flags}", file.display());
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let loaded = config::load(&words, Host { unified: true }, |_| {}).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    match loaded {
        Order::Run(loaded) => *loaded,
        other => panic!("{other:?}"),
    }
}

const CONFIG: &str = "
maxPods: 7
podsPerCore: 3
registerNode: false
registerWithTaints: [{key: a, value: b, effect: NoSchedule}]
providerID: cloud://x
systemReserved: {cpu: 100m}
kubeReserved: {memory: 1Gi}
evictionHard: {memory.available: 200Mi, nodefs.available: 5%}
port: 11250
nodeStatusUpdateFrequency: 3s
nodeStatusReportFrequency: 70s
nodeLeaseDurationSeconds: 20
nodeStatusMaxImages: 9
allowedUnsafeSysctls: [net.core.*]
containerLogMaxSize: 1Mi
containerLogMaxFiles: 3
containerLogMaxWorkers: 2
containerLogMonitorInterval: 4s
imageGCHighThresholdPercent: 70
imageGCLowThresholdPercent: 60
imageMinimumGCAge: 3m
imageMaximumGCAge: 4m
enableDebuggingHandlers: false
enableSystemLogHandler: false
enableProfilingHandler: false
enableDebugFlagsHandler: false
streamingConnectionIdleTimeout: 5m
podLogsDir: /var/log/other
authentication: {x509: {clientCAFile: /ca.crt}, anonymous: {enabled: true}, webhook: {enabled: true, cacheTTL: 7s}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 8s, cacheUnauthorizedTTL: 9s}}
tlsMinVersion: VersionTLS13
tlsCipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]
volumeStatsAggPeriod: 11s
cgroupRoot: /x
systemCgroups: /s
seccompDefault: true
kubeletCgroups: /k
kubeAPIQPS: 12
kubeAPIBurst: 13
eventRecordQPS: 14
eventBurst: 15
rotateCertificates: true
clusterDomain: example.org
clusterDNS: [10.96.0.10]
resolvConf: /etc/other
";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_wiring_gives_each_part_its_settings() {
    let flags = "--node-labels=l=m --cloud-provider=external --node-ip=10.0.0.9 --root-dir=/r --runtime-cgroups=/rc \
                 --kubeconfig=/k.conf --bootstrap-kubeconfig=/b.conf --cert-dir=/pki";
    let Loaded { flags, config, flagz, is_api_limit_set, .. } = loaded(CONFIG, flags);
    assert!(flagz.contains(&("node-ip".to_owned(), "10.0.0.9".to_owned())));
    let node = registration(&flags, &config, "n").unwrap();
    let own = |text: &str| text.to_owned();
    assert_eq!((node.node_name.as_str(), node.max_pods, node.pods_per_core), ("n", 7, 3));
    assert_eq!((node.register, node.external_cloud, node.port), (false, true, 11250));
    assert_eq!(node.labels, [(own("l"), own("m"))].into());
    assert_eq!((node.taints[0].key.as_str(), node.taints[0].value.as_deref()), ("a", Some("b")));
    assert_eq!(node.provider_id, "cloud://x");
    assert_eq!(node.node_ips, ["10.0.0.9".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(node.system_reserved, [(own("cpu"), own("100m"))].into());
    assert_eq!(node.kube_reserved, [(own("memory"), own("1Gi"))].into());
    assert_eq!(
        (node.evict_memory, node.evict_storage),
        (Threshold::Bytes(200 << 20), Threshold::Share(0.05))
    );
    assert_eq!((node.status_every, node.report_every, node.lease_seconds), (seconds(3), seconds(70), 20));
    assert_eq!((node.max_images, node.attach_detach, node.local_storage), (9, true, true));
    let allowed = Allowed::new(vec![own("net.core.*")]).unwrap();
    assert_eq!(admission(&config).unwrap().sysctls, allowed);
    let logs = logs(&config).unwrap();
    assert_eq!((logs.max_size, logs.max_files, logs.workers, logs.interval), (1 << 20, 3, 2, seconds(4)));
    let images = images(&config);
    assert_eq!((images.high_percent, images.low_percent), (70, 60));
    assert_eq!((images.min_age, images.max_age), (seconds(180), seconds(240)));
    let identity = identity(&flags, &config, is_api_limit_set, "n", Arc::default());
    assert_eq!((identity.kubeconfig, identity.bootstrap), ("/k.conf".into(), Some("/b.conf".into())));
    assert_eq!((identity.cert_dir, identity.rotate), ("/pki".into(), true));
    assert_eq!(identity.limits.pods, Pace { per_second: 12.0, burst: 13.0 });
    assert!(!identity.limits.yields, "it is set");
    assert_eq!(identity.limits.events, Pace { per_second: 14.0, burst: 15.0 });
    assert_eq!(identity.limits.lease, seconds(3));
    let given = parse_node_overrides(&flags, &config, "n").unwrap();
    assert_eq!(given.cluster_domain.as_deref(), Some("example.org"));
    let all = pods(&flags, &config);
    assert_eq!((all.cgroup_root.as_str(), all.seccomp_default), ("/x", true));
    assert_eq!(all.logs, PathBuf::from("/var/log/other"));
    assert!(node.enforce);
    assert_eq!((given.cluster_dns, given.resolv_conf), (vec![own("10.96.0.10")], Some("/etc/other".into())));
}

#[test]
fn pods_learn_the_address_that_the_kubelet_was_given() {
    let ips = |words: &str| {
        let Loaded { flags, config, .. } = loaded("", words);
        parse_node_overrides(&flags, &config, "n").unwrap().ips
    };
    assert_eq!(ips("--node-ip=192.168.56.11"), Some(vec!["192.168.56.11".parse().unwrap()]));
    assert_eq!(ips(""), None);
    // The cloud's word alone counts there.
    assert_eq!(ips("--cloud-provider=external"), Some(vec![]));
}

#[test]
fn the_wiring_says_how_pods_are_held() {
    assert_eq!(tuning(&loaded("", "").config), Tuning::default());
    let text = "podPidsLimit: 4096\ncpuCFSQuota: false\ncpuCFSQuotaPeriod: 20ms\nruntimeRequestTimeout: 15m\n\
                crashLoopBackOff: {maxContainerRestartPeriod: 30s}\n";
    let given = tuning(&loaded(text, "").config);
    assert_eq!(given.rules, Rules { quota: false, period: 20_000, pids: Some(4096) });
    assert_eq!((given.request_timeout, given.longest_wait), (seconds(900), seconds(30)));
    let endpoint = "containerRuntimeEndpoint: unix:///x\nimageServiceEndpoint: unix:///x\n";
    assert_eq!(loaded(endpoint, "").config.image_service_endpoint, "unix:///x", "one runtime, said twice");
}

#[test]
fn the_wiring_closes_what_pods_ask_for_as_a_whole() {
    let closed = "featureGates: {PodLevelResources: false, InPlacePodLevelResourcesVerticalScaling: false}";
    for (text, open) in [("", true), (closed, false)] {
        let Loaded { flags, config, .. } = loaded(text, "");
        assert_eq!(parse_node_overrides(&flags, &config, "n").unwrap().no_pod_level, !open);
        assert_eq!(admission(&config).unwrap().resizes.no_pod_level, !open);
        assert_eq!(declared_features(&config).contains(&POD_LEVEL_RESIZE.to_owned()), open);
    }
}

#[test]
fn the_wiring_says_how_images_are_pulled() {
    let pulls_of = |text: &str, flags: &str| {
        let Loaded { flags, config, .. } = loaded(text, flags);
        pulls(&flags, &config).unwrap()
    };
    let plain = pulls_of("", "--root-dir=/r");
    assert_eq!((plain.root_dir, plain.plugins), ("/r".into(), None));
    assert_eq!(plain.queue, Queue { at_once: None, per_second: Some(5.0), burst: 10 });
    assert_eq!(plain.policy, Policy::NeverVerifyPreloadedImages);
    let text = "registryPullQPS: 2\nregistryBurst: 3\nmaxParallelImagePulls: 4\n\
                imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
                preloadedImagesVerificationAllowlist: [reg.io/base]\n";
    let given =
        pulls_of(text, "--image-credential-provider-config=/c --image-credential-provider-bin-dir=/b");
    assert_eq!(given.plugins, Some(("/c".into(), "/b".into())));
    assert_eq!(given.queue, Queue { at_once: Some(4), per_second: Some(2.0), burst: 3 });
    let policy = Policy::new("NeverVerifyAllowlistedImages", &["reg.io/base".to_owned()]).unwrap();
    assert_eq!(given.policy, policy);
    let at_once = |text: &str| pulls_of(text, "").queue.at_once;
    assert_eq!(at_once("serializeImagePulls: true\n"), Some(1));
    assert_eq!(at_once("serializeImagePulls: false\n"), None);
    assert_eq!(at_once("maxParallelImagePulls: 1\n"), Some(1));
    assert_eq!(pulls_of("registryPullQPS: 0\n", "").queue.per_second, None);
}

#[test]
fn the_wiring_gives_the_server_its_settings() {
    let Loaded { flags, config, .. } = loaded(CONFIG, "--root-dir=/r --runtime-cgroups=/rc");
    let server = server(&config, Path::new("/var/lib/kubelet"));
    assert_eq!(server.checkpoints, Path::new("/var/lib/kubelet/checkpoints"));
    let Switches {
        enable_debugging_handlers,
        enable_system_log_handler,
        enable_profiling_handler,
        enable_debug_flags_handler,
    } = server.switches;
    assert!(!enable_debugging_handlers && !enable_system_log_handler);
    assert!(!enable_profiling_handler && !enable_debug_flags_handler && !server.system_log_query);
    assert_eq!(client_ca(&config), Some("/ca.crt".into()));
    assert_eq!((server.stream_idle, server.pod_logs), (seconds(300), "/var/log/other".into()));
    let authentication = authentication(&config, ClientCa::default());
    assert_eq!((authentication.anonymous, authentication.tokens_for), (true, Some(seconds(7))));
    let webhook = Mode::Webhook { allowed_for: seconds(8), denied_for: seconds(9) };
    assert_eq!(authorization(&config), webhook);
    let tls = tls(&config).unwrap();
    assert!(tls.only_13 && tls.cipher_suites.len() == 1);
    let stats = stats(&flags, &config).unwrap();
    assert_eq!((stats.root_dir, stats.pod_logs), ("/r".into(), "/var/log/other".into()));
    assert_eq!(stats.cgroup_root, "/x");
    assert_eq!((stats.runtime_cgroups.as_str(), stats.volume_period), ("/rc", seconds(11)));
    assert_eq!(stats.system_cgroups, "/s");
}

#[test]
fn pods_of_a_url_are_asked_for_as_it_is_configured() {
    let text = "staticPodURL: http://h/\nstaticPodURLHeader: {A: [b, c]}\nhttpCheckFrequency: 7s\n";
    let header = BTreeMap::from([("A".to_owned(), vec!["b".to_owned(), "c".to_owned()])]);
    let every = std::time::Duration::from_secs(7);
    assert_eq!(
        address(&loaded(text, "").config),
        Some(Address { url: "http://h/".to_owned(), header, every })
    );
    let flags = "--manifest-url=http://h/ --manifest-url-header=A:b,A:c";
    let by_flags = address(&loaded("httpCheckFrequency: 7s\n", flags).config);
    assert_eq!(by_flags, address(&loaded(text, "").config));
    assert_eq!(address(&loaded("", "").config), None);
}

#[test]
fn the_wiring_turns_off_what_is_off() {
    let Loaded { config, .. } = loaded("enableSystemLogQuery: true\n", "");
    assert!(server(&config, Path::new("/var/lib/kubelet")).system_log_query, "else it is off");
    let Loaded { flags, config, .. } = loaded("enforceNodeAllocatable: [none]\n", "");
    assert!(!registration(&flags, &config, "n").unwrap().enforce);
    assert_eq!((client_ca(&config), folder(&config)), (None, None));
    assert!(!pods(&flags, &config).seccomp_default);
    let Loaded { flags, config, .. } = loaded("", "--seccomp-default");
    assert!(pods(&flags, &config).seccomp_default, "the flag alone");
    let text = "evictionHard: {memory.available: 200Mi}\n";
    let Loaded { flags, config, .. } = loaded(text, "--experimental-allocatable-ignore-eviction");
    assert_eq!(registration(&flags, &config, "n").unwrap().evict_memory, Threshold::None);
}

#[test]
fn the_wiring_says_where_to_listen_and_where_files_are() {
    let text = "address: 127.0.0.7\nport: 11250\nreadOnlyPort: 11255\nhealthzPort: 11248\n\
                healthzBindAddress: 127.0.0.8\nstaticPodPath: /m\nfileCheckFrequency: 7s\n";
    let at = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
    let Loaded { config, .. } = loaded(text, "");
    let (api, read_only) = (at("127.0.0.7:11250"), at("127.0.0.7:11255"));
    assert_eq!(listen(&config).unwrap(), Listen { api, read_only, healthz: at("127.0.0.8:11248") });
    assert_eq!(folder(&config), Some(("/m".into(), seconds(7))));
    let Loaded { config, .. } = loaded("enableServer: false\nhealthzPort: 0\n", "");
    assert_eq!(listen(&config).unwrap(), Listen { api: None, read_only: None, healthz: None });
}

#[test]
fn a_cgroup_driver_that_nobody_knows_is_refused_by_name() {
    let of = |text: &str| driver(&loaded(text, "").config);
    assert_eq!(of("cgroupDriver: systemd\n").unwrap(), Driver::Systemd);
    assert_eq!(of("").unwrap(), Driver::Cgroupfs);
    let told = of("cgroupDriver: openrc\n").unwrap_err().to_string();
    assert_eq!(told, "cgroupDriver \"openrc\" is neither cgroupfs nor systemd");
}

#[test]
fn values_that_no_part_can_use_are_told_before_anything_is_begun() {
    let wrong = |text: &str, flags: &str, problem: &str| {
        let Loaded { flags, config, .. } = loaded(text, flags);
        assert_eq!(judge(&flags, &config).unwrap_err().to_string(), problem);
    };
    let pair = "must contain either a single IP or a dual-stack pair of IPs";
    wrong("", "--node-ip=10.0.0.1,10.0.0.2", &format!("bad --node-ip \"10.0.0.1,10.0.0.2\": {pair}"));
    wrong("", "--node-ip=10.0.0.1,::1,::2", &format!("bad --node-ip \"10.0.0.1,::1,::2\": {pair}"));
    wrong(
        "",
        "--node-ip=0.0.0.0,::",
        "bad --node-ip \"0.0.0.0,::\": dual-stack node IP cannot include '0.0.0.0' or '::'",
    );
    wrong(
        "systemReserved: {cpu: x}\n",
        "",
        &format!(
            "--system-reserved value failed to parse: failed to parse quantity \"x\" for \"cpu\" resource: {}",
            quantity::in_go("x")
        ),
    );
    wrong(
        "kubeReserved: {memory: -1Gi}\n",
        "",
        "--kube-reserved value failed to parse: resource quantity for \"memory\" cannot be negative: -1Gi",
    );
    wrong(
        "systemReserved: {gpu: '1'}\n",
        "",
        "--system-reserved value failed to parse: cannot reserve \"gpu\" resource",
    );
    wrong("evictionHard: {memory.avialable: 1Gi}\n", "", "unsupported eviction signal memory.avialable");
    wrong(
        "evictionSoft: {memory.available: 1Gi}\n",
        "",
        "failed to create kubelet: grace period must be specified for the soft eviction threshold memory.available",
    );
    wrong("tlsMinVersion: VersionTLS9\n", "", "unknown tls version \"VersionTLS9\"");
    wrong("tlsCipherSuites: [x]\n", "", "Cipher suite x not supported or doesn't exist");
    let Loaded { config, .. } = loaded("tlsMinVersion: VersionTLS10\n", "");
    assert!(matches!(tls(&config), Err(Error::TlsOld(_))));
    let Loaded { flags, config, .. } = loaded(CONFIG, "");
    judge(&flags, &config).unwrap();
}

#[test]
fn cgroups_of_daemons_are_held_to_what_is_reserved_for_them() {
    let text = "enforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible]\n\
                systemReservedCgroup: /system.slice\nkubeReservedCgroup: /kube\n\
                systemReserved: {cpu: 500m, memory: 1Gi}\nkubeReserved: {memory: 1Gi, pid: '100'}\n";
    let kube = Reserved { cpu: None, memory: Some(1 << 30), pids: Some(100) };
    let system = Reserved { cpu: Some(500), ..Reserved::default() };
    let of = |whose, name: &str, compressible, to| ReservedCgroup {
        whose,
        name: name.to_owned(),
        compressible,
        to: Some(to),
    };
    let wanted = [of("kube", "/kube", false, kube), of("system", "/system.slice", true, system)];
    assert_eq!(reserved_cgroups(&loaded(text, "").config), wanted);
    let flags = "--enforce-node-allocatable=pods,kube-reserved --kube-reserved-cgroup=/kube --kube-reserved=memory=1Gi,pid=100";
    assert_eq!(reserved_cgroups(&loaded("", flags).config), wanted[..1]);
    assert_eq!(reserved_cgroups(&loaded("", "").config), []);
    let nothing = "--enforce-node-allocatable=kube-reserved-compressible --kube-reserved-cgroup=/kube";
    assert_eq!(reserved_cgroups(&loaded("", nothing).config)[0].to, None);
}

#[test]
fn pods_get_swap_where_the_configuration_gives_it() {
    for (behavior, limited) in [("LimitedSwap", true), ("NoSwap", false), ("''", false)] {
        let Loaded { flags, config, .. } = loaded(&format!("memorySwap: {{swapBehavior: {behavior}}}\n"), "");
        assert_eq!(parse_node_overrides(&flags, &config, "n").unwrap().limited_swap, limited, "{behavior}");
    }
}

#[test]
fn web_sockets_come_straight_unless_their_gate_is_closed() {
    for (text, open) in [("", true), ("featureGates: {ExtendWebSocketsToKubelet: false}\n", false)] {
        let Loaded { flags, config, .. } = loaded(text, "");
        assert_eq!(registration(&flags, &config, "n").unwrap().web_sockets, open);
        assert_eq!(server(&config, Path::new("/")).web_sockets, open);
    }
}

#[test]
fn thresholds_of_everything_are_none() {
    let Loaded { flags, config, .. } =
        loaded("evictionHard: {memory.available: 100%, nodefs.available: 0%}\n", "");
    let node = registration(&flags, &config, "n").unwrap();
    assert_eq!((node.evict_memory, node.evict_storage), (Threshold::None, Threshold::None));
}

#[test]
fn addresses_of_a_node_that_are_none_are_passed_over() {
    let all = node_ips("x, 10.0.0.9,::1").unwrap();
    assert_eq!(all, (vec!["10.0.0.9".parse().unwrap(), "::1".parse().unwrap()], vec!["x"]));
    assert_eq!(node_ips("").unwrap(), (vec![], vec![]));
}

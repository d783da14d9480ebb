//! The mapping to and from CRI, and the client against a served one in memory.

use std::collections::BTreeMap;

use gantry_model::cgroup::limits::Rules;
use gantry_model::pod::probe::Lifecycle;
use gantry_model::pod::{
    Container, Namespaces, Pod, PodSecurity, Port, Seccomp, Security, TerminationMessage,
};

use super::*;
use crate::dns::DnsConfig;
use crate::pod::tests::{container, pod};
use crate::runtime::about::About;
use crate::runtime::{InstanceState, Setup};

pub(super) fn node() -> NodeConfig {
    NodeConfig {
        pod_logs_dir: "/var/log/pods".into(),
        memory_capacity: 1 << 30,
        page_sizes: vec![],
        resolver: Arc::default(),
        cgroup_v2: false,
        swap: false,
        limited_swap: None,
        seccomp_default: false,
        seccomp_root: "/var/lib/kubelet/seccomp".into(),
        cluster_domain: "cluster.local".into(),
        rules: Rules::default(),
        request_timeout: super::REQUEST_TIMEOUT,
    }
}

/// And a resolver as it was read.
fn with(node: &NodeConfig) -> (&NodeConfig, DnsConfig) {
    (node, DnsConfig { servers: vec!["10.0.0.1".into()], ..DnsConfig::default() })
}

/// containerd takes `127.0.0.1:5000` for a URL that is none, and shows `reg.io` to nobody.
#[test]
fn credentials_name_no_server() {
    let auth = RegistryAuth { username: "u".into(), password: "p".into(), ..RegistryAuth::default() };
    let wire::AuthConfig { username, password, server_address, auth, .. } = auth_config(auth);
    assert_eq!((username.as_str(), password.as_str()), ("u", "p"));
    assert_eq!((server_address.as_str(), auth.as_str()), ("", ""));
}

#[test]
fn a_sandbox_has_the_kubelets_labels_and_folder() {
    let annotations = BTreeMap::from([("note".to_owned(), "x".to_owned())]);
    let config =
        sandbox_config::sandbox(&Pod { annotations, ..pod() }, 2, "/kubepods/x", None, with(&node()));
    let metadata = config.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.uid.as_str(), metadata.attempt), ("web", "uid-1", 2));
    assert_eq!(config.log_directory, "/var/log/pods/default_web_uid-1");
    for (key, value) in [
        ("app", "web"),
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", "uid-1"),
    ] {
        assert_eq!(config.labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(config.annotations.get("io.gantry.run").map(String::as_str), Some("true"));
    assert_eq!(config.dns_config.unwrap().servers, ["10.0.0.1"]);
    assert_eq!(config.linux.unwrap().cgroup_parent, "/kubepods/x");
}

#[test]
fn namespaces_follow_the_pod() {
    use wire::NamespaceMode::{Container as Own, Node, Pod as Shared};
    let modes = |namespaces| {
        let option = sandbox_config::namespaces(namespaces, None);
        [option.network(), option.pid(), option.ipc()]
    };
    assert_eq!(modes(Namespaces::default()), [Shared, Own, Shared]);
    assert_eq!(modes(Namespaces { share_process: true, ..Namespaces::default() }), [Shared, Shared, Shared]);
    let host = Namespaces { host_network: true, host_pid: true, host_ipc: true, ..Namespaces::default() };
    assert_eq!(modes(host), [Node, Node, Node]);
}

/// `kubectl debug --profile=sysadmin`: containerd refused it in a sandbox that is not described as privileged.
#[test]
fn an_ephemeral_container_may_be_the_privileged_one() {
    let privileged = |pod: &Pod| {
        let config = sandbox_config::sandbox(pod, 0, "", None, with(&node()));
        config.linux.unwrap().security_context.unwrap().privileged
    };
    let plain = pod();
    assert!(!privileged(&plain));
    let security = Security { privileged: true, ..Security::default() };
    let added = Container { security, ..container("debugger") };
    assert!(privileged(&Pod { ephemeral_containers: vec![added], ..plain }));
}

#[test]
fn a_container_has_the_kubelets_config() {
    let pod = Pod {
        containers: vec![Container {
            ports: vec![Port {
                name: "http".into(),
                port: 80,
                protocol: "TCP".into(),
                host_port: 8080,
                host_ip: "127.0.0.1".into(),
            }],
            security: Security {
                run_as_user: Some(1000),
                drop_capabilities: vec!["ALL".into()],
                no_new_privileges: true,
                ..Security::default()
            },
            ..container("web")
        }],
        ..pod()
    };
    let new = NewContainer {
        pod: &pod,
        container: pod.container("web").unwrap(),
        attempt: 3,
        sandbox: "s",
        sandbox_attempt: 0,
        cgroup_parent: "",
        users: None,
        target: "",
        image_id: "sha256:1",
        image_user: (None, ""),
        setup: &Setup::as_written(pod.container("web").unwrap()),
    };
    let config = container_config::container(&new, &node());
    assert_eq!(config.log_path, "web/3.log");
    let image = config.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "reg/img:v1"));
    assert_eq!(config.labels.len(), 4);
    let annotation = |key: &str| config.annotations.get(key).map(String::as_str);
    assert_eq!(annotation("io.kubernetes.container.restartCount"), Some("3"));
    assert_eq!(annotation("io.kubernetes.container.hash"), Some("abc"));
    assert_eq!(annotation("io.kubernetes.pod.terminationGracePeriod"), Some("30"));
    assert_eq!(
        annotation("io.kubernetes.container.ports"),
        Some(r#"[{"name":"http","hostPort":8080,"containerPort":80,"protocol":"TCP","hostIP":"127.0.0.1"}]"#)
    );
    let security = config.linux.unwrap().security_context.unwrap();
    assert_eq!(security.run_as_user.unwrap().value, 1000);
    assert!(security.no_new_privs && security.run_as_group.is_none());
    assert!(security.masked_paths.contains(&"/proc/kcore".to_owned()));
    assert!(security.readonly_paths.contains(&"/proc/sys".to_owned()));
}

#[test]
fn whom_the_pod_does_not_name_the_image_does_and_the_runtime_is_told() {
    let sent = |run_as_user, image_user| {
        let security = Security { run_as_user, run_as_group: Some(7), ..Security::default() };
        let pod = Pod { containers: vec![Container { security, ..container("web") }], ..pod() };
        let new = NewContainer {
            pod: &pod,
            container: pod.container("web").unwrap(),
            attempt: 0,
            sandbox: "s",
            sandbox_attempt: 0,
            cgroup_parent: "",
            users: None,
            target: "",
            image_id: "i",
            image_user,
            setup: &Setup::default(),
        };
        let context = container_config::container(&new, &node()).linux.unwrap().security_context.unwrap();
        assert_eq!(context.run_as_group.unwrap().value, 7);
        (context.run_as_user.map(|user| user.value), context.run_as_username)
    };
    assert_eq!(sent(None, (Some(1000), "")), (Some(1000), String::new()), "what runAsNonRoot was checked on");
    assert_eq!(sent(None, (None, "web")), (None, "web".to_owned()));
    assert_eq!(sent(Some(5), (Some(1000), "")), (Some(5), String::new()));
    assert_eq!(sent(Some(5), (None, "web")), (Some(5), String::new()), "the pod's own alone");
    assert_eq!(sent(None, (None, "")), (None, String::new()));
}

#[test]
fn what_a_pod_says_of_security_and_names_reaches_the_runtime() {
    let security = PodSecurity {
        fs_group: Some(7),
        supplemental_groups: vec![8],
        strict_groups: true,
        sysctls: vec![("net.ipv4.tcp_syncookies".into(), "1".into())],
        run_as_user: Some(5),
        ..PodSecurity::default()
    };
    let profile = Some(Seccomp::Localhost("a.json".into()));
    let own = Security { seccomp: profile, unmasked_proc: true, ..Security::default() };
    let stop = Lifecycle { stop_signal: Some("SIGRTMIN+1".into()), ..Lifecycle::default() };
    let words = TerminationMessage { path: "/w".into(), fallback_to_logs: true };
    let web = Container {
        security: own,
        lifecycle: stop,
        termination_message: words,
        tty: true,
        ..container("web")
    };
    let pod = Pod { security, subdomain: "sub".into(), fqdn: true, containers: vec![web], ..pod() };
    let sandbox = sandbox_config::sandbox(&pod, 0, "", None, with(&node()));
    assert_eq!(sandbox.hostname, "web.sub.default.svc.cluster.local");
    let linux = sandbox.linux.unwrap();
    assert_eq!(linux.sysctls.get("net.ipv4.tcp_syncookies").map(String::as_str), Some("1"));
    let context = linux.security_context.unwrap();
    assert_eq!((context.supplemental_groups, context.run_as_user.unwrap().value), (vec![7, 8], 5));
    let new = NewContainer {
        pod: &pod,
        container: pod.container("web").unwrap(),
        attempt: 0,
        sandbox: "s",
        sandbox_attempt: 0,
        cgroup_parent: "",
        users: None,
        target: "",
        image_id: "i",
        image_user: (None, ""),
        setup: &Setup::default(),
    };
    let config = container_config::container(&new, &NodeConfig { cgroup_v2: true, ..node() });
    assert_eq!(config.stop_signal(), wire::Signal::Sigrtminplus1);
    assert!(config.tty && !config.stdin);
    let annotation = |key: &str| config.annotations.get(key).map(String::as_str);
    assert_eq!(annotation("io.kubernetes.container.terminationMessagePath"), Some("/w"));
    assert_eq!(annotation("io.kubernetes.container.terminationMessagePolicy"), Some("FallbackToLogsOnError"));
    let linux = config.linux.unwrap();
    assert_eq!(linux.resources.unwrap().unified.get("memory.oom.group").map(String::as_str), Some("1"));
    let context = linux.security_context.unwrap();
    assert_eq!(context.supplemental_groups_policy(), wire::SupplementalGroupsPolicy::Strict);
    assert_eq!(context.seccomp.unwrap().localhost_ref, "/var/lib/kubelet/seccomp/a.json");
    assert!(context.masked_paths.is_empty() && context.readonly_paths.is_empty());
}

#[test]
fn read_only_root_reaches_the_runtime() {
    let own = Security { read_only_root: true, privileged: true, ..Security::default() };
    let pod = Pod { containers: vec![Container { security: own, ..container("web") }], ..pod() };
    let new = NewContainer {
        pod: &pod,
        container: pod.container("web").unwrap(),
        attempt: 0,
        sandbox: "s",
        sandbox_attempt: 0,
        cgroup_parent: "",
        users: None,
        target: "",
        image_id: "i",
        image_user: (None, ""),
        setup: &Setup::default(),
    };
    let context = container_config::container(&new, &node()).linux.unwrap().security_context.unwrap();
    assert!(context.readonly_rootfs && context.privileged);
}

#[test]
fn seccomp_that_is_not_asked_for_is_the_nodes_choice() {
    use wire::security_profile::ProfileType;
    let kind = |default| {
        sandbox_config::seccomp(None, &NodeConfig { seccomp_default: default, ..node() }).profile_type()
    };
    assert_eq!((kind(true), kind(false)), (ProfileType::RuntimeDefault, ProfileType::Unconfined));
}

#[test]
fn an_older_runtimes_images_are_in_use_too() {
    let made_of = |image_ref: &str, image_id: &str| {
        let (image_ref, image_id) = (image_ref.to_owned(), image_id.to_owned());
        keeper::image_of(&wire::Container { image_ref, image_id, ..Default::default() })
    };
    assert_eq!(made_of("sha256:a", ""), "sha256:a");
    assert_eq!(made_of("registry/web@sha256:b", "sha256:a"), "sha256:a");
}

#[test]
fn what_the_runtime_says_is_checked() {
    let status = |state: wire::ContainerState, log_path: &str| wire::ContainerStatus {
        id: "c".into(),
        metadata: Some(wire::ContainerMetadata { name: "web".into(), attempt: 1 }),
        state: i32::from(state),
        log_path: log_path.into(),
        exit_code: 137,
        reason: "OOMKilled".into(),
        ..Default::default()
    };
    let seen = observe::instance(
        status(wire::ContainerState::ContainerExited, "/var/log/pods/default_web_uid-1/web/1.log"),
        "s".into(),
        &node(),
    );
    let exit = seen.exit().unwrap();
    assert_eq!((exit.code, exit.reason.as_str(), seen.attempt), (137, "OOMKilled", 1));
    assert_eq!(seen.log_path, "/var/log/pods/default_web_uid-1/web/1.log");
    assert_eq!(seen.words, None);
    let mut other = status(wire::ContainerState::ContainerExited, "");
    other.annotations.insert(observe::WORDS.to_owned(), "/w".to_owned());
    let mount = |container: &str, host: &str| wire::Mount {
        container_path: container.into(),
        host_path: host.into(),
        ..Default::default()
    };
    other.mounts = vec![mount("/etc/hosts", "/h"), mount("/w", "/p/containers/web/6f1c9b02")];
    let seen = observe::instance(other, "s".into(), &node());
    assert_eq!(seen.words.as_deref(), Some(std::path::Path::new("/p/containers/web/6f1c9b02")));
    for path in ["/etc/shadow", "/var/log/pods/../../etc/shadow", "/var/log/podsx/a"] {
        let seen =
            observe::instance(status(wire::ContainerState::ContainerUnknown, path), "s".into(), &node());
        assert_eq!((seen.log_path.as_str(), seen.state), ("", InstanceState::Unknown), "{path}");
    }
}

#[test]
fn what_the_default_handler_can_is_read_from_status() {
    let handler = |name: &str, can| wire::RuntimeHandler {
        name: name.into(),
        features: Some(wire::RuntimeHandlerFeatures {
            recursive_read_only_mounts: can,
            ..wire::RuntimeHandlerFeatures::default()
        }),
    };
    let of = |runtime_handlers| {
        let status = wire::StatusResponse { runtime_handlers, ..wire::StatusResponse::default() };
        features(&status).recursive_read_only
    };
    assert!(of(vec![handler("kata", false), handler("", true)]));
    assert!(!of(vec![handler("kata", true), handler("", false)]));
    assert!(!of(vec![]));
}

#[test]
fn failures_keep_kind_and_message() {
    let of = |code, message: &str| failure(&Status::new(code, message));
    assert_eq!(of(Code::NotFound, "x").kind, FailureKind::NotFound);
    assert_eq!(of(Code::DeadlineExceeded, "x").kind, FailureKind::TimedOut);
    assert_eq!(of(Code::Unknown, "").message, Code::Unknown.description());
    assert_eq!(gone_is_fine(Err(Status::not_found("gone"))), Ok(()));
    assert!(gone_is_fine(Err(Status::internal("no"))).is_err());
}

#[test]
fn an_ephemeral_container_sees_the_processes_of_its_target() {
    let modes = |namespaces, target| {
        let pod = Pod { namespaces, ..pod() };
        let new = NewContainer {
            pod: &pod,
            container: pod.container("web").unwrap(),
            attempt: 0,
            sandbox: "s",
            sandbox_attempt: 0,
            cgroup_parent: "",
            users: None,
            target,
            image_id: "i",
            image_user: (None, ""),
            setup: &Setup::default(),
        };
        let config = container_config::container(&new, &node());
        let options = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        (options.pid(), options.target_id)
    };
    let own = Namespaces::default();
    assert_eq!(modes(own, ""), (wire::NamespaceMode::Container, String::new()));
    assert_eq!(modes(own, "c1"), (wire::NamespaceMode::Target, "c1".to_owned()));
    let shared = Namespaces { share_process: true, ..own };
    assert_eq!(modes(shared, "c1"), (wire::NamespaceMode::Pod, String::new()));
}

#[test]
fn a_user_namespace_reaches_sandbox_container_and_mounts() {
    let users = Some(crate::runtime::Users { first: 65_536, length: 65_536 });
    let mount = gantry_model::mount::Mount {
        host_path: "/a".into(),
        image: None,
        container_path: "/b".into(),
        read_only: false,
        recursive_read_only: false,
        propagation: gantry_model::pod::volume::Propagation::None,
        relabel: true,
    };
    let pod = pod();
    let new = NewContainer {
        pod: &pod,
        container: pod.container("web").unwrap(),
        attempt: 0,
        sandbox: "s",
        sandbox_attempt: 0,
        cgroup_parent: "",
        users,
        target: "",
        image_id: "i",
        image_user: (None, ""),
        setup: &Setup { mounts: vec![mount], ..Setup::default() },
    };
    let ids = vec![wire::IdMapping { host_id: 65_536, container_id: 0, length: 65_536 }];
    let config = container_config::container(&new, &node());
    let bound = config.mounts.first().unwrap();
    assert_eq!((&bound.uid_mappings, &bound.gid_mappings), (&ids, &ids));
    assert!(bound.selinux_relabel);
    let own =
        config.linux.unwrap().security_context.unwrap().namespace_options.unwrap().userns_options.unwrap();
    let sandbox = sandbox_config::sandbox(&pod, 0, "", users, with(&node())).linux.unwrap();
    let of_pod = sandbox.security_context.unwrap().namespace_options.unwrap().userns_options.unwrap();
    assert_eq!(own, of_pod);
    assert_eq!((own.mode(), own.uids, own.gids), (wire::NamespaceMode::Pod, ids.clone(), ids));
}

#[test]
fn what_the_api_says_of_security_and_resources_reaches_the_runtime() {
    use gantry_model::pod::security::{AppArmor, SeLinux};
    use gantry_model::pod::{Origin, Requirements};
    let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let label = SeLinux { level: "s0:c1".into(), ..SeLinux::default() };
    let security = Security {
        app_armor: Some(AppArmor::Localhost("k8s-x".into())),
        se_linux: Some(label),
        ..Security::default()
    };
    let written = Requirements { limits: text(&[("hugepages-2Mi", "4Mi")]), ..Requirements::default() };
    let own = Requirements { limits: text(&[("cpu", "1"), ("memory", "1Mi")]), ..Requirements::default() };
    let pod = Pod {
        origin: Origin::Api,
        containers: vec![Container { security, written, ..container("web") }],
        overhead: text(&[("cpu", "100m"), ("memory", "1Mi")]),
        resources: Some(own),
        ..pod()
    };
    let new = NewContainer {
        pod: &pod,
        container: pod.container("web").unwrap(),
        attempt: 0,
        sandbox: "s",
        sandbox_attempt: 0,
        cgroup_parent: "",
        users: None,
        target: "",
        image_id: "i",
        image_user: (None, ""),
        setup: &Setup::default(),
    };
    let node = NodeConfig { page_sizes: vec![2048], ..node() };
    let linux = container_config::container(&new, &node).linux.unwrap();
    let context = linux.security_context.unwrap();
    let profile = context.apparmor.unwrap();
    assert_eq!(
        (profile.profile_type(), profile.localhost_ref.as_str()),
        (wire::security_profile::ProfileType::Localhost, "k8s-x")
    );
    #[expect(deprecated, reason = "what runtimes before the new field read")]
    let text = context.apparmor_profile;
    assert_eq!(text, "localhost/k8s-x");
    assert_eq!(context.selinux_options.unwrap().level, "s0:c1");
    let held = linux.resources.unwrap();
    // Where the container has no limit of its own, that of its pod counts.
    assert_eq!((held.cpu_quota, held.memory_limit_in_bytes), (100_000, 1 << 20));
    let pages = held.hugepage_limits.first().unwrap();
    assert_eq!((pages.page_size.as_str(), pages.limit), ("2MB", 4 << 20));
    let config = sandbox_config::sandbox(&pod, 0, "", None, with(&node));
    assert_eq!(config.annotations.get("kubernetes.io/config.source").map(String::as_str), Some("api"));
    let sandbox = config.linux.unwrap();
    assert_eq!(sandbox.overhead.unwrap().memory_limit_in_bytes, 1 << 20);
    assert_eq!(sandbox.resources.unwrap().memory_limit_in_bytes, 1 << 20);
}

#[test]
fn an_endpoint_is_read_as_upstream_reads_one() {
    for (endpoint, path) in [
        ("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("unix:/run/a.sock", "/run/a.sock"),
        ("/run/a.sock", "/run/a.sock"),
        ("UNIX:///run/a:b.sock", "/run/a:b.sock"),
        ("unix://host/a.sock", "/a.sock"),
        ("run/a.sock", "/a.sock"),
    ] {
        assert_eq!(super::socket(endpoint), Ok(path), "{endpoint}");
    }
    for (endpoint, told) in [
        ("tcp://127.0.0.1:1", "only support unix socket endpoint"),
        ("npipe:////./pipe/x", "protocol \"npipe\" not supported"),
        ("unix:a.sock", "there is no path of a socket in it"),
        ("a.sock", "there is no path of a socket in it"),
        ("", "there is no path of a socket in it"),
    ] {
        assert_eq!(super::socket(endpoint).unwrap_err(), told, "{endpoint}");
    }
}

#[tokio::test]
async fn an_endpoint_that_can_never_work_is_told_apart_from_one_where_nobody_is() {
    let wrong = super::connect("tcp://127.0.0.1:1").await.unwrap_err();
    assert!(matches!(wrong, crate::runtime::Error::Endpoint { .. }), "{wrong}");
    assert!(wrong.to_string().contains("only support unix socket endpoint"), "{wrong}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    for endpoint in [format!("unix://{}", path.display()), path.display().to_string()] {
        let absent = super::connect(&endpoint).await.unwrap_err();
        assert!(matches!(absent, crate::runtime::Error::Connect { .. }), "{absent}");
    }
}

#[test]
fn the_range_of_a_sandbox_is_what_its_status_says() {
    let status = |ready: bool, users: Option<wire::UserNamespace>| wire::PodSandboxStatus {
        id: "s".to_owned(),
        state: i32::from(if ready { wire::PodSandboxState::SandboxReady } else { NOT_READY }),
        linux: Some(wire::LinuxPodSandboxStatus {
            namespaces: Some(wire::Namespace {
                options: Some(wire::NamespaceOption { userns_options: users, ..Default::default() }),
            }),
        }),
        ..Default::default()
    };
    const NOT_READY: wire::PodSandboxState = wire::PodSandboxState::SandboxNotready;
    let own = Users { first: 131_072, length: 65_536 };
    let said = |users| sandbox_config::namespaces(Namespaces::default(), users).userns_options;
    for ready in [true, false] {
        assert_eq!(observe::range(status(ready, said(Some(own)))), Some(Ok(own)));
        assert_eq!(observe::range(status(ready, said(None))), None, "it has the node's");
    }
    let unequal = wire::UserNamespace { gids: Vec::new(), ..said(Some(own)).unwrap() };
    for unclear in [None, Some(wire::UserNamespace::default()), Some(unequal)] {
        let told = observe::range(status(true, unclear.clone()));
        assert!(told.unwrap().unwrap_err().contains("sandbox s does not say"), "{unclear:?}");
        assert_eq!(observe::range(status(false, unclear)), None, "nothing runs in it");
    }
    assert!(
        observe::range(wire::PodSandboxStatus::default()).unwrap().is_err(),
        "READY is what nothing says"
    );
}

/// A runtime that takes calls and answers none.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_answered_in_time_is_given_up() {
    let (own, _silent) = tokio::io::duplex(1 << 16);
    let mut own = Some(hyper_util::rt::TokioIo::new(own));
    let dial = tower::service_fn(move |_| {
        let own = own.take().ok_or(std::io::Error::from(std::io::ErrorKind::NotConnected));
        async move { own }
    });
    let channel = tonic::transport::Endpoint::from_static("http://silent").connect_with_connector_lazy(dial);
    let request_timeout = Duration::from_secs(7);
    let runtime = CriRuntime::new(channel, NodeConfig { request_timeout, ..node() }, Arc::default());
    let begun = tokio::time::Instant::now();
    let error = About::version(&runtime).await.unwrap_err();
    assert!(
        matches!(&error, Error::Features { source } if source.kind == FailureKind::TimedOut),
        "{error:?}"
    );
    assert!(
        begun.elapsed() >= request_timeout && begun.elapsed() < request_timeout * 2,
        "{:?}",
        begun.elapsed()
    );
}

//! The mapping to and from CRI, and the client against a served one in memory.

use std::collections::BTreeMap;

use super::*;
use crate::pod::spec::{Container, Namespaces, Pod, Port, Security};
use crate::pod::tests::{container, pod};
use crate::runtime::{InstanceState, Setup};

fn node() -> NodeConfig {
    NodeConfig {
        pod_logs_dir: "/var/log/pods".into(),
        memory_capacity: 1 << 30,
        dns: DnsConfig { servers: vec!["10.0.0.1".into()], ..DnsConfig::default() },
    }
}

#[test]
fn a_sandbox_has_the_kubelets_labels_and_folder() {
    let annotations = BTreeMap::from([("note".to_owned(), "x".to_owned())]);
    let config = sandbox_config::sandbox(&Pod { annotations, ..pod() }, 2, "/kubepods/x", &node());
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
        let option = sandbox_config::namespaces(namespaces);
        [option.network(), option.pid(), option.ipc()]
    };
    assert_eq!(modes(Namespaces::default()), [Shared, Own, Shared]);
    assert_eq!(modes(Namespaces { share_process: true, ..Namespaces::default() }), [Shared, Shared, Shared]);
    let host = Namespaces { host_network: true, host_pid: true, host_ipc: true, share_process: false };
    assert_eq!(modes(host), [Node, Node, Node]);
}

#[test]
fn a_container_has_the_kubelets_config() {
    let pod = Pod {
        containers: vec![Container {
            ports: vec![Port {
                name: "http".into(),
                port: 80,
                protocol: "TCP".into(),
                host_port: 0,
                host_ip: String::new(),
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
        image_id: "sha256:1",
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
        Some(r#"[{"containerPort":80,"name":"http","protocol":"TCP"}]"#)
    );
    let security = config.linux.unwrap().security_context.unwrap();
    assert_eq!(security.run_as_user.unwrap().value, 1000);
    assert!(security.no_new_privs && security.run_as_group.is_none());
    assert!(security.masked_paths.contains(&"/proc/kcore".to_owned()));
    assert!(security.readonly_paths.contains(&"/proc/sys".to_owned()));
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
    for path in ["/etc/shadow", "/var/log/pods/../../etc/shadow", "/var/log/podsx/a"] {
        let seen =
            observe::instance(status(wire::ContainerState::ContainerUnknown, path), "s".into(), &node());
        assert_eq!((seen.log_path.as_str(), seen.state), ("", InstanceState::Unknown), "{path}");
    }
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

#[tokio::test]
async fn endpoints_are_sockets_that_answer() {
    for bad in ["/run/x.sock", "tcp://127.0.0.1:1", "unix://relative"] {
        assert!(matches!(connect(bad).await, Err(Error::Endpoint { .. })), "{bad}");
    }
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("unix://{}/none.sock", folder.path().display());
    let error = connect(&endpoint).await.unwrap_err();
    assert!(error.to_string().contains("none.sock"), "{error}");
}

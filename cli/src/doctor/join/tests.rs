//! A server on loopback that is wrong in one thing, looked at and judged as on a real node: the row must name it.

mod server;

use std::path::Path;

use super::proxy::Proxies;
use super::{HostView, JoinTarget};
use crate::doctor::{Check, CheckStatus, look};
use jiff::{SignedDuration, Timestamp};
use server::{FakeApiServer, ServerFault, TOKEN};

pub(super) fn place(root: &Path) -> HostView {
    HostView {
        root: root.to_owned(),
        path: root.join("bin").into(),
        proxies: Proxies::default(),
        name: "vm1".to_owned(),
        runtime: format!("unix://{}", root.join("run/gantry/gantry.sock").display()),
        network: look::network(&root.join("etc/cni/net.d"), &root.join("opt/cni/bin"), false),
    }
}

/// A file below a folder that stands for the root of a machine.
pub(super) fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A host that no resolver is asked for, since its label is longer than DNS has them.
fn nameless() -> String {
    "a".repeat(64)
}

/// A port that nobody listens on any more.
fn closed() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn target(server: &FakeApiServer) -> JoinTarget {
    JoinTarget {
        endpoint: server.endpoint.clone(),
        token: Some(TOKEN.to_owned()),
        hashes: vec![server.hash.clone()],
    }
}

async fn checked(target: &JoinTarget) -> Vec<Check> {
    let root = tempfile::tempdir().unwrap();
    super::checks(target, &place(root.path())).await
}

fn row<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no row {name}: {checks:#?}"))
}

/// The row of that name, of a server with this fault.
async fn with(fault: ServerFault, name: &str) -> Check {
    let server = FakeApiServer::start(fault).await;
    row(&checked(&target(&server)).await, name).clone()
}

pub(super) fn assert_named(check: &Check, verdict: CheckStatus, seen: &str, remedy: &str) {
    assert_eq!(check.verdict, verdict, "{check:?}");
    assert!(check.seen.contains(seen), "{seen:?} in {check:?}");
    assert!(!remedy.is_empty() && check.remedy.contains(remedy), "{remedy:?} in {check:?}");
}

#[tokio::test]
async fn a_server_with_nothing_wrong_has_only_good_rows() {
    let server = FakeApiServer::start(ServerFault::None).await;
    let checks = checked(&target(&server)).await;
    for name in [
        "api",
        "clock",
        "cluster-info",
        "certificate",
        "certificate names",
        "ca hash",
        "token",
        "api address",
        "link",
    ] {
        assert_eq!(row(&checks, name).verdict, CheckStatus::Ok, "{:?}", row(&checks, name));
    }
    assert!(row(&checks, "token").seen.contains("opens kubelet-config"));
    assert!(
        server.shown_to().contains(&"/api/v1/namespaces/kube-system/configmaps/kubelet-config".to_owned())
    );
}

#[tokio::test]
async fn a_port_that_is_closed_is_named() {
    let endpoint = format!("127.0.0.1:{}", closed()).parse().unwrap();
    let checks = checked(&JoinTarget { endpoint, token: None, hashes: Vec::new() }).await;
    assert_named(row(&checks, "api"), CheckStatus::Fail, "refused", "6443");
}

#[tokio::test]
async fn a_host_that_does_not_resolve_is_named() {
    let endpoint = format!("{}:6443", nameless()).parse().unwrap();
    let checks = checked(&JoinTarget { endpoint, token: None, hashes: Vec::new() }).await;
    assert_named(row(&checks, "api"), CheckStatus::Fail, "the host has no address", "/etc/hosts know aaa");
}

#[tokio::test]
async fn a_server_without_tls_is_named() {
    let check = with(ServerFault::Plain, "api").await;
    assert_named(&check, CheckStatus::Fail, "speaks no TLS", "the port of the API server");
}

#[tokio::test]
async fn a_clock_an_hour_off_is_named() {
    let check = with(ServerFault::Date(SignedDuration::from_hours(1)), "clock").await;
    assert_named(&check, CheckStatus::Fail, "behind the API server's", "timedatectl set-ntp true");
    let check = with(ServerFault::Date(SignedDuration::from_secs(-90)), "clock").await;
    assert_named(&check, CheckStatus::Warn, "ahead of the API server's", "timedatectl set-ntp true");
}

#[tokio::test]
async fn a_cluster_without_cluster_info_is_named() {
    let check = with(ServerFault::NoInfo, "cluster-info").await;
    assert_named(&check, CheckStatus::Fail, "does not give it", "kubeadm init phase bootstrap-token");
}

#[tokio::test]
async fn an_expired_certificate_is_named() {
    let (now, hour) = (Timestamp::now(), SignedDuration::from_hours(1));
    let check = with(ServerFault::Dates(now - hour * 2, now - hour), "certificate").await;
    assert_named(&check, CheckStatus::Fail, "expired at", "kubeadm certs renew apiserver");
    let check = with(ServerFault::Dates(now + hour, now + hour * 2), "certificate").await;
    assert_named(&check, CheckStatus::Fail, "not valid before", "set this machine's clock");
    let check = with(ServerFault::Dates(now - hour, now + hour), "certificate").await;
    assert_named(&check, CheckStatus::Warn, "expires at", "kubeadm certs renew apiserver");
}

#[tokio::test]
async fn the_certificate_of_another_authority_is_named_and_gets_no_token() {
    let server = FakeApiServer::start(ServerFault::OtherSigner).await;
    let checks = checked(&target(&server)).await;
    assert_named(
        row(&checks, "certificate"),
        CheckStatus::Fail,
        "not signed by the cluster's",
        "join by the API server's own",
    );
    assert_named(row(&checks, "token"), CheckStatus::Warn, "not shown to this server", "certificate");
    assert_eq!(server.shown_to(), [""; 0]);
}

#[tokio::test]
async fn a_certificate_without_the_hosts_name_is_named() {
    let check =
        with(ServerFault::Names(vec!["kubernetes".into(), "10.96.0.1".into()]), "certificate names").await;
    assert_named(
        &check,
        CheckStatus::Fail,
        "for kubernetes, 10.96.0.1, and not for 127.0.0.1",
        "--apiserver-cert-extra-sans 127.0.0.1",
    );
}

#[tokio::test]
async fn a_certificate_without_the_clusters_own_name_is_named() {
    let check = with(ServerFault::Named("127.0.0.2:1".into()), "certificate names").await;
    assert_named(&check, CheckStatus::Fail, "not for 127.0.0.2", "--apiserver-cert-extra-sans 127.0.0.2");
}

#[tokio::test]
async fn a_wrong_hash_is_named_with_the_right_one_and_the_server_gets_no_token() {
    let server = FakeApiServer::start(ServerFault::None).await;
    let hashes = vec![format!("sha256:{}", "0".repeat(64))];
    let checks = checked(&JoinTarget { hashes, ..target(&server) }).await;
    assert_named(row(&checks, "ca hash"), CheckStatus::Fail, &server.hash, "--print-join-command");
    assert_named(row(&checks, "token"), CheckStatus::Warn, "not shown to this server", "hash");
    assert_eq!(server.shown_to(), [""; 0]);
}

#[tokio::test]
async fn a_hash_that_is_none_or_missing_is_named() {
    let server = FakeApiServer::start(ServerFault::None).await;
    let checks = checked(&JoinTarget { hashes: vec!["sha256:12".into()], ..target(&server) }).await;
    assert_named(row(&checks, "ca hash"), CheckStatus::Fail, "64 hexadecimal digits", "--print-join-command");
    let checks = checked(&JoinTarget { hashes: Vec::new(), ..target(&server) }).await;
    assert_named(row(&checks, "ca hash"), CheckStatus::Warn, &server.hash, "--discovery-token-ca-cert-hash");
}

#[tokio::test]
async fn a_token_that_is_none_missing_unknown_or_mistyped_is_named() {
    let server = FakeApiServer::start(ServerFault::None).await;
    for (token, verdict, seen) in [
        (Some("abcdef"), CheckStatus::Fail, "no token"),
        (None, CheckStatus::Warn, "none given"),
        (Some("zzzzzz.0123456789abcdef"), CheckStatus::Fail, "has no token zzzzzz…"),
        (Some("abcdef.0123456789abcdee"), CheckStatus::Fail, "signed with another secret of abcdef…"),
    ] {
        let checks = checked(&JoinTarget { token: token.map(str::to_owned), ..target(&server) }).await;
        let check = row(&checks, "token");
        assert_named(check, verdict, seen, "token");
        let secret = token.and_then(|token| token.split_once('.')).map_or("none of it", |(_, secret)| secret);
        assert!(!format!("{check:?}").contains(secret), "{check:?}");
    }
    assert_eq!(server.shown_to(), [""; 0]);
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_named() {
    let check = with(ServerFault::Answer(401), "token").await;
    assert_named(&check, CheckStatus::Fail, "refuses it (401)", "kubeadm token create");
    let check = with(ServerFault::Answer(403), "token").await;
    assert_named(
        &check,
        CheckStatus::Fail,
        "may not read",
        "system:bootstrappers:kubeadm:default-node-token",
    );
}

#[tokio::test]
async fn a_name_of_the_cluster_that_does_not_resolve_is_named_with_its_line() {
    let check = with(ServerFault::Named(format!("{}:6443", nameless())), "api address").await;
    assert_named(&check, CheckStatus::Warn, "has no address here", "127.0.0.1 aaa");
}

#[tokio::test]
async fn a_name_of_the_cluster_that_leads_elsewhere_is_named() {
    let check = with(ServerFault::Named(format!("localhost:{}", closed())), "api address").await;
    assert_named(&check, CheckStatus::Fail, "does not answer", "127.0.0.1 localhost");
}

#[tokio::test]
async fn a_node_of_that_name_is_named() {
    let check = with(ServerFault::Twin(true), "node name").await;
    assert_named(&check, CheckStatus::Fail, "a Ready node vm1", "set-hostname");
    let check = with(ServerFault::Twin(false), "node name").await;
    assert_named(&check, CheckStatus::Warn, "vm1 that is not Ready", "set-hostname");
}

#[tokio::test]
async fn the_clusters_kubelet_config_and_release_are_held_against_the_node() {
    let file = "cgroupDriver: systemd\ncgroupRoot: /kubelet\nfailSwapOn: false\n";
    let server = FakeApiServer::start(ServerFault::Kubelet(file.into(), "v1.31.2".into())).await;
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/swaps", "Filename Type Size\n/dev/vdb partition 1\n");
    let checks = super::checks(&target(&server), &place(root.path())).await;
    assert_named(
        row(&checks, "cgroup root"),
        CheckStatus::Warn,
        "says /kubelet",
        "kubeletconfiguration0+merge.yaml",
    );
    assert_named(row(&checks, "kubeadm"), CheckStatus::Fail, "not in PATH", "install kubeadm 1.31");
    assert_eq!(row(&checks, "swap").verdict, CheckStatus::Ok, "kubelet-config allows it");
}

//! Rows of the cluster: whether it answers, whether it is the one that is meant, and whether it takes this node's token.
//! Pure. Called by [`super`].

use std::net::IpAddr;

use gantry_kube_client::identity::pair::Leaf;
use jiff::{SignedDuration, Timestamp};

use super::{is_kind, warn_mended};
use crate::doctor::Check;
use crate::doctor::join::api::{
    Api, ApiServer, Clock, ConnectFailure, Info, Member, Named, ReadFailure, Signature,
};
use crate::doctor::join::way::{NetworkRoute, NextHop};
use crate::doctor::judge::{fail, ok, warn};
use crate::join::discovery::Endpoint;

/// A certificate that ends sooner is told.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Clocks that are further apart are told. The server's is in whole seconds.
const APART: SignedDuration = SignedDuration::from_secs(30);
/// The control plane dates the kubelet's certificates back by so much: a node whose clock is further behind gets one that is
/// not valid yet.
const TOO_FAR: SignedDuration = SignedDuration::from_mins(5);

const NEW_TOKEN: &str = "make one on the control plane: kubeadm token create --print-join-command";

pub(super) fn checks(api: &Api, way: Option<&NetworkRoute>, now: Timestamp) -> Vec<Check> {
    let mut checks = vec![check_reachable(api)];
    checks.extend(api.clock.map(clock));
    if let Ok(server) = &api.server {
        checks.push(info(api, server));
        checks.push(dates(api, server, now));
        checks.push(names(api, server));
    }
    checks.extend([hash(api), token(api)]);
    if let Ok(info) = &api.info {
        checks.push(name(api, info));
    }
    checks.extend(way.map(|way| link(api, way)));
    checks
}

fn check_reachable(api: &Api) -> Check {
    let at = &api.endpoint;
    match &api.server {
        Ok(server) => ok("api", format!("{at} answers as {}", server.address)),
        Err(ConnectFailure::Name(error)) => fail(
            "api",
            format!("{at}: the host has no address: {error}"),
            format!("give the control plane's address instead, or let DNS or /etc/hosts know {}", at.host),
        ),
        Err(ConnectFailure::Connect(error)) => fail(
            "api",
            format!("{at} is not reached: {error}"),
            "check address and port (kubeadm's is 6443), that the API server runs, and firewalls and routes between"
                .to_owned(),
        ),
        Err(ConnectFailure::Handshake(error)) => fail(
            "api",
            format!("{at} takes connections and speaks no TLS: {error}"),
            "name the port of the API server (kubeadm's is 6443)".to_owned(),
        ),
    }
}

fn clock(clock: Clock) -> Check {
    let ahead = clock.ours.duration_since(clock.theirs);
    let seconds = ahead.as_secs();
    let seen =
        format!("{} s {} the API server's", seconds.abs(), if seconds < 0 { "behind" } else { "ahead of" });
    let remedy = "let both follow a time server: timedatectl set-ntp true".to_owned();
    match ahead.abs() {
        apart if apart > TOO_FAR => {
            fail("clock", seen, format!("{remedy}; certificates are not valid, or not yet"))
        }
        apart if apart > APART => warn("clock", seen, remedy),
        _ => ok("clock", seen),
    }
}

fn info(api: &Api, server: &ApiServer) -> Check {
    match &api.info {
        Ok(info) => ok("cluster-info", format!("of the cluster at {}", info.cluster.server)),
        Err(error) => fail(
            "cluster-info",
            format!("{} at {} does not give it: {error}", api.endpoint, server.address),
            "nodes join by the ConfigMap kube-public/cluster-info, which anybody may read: `kubeadm init phase \
             bootstrap-token` on the control plane makes it"
                .to_owned(),
        ),
    }
}

fn dates(api: &Api, server: &ApiServer, now: Timestamp) -> Check {
    let Leaf { not_before, not_after, .. } = server.leaf;
    let renew = "kubeadm certs renew apiserver on the control plane, and start its API server anew";
    if let Some(Err(error)) = api.info.as_ref().ok().map(|info| &info.vouched) {
        return fail(
            "certificate",
            format!("not signed by the cluster's certificate authority: {error}"),
            "something between ends TLS (a proxy, a load balancer), or it is another server: join by the API server's own \
             address"
                .to_owned(),
        );
    }
    if now < not_before {
        let remedy = format!("set this machine's clock, which says {now}; if it is right: {renew}");
        return fail("certificate", format!("not valid before {not_before}"), remedy);
    }
    if now > not_after {
        return fail("certificate", format!("expired at {not_after}"), renew.to_owned());
    }
    let until = api.info.as_ref().ok().and_then(|info| info.until);
    if let Some(until) = until.filter(|until| now > *until) {
        let remedy = "the cluster needs a new authority, and its nodes new certificates (Kubernetes: Manual Rotation of CA \
                      Certificates)";
        return fail("certificate", format!("the authority's own expired at {until}"), remedy.to_owned());
    }
    if now.duration_until(not_after) < SOON {
        return warn("certificate", format!("expires at {not_after}"), renew.to_owned());
    }
    ok("certificate", format!("valid until {not_after}"))
}

/// kubeadm asks the endpoint that it was given, the kubelet the one that the cluster names.
fn names(api: &Api, server: &ApiServer) -> Check {
    let mut wrong = Vec::new();
    if !server.bears {
        wrong.push(api.endpoint.host.as_str());
    }
    if let Ok(info) = &api.info
        && !info.bears
        && info.cluster.server.host != api.endpoint.host
    {
        wrong.push(info.cluster.server.host.as_str());
    }
    let leaf = &server.leaf;
    let all: Vec<String> = leaf.dns.iter().cloned().chain(leaf.ips.iter().map(IpAddr::to_string)).collect();
    if wrong.is_empty() {
        return ok("certificate names", all.join(", "));
    }
    fail(
        "certificate names",
        format!("for {}, and not for {}", all.join(", "), wrong.join(" and ")),
        format!(
            "join by one of these, or have the control plane add it: delete /etc/kubernetes/pki/apiserver.* there, and \
             kubeadm init phase certs apiserver --apiserver-cert-extra-sans {}",
            wrong.join(",")
        ),
    )
}

fn hash(api: &Api) -> Check {
    if let Some(error) = api.hashes.iter().find_map(|hash| hash.as_ref().err()) {
        return fail("ca hash", error.clone(), NEW_TOKEN.replace("make one", "print it"));
    }
    let Ok(info) = &api.info else {
        return warn("ca hash", "not compared".to_owned(), "it is when cluster-info can be read".to_owned());
    };
    let found: Vec<String> = info.found.iter().map(ToString::to_string).collect();
    let found = found.join(", ");
    if api.hashes.is_empty() {
        return warn(
            "ca hash",
            format!("none given; the cluster's authority has {found}"),
            "compare it with the one that `kubeadm token create --print-join-command` prints on the control plane, and \
             give it as --discovery-token-ca-cert-hash"
                .to_owned(),
        );
    }
    if api.is_pinned(info) {
        return ok("ca hash", "that of the cluster's authority".to_owned());
    }
    fail(
        "ca hash",
        format!("the cluster's authority has {found}, not the one that was given"),
        "the hash is another cluster's, or this server is: compare with what `kubeadm token create \
         --print-join-command` prints on the control plane"
            .to_owned(),
    )
}

fn token(api: &Api) -> Check {
    let token = match &api.token {
        None => {
            let remedy = "with --token it is tried, and what only a node may read is looked at, too";
            return warn("token", "none given".to_owned(), remedy.to_owned());
        }
        Some(Err(error)) => return fail("token", format!("no token: {error}"), NEW_TOKEN.to_owned()),
        Some(Ok(token)) => token.id(),
    };
    let Ok(info) = &api.info else {
        let remedy = "it is when cluster-info can be read";
        return warn("token", format!("{token}… is well-formed, not tried"), remedy.to_owned());
    };
    match (info.signature, &api.member) {
        (None | Some(Signature::Absent), _) => fail(
            "token",
            format!("the cluster has no token {token}…: it has expired (they last 24 hours), or never was"),
            NEW_TOKEN.to_owned(),
        ),
        (Some(Signature::Bad), _) => fail(
            "token",
            format!("cluster-info is signed with another secret of {token}…"),
            format!("type it again, or {NEW_TOKEN}; if it is right, this is not your API server"),
        ),
        (Some(Signature::Good), None) => warn(
            "token",
            format!(
                "{token}… has signed cluster-info; not shown to this server, which is not known to be the cluster's"
            ),
            "see the rows of hash and certificate".to_owned(),
        ),
        (Some(Signature::Good), Some(member)) => check_authorized_token(token, member),
    }
}

/// Whether the API server knows it as one of a new node.
fn check_authorized_token(token: &str, member: &Member) -> Check {
    match &member.kubelet {
        Ok(_) => ok("token", format!("{token}… has signed cluster-info, and opens kubelet-config")),
        Err(ReadFailure::Unknown) => fail(
            "token",
            format!("{token}… has signed cluster-info, and the API server refuses it (401)"),
            format!("it has just expired, or is not made for authentication: {NEW_TOKEN}"),
        ),
        Err(ReadFailure::Forbidden) => fail(
            "token",
            format!("{token}… may not read kube-system/kubelet-config (403)"),
            "it lacks the group system:bootstrappers:kubeadm:default-node-token, or the cluster kubeadm's roles \
             (`kubeadm init phase upload-config kubelet` on the control plane)"
                .to_owned(),
        ),
        Err(ReadFailure::Other(error)) => warn(
            "token",
            format!("{token}… has signed cluster-info; kube-system/kubelet-config was not read: {error}"),
            "look for what keeps the API server from answering".to_owned(),
        ),
    }
}

/// Nodes go by the cluster's own name for it, whatever they were given.
fn name(api: &Api, info: &Info) -> Check {
    let Named { addresses, reached } = &info.named;
    let server = &info.cluster.server;
    let line = api.server.as_ref().map(|found| format!("{} {}", found.address.ip(), server.host));
    let line = line.unwrap_or_default();
    match (addresses, reached) {
        (Err(error), _) => warn_mended(
            "api address",
            format!("the cluster calls it {server}, which has no address here: {error}"),
            &format!("echo '{line}' >>/etc/hosts"),
        ),
        (Ok(found), Some(Err(trouble))) => fail(
            "api address",
            format!(
                "the cluster calls it {server}, which is {} here and does not answer: {}",
                list(found),
                words(trouble)
            ),
            format!("let DNS or /etc/hosts say where it is: {line}"),
        ),
        (Ok(found), _) => ok("api address", format!("{} is {}", server.host, list(found))),
    }
}

fn words(trouble: &ConnectFailure) -> &str {
    match trouble {
        ConnectFailure::Name(error) | ConnectFailure::Connect(error) | ConnectFailure::Handshake(error) => {
            error
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// kindnet gives each node routes to the pods of all others by their addresses, which must be on one link.
fn link(api: &Api, way: &NetworkRoute) -> Check {
    match &way.step {
        NextHop::Here => ok("link", "the API server's address is this machine's own".to_owned()),
        NextHop::Link(device) => ok("link", format!("the API server is on the link of {device}")),
        NextHop::Unknown => ok("link", "no table that can be read has the way to the API server".to_owned()),
        NextHop::Router { gateway, device } => {
            let seen = format!("the API server is behind {gateway} ({device})");
            if !is_kind(api) {
                return ok("link", format!("{seen}; the cluster's network must be one that spans links"));
            }
            warn(
                "link",
                format!(
                    "{seen}, and the cluster is kind's, whose network (kindnet) needs all nodes on one link"
                ),
                "put this machine on the bridge of docker's network `kind`, or make the cluster with \
                 disableDefaultCNI: true and an overlay such as flannel"
                    .to_owned(),
            )
        }
    }
}

/// Whether a connection to this endpoint, or to what the cluster calls it, would be taken by a proxy.
pub(super) fn endpoints(api: &Api) -> Vec<&Endpoint> {
    let named = api.info.as_ref().ok().map(|info| &info.cluster.server);
    std::iter::once(&api.endpoint).chain(named.filter(|named| **named != api.endpoint)).collect()
}

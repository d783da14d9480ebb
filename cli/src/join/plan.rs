//! What a join does, in order, and what keeps it from being begun. Pure: facts in, steps out. Called by [`super`].

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use gantry_model::version;

use super::document;
use super::facts::{CgroupDriver, ClusterFacts, JoinHost, JoinRequest, Release, release};
use super::record::JoinRecord;
use super::step::{JoinChange, JoinStep};

/// Our own folder: what kubeadm is told. The patches stay until the leave, for `kubeadm upgrade node`.
pub(crate) const FOLDER: &str = "/var/lib/gantry/join";
const CONFIG: &str = "/var/lib/gantry/join/config.yaml";
const PATCHES: &str = "/var/lib/gantry/join/patches";
/// kubeadm's name: target, suffix, kind of patch.
const PATCH: &str = "/var/lib/gantry/join/patches/kubeletconfiguration0+merge.yaml";
const MODULES: &str = "/etc/modules-load.d/gantry-join.conf";
const SYSCTLS: &str = "/etc/sysctl.d/99-gantry-join.conf";
const HOSTS: &str = "/etc/hosts";
/// Folders in which agents of networks leave plugins and configurations.
const CNI: [&str; 4] = ["/etc/cni", "/etc/cni/net.d", "/opt/cni", "/opt/cni/bin"];
const HEADING: &str = "# Written by gantry join; gantry leave removes it.\n";

/// Files whose present content the plan compares with.
pub(crate) const FILES: [&str; 4] = [MODULES, SYSCTLS, PATCH, HOSTS];
/// Folders that a join may make.
pub(crate) const FOLDERS: [&str; 8] =
    [CNI[0], CNI[1], CNI[2], CNI[3], "/etc/modules-load.d", "/etc/sysctl.d", FOLDER, PATCHES];
/// Sysctls that a join may set.
pub(crate) const SETTINGS: [&str; 5] =
    [FORWARD, FORWARD_V6, FORWARD_V6_DEFAULT, BRIDGE_CALLS, BRIDGE_CALLS_V6];

const FORWARD: &str = "net.ipv4.ip_forward";
const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
/// The one that kubeadm looks at.
const FORWARD_V6_DEFAULT: &str = "net.ipv6.conf.default.forwarding";
const BRIDGE_CALLS: &str = "net.bridge.bridge-nf-call-iptables";
const BRIDGE_CALLS_V6: &str = "net.bridge.bridge-nf-call-ip6tables";

/// A plan, and what a person should know of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<JoinStep>,
    pub(crate) notes: Vec<String>,
}

/// What is to be done; or everything that is in the way, each with its remedy.
pub(crate) fn plan(
    machine: &JoinHost,
    cluster: &ClusterFacts,
    wanted: &JoinRequest,
    record: Option<&JoinRecord>,
) -> Result<Plan, Vec<String>> {
    let problems = problems(machine, cluster, wanted, record);
    let (true, Ok(driver), Some((_, kubeadm))) = (problems.is_empty(), &machine.runtime, &machine.kubeadm)
    else {
        return Err(problems);
    };
    let mut plan = Plan::default();
    if let Some(cri_socket) = record.and_then(unfinished_join) {
        plan.steps.push(JoinStep::Reset { cri_socket });
    }
    let node_ip = wanted.node_ip.or(machine.way.filter(|ip| !ip.is_loopback()));
    kernel(&mut plan, machine, cluster, node_ip);
    folders(&mut plan, machine, &CNI);
    hosts(&mut plan, machine, cluster);
    let patched = patch(&mut plan, machine, cluster, wanted, *driver);
    if wanted.token.is_none() {
        plan.steps.push(JoinStep::Token);
    }
    folders(&mut plan, machine, &[FOLDER]);
    let patches = patched.then_some(Path::new(PATCHES));
    let content = document::join(machine, cluster, wanted, node_ip, *kubeadm, patches).to_string();
    plan.steps.push(JoinStep::Join { config: CONFIG.into(), content });
    Ok(plan)
}

/// The runtime's socket of a join that did not come to its end.
fn unfinished_join(record: &JoinRecord) -> Option<String> {
    record.made.iter().find_map(|made| match made {
        JoinChange::Join { cri_socket } => Some(cri_socket.clone()),
        _ => None,
    })
}

/// What there is to say when the record is of a join that came to its end.
pub(crate) fn joined_already(record: &JoinRecord) -> Option<String> {
    let endpoint = &record.endpoint;
    record
        .joined
        .then(|| format!("this machine has joined {endpoint} already: `gantry leave` takes it out again"))
}

fn problems(
    machine: &JoinHost,
    cluster: &ClusterFacts,
    wanted: &JoinRequest,
    record: Option<&JoinRecord>,
) -> Vec<String> {
    let mut found = Vec::new();
    if !machine.root {
        found.push("only root may join a machine to a cluster: sudo gantry join …".to_owned());
    }
    let begun = record.is_some_and(|record| unfinished_join(record).is_some());
    match record.and_then(joined_already) {
        Some(problem) => found.push(problem),
        None if !begun && !machine.traces.is_empty() => {
            let paths: Vec<_> = machine.traces.iter().map(|path| path.display().to_string()).collect();
            found.push(format!(
                "{}: this machine is or was a node, and not by gantry join: `kubeadm reset` takes that away",
                paths.join(", ")
            ));
        }
        None => {}
    }
    found.extend(kubeadm(machine, cluster));
    found.extend(kubelet(machine, cluster));
    if let Err(error) = &machine.runtime {
        found.push(format!(
            "no runtime answers at {} ({error}): `systemctl enable --now gantry` starts it",
            wanted.cri_socket
        ));
    }
    if machine.server.is_empty() && machine.endpoint.is_empty() {
        found.push(format!(
            "neither {} nor {} stands for an address here: give the API server's address as HOST:PORT",
            cluster.server.host, cluster.endpoint.host
        ));
    }
    let reached = machine.way.or(wanted.node_ip);
    if reached.is_none_or(|ip| ip.is_loopback()) && wanted.node_ip.is_none() {
        found.push(format!(
            "packets to {} do not leave this machine, so its own address is not known: name it with --node-ip",
            cluster.endpoint
        ));
    }
    found
}

fn kubeadm(machine: &JoinHost, cluster: &ClusterFacts) -> Option<String> {
    let theirs = release(&cluster.version);
    let package = |(major, minor): Release| {
        format!(
            "`apt-get install kubeadm` from the Kubernetes project's repository of v{major}.{minor} brings it"
        )
    };
    let Some((path, own)) = &machine.kubeadm else {
        let how = theirs.map_or_else(|| "install the package kubeadm".to_owned(), package);
        return Some(format!("no kubeadm in PATH: {how}"));
    };
    let (Some(own), Some(theirs)) = (own, theirs) else {
        return Some(format!("{} or the cluster ({}) tells no release", path.display(), cluster.version));
    };
    // Its own, and the one before.
    if own.0 == theirs.0 && matches!(own.1.checked_sub(theirs.1), Some(0 | 1)) {
        return None;
    }
    Some(format!(
        "{} is v{}.{}, the cluster {}: kubeadm joins nodes to its own release and the one before; {}",
        path.display(),
        own.0,
        own.1,
        cluster.version,
        package(theirs)
    ))
}

fn kubelet(machine: &JoinHost, cluster: &ClusterFacts) -> Option<String> {
    let Some((path, own)) = &machine.kubelet else {
        return Some(
            "no kubelet in PATH: Gantry's package brings one, and `ln -s /usr/lib/gantry/gantry \
             /usr/bin/kubelet` makes one"
                .to_owned(),
        );
    };
    let newer = release(version::KUBELET) > release(&cluster.version);
    (*own && newer).then(|| {
        format!(
            "{} is Gantry's, which is a kubelet {}, and the control plane is {}: a kubelet must not be newer. Upgrade \
             the cluster, or run upstream's kubelet of its release on Gantry's runtime",
            path.display(),
            version::KUBELET,
            cluster.version
        )
    })
}

/// Modules and sysctls, now and after a reboot.
fn kernel(plan: &mut Plan, machine: &JoinHost, cluster: &ClusterFacts, node_ip: Option<IpAddr>) {
    let v6 =
        node_ip.is_some_and(|ip| ip.is_ipv6()) || cluster.pod_subnets.iter().any(|net| net.contains(':'));
    let mut modules = vec!["overlay"];
    let mut settings = vec![FORWARD];
    if v6 {
        settings.extend([FORWARD_V6, FORWARD_V6_DEFAULT]);
    }
    if !machine.overlay {
        plan.steps.push(JoinStep::Module { name: "overlay", fails: None });
    }
    // Packets that a bridge passes from pod to pod go past kube-proxy's rules unless these say otherwise.
    if cluster.kube_proxy {
        modules.push("br_netfilter");
        settings.push(BRIDGE_CALLS);
        if v6 {
            settings.push(BRIDGE_CALLS_V6);
        }
        if !machine.br_netfilter {
            plan.steps.push(JoinStep::Module {
                name: "br_netfilter",
                fails: Some("Services between pods of one bridge fail"),
            });
        }
        // kube-proxy sets its sysctls before its rules would load it, and ends where they are not there.
        modules.push("nf_conntrack");
        if !machine.nf_conntrack {
            plan.steps.push(JoinStep::Module { name: "nf_conntrack", fails: Some("kube-proxy fails") });
        }
    }
    let content = format!("{HEADING}{}\n", modules.join("\n"));
    file(plan, machine, MODULES, "/etc/modules-load.d", content);
    for name in &settings {
        match machine.sysctls.get(name) {
            Some(now) if now != "1" => {
                plan.steps.push(JoinStep::Sysctl { name, now: now.clone(), wanted: "1" });
            }
            // A module that is loaded before brings it, and the value is 1 then.
            Some(_) | None => {}
        }
    }
    let lines: Vec<String> = settings.iter().map(|name| format!("{name} = 1\n")).collect();
    file(plan, machine, SYSCTLS, "/etc/sysctl.d", format!("{HEADING}{}", lines.concat()));
}

/// A file of ours, unless it says that already.
fn file(plan: &mut Plan, machine: &JoinHost, path: &str, folder: &'static str, content: String) {
    if machine.files.get(Path::new(path)).is_some_and(|now| *now == content) {
        return;
    }
    folders(plan, machine, &[folder]);
    plan.steps.push(JoinStep::File { path: path.into(), content });
}

/// Those that are not there, and not planned yet.
fn folders(plan: &mut Plan, machine: &JoinHost, paths: &[&'static str]) {
    for path in paths.iter().map(PathBuf::from) {
        let step = JoinStep::Folder(path.clone());
        if !machine.folders.contains(&path) && !plan.steps.contains(&step) {
            plan.steps.push(step);
        }
    }
}

/// The name by which the cluster says that it is reached must lead there: kubelet and kube-proxy go by it.
fn hosts(plan: &mut Plan, machine: &JoinHost, cluster: &ClusterFacts) {
    if !machine.server.is_empty() {
        return;
    }
    let Some(address) = machine.endpoint.first() else { return };
    let line = format!("{address} {} # gantry join", cluster.server.host);
    let there = machine.files.get(Path::new(HOSTS));
    if !there.is_some_and(|text| text.lines().any(|found| found == line)) {
        plan.steps.push(JoinStep::HostsLine(line));
    }
}

/// Whether there is one.
fn patch(
    plan: &mut Plan,
    machine: &JoinHost,
    cluster: &ClusterFacts,
    wanted: &JoinRequest,
    driver: CgroupDriver,
) -> bool {
    let patch = document::patch(cluster, machine, wanted, driver);
    let Some(fields) = patch.as_object().filter(|fields| !fields.is_empty()) else { return false };
    if fields.contains_key("failSwapOn") {
        plan.notes.push("swap stays on; pods get none of it".to_owned());
    }
    if fields.contains_key("failCgroupV1") {
        plan.notes.push(
            "this machine has cgroup v1, which the cluster's kubelets refuse; this one will not, and kubeadm's check \
             SystemVerification is ignored"
                .to_owned(),
        );
    }
    folders(plan, machine, &[FOLDER]);
    file(plan, machine, PATCH, PATCHES, format!("{patch}\n"));
    true
}

#[cfg(test)]
mod tests;

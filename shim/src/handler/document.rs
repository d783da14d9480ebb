//! A container's start in the OCI runtime specification's words: config.json, and the process of an exec. Pure.
//! Owns what each field becomes; never what it should be, which `spec` has decided. What is mounted stands ready
//! below the bundle (`init::external`), limits are in the cgroup already: the program joins both. Called by
//! `handler::plan`; `container::bundle` has the same words for hooks.

use std::collections::BTreeMap;

use gantry_proto::monitor::{
    Device, Hook, HookStage, IdMapping, Mount, NamespaceMode, Propagation, StartContainer,
};
use serde_json::{Map, Value, json};

use crate::capabilities;
use gantry_monitor::init::cgroups::View;
use gantry_monitor::init::external::{MOUNTS, SHM};

/// Of the specification that is followed: the newest whose every word both runc 1.1 and crun 1.8 know.
const VERSION: &str = "1.0.2";

/// By number, as in linux/resource.h.
const LIMITS: [&str; 16] = [
    "CPU",
    "FSIZE",
    "DATA",
    "STACK",
    "CORE",
    "RSS",
    "NPROC",
    "NOFILE",
    "MEMLOCK",
    "AS",
    "LOCKS",
    "SIGPENDING",
    "MSGQUEUE",
    "NICE",
    "RTPRIO",
    "RTTIME",
];

const NOFILE: u32 = 7;

/// `MOUNT_ATTR_*` that have words of their own.
const ATTRIBUTES: [(u64, &str); 7] = [
    (0x2, "nosuid"),
    (0x4, "nodev"),
    (0x8, "noexec"),
    (0x10, "noatime"),
    (0x20, "strictatime"),
    (0x80, "nodiratime"),
    (0x20_0000, "nosymfollow"),
];

/// What only the node knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeFacts {
    /// Process that holds the pod's namespaces.
    pub pause: i32,
    /// With the pid namespace of another container: its process.
    pub target: i32,
    /// Below the cgroup file systems' roots.
    pub cgroup: String,
    /// What the program is told beside.
    pub annotations: BTreeMap<String, String>,
    /// The filter, in the specification's words.
    pub seccomp: Option<Value>,
    pub limits: DocumentLimits,
}

/// What the node's own privileges allow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DocumentLimits {
    /// Capabilities that can be given.
    pub held: u64,
    /// The lowest oom_score_adj.
    pub oom_score: i32,
    /// Of open files, soft and hard, for who asks for nothing.
    pub open_files: (u64, u64),
}

/// config.json.
#[must_use]
pub(crate) fn container(start: &StartContainer, facts: &NodeFacts) -> Value {
    let root = start.rootfs.clone().unwrap_or_default();
    json!({
        "ociVersion": VERSION,
        "root": { "path": root.target, "readonly": root.readonly },
        "process": process(start, start.tty, facts.limits),
        "mounts": mounts(start),
        "annotations": facts.annotations,
        "hooks": hooks(start),
        "linux": linux(start, facts),
    })
}

/// The process of a container or an exec.
#[must_use]
pub(crate) fn process(start: &StartContainer, terminal: bool, limits: DocumentLimits) -> Value {
    let sets = start.capabilities.unwrap_or_default();
    // What the node itself lacks can't be given: "privileged" means all that the node has.
    let names = |set: u64| capabilities::names(set & limits.held);
    let env: Vec<_> = start.env.iter().map(|pair| String::from_utf8_lossy(pair)).collect();
    let mut process = json!({
        "terminal": terminal,
        "user": { "uid": start.uid, "gid": start.gid, "additionalGids": start.additional_gids },
        "args": start.args,
        "env": env,
        "cwd": start.cwd,
        "noNewPrivileges": start.no_new_privs,
        "oomScoreAdj": start.oom_score_adj.max(limits.oom_score),
        "rlimits": rlimits(start, limits.open_files),
        "capabilities": {
            "bounding": names(sets.bounding),
            "effective": names(sets.effective),
            "permitted": names(sets.permitted),
            "inheritable": names(sets.inheritable),
            "ambient": names(sets.ambient),
        },
    });
    let labels = [("apparmorProfile", &start.apparmor_profile), ("selinuxLabel", &start.process_label)];
    insert_non_empty(&mut process, &labels);
    process
}

/// Adds what is not empty.
fn insert_non_empty(to: &mut Value, words: &[(&str, &String)]) {
    let Some(fields) = to.as_object_mut() else { return };
    for (name, value) in words.iter().filter(|(_, value)| !value.is_empty()) {
        fields.insert((*name).to_owned(), json!(value));
    }
}

fn rlimits(start: &StartContainer, (soft, hard): (u64, u64)) -> Vec<Value> {
    let limit = |resource: u32, soft: u64, hard: u64| {
        let name = usize::try_from(resource).ok().and_then(|at| LIMITS.get(at))?;
        Some(json!({ "type": format!("RLIMIT_{name}"), "soft": soft, "hard": hard }))
    };
    let own = start.rlimits.iter().filter_map(|own| limit(own.resource, own.soft, own.hard));
    let files = !start.rlimits.iter().any(|own| own.resource == NOFILE);
    own.chain(files.then(|| limit(NOFILE, soft, hard)).flatten()).collect()
}

/// Those that every container has, then the request's.
fn mounts(start: &StartContainer) -> Vec<Value> {
    let bundle = start.external.as_ref().map(|external| external.bundle.as_str()).unwrap_or_default();
    let protected = if start.privileged { "rw" } else { "ro" };
    let kernel = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
    let mut all = vec![
        kernel("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        kernel("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        kernel("/dev/pts", "devpts", &devpts(start)),
        kernel("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        kernel("/sys", "sysfs", &["nosuid", "noexec", "nodev", protected]),
        kernel("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", protected]),
        json!({
            "destination": "/dev/shm", "type": "bind", "source": format!("{bundle}/{MOUNTS}/{SHM}"),
            "options": ["rbind", "rprivate", "rw"],
        }),
    ];
    all.extend(start.mounts.iter().enumerate().map(|(index, mount)| {
        json!({
            "destination": mount.destination, "type": "bind", "source": format!("{bundle}/{MOUNTS}/{index}"),
            "options": options(mount),
        })
    }));
    all
}

fn devpts(start: &StartContainer) -> Vec<&'static str> {
    let mut options = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    // The group of terminals, where the pod has it.
    let users = start.users.as_ref();
    if users.is_none_or(|users| gantry_monitor::user_mapping::to_host(users.gids.as_ref(), 5).is_some()) {
        options.push("gid=5");
    }
    options
}

/// Of what stands ready as a tree: read-only all the way down where that is asked for.
fn options(mount: &Mount) -> Vec<String> {
    let mut options = vec!["rbind".to_owned(), propagation(mount).to_owned()];
    let attribute = |set: u64, prefix: &str, into: &mut Vec<String>| {
        let named = ATTRIBUTES.iter().filter(|(bit, _)| set & bit != 0);
        into.extend(named.map(|(_, name)| format!("{prefix}{name}")));
    };
    options.push(if mount.readonly { "ro" } else { "rw" }.to_owned());
    attribute(mount.attributes, "", &mut options);
    attribute(mount.recursive_attributes, "r", &mut options);
    options
}

pub(crate) fn propagation(mount: &Mount) -> &'static str {
    match mount.propagation() {
        Propagation::Private => "rprivate",
        Propagation::Slave => "rslave",
        Propagation::Shared => "rshared",
    }
}

fn linux(start: &StartContainer, facts: &NodeFacts) -> Value {
    let devices: Vec<&Device> = start.devices.iter().filter(|device| device.node.is_some()).collect();
    let mut linux = Map::new();
    let mut add = |name: &str, value: Value| drop(linux.insert(name.to_owned(), value));
    add("cgroupsPath", json!(facts.cgroup));
    add("namespaces", json!(namespaces(start, facts)));
    add("devices", json!(devices.iter().filter_map(|of| device(of)).collect::<Vec<_>>()));
    add("resources", json!({ "devices": rules(start.privileged, &devices) }));
    add("maskedPaths", json!(start.masked_paths));
    add("readonlyPaths", json!(start.readonly_paths));
    if let Some(how) = root_propagation(&start.mounts) {
        add("rootfsPropagation", json!(how));
    }
    if !start.mount_label.is_empty() {
        add("mountLabel", json!(start.mount_label));
    }
    if let Some(users) = &start.users {
        let lines = |of: Option<&IdMapping>| of.map(id_line).into_iter().collect::<Vec<_>>();
        add("uidMappings", json!(lines(users.uids.as_ref())));
        add("gidMappings", json!(lines(users.gids.as_ref())));
    }
    if let Some(profile) = &facts.seccomp {
        add("seccomp", profile.clone());
    }
    Value::Object(linux)
}

fn id_line(of: &IdMapping) -> Value {
    json!({ "containerID": of.container_id, "hostID": of.host_id, "size": of.length })
}

/// Mounts that are to reach the host, or to come from it, need a root that lets them.
fn root_propagation(mounts: &[Mount]) -> Option<&'static str> {
    let any = |how| mounts.iter().any(|mount| mount.propagation() == how);
    match (any(Propagation::Shared), any(Propagation::Slave)) {
        (true, _) => Some("rshared"),
        (false, true) => Some("rslave"),
        _ => None,
    }
}

fn namespaces(start: &StartContainer, facts: &NodeFacts) -> Vec<Value> {
    let of =
        |kind: &str, file: &str, pid: i32| json!({ "type": kind, "path": format!("/proc/{pid}/ns/{file}") });
    let mut all = vec![json!({ "type": "mount" })];
    // On v1 nobody has one. (On v2 a privileged one keeps it: the program would mount cgroup2 anew for the whole node.)
    if View::of(start) != View::Folders {
        all.push(json!({ "type": "cgroup" }));
    }
    if start.users.is_some() {
        all.push(of("user", "user", facts.pause));
    }
    if start.net() != NamespaceMode::Host {
        all.push(of("network", "net", facts.pause));
        all.push(of("uts", "uts", facts.pause));
    }
    if start.ipc() != NamespaceMode::Host {
        all.push(of("ipc", "ipc", facts.pause));
    }
    match start.pid() {
        NamespaceMode::Private => all.push(json!({ "type": "pid" })),
        NamespaceMode::Sandbox => all.push(of("pid", "pid", facts.pause)),
        NamespaceMode::Target => all.push(of("pid", "pid", facts.target)),
        NamespaceMode::Host => {}
    }
    all
}

/// One whose node is known.
#[must_use]
pub(crate) fn device(device: &Device) -> Option<Value> {
    let node = device.node.as_ref()?;
    Some(json!({
        "path": device.container_path,
        "type": node.kind,
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.mode,
        "uid": node.uid,
        "gid": node.gid,
    }))
}

/// What the cgroup allows; those that every container has, the program adds.
fn rules(privileged: bool, devices: &[&Device]) -> Vec<Value> {
    if privileged {
        return vec![json!({ "allow": true, "access": "rwm" })];
    }
    let allowed = devices.iter().filter_map(|device| {
        let node = device.node.as_ref().filter(|node| node.kind != "p")?;
        let access = if device.permissions.is_empty() { "rwm" } else { &device.permissions };
        Some(json!({ "allow": true, "type": node.kind, "major": node.major, "minor": node.minor, "access": access }))
    });
    std::iter::once(json!({ "allow": false, "access": "rwm" })).chain(allowed).collect()
}

/// Those of CDI devices.
#[must_use]
pub(crate) fn hooks(start: &StartContainer) -> Value {
    let of = |stage: HookStage| -> Vec<Value> {
        let all = start.hooks.iter().flat_map(|hooks| &hooks.hooks);
        all.filter(|hook| hook.stage() == stage).map(hook).collect()
    };
    json!({
        "prestart": of(HookStage::HookPrestart),
        "createRuntime": of(HookStage::HookCreateRuntime),
        "createContainer": of(HookStage::HookCreateContainer),
        "startContainer": of(HookStage::HookStartContainer),
        "poststart": of(HookStage::HookPoststart),
        "poststop": of(HookStage::HookPoststop),
    })
}

fn hook(hook: &Hook) -> Value {
    let mut fields = serde_json::Map::from_iter([("path".to_owned(), hook.path.clone().into())]);
    // Empty is not absent: with an empty environment a hook has not even a PATH.
    for (name, list) in [("args", &hook.args), ("env", &hook.env)] {
        if !list.is_empty() {
            fields.insert(name.to_owned(), list.clone().into());
        }
    }
    if let Some(seconds) = hook.timeout {
        fields.insert("timeout".to_owned(), seconds.into());
    }
    fields.into()
}

#[cfg(test)]
mod tests;

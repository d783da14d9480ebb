//! What must hold for any CRI request: the body of the fuzz target `spec`. What comes out of the checks
//! never holds what they forbid. Called by the target in `fuzz/`, and by the tests of `crate::fuzzing`
//! with the corpus that is kept.

use std::collections::BTreeSet;

use gantry_proto::cri;
use gantry_proto::monitor::{NamespaceMode, Propagation, StartContainer};
use prost::Message;

use super::container::{self, CheckedContainer};
use super::sandbox::SandboxSpec;
use super::{Error, capabilities, resources, user};
use crate::config::handlers::Handlers;
use crate::seccomp::SeccompChoice;
use crate::store::record::{self, NamespaceModes, PodName, SandboxRecord};
use gantry_image::ImageConfig;

const ALL_CAPABILITIES: u64 = (1 << 41) - 1;
const MAX_ID: u32 = i32::MAX as u32;

/// A CreateContainerRequest. What an image says comes from the container's annotations: `passwd`,
/// `group`, `user`, `env`, `cmd`, `dir` and `signal`.
pub fn spec(data: &[u8]) {
    let Ok(request) = cri::CreateContainerRequest::decode(data) else { return };
    let mut record = record();
    if let Some(wanted) = request.sandbox_config {
        match SandboxSpec::new(wanted, &SeccompChoice::RuntimeDefault) {
            Ok(spec) => {
                pod(&spec);
                record.namespaces = spec.modes;
                record.privileged = spec.privileged;
                record.hostname = spec.hostname;
            }
            Err(error) => check_error_names_field(&error),
        }
    }
    let Some(config) = request.config else { return };
    let checked = match container::check(&config, &Handlers::new(), &SeccompChoice::RuntimeDefault) {
        Ok(checked) => checked,
        Err(error) => return check_error_names_field(&error),
    };
    limits(&checked.linux_resources);
    let says = |name: &str| config.annotations.get(name).cloned().unwrap_or_default();
    let image = ImageConfig {
        user: says("user"),
        env: says("env").lines().map(str::to_owned).collect(),
        cmd: says("cmd").lines().map(str::to_owned).collect(),
        working_dir: says("dir"),
        stop_signal: says("signal"),
        ..ImageConfig::default()
    };
    let accounts = user::Accounts { passwd: says("passwd"), group: says("group") };
    match container::stop_signal(&config, &image) {
        Ok(signal) => assert!((1..=64).contains(&signal)),
        Err(error) => check_error_names_field(&error),
    }
    let found = match user::resolve(&checked.user(&image), &accounts) {
        Ok(found) => found,
        Err(error) => return check_error_names_field(&error),
    };
    match checked.start(&config, &image, &found, &record) {
        Ok(start) => check_start(&start, &config, &checked, &record),
        Err(error) => check_error_names_field(&error),
    }
}

/// Every refusal says what is wrong.
fn check_error_names_field(error: &Error) {
    assert!(!error.to_string().is_empty());
}

fn check_start(
    start: &StartContainer,
    config: &cri::ContainerConfig,
    checked: &CheckedContainer,
    pod: &SandboxRecord,
) {
    assert!(start.args.first().is_some_and(|program| !program.is_empty()));
    assert!(start.uid <= MAX_ID && start.gid <= MAX_ID);
    let groups = &start.additional_gids;
    assert!(groups.contains(&start.gid) && groups.is_sorted() && groups.iter().all(|gid| *gid <= MAX_ID));
    for name in ["PATH=", "HOME=", "HOSTNAME="] {
        assert_eq!(start.env.iter().filter(|pair| pair.starts_with(name.as_bytes())).count(), 1, "{name}");
    }
    let names: BTreeSet<_> = start.env.iter().map(|pair| pair.split(|byte| *byte == b'=').next()).collect();
    assert!(names.len() == start.env.len() && start.env.iter().all(|pair| pair.contains(&b'=')));
    for mount in &start.mounts {
        absolute(&mount.source);
        absolute(&mount.destination);
        let private = mount.propagation() == Propagation::Private;
        assert!(!mount.recursive_readonly || (mount.readonly && private));
    }
    for device in &start.devices {
        assert!(device.permissions.chars().all(|letter| "rwm".contains(letter)));
    }
    assert!(config.working_dir.is_empty() || start.cwd == config.working_dir);
    let Some(caps) = &start.capabilities else { unreachable!("no capabilities") };
    assert!(caps.bounding & !ALL_CAPABILITIES == 0 && caps.permitted == caps.bounding);
    assert!(caps.effective == caps.permitted && caps.ambient & !caps.bounding == 0);
    assert_eq!(caps.inheritable, caps.ambient, "CVE-2022-24769");
    let asked =
        config.linux.as_ref().and_then(|linux| linux.security_context.as_ref()?.capabilities.as_ref());
    for name in asked.iter().flat_map(|asked| &asked.add_capabilities) {
        assert!(capabilities::bit(name).is_ok());
    }
    assert!(!start.privileged || (pod.privileged && checked.seccomp == SeccompChoice::Unconfined));
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let hidden = security.map(|own| own.masked_paths.clone()).unwrap_or_default();
    assert_eq!(start.masked_paths, if start.privileged { Vec::new() } else { hidden });
    assert!((-1000..=1000).contains(&start.oom_score_adj));
    assert!(!start.stdin_once || start.stdin);
    let shares = start.pid() == NamespaceMode::Sandbox;
    assert!(!shares || pod.namespaces.pid == cri::NamespaceMode::Pod as i32);
    assert!(![start.net(), start.ipc()].contains(&NamespaceMode::Private), "no such mode of CRI's");
    // Of what is passed over the socket to the monitor nothing is lost.
    assert_eq!(StartContainer::decode(start.encode_to_vec().as_slice()).as_ref(), Ok(start));
}

fn absolute(path: &str) {
    assert!(
        path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == ".."),
        "{path:?}"
    );
}

fn pod(spec: &SandboxSpec) {
    assert!(!spec.pod.name.is_empty());
    assert!(spec.hostname.len() <= 64 && !spec.hostname.contains(['\0', '\n']));
    for sysctl in &spec.sysctls {
        let name = sysctl.name.as_str();
        // Of a dotted name: a slash is a dot of the path, and the other way round.
        assert!(!name.contains("..") && !name.contains("//") && !name.contains('\0'), "{name:?}");
        let net = name.starts_with("net.") && !spec.host_network;
        let ipc =
            ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."].iter().any(|own| name.starts_with(own));
        assert!(net || (ipc && spec.ipc != NamespaceMode::Host), "{name} is the node's");
    }
    assert!(!spec.host_network || spec.host_ports.is_empty());
    assert!(spec.host_ports.iter().all(|port| port.host_port > 0));
    assert!(!spec.privileged || spec.seccomp == SeccompChoice::Unconfined);
    limits(&spec.limits);
}

/// Merging is idempotent, and what costs more never gives less.
fn limits(own: &cri::LinuxContainerResources) {
    let once = resources::merge(&cri::LinuxContainerResources::default(), own);
    assert_eq!(resources::merge(&once, own).hugepage_limits, once.hugepage_limits);
    let sum = resources::with_overhead(own, own);
    assert!(sum.cpu_shares >= own.cpu_shares && sum.memory_limit_in_bytes >= own.memory_limit_in_bytes);
    let limits = container::resources(own);
    assert_eq!(limits.memory_limit, own.memory_limit_in_bytes);
}

/// Of a sandbox that is nothing special.
pub(crate) fn record() -> SandboxRecord {
    let pod = PodName { name: "p".into(), namespace: "n".into(), uid: "u".into(), attempt: 0 };
    SandboxRecord {
        version: record::VERSION,
        id: String::new(),
        boot_id: String::new(),
        pod,
        labels: [].into(),
        annotations: [].into(),
        log_directory: String::new(),
        hostname: String::new(),
        runtime_handler: String::new(),
        oci: None,
        unset_seccomp_profile: None,
        request: String::new(),
        namespaces: NamespaceModes { network: 0, pid: 0, ipc: 0 },
        users: None,
        privileged: false,
        process_label: String::new(),
        cgroup_parent: String::new(),
        owns_cgroup_parent: false,
        scope: None,
        created_at: 0,
        network: None,
        monitor: None,
        pause: None,
        complete: true,
        stopped: false,
    }
}

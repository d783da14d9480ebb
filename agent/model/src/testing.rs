//! A pod, a container and a pipe, as tests of all crates of the agent begin with them. Owns the fixtures; never part of a program.

#![expect(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};

use crate::pod::claim::ResourceClaims;
use crate::pod::env::{EnvValue, EnvVar};
use crate::pod::placement::Placement;
use crate::pod::probe::{Lifecycle, Probes};
use crate::pod::{
    Container, Dns, Namespaces, Origin, Pod, PodSecurity, PodUid, PullPolicy, Requirements, ResizePolicy,
    Resources, RestartPolicy, Role, Security, Shown, TerminationMessage,
};

/// A pipe that nobody writes to.
pub fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// default/web, UID uid-1, one container `web`, restarted always, 30 s of grace.
#[must_use]
pub fn pod() -> Pod {
    Pod {
        namespace: "default".into(),
        name: "web".into(),
        uid: PodUid::parse("uid-1").unwrap(),
        labels: BTreeMap::from([("app".into(), "web".into())]),
        annotations: BTreeMap::new(),
        hostname: "web".into(),
        restart_policy: RestartPolicy::Always,
        grace: Duration::from_secs(30),
        namespaces: Namespaces::default(),
        origin: Origin::Run,
        active_deadline: None,
        init_containers: vec![],
        containers: vec![container("web")],
        volumes: vec![],
        security: PodSecurity::default(),
        dns: Dns::default(),
        host_aliases: vec![],
        subdomain: String::new(),
        fqdn: false,
        pull_secrets: vec![],
        shown: Shown::default(),
        generation: 0,
        created_at: 0,
        ephemeral_containers: Vec::new(),
        readiness_gates: Vec::new(),
        placement: Placement::default(),
        resources: None,
        overhead: BTreeMap::new(),
        resource_claims: ResourceClaims::default(),
        runtime_class: String::new(),
        service_links: false,
        resize_pending: None,
        described: None,
    }
}

/// Of image `reg/img:v1`.
#[must_use]
pub fn container(name: &str) -> Container {
    Container {
        name: name.into(),
        image: "reg/img:v1".into(),
        pull_policy: PullPolicy::IfNotPresent,
        command: vec!["/bin/serve".into()],
        args: vec![],
        working_dir: String::new(),
        role: Role::Regular,
        restart_policy: RestartPolicy::Always,
        env: vec![EnvVar { name: "A".into(), value: EnvValue::Literal("1".into()) }],
        env_from: vec![],
        mounts: vec![],
        devices: vec![],
        probes: Probes::default(),
        lifecycle: Lifecycle::default(),
        termination_message: TerminationMessage::default(),
        stdin: false,
        stdin_once: false,
        tty: false,
        ports: vec![],
        resources: Resources::default(),
        security: Security::default(),
        restart_rules: vec![],
        written: Requirements::default(),
        claims: Vec::new(),
        resize: ResizePolicy::default(),
        target: String::new(),
        hash: "abc".into(),
    }
}

/// A container with that part in its pod.
#[must_use]
pub fn in_role(name: &str, role: Role) -> Container {
    Container { role, ..container(name) }
}

/// The pod with this policy, and all its containers but the sidecars, too.
#[must_use]
pub fn with_restart_policy(policy: RestartPolicy, mut pod: Pod) -> Pod {
    pod.restart_policy = policy;
    for container in pod.init_containers.iter_mut().chain(&mut pod.containers) {
        container.restart_policy =
            if container.role == Role::Sidecar { RestartPolicy::Always } else { policy };
    }
    pod
}

//! Fixtures for tests all over the agent, and the monotony of a kill.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Orders;
use super::run::Deps;
use crate::api::fake::FakeApi;
use crate::beyond::Beyond;
use crate::cgroups::fake::FakeCgroups;
use crate::checkpoint::fake::Memory;
use crate::clock::Clock;
use crate::images::Images;
use crate::logs::PodLogs;
use crate::model::pod::env::{EnvValue, EnvVar};
use crate::model::pod::placement::Placement;
use crate::model::pod::probe::{Lifecycle, Probes};
use crate::model::pod::{
    Container, Dns, Namespaces, Origin, Pod, PodSecurity, PodUid, PullPolicy, Requirements, Resources,
    RestartPolicy, Role, Security, Shown, TerminationMessage,
};
use crate::node::NodeInfo;
use crate::probe::fake::FakeProbe;
use crate::runtime::fake::FakeRuntime;
use crate::volumes::fake::FakeVolumes;

/// default/web, UID uid-1, one container `web`, restarted always, 30 s of grace.
pub(crate) fn pod() -> Pod {
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
        runtime_class: String::new(),
        service_links: false,
        resize_pending: false,
        described: None,
    }
}

/// A machine called node.
pub(crate) fn node_info() -> NodeInfo {
    NodeInfo {
        name: "node".into(),
        ips: vec!["192.0.2.1".into()].into(),
        cluster_domain: "cluster.local".into(),
        cpu: 2000,
        memory: 1 << 30,
        ephemeral: 1 << 30,
        ..NodeInfo::default()
    }
}

/// Of image `reg/img:v1`.
pub(crate) fn container(name: &str) -> Container {
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
        target: String::new(),
        hash: "abc".into(),
    }
}

/// A world of fakes around these three.
pub(crate) fn deps(runtime: &FakeRuntime, logs: Arc<dyn PodLogs>, clock: Arc<dyn Clock>) -> Deps {
    Deps {
        runtime: Arc::new(runtime.clone()),
        logs,
        clock,
        api: Arc::new(FakeApi::default()),
        volumes: Arc::new(FakeVolumes::default()),
        cgroups: Arc::new(FakeCgroups::default()),
        probe_io: Arc::new(FakeProbe::default()),
        checkpoints: Arc::new(Memory::default()),
        node: Arc::new(node_info()),
        network: watch::channel(None).1,
        recorder: None,
        users: Arc::default(),
        sweeps: Arc::default(),
        longest_wait: super::restart::LONGEST_WAIT,
        metrics: Arc::default(),
        probe_metrics: Arc::default(),
        images: Arc::new(Images::plain()),
        beyond: Beyond::default(),
    }
}

/// A container with that part in its pod.
pub(crate) fn in_role(name: &str, role: Role) -> Container {
    Container { role, ..container(name) }
}

/// The pod with this policy, and all its containers but the sidecars, too.
pub(crate) fn restarted(policy: RestartPolicy, mut pod: Pod) -> Pod {
    pod.restart_policy = policy;
    for container in pod.init_containers.iter_mut().chain(&mut pod.containers) {
        container.restart_policy =
            if container.role == Role::Sidecar { RestartPolicy::Always } else { policy };
    }
    pod
}

#[test]
fn a_kill_is_monotone() {
    let s = Duration::from_secs;
    let mut orders = Orders::default();
    orders.kill(s(30), "first", s(100));
    orders.kill(s(60), "second", s(101));
    let kill = orders.kill.clone().unwrap();
    assert_eq!((kill.deadline, kill.reason.as_str()), (s(130), "first"));
    orders.kill(s(0), "third", s(110));
    let kill = orders.kill.unwrap();
    assert_eq!((kill.deadline, kill.reason.as_str()), (s(110), "first"));
}

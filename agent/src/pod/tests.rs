//! Fixtures for tests all over the agent, and the monotony of a kill.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Orders;
use super::spec::env::{EnvValue, EnvVar};
use super::spec::probe::{Lifecycle, Probes};
use super::spec::{
    Container, Dns, Namespaces, Origin, Pod, PodSecurity, PodUid, PullPolicy, Resources, RestartPolicy, Role,
    Security, Shown, TerminationMessage,
};

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
        hash: "abc".into(),
    }
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

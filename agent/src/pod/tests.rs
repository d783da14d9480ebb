//! Fixtures for tests all over the agent, and the monotony of a kill.

use std::sync::Arc;
use std::time::Duration;

use gantry_model::clock::Clock;
pub(crate) use gantry_model::testing::{container, in_role, pod, with_restart_policy};
use tokio::sync::watch;

use super::Orders;
use super::run::Deps;
use crate::api::fake::FakeApi;
use crate::cgroups::fake::FakeCgroups;
use crate::checkpoint::fake::Memory;
use crate::devices::DeviceManager;
use crate::dra::DraManager;
use crate::images::Images;
use crate::logs::PodLogs;
use crate::node::NodeInfo;
use crate::probe::fake::FakeProbe;
use crate::resource_managers::ResourceManagers;
use crate::runtime::fake::FakeRuntime;
use crate::runtime_ext::RuntimeExtensions;
use crate::volumes::fake::FakeVolumes;

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
        devices: DeviceManager::default(),
        dra: DraManager::default(),
        managers: ResourceManagers::default(),
        checkpoints: Arc::new(Memory::default()),
        node: Arc::new(node_info()),
        network: watch::channel(None).1,
        recorder: None,
        users: Arc::default(),
        sweeps: Arc::default(),
        longest_wait: super::restart::LONGEST_WAIT,
        metrics: Arc::default(),
        tracer: None,
        probe_metrics: Arc::default(),
        images: Arc::new(Images::plain()),
        runtime_ext: RuntimeExtensions::default(),
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

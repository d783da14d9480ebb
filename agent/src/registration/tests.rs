//! t
use super::machine::Addresses;
use super::{Settings, Threshold};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

#[derive(Debug, Clone)]
pub(super) struct FakeAddresses {
    pub(super) own: Vec<IpAddr>,
    pub(super) named: Vec<IpAddr>,
    pub(super) route: Option<IpAddr>,
}

impl Addresses for FakeAddresses {
    fn problem(&self, ip: IpAddr) -> Option<String> {
        (!self.own.contains(&ip)).then(|| format!("node IP: {ip} not found in the host's network interfaces"))
    }

    fn of_name(&self, _: &str) -> Vec<IpAddr> {
        self.named.clone()
    }

    fn default_route(&self, v6: bool) -> Option<IpAddr> {
        self.route.filter(|ip| ip.is_ipv6() == v6)
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        node_name: "n1".into(),
        hostname: "n1".into(),
        register: true,
        labels: BTreeMap::new(),
        taints: vec![],
        provider_id: String::new(),
        external_cloud: false,
        node_ips: vec![],
        attach_detach: true,
        max_pods: 110,
        pods_per_core: 0,
        system_reserved: BTreeMap::new(),
        kube_reserved: BTreeMap::new(),
        evict_memory: Threshold::Bytes(100 << 20),
        evict_storage: Threshold::Share(0.1),
        local_storage: true,
        port: 10250,
        status_every: Duration::from_secs(10),
        report_every: Duration::from_secs(300),
        lease_seconds: 40,
        max_images: 50,
        kubelet_version: "v1.36.3+gantry.0.1.0".into(),
        declared_features: vec![],
    }
}

//! What is read of a Service of the API: its name, its address, its ports. Owns that part of its form; the rest, its
//! status above all, may hold what it likes. Called by [`super`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::Deserialize;

use crate::api::{Service, ServicePort};

/// As the API server has it. Every field may be null or missing, as client-go takes it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ServiceObject {
    pub(super) metadata: ObjectMeta,
    spec: Option<Spec>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Spec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<i32>,
    protocol: Option<String>,
}

impl Resource for ServiceObject {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Service";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "services";
    type Scope = NamespaceResourceScope;
}

impl Metadata for ServiceObject {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ServiceObject {
    pub(super) fn service(&self) -> Service {
        let spec = self.spec.clone().unwrap_or_default();
        let ports = spec.ports.unwrap_or_default().into_iter().map(|port| ServicePort {
            name: port.name.unwrap_or_default(),
            port: port.port.unwrap_or_default(),
            protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
        });
        Service {
            name: self.metadata.name.clone().unwrap_or_default(),
            cluster_ip: spec.cluster_ip.unwrap_or_default(),
            ports: ports.collect(),
        }
    }
}

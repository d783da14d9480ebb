//! What the pods of this node have of it, for monitoring agents and network plugins: the pod resources API, v1 and v1alpha1, on
//! `ROOT/pod-resources/kubelet.sock`. Owns the socket, the rate limit and the form of an answer; never decides who has what.
//! Started by [`crate::kubelet`].
//!
//! CPUs and memory are told of containers that have some to themselves, by the static policies of their managers alone.

#![expect(clippy::disallowed_methods, reason = "the socket is served as long as the kubelet lives")]

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::pod::{Container, Pod, Role};
use gantry_numa::cpuset::CpuSet;
use gantry_numa::memory_manager::MemoryBlock;
use gantry_proto::podresources as wire;
use gantry_proto::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use gantry_proto::podresources_v1alpha1 as old;
use gantry_proto::podresources_v1alpha1::pod_resources_lister_server as old_server;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::devices::{DeviceManager, DevicesOf};
use crate::dra::{ContainerClaims, DraManager, PreparedDevice};
use crate::pod::worker::PodHandle;
use crate::resource_managers::ResourceManagers;

/// The folder of the socket, in the kubelet's own.
const FOLDER: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";
/// Requests a second, and how many of them at once, as upstream's.
const QPS: u32 = 100;
const BURST: u32 = 10;
/// A kubelet that has just begun answers so much later at most: an API server may be away for long.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is told of.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) pods: watch::Receiver<Arc<[PodHandle]>>,
    /// Whether every source of pods has been heard
    pub(crate) heard: watch::Receiver<bool>,
    pub(crate) devices: DeviceManager,
    pub(crate) dra: DraManager,
    pub(crate) managers: ResourceManagers,
    /// Whether lists have pods that are over, too: the gate `KubeletPodResourcesListUseActivePods` is closed.
    pub(crate) with_ended: bool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Serves below the kubelet's folder until the process ends.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve(root: &Path, sources: Sources) -> io::Result<()> {
    let folder = root.join(FOLDER);
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(&folder)?;
    let path = folder.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    let limit = Mutex::new(Limit { tokens: f64::from(BURST), filled: sources.clock.mono() });
    let lister = Lister(Arc::new(Shared { sources, limit }));
    let server = Server::builder()
        .add_service(PodResourcesListerServer::new(lister.clone()))
        .add_service(old_server::PodResourcesListerServer::new(lister));
    tokio::spawn(async move {
        if let Err(error) = server.serve_with_incoming(UnixListenerStream::new(listener)).await {
            tracing::error!(%error, "pod resources are served no longer");
        }
    });
    Ok(())
}

#[derive(Debug)]
struct Shared {
    sources: Sources,
    limit: Mutex<Limit>,
}

#[derive(Debug, Clone)]
struct Lister(Arc<Shared>);

/// A bucket that fills by time.
#[derive(Debug)]
struct Limit {
    tokens: f64,
    filled: Duration,
}

impl Limit {
    fn allows(&mut self, now: Duration) -> bool {
        let gained = now.saturating_sub(self.filled).as_secs_f64() * f64::from(QPS);
        self.tokens = (self.tokens + gained).min(f64::from(BURST));
        self.filled = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

impl Lister {
    fn admit(&self) -> Result<(), Status> {
        let now = self.0.sources.clock.mono();
        let mut limit = self.0.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if limit.allows(now) { Ok(()) } else { Err(Status::resource_exhausted("rejected by rate limit")) }
    }

    /// Waits until the pods are known: who finds a new kubelet healthy must not be told that no pod has anything.
    async fn wait_heard(&self) {
        let mut heard = self.0.sources.heard.clone();
        // Of those known by then, who is late, or ends, tells as well.
        let _ = tokio::time::timeout(PATIENCE, heard.wait_for(|heard| *heard)).await;
    }

    /// Pods that use what they were admitted for, or will; all that are known where that is asked for.
    fn listed(&self) -> Vec<Arc<Pod>> {
        let pods = self.0.sources.pods.borrow().clone();
        let is_listed = |pod: &&PodHandle| self.0.sources.with_ended || pod.is_active();
        pods.iter().filter(is_listed).map(|pod| pod.pod.clone()).collect()
    }

    fn pod(&self, pod: &Pod) -> wire::PodResources {
        let container = |container: &Container| wire::ContainerResources {
            name: container.name.clone(),
            devices: devices(self.0.sources.devices.of_container(&pod.uid, &container.name)),
            dynamic_resources: dynamic(self.0.sources.dra.of_container(pod, container)),
            memory: memory(self.0.sources.managers.memory_of(&pod.uid, &container.name)),
            cpu_ids: ids(&self.0.sources.managers.cpus_of(&pod.uid, &container.name)),
        };
        wire::PodResources {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            containers: staying(pod).map(container).collect(),
        }
    }
}

/// Containers that have what they have for as long as the pod.
fn staying(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.init_containers.iter().filter(|init| init.role == Role::Sidecar).chain(&pod.containers)
}

/// Claims, with what drivers gave for them.
fn dynamic(claims: ContainerClaims) -> Vec<wire::DynamicResource> {
    let resource = |(driver_name, device): (String, PreparedDevice)| wire::ClaimResource {
        cdi_devices: device.cdi.into_iter().map(|name| wire::CdiDevice { name }).collect(),
        driver_name,
        pool_name: device.pool,
        device_name: device.device,
        share_id: device.share,
    };
    let of = |(claim_namespace, claim_name, devices): (String, String, Vec<_>)| wire::DynamicResource {
        claim_name,
        claim_namespace,
        claim_resources: devices.into_iter().map(resource).collect(),
    };
    claims.into_iter().map(of).collect()
}

fn memory(blocks: Vec<MemoryBlock>) -> Vec<wire::ContainerMemory> {
    let node = |id: u32| wire::NumaNode { id: id.into() };
    let of = |MemoryBlock { nodes, resource, size }| wire::ContainerMemory {
        memory_type: resource,
        size,
        topology: Some(wire::TopologyInfo { nodes: nodes.iter().map(node).collect() }),
    };
    blocks.into_iter().map(of).collect()
}

fn ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

/// One of the API's for each device and NUMA node that it is near to, as upstream.
fn devices(of: DevicesOf) -> Vec<wire::ContainerDevices> {
    let mut all = Vec::new();
    for (resource, devices) in of {
        for (id, nodes) in devices {
            let one = |topology| wire::ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id.clone()],
                topology,
            };
            let near = |node| one(Some(wire::TopologyInfo { nodes: vec![wire::NumaNode { id: node }] }));
            all.extend(nodes.is_empty().then(|| one(None)));
            all.extend(nodes.into_iter().map(near));
        }
    }
    all
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        self.admit()?;
        self.0.sources.metrics.pod_resources_requests.inc(["v1"]);
        self.0.sources.metrics.pod_resources_requests_list.inc(["v1"]);
        self.wait_heard().await;
        let pod_resources = self.listed().iter().map(|pod| self.pod(pod)).collect();
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        self.admit()?;
        self.0.sources.metrics.pod_resources_requests.inc(["v1"]);
        self.0.sources.metrics.pod_resources_requests_get_allocatable.inc(["v1"]);
        let devices = devices(self.0.sources.devices.healthy());
        let cpu_ids = ids(&self.0.sources.managers.allocatable_cpus());
        let memory = memory(self.0.sources.managers.allocatable_memory());
        Ok(Response::new(wire::AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        self.admit()?;
        self.0.sources.metrics.pod_resources_requests.inc(["v1"]);
        self.0.sources.metrics.pod_resources_requests_get.inc(["v1"]);
        self.wait_heard().await;
        let wire::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let pods = self.0.sources.pods.borrow().clone();
        // Of a pod that is over nothing is told, however lists are made.
        let named = |handle: &&PodHandle| {
            handle.pod.name == pod_name && handle.pod.namespace == pod_namespace && handle.is_active()
        };
        match pods.iter().find(named) {
            Some(handle) => {
                let pod_resources = Some(self.pod(&handle.pod));
                Ok(Response::new(wire::GetPodResourcesResponse { pod_resources }))
            }
            None => {
                self.0.sources.metrics.pod_resources_errors_get.inc(["v1"]);
                Err(Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")))
            }
        }
    }
}

#[tonic::async_trait]
impl old_server::PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<old::ListPodResourcesRequest>,
    ) -> Result<Response<old::ListPodResourcesResponse>, Status> {
        self.admit()?;
        self.0.sources.metrics.pod_resources_requests.inc(["v1alpha1"]);
        self.wait_heard().await;
        let device = |device: wire::ContainerDevices| old::ContainerDevices {
            resource_name: device.resource_name,
            device_ids: device.device_ids,
        };
        let container = |container: wire::ContainerResources| old::ContainerResources {
            name: container.name,
            devices: container.devices.into_iter().map(device).collect(),
        };
        let pod = |pod: wire::PodResources| old::PodResources {
            name: pod.name,
            namespace: pod.namespace,
            containers: pod.containers.into_iter().map(container).collect(),
        };
        let listed = |of: &Arc<Pod>| {
            let mut told = self.pod(of);
            // That version knows no sidecars.
            told.containers.retain(|told| of.containers.iter().any(|container| container.name == told.name));
            pod(told)
        };
        let pod_resources = self.listed().iter().map(listed).collect();
        Ok(Response::new(old::ListPodResourcesResponse { pod_resources }))
    }
}

#[cfg(test)]
mod tests;

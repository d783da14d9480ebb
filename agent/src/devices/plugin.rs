//! One device plugin at the other end of a socket. Owns the connection and the wording of what fails; never knows who has
//! which device. Called by [`super::DeviceManager`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use gantry_proto::deviceplugin as wire;
use gantry_proto::deviceplugin::device_plugin_client::DevicePluginClient;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;

use super::DeviceOptions;
use super::state::{Device, PluginOptions};
use gantry_grpc::{dial, status_in_go};

/// How long a plugin that registers may take to be reached.
const DIAL: Duration = Duration::from_secs(10);
/// KubeletPreStartContainerRPCTimeoutInSecs.
const PRE_START: Duration = Duration::from_secs(30);
/// How a plugin calls a device that can be given.
const HEALTHY: &str = "Healthy";

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct PluginClient {
    client: DevicePluginClient<Channel>,
}

impl PluginClient {
    /// Connects to a plugin's socket.
    ///
    /// # Errors
    /// When nobody answers there within ten seconds.
    pub(super) async fn connect(socket: &Path) -> Result<Self, String> {
        let channel =
            dial(socket, DIAL).await.map_err(|why| format!("failed to dial device plugin: {why}"))?;
        Ok(Self { client: DevicePluginClient::new(channel) })
    }

    /// What the plugin wants to be asked.
    ///
    /// # Errors
    /// When it does not answer in time.
    pub(super) async fn options(&mut self) -> Result<PluginOptions, String> {
        let failed = |why: String| format!("failed to get device plugin options: {why}");
        match timeout(DIAL, self.client.get_device_plugin_options(wire::Empty {})).await {
            Ok(Ok(answer)) => {
                let wire::DevicePluginOptions { pre_start_required, get_preferred_allocation_available } =
                    answer.into_inner();
                Ok(PluginOptions {
                    pre_start: pre_start_required,
                    preferred: get_preferred_allocation_available,
                })
            }
            Ok(Err(status)) => Err(failed(status_in_go(&status))),
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    /// Its lists, one after the other.
    ///
    /// # Errors
    /// When it refuses.
    pub(super) async fn list_and_watch(&mut self) -> Result<Streaming<wire::ListAndWatchResponse>, String> {
        let answer = self.client.list_and_watch(wire::Empty {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status_in_go(&status))
    }

    /// Which of the available devices it would give.
    ///
    /// # Errors
    /// When it refuses.
    pub(super) async fn preferred(
        &mut self,
        available: &BTreeSet<String>,
        included: &BTreeSet<String>,
        count: usize,
    ) -> Result<Vec<String>, String> {
        let request = wire::ContainerPreferredAllocationRequest {
            available_device_i_ds: available.iter().cloned().collect(),
            must_include_device_i_ds: included.iter().cloned().collect(),
            allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
        };
        let request = wire::PreferredAllocationRequest { container_requests: vec![request] };
        let answer = self.client.get_preferred_allocation(request).await.map_err(|status| {
            format!("device plugin GetPreferredAllocation rpc failed with err: {}", status_in_go(&status))
        })?;
        let first = answer.into_inner().container_responses.into_iter().next();
        Ok(first.map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// What a container must have for these devices.
    ///
    /// # Errors
    /// When it refuses, or answers for no container.
    pub(super) async fn allocate(&mut self, devices: &BTreeSet<String>) -> Result<DeviceOptions, String> {
        let request = wire::ContainerAllocateRequest { devices_ids: devices.iter().cloned().collect() };
        let request = wire::AllocateRequest { container_requests: vec![request] };
        let answer =
            self.client.allocate(request).await.map_err(|status| status_in_go(&status))?.into_inner();
        let first = answer.container_responses.into_iter().next();
        first.map(from_wire).ok_or_else(|| "no containers return in allocation response".to_owned())
    }

    /// Right before a container that has these devices is made.
    ///
    /// # Errors
    /// When it refuses, or takes longer than 30 seconds.
    pub(super) async fn pre_start(&mut self, devices: BTreeSet<String>) -> Result<(), String> {
        let request = wire::PreStartContainerRequest { devices_ids: devices.into_iter().collect() };
        let failed = |why: String| format!("device plugin PreStartContainer rpc failed with err: {why}");
        match timeout(PRE_START, self.client.pre_start_container(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(failed(status_in_go(&status))),
            Err(_) => {
                Err(failed("rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned()))
            }
        }
    }
}

/// By ID, what a list says. Of devices with the same ID the last counts.
pub(super) fn devices(list: wire::ListAndWatchResponse) -> BTreeMap<String, Device> {
    let device = |device: wire::Device| {
        let nodes = device.topology.map(|topology| topology.nodes).unwrap_or_default();
        let numa = nodes.into_iter().map(|node| node.id).collect();
        (device.id, Device { healthy: device.health == HEALTHY, numa })
    };
    list.devices.into_iter().map(device).collect()
}

/// A plugin's answer.
pub(super) fn from_wire(response: wire::ContainerAllocateResponse) -> DeviceOptions {
    let wire::ContainerAllocateResponse { envs, mounts, devices, annotations, cdi_devices } = response;
    let mount = |mount: wire::Mount| (mount.container_path, mount.host_path, mount.read_only);
    let device = |device: wire::DeviceSpec| (device.container_path, device.host_path, device.permissions);
    DeviceOptions {
        env: envs.into_iter().collect(),
        mounts: mounts.into_iter().map(mount).collect(),
        devices: devices.into_iter().map(device).collect(),
        annotations: annotations.into_iter().collect(),
        cdi: cdi_devices.into_iter().map(|device| device.name).collect(),
    }
}

/// The same as the plugin gave it, for the checkpoint.
pub(super) fn to_wire(options: &DeviceOptions) -> wire::ContainerAllocateResponse {
    let mount = |(container_path, host_path, read_only): &(String, String, bool)| wire::Mount {
        container_path: container_path.clone(),
        host_path: host_path.clone(),
        read_only: *read_only,
    };
    let device = |(container_path, host_path, permissions): &(String, String, String)| wire::DeviceSpec {
        container_path: container_path.clone(),
        host_path: host_path.clone(),
        permissions: permissions.clone(),
    };
    wire::ContainerAllocateResponse {
        envs: options.env.iter().cloned().collect(),
        mounts: options.mounts.iter().map(mount).collect(),
        devices: options.devices.iter().map(device).collect(),
        annotations: options.annotations.iter().cloned().collect(),
        cdi_devices: options.cdi.iter().map(|name| wire::CdiDevice { name: name.clone() }).collect(),
    }
}

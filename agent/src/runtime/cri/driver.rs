//! Which cgroup driver a runtime uses. Owns the question and its retries; never what a driver does.
//! Called by the command line before the first pod.

use std::time::Duration;

use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::cri::{self as wire, CgroupDriver};
use tonic::Code;
use tonic::transport::Channel;

use super::{failure, timed};
pub use gantry_model::cgroup::names::Driver;

/// Whether it speaks CRI v1: it tells its version.
///
/// # Errors
/// What it said instead, as Go prints it.
pub async fn speaks(channel: Channel, timeout: Duration) -> Result<(), String> {
    let ask = wire::VersionRequest { version: String::new() };
    let answer = RuntimeServiceClient::new(channel).version(timed(ask, timeout)).await;
    answer.map(drop).map_err(|status| failure(&status).in_go())
}

/// What the runtime says; nothing when it does not know the question, as old ones don't. One that
/// has just started gets three tries.
///
/// # Errors
/// The last one, or a driver that nobody knows.
pub async fn of(channel: Channel, timeout: Duration) -> Result<Option<Driver>, String> {
    let mut client = RuntimeServiceClient::new(channel);
    let mut last = String::new();
    for _ in 0..3 {
        match client.runtime_config(timed(wire::RuntimeConfigRequest {}, timeout)).await {
            Ok(answer) => {
                let Some(linux) = answer.into_inner().linux else { return Ok(None) };
                return match CgroupDriver::try_from(linux.cgroup_driver) {
                    Ok(CgroupDriver::Systemd) => Ok(Some(Driver::Systemd)),
                    Ok(CgroupDriver::Cgroupfs) => Ok(Some(Driver::Cgroupfs)),
                    Err(_) => {
                        Err(format!("runtime returned an unknown cgroup driver {}", linux.cgroup_driver))
                    }
                };
            }
            Err(status) if status.code() == Code::Unimplemented => {
                tracing::info!(
                    "CRI implementation should be updated to support RuntimeConfig. Falling back to using cgroupDriver \
                     from kubelet config."
                );
                return Ok(None);
            }
            Err(status) => last = status.to_string(),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Err(last)
}

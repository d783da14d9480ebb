//! One DRA driver at the other end of its socket. Owns the calls, their time limit and the wording of what fails; never
//! decides what is called when. Called by [`super::DraManager`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_grpc::{in_go, status_in_go};
use gantry_metrics::Metrics;
use gantry_proto::dra as wire;
use gantry_proto::dra::dra_plugin_client::DraPluginClient;
use gantry_proto::dra_v1beta1 as old;
use gantry_proto::dra_v1beta1::dra_plugin_client::DraPluginClient as OldClient;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::checkpoint::PreparedDevice;
use super::claims::AskedClaim;

/// `defaultClientCallTimeout`: of one call.
pub(super) const PATIENCE: Duration = Duration::from_secs(45);

/// What drivers may speak, the newest first, as they say it when they register.
pub(super) const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// Which version of the API a driver is spoken to in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DraService {
    V1,
    V1Beta1,
}

impl DraService {
    /// The first that both sides know, as upstream.
    ///
    /// # Errors
    /// In upstream's words, when there is none.
    pub(super) fn choose(told: &[String]) -> Result<Self, String> {
        if told.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
        }
        let known = |service: &String| match SERVICES.iter().position(|known| known == service)? {
            0 => Some(Self::V1),
            _ => Some(Self::V1Beta1),
        };
        told.iter().find_map(known).ok_or_else(|| {
            format!(
                "none of services supported by the plugin ({}) are supported by the kubelet ({})",
                quoted(told),
                quoted(&SERVICES)
            )
        })
    }
}

/// As Go prints a list of strings.
fn quoted<T: AsRef<str>>(list: &[T]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

/// Whether a driver can be called: its connection, or why there is none.
pub(super) type Connection = Result<Channel, String>;

/// A driver that has registered. Its connection comes and goes by itself.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    pub(super) name: String,
    pub(super) service: DraService,
    pub(super) connection: watch::Receiver<Connection>,
    /// Of one call.
    pub(super) patience: Duration,
    pub(super) metrics: Arc<Metrics>,
}

/// What a driver gave by UID of the claim, or why it gave nothing.
pub(super) type Prepared = BTreeMap<String, Result<Vec<PreparedDevice>, String>>;

impl Driver {
    /// NodePrepareResources.
    ///
    /// # Errors
    /// In upstream's words, when the driver refuses as a whole, is away, or does not answer in time.
    pub(super) async fn prepare(&self, claims: &[AskedClaim]) -> Result<Prepared, String> {
        let failed = |why| format!("NodePrepareResources: {why}");
        let channel = self.channel().map_err(failed)?;
        let answer = match self.service {
            DraService::V1 => {
                let request =
                    wire::NodePrepareResourcesRequest { claims: claims.iter().map(claim).collect() };
                let mut client = DraPluginClient::new(channel);
                let call = client.node_prepare_resources(request);
                self.call("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", call).await
            }
            DraService::V1Beta1 => {
                let claims = claims.iter().map(old_claim).collect();
                let mut client = OldClient::new(channel);
                let call = client.node_prepare_resources(old::NodePrepareResourcesRequest { claims });
                let method = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
                self.call(method, call).await.map(of_old)
            }
        };
        let answer = answer.map_err(failed)?;
        let of = |answer: wire::NodePrepareResourceResponse| match answer.error.as_str() {
            "" => Ok(answer.devices.into_iter().map(device).collect()),
            why => Err(why.to_owned()),
        };
        Ok(answer.claims.into_iter().map(|(uid, answer)| (uid, of(answer))).collect())
    }

    /// NodeUnprepareResources; by UID why that failed, if it did.
    ///
    /// # Errors
    /// Likewise.
    pub(super) async fn unprepare(
        &self,
        claims: &[AskedClaim],
    ) -> Result<BTreeMap<String, Result<(), String>>, String> {
        let failed = |why| format!("NodeUnprepareResources: {why}");
        let channel = self.channel().map_err(failed)?;
        let answers: BTreeMap<String, String> = match self.service {
            DraService::V1 => {
                let claims = claims.iter().map(claim).collect();
                let mut client = DraPluginClient::new(channel);
                let call = client.node_unprepare_resources(wire::NodeUnprepareResourcesRequest { claims });
                let method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
                let answer = self.call(method, call).await.map_err(failed)?;
                answer.claims.into_iter().map(|(uid, answer)| (uid, answer.error)).collect()
            }
            DraService::V1Beta1 => {
                let claims = claims.iter().map(old_claim).collect();
                let mut client = OldClient::new(channel);
                let call = client.node_unprepare_resources(old::NodeUnprepareResourcesRequest { claims });
                let method = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources";
                let answer = self.call(method, call).await.map_err(failed)?;
                answer.claims.into_iter().map(|(uid, answer)| (uid, answer.error)).collect()
            }
        };
        let of = |error: String| if error.is_empty() { Ok(()) } else { Err(error) };
        Ok(answers.into_iter().map(|(uid, error)| (uid, of(error))).collect())
    }

    fn channel(&self) -> Connection {
        self.connection.borrow().clone()
    }

    /// Within its time, counted by method and outcome; an error as Go's gRPC prints it.
    async fn call<T>(
        &self,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, String> {
        let begun = Instant::now();
        let answer = timeout(self.patience, call).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")));
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        let took = begun.elapsed();
        self.metrics.dra_grpc_operations_duration.took([&self.name, method, in_go(code)], took);
        answer.map(Response::into_inner).map_err(|status| status_in_go(&status))
    }
}

fn claim(of: &AskedClaim) -> wire::Claim {
    let AskedClaim { namespace, name, uid } = of.clone();
    wire::Claim { namespace, uid, name }
}

fn old_claim(of: &AskedClaim) -> old::Claim {
    let AskedClaim { namespace, name, uid } = of.clone();
    old::Claim { namespace, uid, name }
}

fn device(of: wire::Device) -> PreparedDevice {
    let wire::Device { request_names, pool_name, device_name, cdi_device_ids, share_id } = of;
    PreparedDevice {
        pool: pool_name,
        device: device_name,
        share: share_id,
        requests: request_names,
        cdi: cdi_device_ids,
    }
}

fn of_old(answer: old::NodePrepareResourcesResponse) -> wire::NodePrepareResourcesResponse {
    let device = |of: old::Device| wire::Device {
        request_names: of.request_names,
        pool_name: of.pool_name,
        device_name: of.device_name,
        cdi_device_ids: of.cdi_device_ids,
        share_id: None,
    };
    let of = |answer: old::NodePrepareResourceResponse| wire::NodePrepareResourceResponse {
        devices: answer.devices.into_iter().map(device).collect(),
        error: answer.error,
    };
    let claims = answer.claims.into_iter().map(|(uid, answer)| (uid, of(answer))).collect();
    wire::NodePrepareResourcesResponse { claims }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_service_that_both_know_is_chosen_and_others_are_refused_in_upstreams_words() {
        let choose =
            |told: &[&str]| DraService::choose(&told.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        assert_eq!(choose(&["v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(DraService::V1Beta1));
        assert_eq!(choose(&["v1.DRAPlugin"]), Ok(DraService::V1));
        let none = "empty list of supported gRPC services (aka supported versions)";
        assert_eq!(choose(&[]), Err(none.to_owned()));
        let words = "none of services supported by the plugin ([\"1.0.0\" \"v9\"]) are supported by the kubelet ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])";
        assert_eq!(choose(&["1.0.0", "v9"]), Err(words.to_owned()));
    }
}

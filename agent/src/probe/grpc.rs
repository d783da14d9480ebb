//! The gRPC health check, grpc.health.v1. Owns the call and the wording of its outcome; never
//! keeps a connection. Called by [`super::net`].

use std::time::Duration;

use gantry_proto::health::HealthCheckRequest;
use gantry_proto::health::health_check_response::ServingStatus;
use gantry_proto::health::health_client::HealthClient;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use super::Verdict;
use crate::pod::restart::go_duration;

/// One check.
pub(super) async fn check(address: String, service: String, timeout: Duration) -> Verdict {
    let within = go_duration(timeout);
    let Ok(endpoint) = Endpoint::from_shared(format!("http://{address}")) else {
        return Verdict::Failure(format!("error: failed to connect service at {address:?}: invalid address"));
    };
    let endpoint = endpoint.user_agent("kube-probe/1.36");
    let Ok(endpoint) = endpoint else {
        return Verdict::Unknown("the user agent is not a header value".to_owned());
    };
    let mut connected = false;
    let call = async {
        let channel = match endpoint.connect().await {
            Ok(channel) => channel,
            Err(error) => return Err(refused(&address, &error)),
        };
        connected = true;
        let ask = Request::new(HealthCheckRequest { service });
        HealthClient::new(channel).check(ask).await.map_err(|status| unhealthy(&status, &within))
    };
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(answer)) => match answer.into_inner().status() {
            ServingStatus::Serving => Verdict::Success("service healthy".to_owned()),
            other => {
                Verdict::Failure(format!("service unhealthy (responded with {:?})", other.as_str_name()))
            }
        },
        Ok(Err(text)) => Verdict::Failure(text),
        Err(_) if connected => {
            Verdict::Failure(format!("timeout: health rpc did not complete within {within}"))
        }
        Err(_) => Verdict::Failure(format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        )),
    }
}

fn refused(address: &str, error: &tonic::transport::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    format!("error: failed to connect service at {address:?}: {cause}")
}

fn unhealthy(status: &Status, within: &str) -> String {
    let said = status.message();
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {said}"
        ),
        Code::DeadlineExceeded => format!("timeout: health rpc did not complete within {within}"),
        code => format!("error: health rpc probe failed: rpc error: code = {code:?} desc = {said}"),
    }
}

//! The gRPC health check, grpc.health.v1. Owns the call and the wording of its outcome; never
//! keeps a connection. Called by [`super::net`].

use std::time::Duration;

use gantry_base::error::root_cause;
use gantry_model::go_duration::go_duration;
use gantry_proto::health::HealthCheckRequest;
use gantry_proto::health::health_check_response::ServingStatus;
use gantry_proto::health::health_client::HealthClient;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use super::ProbeResult;
use super::net::join;
use super::resolve::Resolver;

/// One check.
pub(super) async fn check(
    names: Resolver,
    host: String,
    port: u16,
    service: String,
    timeout: Duration,
) -> ProbeResult {
    let address = join(&host, port);
    let within = go_duration(timeout);
    let Ok(endpoint) = Endpoint::from_shared(format!("http://{address}")) else {
        return ProbeResult::Failure(format!(
            "error: failed to connect service at {address:?}: invalid address"
        ));
    };
    let endpoint = endpoint.user_agent("kube-probe/1.36");
    let Ok(endpoint) = endpoint else {
        return ProbeResult::Unknown("the user agent is not a header value".to_owned());
    };
    let mut connected = false;
    let call = async {
        let dial = tower::service_fn(move |_| connection(names.clone(), host.clone(), port));
        let channel = match endpoint.connect_with_connector(dial).await {
            Ok(channel) => channel,
            Err(error) => return Err(connection_error(&address, &error)),
        };
        connected = true;
        let ask = Request::new(HealthCheckRequest { service });
        HealthClient::new(channel).check(ask).await.map_err(|status| unhealthy(&status, &within))
    };
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(answer)) => match answer.into_inner().status() {
            ServingStatus::Serving => ProbeResult::Success("service healthy".to_owned()),
            other => {
                ProbeResult::Failure(format!("service unhealthy (responded with {:?})", other.as_str_name()))
            }
        },
        Ok(Err(text)) => ProbeResult::Failure(text),
        Err(_) if connected => {
            ProbeResult::Failure(format!("timeout: health rpc did not complete within {within}"))
        }
        Err(_) => ProbeResult::Failure(format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        )),
    }
}

async fn connection(names: Resolver, host: String, port: u16) -> std::io::Result<TokioIo<TcpStream>> {
    let stream = names.connect(&host, port).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

fn connection_error(address: &str, error: &tonic::transport::Error) -> String {
    let cause = root_cause(error);
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

#[cfg(test)]
mod tests {
    use gantry_proto::health::HealthCheckResponse;
    use gantry_proto::health::health_server::{Health, HealthServer};
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::Response;
    use tonic::transport::Server;

    use super::*;
    use crate::probe::ProbeIo;
    use crate::probe::net::NetProbe;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Services;

    #[tonic::async_trait]
    impl Health for Services {
        async fn check(
            &self,
            request: Request<HealthCheckRequest>,
        ) -> Result<Response<HealthCheckResponse>, Status> {
            let status = match request.into_inner().service.as_str() {
                "" => ServingStatus::Serving,
                "sick" => ServingStatus::NotServing,
                other => return Err(Status::not_found(format!("no service {other}"))),
            };
            Ok(Response::new(HealthCheckResponse { status: status.into() }))
        }
    }

    #[tokio::test]
    async fn the_health_service_is_asked_and_its_answer_worded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = Server::builder()
            .add_service(HealthServer::new(Services))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(serving);
        let probe = NetProbe::new().unwrap();
        for (service, want) in [
            ("", ProbeResult::Success("service healthy".into())),
            ("sick", ProbeResult::Failure("service unhealthy (responded with \"NOT_SERVING\")".into())),
            (
                "none",
                ProbeResult::Failure(
                    "error: health rpc probe failed: rpc error: code = NotFound desc = no service none"
                        .into(),
                ),
            ),
        ] {
            assert_eq!(probe.grpc("127.0.0.1".into(), port, service.into(), PATIENCE).await, want);
        }
        server.abort();
    }
}

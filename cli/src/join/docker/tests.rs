//! An engine that answers as docker's API (v1.43) does.

use axum::extract::{Path as Segment, Query};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::net::UnixListener;

use super::*;

async fn inspect(Segment(name): Segment<String>) -> axum::response::Response {
    match name.as_str() {
        "kind-control-plane" => Json(json!({
            "State": { "Running": true },
            "NetworkSettings": { "Networks": {
                "bridge": { "IPAddress": "10.9.9.9", "GlobalIPv6Address": "" },
                "kind": { "IPAddress": "172.18.0.2", "GlobalIPv6Address": "fc00:f853:ccd:e793::2" },
            }},
        }))
        .into_response(),
        "stopped" => Json(json!({ "NetworkSettings": { "Networks": { "kind": { "IPAddress": "" } } } }))
            .into_response(),
        _ => (StatusCode::NOT_FOUND, Json(json!({ "message": "No such container" }))).into_response(),
    }
}

async fn archive(Query(query): Query<std::collections::BTreeMap<String, String>>) -> Vec<u8> {
    assert_eq!(query["path"], ADMIN);
    let mut header = tar::Header::new_gnu();
    let text = b"kind: Config\n";
    header.set_size(text.len().try_into().unwrap());
    header.set_entry_type(tar::EntryType::Regular);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, "admin.conf", &text[..]).unwrap();
    archive.into_inner().unwrap()
}

fn serve(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let router = Router::new()
        .route("/containers/{name}/json", get(inspect))
        .route("/containers/{name}/archive", get(archive));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(router.clone());
            tokio::spawn(async move {
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await
            });
        }
    });
}

#[tokio::test]
async fn a_node_of_kind_has_an_address_and_an_administrator() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    serve(&socket);
    let docker = Docker::at(&socket);
    assert_eq!(docker.address("kind-control-plane").await.unwrap(), IpAddr::from([172, 18, 0, 2]));
    assert_eq!(docker.admin("kind-control-plane").await.unwrap(), "kind: Config\n");
    let text = format!("{:#}", docker.address("other-control-plane").await.unwrap_err());
    assert!(
        text.contains("no container other-control-plane") && text.contains("kind get clusters"),
        "{text}"
    );
    let text = format!("{:#}", docker.address("stopped").await.unwrap_err());
    assert!(text.contains("docker start stopped"), "{text}");
}

#[tokio::test]
async fn where_there_is_no_docker_the_other_ways_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let docker = Docker::at(&folder.path().join("docker.sock"));
    let text = format!("{:#}", docker.admin("kind-control-plane").await.unwrap_err());
    assert!(text.contains("--kubeconfig") && text.contains("kubeadm token create"), "{text}");
}

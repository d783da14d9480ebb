//! WebSockets that the API server passes on are counted; those that it has translated are not.

use super::*;
use crate::streams::pass_on;

async fn counted(switched: bool, subresource: &'static str, upgrade: &str, protocols: &str) -> Option<f64> {
    let folder = tempfile::tempdir().unwrap();
    let (client, _) = api_server().await;
    let client_ca = ClientCa::new(authority("ca").pem().as_bytes()).unwrap();
    let how = Authentication { client_ca, tokens_for: TOKENS, anonymous: false };
    let settings = Settings { web_sockets: switched, ..settings(folder.path()) };
    let server =
        Server::new(settings, sources(folder.path(), no_runtime()), how, Mode::AlwaysAllow, Some(client))
            .unwrap();
    let request = Request::get("/")
        .header("connection", "Upgrade")
        .header("upgrade", upgrade)
        .header("sec-websocket-protocol", protocols)
        .body(Body::empty())
        .unwrap();
    // Nobody listens there: it is counted as it comes.
    let answer = pass_on(&server.inner, subresource, Ok("http://127.0.0.1:1/x".to_owned()), request).await;
    assert_eq!(answer.status(), 500);
    server.inner.sources.metrics.websocket_streaming_requests.get([subresource])
}

#[tokio::test]
async fn web_sockets_that_nobody_translated_are_counted() {
    let all = "v5.channel.k8s.io, v4.channel.k8s.io";
    assert_eq!(counted(true, "exec", "websocket", all).await, Some(1.0));
    assert_eq!(counted(true, "attach", "WebSocket", "v5.channel.k8s.io").await, Some(1.0));
    assert_eq!(counted(true, "portforward", "websocket", "SPDY/3.1+portforward.k8s.io").await, Some(1.0));
    for (subresource, upgrade, protocols) in [
        ("exec", "websocket", "v4.channel.k8s.io"),
        ("exec", "SPDY/3.1", all),
        ("portforward", "websocket", "v4.channel.k8s.io"),
    ] {
        assert_eq!(counted(true, subresource, upgrade, protocols).await, None, "{upgrade} {protocols}");
    }
    assert_eq!(counted(false, "exec", "websocket", all).await, None, "the gate is closed");
}

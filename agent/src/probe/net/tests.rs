//! The real client against servers on loopback.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::probe::request::verdict;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that answers each connection with the next text, and tells what it was asked.
async fn server(answers: Vec<String>) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, asked) = mpsc::channel(16);
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 4096];
            let read = stream.read(&mut bytes).await.unwrap();
            sender.send(String::from_utf8_lossy(&bytes[..read]).into_owned()).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, asked)
}

fn page(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn get(port: u16, path: &str) -> HttpRequest {
    let headers = vec![("User-Agent".to_owned(), "kube-probe/1.36".to_owned())];
    HttpRequest { host: "127.0.0.1".into(), port, path: path.into(), tls: false, headers }
}

/// A port where nobody listens.
async fn closed() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn a_page_is_asked_for_as_the_kubelet_does_and_read_to_10_kib() {
    let (port, mut asked) = server(vec![page("200 OK", "", &"x".repeat(20_000))]).await;
    let answer = NetProbe::new().unwrap().http(get(port, "/a?b=c"), PATIENCE).await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 10 << 10));
    let asked = asked.recv().await.unwrap().to_lowercase();
    assert!(asked.starts_with("get /a?b=c http/1.1\r\n"), "{asked}");
    assert!(asked.contains("user-agent: kube-probe/1.36\r\n") && asked.contains("connection: close\r\n"));
}

#[tokio::test]
async fn redirects_are_followed_within_the_host_only() {
    let here = page("302 Found", "Location: /there\r\n", "");
    let (port, mut asked) = server(vec![here, page("204 No Content", "", "")]).await;
    let probe = NetProbe::new().unwrap();
    assert_eq!(probe.http(get(port, "/here"), PATIENCE).await.unwrap().status, 204);
    asked.recv().await.unwrap();
    assert!(asked.recv().await.unwrap().starts_with("GET /there "));
    let away = page("302 Found", "Location: http://192.0.2.1/\r\n", "");
    let (port, _asked) = server(vec![away]).await;
    let answer = probe.http(get(port, "/"), PATIENCE).await;
    assert!(matches!(verdict(answer), ProbeResult::Warning(_)));
}

#[tokio::test]
async fn what_is_not_there_is_worded_as_in_go() {
    let port = closed().await;
    let probe = NetProbe::new().unwrap();
    let error = probe.http(get(port, "/x"), PATIENCE).await.unwrap_err();
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(error, HttpError::NoAnswer(format!("Get \"http://127.0.0.1:{port}/x\": {refused}")));
    assert_eq!(probe.tcp("127.0.0.1".into(), port, PATIENCE).await, Err(refused));
    let verdict = probe.grpc("127.0.0.1".into(), port, String::new(), PATIENCE).await;
    assert!(
        matches!(&verdict, ProbeResult::Failure(text) if text.starts_with("error: failed to connect")),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn silence_ends_at_the_timeout() {
    // Accepts in the kernel, and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let probe = NetProbe::new().unwrap();
    let short = Duration::from_millis(200);
    let error = probe.http(get(port, "/"), short).await.unwrap_err();
    assert!(error.to_string().contains("context deadline exceeded"), "{error}");
    let verdict = probe.grpc("127.0.0.1".into(), port, String::new(), short).await;
    assert!(matches!(&verdict, ProbeResult::Failure(text) if text.starts_with("timeout: ")), "{verdict:?}");
    assert_eq!(probe.tcp("127.0.0.1".into(), port, PATIENCE).await, Ok(()));
}

#[tokio::test]
async fn a_server_without_tls_is_told_apart() {
    let (port, _asked) = server(vec![page("400 Bad Request", "", "no")]).await;
    let ask = HttpRequest { tls: true, ..get(port, "/") };
    let error = NetProbe::new().unwrap().http(ask, PATIENCE).await.unwrap_err();
    assert!(matches!(error, HttpError::NotTls(_)), "{error:?}");
}

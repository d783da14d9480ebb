//! Connections as clients make them, the well-behaved and the others.

use std::net::SocketAddr;

use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::{Certificate, Identity, StatusCode, Version};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::listen::{self, TlsSettings, tls_config};
use super::super::pending_connections::Admission;
use super::*;

#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl ResolvesServerCert for One {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn resolver(ca: &CertifiedIssuer<'static, KeyPair>) -> Arc<One> {
    let (chain, key) = certificate(ca, "system:node:node-1", |_| {});
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Arc::new(One(Arc::new(CertifiedKey::new(vec![chain], any_supported_type(&key).unwrap()))))
}

async fn listening(house: &House, tls: &TlsSettings) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = tls_config(resolver(&house.ca), tls).unwrap();
    let server = house.server.clone();
    tokio::spawn(async move { server.serve_tls(listener, config).await });
    address
}

fn client(house: &House, identity: Option<&CertifiedIssuer<'static, KeyPair>>) -> reqwest::ClientBuilder {
    let root = Certificate::from_pem(house.ca.pem().as_bytes()).unwrap();
    let builder = reqwest::Client::builder().tls_certs_only([root]).timeout(Duration::from_secs(20));
    let Some(ca) = identity else { return builder };
    let (chain, key) = certificate(ca, "may-pods", |_| {});
    let pem = rcgen_pem(&chain) + &key.serialize_pem();
    builder.identity(Identity::from_pem(pem.as_bytes()).unwrap())
}

fn rcgen_pem(der: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[tokio::test]
async fn a_certificate_opens_the_door_over_both_versions_of_http() {
    let house = house(false, WEBHOOK).await;
    let address = listening(&house, &TlsSettings::default()).await;
    let url = format!("https://{address}/pods");
    for (version, builder) in [
        (Version::HTTP_2, client(&house, Some(&house.ca))),
        (Version::HTTP_11, client(&house, Some(&house.ca)).http1_only()),
    ] {
        let answer = builder.build().unwrap().get(&url).send().await.unwrap();
        assert_eq!((answer.status(), answer.version()), (StatusCode::OK, version));
    }
    let nobody = client(&house, None).build().unwrap().get(&url).send().await.unwrap();
    assert_eq!(nobody.status(), StatusCode::UNAUTHORIZED);
    // The handshake goes well with a foreign certificate: a token may still come.
    let stranger = client(&house, Some(&authority("other"))).build().unwrap();
    assert_eq!(stranger.get(&url).send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let token = stranger.get(&url).bearer_auth("of-may-pods").send().await.unwrap();
    assert_eq!(token.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_older_tls_than_was_asked_for_is_refused() {
    let house = house(false, WEBHOOK).await;
    for only_13 in [true, false] {
        let address = listening(&house, &TlsSettings { only_13, ..TlsSettings::default() }).await;
        let old = client(&house, Some(&house.ca)).tls_version_max(reqwest::tls::Version::TLS_1_2);
        let answer = old.build().unwrap().get(format!("https://{address}/pods")).send().await;
        assert_eq!(answer.is_err(), only_13, "{answer:?}");
    }
}

#[tokio::test]
async fn bad_clients_keep_nobody_out() {
    let house = house(false, WEBHOOK).await;
    let address = listening(&house, &TlsSettings { only_13: true, ..TlsSettings::default() }).await;
    // Half-open, silent, and one that speaks no TLS at all.
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // An alert of TLS or a closed connection, never a page.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let client = client(&house, Some(&house.ca)).http1_only().build().unwrap();
    let huge =
        client.get(format!("https://{address}/pods")).header("x-huge", "x".repeat(2 << 20)).send().await;
    assert!(huge.is_err() || huge.unwrap().status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    let answer = client.get(format!("https://{address}/pods")).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    house.server.end();
    let mut refused = TcpStream::connect(address).await;
    for _ in 0..1000 {
        if refused.is_err() {
            break;
        }
        tokio::task::yield_now().await;
        refused = TcpStream::connect(address).await;
    }
    assert!(refused.is_err(), "somebody still listens");
}

#[tokio::test]
async fn connections_of_strangers_make_room_for_those_who_come() {
    let house = house(false, WEBHOOK).await;
    let address = listening(&house, &TlsSettings::default()).await;
    let mut strangers = Vec::new();
    for _ in 0..200 {
        strangers.push(TcpStream::connect(address).await.unwrap());
    }
    let client = client(&house, Some(&house.ca)).build().unwrap();
    let answer = client.get(format!("https://{address}/pods")).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    drop(strangers);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_stream_is_closed_and_none_with_one() {
    let folder = tempfile::tempdir().unwrap();
    // More than a client takes unread.
    std::fs::write(folder.path().join("big.log"), "x".repeat(8 << 20)).unwrap();
    let how = Authentication { anonymous: true, ..Authentication::default() };
    let (settings, sources) = (settings(folder.path()), sources(folder.path(), no_runtime()));
    let server = Server::new(settings, sources, how, Mode::AlwaysAllow, None).unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let door = Door::ReadWrite(Vec::new().into());
    let mut served = tokio::spawn(listen::two(server.inner.clone(), door, Admission::default(), ours));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(theirs));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://node/logs/big.log").body(Body::empty()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let hour = Duration::from_secs(3600);
    assert!(tokio::time::timeout(hour, &mut served).await.is_err(), "a stream was open");
    drop(answer);
    // The client is still there, and answers pings.
    tokio::time::timeout(hour, served).await.expect("no stream is open").unwrap();
    drop(sender);
}

#[test]
fn cipher_suites_by_name() {
    let ca = authority("ca");
    let of = |only_13, suites: &[&str]| {
        let cipher_suites = suites.iter().map(ToString::to_string).collect();
        tls_config(resolver(&ca), &TlsSettings { only_13, cipher_suites })
    };
    let one = of(false, &["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_RC4_128_SHA"]).unwrap();
    let old = one.crypto_provider().cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count();
    assert_eq!(old, 1);
    let error = of(false, &["TLS_RSA_WITH_RC4_128_SHA"]).unwrap_err().to_string();
    assert!(error.contains("TLS_RSA_WITH_RC4_128_SHA") && error.contains("leave it empty"), "{error}");
    assert!(of(true, &["TLS_RSA_WITH_RC4_128_SHA"]).is_ok());
    let legacy = of(false, &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]).unwrap();
    let old = legacy.crypto_provider().cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count();
    assert_eq!(old, 1, "by its name of old");
    assert!(of(false, &["TLS_AES_128_GCM_SHA256"]).is_ok(), "TLS 1.3 alone");
    let error = of(false, &["TLS_NONSENSE"]).unwrap_err().to_string();
    assert_eq!(error, "Cipher suite TLS_NONSENSE not supported or doesn't exist");
}

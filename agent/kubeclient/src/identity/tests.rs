//! An API server over TLS on loopback that signs certificates, and what a kubelet makes of it: first
//! certificate, rotation, watches that stay.

mod programs;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use gantry_base::error::chain;
use gantry_metrics::Metrics;
use http::{Request, Response, StatusCode};
use hyper::body::Body as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DnType, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

use super::bootstrap::{self, Settings};
use super::client::{Limits, Pace};
use super::pair::Leaf;
use super::*;

/// One request as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RecordedRequest {
    connection: usize,
    /// Of the client certificate; nothing without one.
    user: String,
    token: String,
    path: String,
}

struct Api {
    address: SocketAddr,
    authority: CertifiedIssuer<'static, KeyPair>,
    seen: Mutex<Vec<RecordedRequest>>,
    /// Requests for certificates, as the API has them.
    requests: Mutex<Vec<Value>>,
    /// How long what is signed is good for.
    life: Duration,
    deny: bool,
    /// What an Authorization header may not say.
    refuses: Mutex<String>,
    /// Counts up: each number is an event of every watch.
    tick: watch::Sender<usize>,
    connections: AtomicUsize,
}

/// Seconds from now.
fn live(params: &mut CertificateParams, from: i64, to: i64) {
    let at = |offset: i64| {
        let now = jiff::Timestamp::now().as_second() + offset;
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(now).unwrap())
    };
    (params.not_before, params.not_after) = (at(from), at(to));
}

impl Api {
    async fn start(life: Duration, deny: bool) -> Arc<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(params, csr::new_key().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            authority,
            seen: Mutex::default(),
            requests: Mutex::default(),
            life,
            deny,
            refuses: Mutex::default(),
            tick: watch::channel(0).0,
            connections: AtomicUsize::new(0),
        });
        tokio::spawn(api.clone().listen(listener));
        api
    }

    fn tls(&self) -> ServerConfig {
        let key = csr::new_key().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = params.signed_by(&key, &self.authority).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    async fn listen(self: Arc<Self>, listener: TcpListener) {
        let acceptor = TlsAcceptor::from(Arc::new(self.tls()));
        while let Ok((tcp, _)) = listener.accept().await {
            let (api, acceptor) = (self.clone(), acceptor.clone());
            let connection = self.connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let peer = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
                let user = peer.map(|leaf| Leaf::parse(&leaf).unwrap().common_name).unwrap_or_default();
                let service = service_fn(move |request| {
                    let (api, user) = (api.clone(), user.clone());
                    async move { Ok::<_, Infallible>(api.answer(connection, user, request).await) }
                });
                // A client that goes is no news.
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(tls), service)
                    .await;
            });
        }
    }

    async fn answer(
        &self,
        connection: usize,
        user: String,
        request: Request<hyper::body::Incoming>,
    ) -> Response<Body> {
        let path = request.uri().path_and_query().unwrap().to_string();
        let token = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let refused = token.as_ref().is_some_and(|token| *token == *self.refuses.lock().unwrap());
        let seen = RecordedRequest { connection, user, token: token.unwrap_or_default(), path: path.clone() };
        self.seen.lock().unwrap().push(seen);
        let (method, body) = (request.method().clone(), Body::new(request.into_body()));
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        if refused {
            return answer(401, &json!({ "code": 401 }));
        }
        if path.contains("watch=true") {
            return self.stream();
        }
        if method == "POST" && path.starts_with(csrs) {
            return self.sign(&body);
        }
        if let Some(name) = path.strip_prefix(&format!("{csrs}/")) {
            let found = self.requests.lock().unwrap().iter().find(|r| r["metadata"]["name"] == name).cloned();
            return found.map_or_else(|| answer(404, &json!({"code": 404})), |found| answer(200, &found));
        }
        answer(200, &json!({ "path": path }))
    }

    fn stream(&self) -> Response<Body> {
        let mut ticks = self.tick.subscribe();
        ticks.mark_changed();
        let ticks = futures_util::stream::unfold(ticks, |mut ticks| async move {
            ticks.changed().await.ok()?;
            let line = format!("{}\n", *ticks.borrow_and_update());
            Some((Ok::<_, Infallible>(Bytes::from(line)), ticks))
        });
        Response::new(Body::from_stream(ticks))
    }

    fn sign(&self, body: &[u8]) -> Response<Body> {
        let mut object: Value = serde_json::from_slice(body).unwrap();
        let mut requests = self.requests.lock().unwrap();
        if let Some(name) = object["metadata"]["name"].as_str()
            && requests.iter().any(|request| request["metadata"]["name"] == name)
        {
            return answer(
                409,
                &json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "there"}),
            );
        }
        if object["metadata"]["name"].is_null() {
            object["metadata"]["name"] = format!("csr-{}", requests.len()).into();
        }
        object["metadata"]["uid"] = format!("uid-{}", requests.len()).into();
        if self.deny {
            object["status"] = json!({"conditions": [
                {"type": "Denied", "status": "True", "reason": "No", "message": "not you"}]});
        } else {
            let pem = base64(object["spec"]["request"].as_str().unwrap());
            let mut csr = CertificateSigningRequestParams::from_pem(&pem).unwrap();
            // Dated back, so that it is replaced after half of what is left: the other half is for a busy machine.
            let life = i64::try_from(self.life.as_secs()).unwrap();
            live(&mut csr.params, -4 * life, life);
            let signed = csr.signed_by(&self.authority).unwrap().pem();
            use base64::Engine as _;
            let signed = base64::engine::general_purpose::STANDARD.encode(signed);
            object["status"] = json!({
                "conditions": [{"type": "Approved", "status": "True"}], "certificate": signed });
        }
        requests.push(object.clone());
        answer(201, &object)
    }

    fn kubeconfig(&self, user: &Value) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.authority.pem());
        json!({
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", self.address), "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        })
        .to_string()
    }

    fn seen(&self, path: &str) -> Vec<RecordedRequest> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path.contains(path)).cloned().collect()
    }

    /// A client certificate and its key.
    fn pair(&self, name: &str) -> Arc<Pair> {
        let key = csr::new_key().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        live(&mut params, -60, 3600);
        let leaf = params.signed_by(&key, &self.authority).unwrap();
        Arc::new(Pair::parse(leaf.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap())
    }
}

fn base64(text: &str) -> String {
    use ::base64::Engine as _;
    String::from_utf8(::base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

fn answer(status: u16, value: &Value) -> Response<Body> {
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header("content-type", "application/json")
        .body(Body::from(value.to_string()))
        .unwrap()
}

fn limits() -> Limits {
    let pace = Pace { per_second: 1000.0, burst: 1000.0 };
    Limits { pods: pace, yields: false, events: pace, lease: Duration::from_secs(20) }
}

async fn get(client: &kube::Client, path: &str) -> Value {
    client.request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

/// Opens a watch and reads its first event.
async fn open(client: &kube::Client, path: &str) -> kube::client::Body {
    let request = Request::get(format!("{path}?watch=true")).body(kube::client::Body::empty()).unwrap();
    let mut body = client.send(request).await.unwrap().into_body();
    assert!(next(&mut body).await.is_some());
    body
}

async fn next(body: &mut kube::client::Body) -> Option<Bytes> {
    let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
    let frame = tokio::time::timeout(Duration::from_secs(60), frame).await.unwrap()?;
    frame.unwrap().into_data().ok()
}

fn access(api: &Api, folder: &Path, user: &Value) -> kubeconfig::Access {
    let path = folder.join("kubeconfig");
    std::fs::write(&path, api.kubeconfig(user)).unwrap();
    kubeconfig::read(&path).unwrap()
}

#[tokio::test]
async fn new_requests_show_the_new_certificate_and_a_watch_stays() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let metrics = Arc::new(Metrics::default());
    let (swap, current) = watch::channel(Some(api.pair("old")));
    let clients =
        Clients::new(&access(&api, folder.path(), &json!({})), &current, limits(), false, &metrics).unwrap();
    get(&clients.pods, "/first").await;
    let mut body = open(&clients.pods, "/stays").await;
    swap.send_replace(Some(api.pair("new")));
    clients.renew();
    get(&clients.pods, "/second").await;
    get(&clients.lease, "/lease").await;
    api.tick.send_replace(7);
    assert_eq!(next(&mut body).await.unwrap(), "7\n");
    let (first, second) = (api.seen("/first").remove(0), api.seen("/second").remove(0));
    assert_eq!((first.user.as_str(), second.user.as_str()), ("old", "new"));
    assert_eq!(api.seen("/stays")[0].connection, first.connection);
    assert_ne!(second.connection, first.connection);
    assert_ne!(api.seen("/lease")[0].connection, second.connection, "the lease has its own connection");
    let host = api.address.to_string();
    assert_eq!(metrics.rest_client_requests.get(["200", "GET", &host]), Some(4.0), "with the watch");
    assert_eq!(metrics.rest_client_duration.count(["GET", &host]), 3, "a watch is no duration");
}

#[tokio::test]
async fn more_watches_than_a_connection_may_carry_open_another() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let metrics = Arc::new(Metrics::default());
    let (_, current) = watch::channel(None);
    let clients =
        Clients::new(&access(&api, folder.path(), &json!({})), &current, limits(), false, &metrics).unwrap();
    let mut bodies = Vec::new();
    for _ in 0..100 {
        bodies.push(open(&clients.pods, "/w").await);
    }
    let connections: BTreeSet<usize> = api.seen("/w").iter().map(|seen| seen.connection).collect();
    assert_eq!(connections.len(), 2);
    drop(bodies);
    // Room is given back.
    open(&clients.pods, "/again").await;
    assert!(connections.contains(&api.seen("/again")[0].connection));
}

#[tokio::test]
async fn tokens_come_from_files_as_they_are_now() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let access = access(&api, folder.path(), &json!({"tokenFile": "token"}));
    let (_, current) = watch::channel(None);
    let client = client::single(&access, &current, &Arc::default()).unwrap();
    for token in ["one", "two"] {
        std::fs::write(folder.path().join("token"), format!("{token}\n")).unwrap();
        get(&client, &format!("/{token}")).await;
        assert_eq!(api.seen(token)[0].token, format!("Bearer {token}"));
    }
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_believed_unless_that_was_asked_for() {
    let (api, other) = (Api::start(Duration::ZERO, false).await, Api::start(Duration::ZERO, false).await);
    let folder = tempfile::tempdir().unwrap();
    let mut access = access(&api, folder.path(), &json!({"token": "t"}));
    access.server = format!("https://{}", other.address).parse().unwrap();
    let (_, current) = watch::channel(None);
    let client = client::single(&access, &current, &Arc::default()).unwrap();
    let request = || Request::get("/x").body(Vec::new()).unwrap();
    assert!(client.request::<Value>(request()).await.is_err());
    assert!(other.seen("/x").is_empty());
    access.trust = kubeconfig::Trust::Anybody;
    get(&client::single(&access, &current, &Arc::default()).unwrap(), "/x").await;
    assert_eq!(other.seen("/x")[0].token, "Bearer t");
}

fn settings(folder: &Path, rotate: bool) -> Settings {
    Settings {
        kubeconfig: folder.join("kubelet.conf"),
        bootstrap: Some(folder.join("bootstrap.conf")),
        cert_dir: folder.join("pki"),
        node: "node-1".to_owned(),
        rotate,
        limits: limits(),
        metrics: Arc::default(),
    }
}

#[tokio::test]
async fn a_node_joins_with_a_token_and_rotates_while_its_watch_stays() {
    let (api, folder) = (Api::start(Duration::from_secs(12), false).await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("bootstrap.conf"), api.kubeconfig(&json!({"token": "boot"}))).unwrap();
    let (notices, _told) = mpsc::channel(16);
    let identity = bootstrap::start(settings(folder.path(), true), notices).await.unwrap();
    let mut current = identity.current.clone();
    // Asked before there is a certificate: it waits for it instead of being refused.
    get(&identity.clients.pods, "/early").await;
    assert_eq!(api.seen("/early")[0].user, "system:node:node-1");
    current.mark_unchanged();
    let mut body = open(&identity.clients.pods, "/stays").await;
    for rotation in 1..=2 {
        let changed = tokio::time::timeout(Duration::from_secs(60), current.changed()).await;
        assert!(changed.is_ok(), "rotation {rotation}");
    }
    api.tick.send_replace(9);
    assert_eq!(next(&mut body).await.unwrap(), "9\n");
    let posts = api.seen("/certificatesigningrequests");
    let first = posts.iter().find(|seen| !seen.path.contains("node-csr-")).unwrap();
    assert_eq!((first.user.as_str(), first.token.as_str()), ("", "Bearer boot"));
    assert!(posts.iter().any(|seen| seen.user == "system:node:node-1" && seen.token.is_empty()));
    let spec = api.requests.lock().unwrap()[0]["spec"].clone();
    assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
    // What it left behind is what a kubelet finds after a restart, ours or upstream's.
    let current = std::fs::read_link(folder.path().join("pki/kubelet-client-current.pem")).unwrap();
    assert!(current.to_str().unwrap().contains("kubelet-client-20"), "{current:?}");
    let left = kubeconfig::read(&folder.path().join("kubelet.conf")).unwrap();
    assert!(matches!(left.user.certificate, Some(kubeconfig::Certificate::Files { .. })));
    assert!(!folder.path().join("pki/kubelet-client.key.tmp").exists());
}

#[tokio::test]
async fn without_rotation_nothing_starts_before_the_first_certificate() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("bootstrap.conf"), api.kubeconfig(&json!({"token": "boot"}))).unwrap();
    let (notices, _told) = mpsc::channel(16);
    let identity = bootstrap::start(settings(folder.path(), false), notices.clone()).await.unwrap();
    get(&identity.clients.pods, "/pods").await;
    assert_eq!(api.seen("/pods")[0].user, "system:node:node-1");
    // The next start needs no bootstrap.
    std::fs::remove_file(folder.path().join("bootstrap.conf")).unwrap();
    bootstrap::start(settings(folder.path(), false), notices).await.unwrap();
    assert_eq!(api.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_restart_takes_its_key_and_its_request_up_again() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("bootstrap.conf"), api.kubeconfig(&json!({"token": "boot"}))).unwrap();
    // As if it had been killed after the request was signed.
    let key = rotation::kept_key(&folder.path().join("pki/kubelet-client.key.tmp")).unwrap();
    let template = csr::Template { node: "node-1".to_owned(), names: Names::default() };
    let name = csr::digested_name(&template, &key, csr::Signer::Client);
    let access = access(&api, folder.path(), &json!({"token": "boot"}));
    let client = client::single(&access, &watch::channel(None).1, &Arc::default()).unwrap();
    csr::ask(client, &template, &key, csr::Signer::Client, Some(name)).await.unwrap();
    let (notices, _told) = mpsc::channel(16);
    bootstrap::start(settings(folder.path(), false), notices).await.unwrap();
    assert_eq!(api.requests.lock().unwrap().len(), 1, "no second request");
}

#[tokio::test]
async fn a_refused_request_is_told_with_its_reason() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), true).await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("bootstrap.conf"), api.kubeconfig(&json!({"token": "boot"}))).unwrap();
    let (notices, _told) = mpsc::channel(16);
    let error = bootstrap::start(settings(folder.path(), false), notices).await.unwrap_err();
    let text = chain(&error);
    assert!(text.ends_with("certificate signing request is denied, reason: No, message: not you"), "{text}");
}

async fn poll(what: &str, is_so: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn renewals_that_fail_are_counted_and_how_long_a_certificate_lasts() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), true).await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("bootstrap.conf"), api.kubeconfig(&json!({"token": "boot"}))).unwrap();
    let settings = settings(folder.path(), true);
    let metrics = settings.metrics.clone();
    assert_eq!(metrics.certificate_manager_client_expiration.get(), None, "nobody looks after one");
    let (notices, _told) = mpsc::channel(16);
    let _identity = bootstrap::start(settings, notices).await.unwrap();
    let failed = || metrics.certificate_manager_client_errors.get([]).is_some_and(|count| count >= 1.0);
    poll("a failure is counted", failed).await;
    assert_eq!(metrics.certificate_manager_client_expiration.get(), Some(f64::INFINITY));
    assert_eq!(metrics.server_expiration_errors.get([]), Some(0.0), "it was not that one");
}

#[tokio::test]
async fn a_serving_certificate_is_asked_for_with_the_nodes_names_and_again_when_they_change() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let access = access(&api, folder.path(), &json!({"token": "t"}));
    let client = client::single(&access, &watch::channel(None).1, &Arc::default()).unwrap();
    let (names_in, names) = watch::channel(None);
    let metrics = Arc::new(Metrics::default());
    let source = serving::ServingCertSource::Requested {
        node: "node-1".to_owned(),
        names,
        client,
        given: None,
        notices: mpsc::channel(1).0,
        metrics: metrics.clone(),
    };
    let serving = serving::Serving::start(&folder.path().join("pki"), source).unwrap();
    let mut current = serving.current();
    assert!(current.borrow().is_none());
    assert_eq!(metrics.certificate_manager_server_expiration.get(), Some(f64::INFINITY));
    let of = |ip: &str| Names { dns: ["node-1".to_owned()].into(), ips: [ip.parse().unwrap()].into() };
    for ip in ["10.0.0.1", "10.0.0.2"] {
        names_in.send_replace(Some(of(ip)));
        let wanted =
            |pair: &Option<Arc<Pair>>| pair.as_ref().is_some_and(|pair| pair.leaf().ips == of(ip).ips);
        tokio::time::timeout(Duration::from_secs(60), current.wait_for(wanted)).await.unwrap().unwrap();
    }
    let left = metrics.certificate_manager_server_expiration.get().unwrap();
    assert!((3000.0..=3600.0).contains(&left), "{left}");
    let replaced = || metrics.certificate_manager_server_age.count([]) == 1;
    poll("the age of the one that was replaced", replaced).await;
    let requests = api.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0]["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(requests[0]["spec"]["usages"], json!(["digital signature", "server auth"]));
}

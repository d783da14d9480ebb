//! The server as a whole on a fake API server: nobody gets in without a credential.

mod log_query;
mod switched;
mod tls;
mod traced;
mod web_sockets;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use gantry_model::cgroup::names::Driver;
use gantry_trace::endpoint::CollectorEndpoint;
use gantry_trace::export;
use gantry_trace::sampler::Sampler;
use gantry_trace::span::Tracer;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use super::authn::Authentication;
use super::authz::Mode;
use super::client_ca::ClientCa;
use super::health::Check;
use super::route::Switches;
use super::serve::{Door, serve};
use super::*;

/// What the API server was asked, and whether it is to fail.
#[derive(Debug, Default)]
struct RecordedReviews {
    tokens: Vec<String>,
    access: Vec<Value>,
    broken: bool,
}

type SharedReviews = Arc<Mutex<RecordedReviews>>;

async fn review_token(State(asked): State<SharedReviews>, Json(mut review): Json<Value>) -> Json<Value> {
    let token = review["spec"]["token"].as_str().unwrap().to_owned();
    // A token is the name of its user, after a prefix.
    review["status"] = match token.strip_prefix("of-") {
        Some(name) => json!({ "authenticated": true, "user": { "username": name, "groups": ["g"] } }),
        None => json!({ "authenticated": false }),
    };
    asked.lock().unwrap().tokens.push(token);
    Json(review)
}

/// A user called may-X may do everything to X.
async fn review_access(
    State(asked): State<SharedReviews>,
    Json(mut review): Json<Value>,
) -> (http::StatusCode, Json<Value>) {
    let spec = review["spec"].clone();
    let mut asked = asked.lock().unwrap();
    asked.access.push(spec.clone());
    if asked.broken {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
            "message": "no", "reason": "Forbidden" });
        return (http::StatusCode::FORBIDDEN, Json(status));
    }
    let wanted = format!("may-{}", spec["resourceAttributes"]["subresource"].as_str().unwrap());
    review["status"] = json!({ "allowed": spec["user"] == json!(wanted) });
    (http::StatusCode::CREATED, Json(review))
}

async fn api_server() -> (Client, SharedReviews) {
    let asked = SharedReviews::default();
    let app = Router::new()
        .route("/apis/authentication.k8s.io/v1/tokenreviews", post(review_token))
        .route("/apis/authorization.k8s.io/v1/subjectaccessreviews", post(review_access))
        .with_state(asked.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), asked)
}

#[derive(Debug)]
struct Pods(Vec<Arc<Pod>>);

impl NodePods for Pods {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.clone()
    }

    fn translate(&self, uid: &str) -> String {
        uid.to_owned()
    }

    fn claim_name(&self, _: &str, _: &str) -> Option<String> {
        None
    }
}

fn stats_of(folder: &std::path::Path) -> stats::Settings {
    stats::Settings {
        driver: Driver::Cgroupfs,
        root_dir: folder.to_owned(),
        pod_logs: folder.to_owned(),
        cgroup_root: "/".to_owned(),
        runtime_cgroups: String::new(),
        system_cgroups: String::new(),
        volume_period: Duration::ZERO,
    }
}

/// Makes spans of every request, and sends them nowhere.
fn unheard() -> Tracer {
    let at = CollectorEndpoint::parse("127.0.0.1:1").unwrap();
    export::start(&at, Sampler { per_million: 1_000_000 }, "kubelet", &[]).0
}

fn sources(folder: &std::path::Path, runtime: Channel) -> ServerDeps {
    let pod = json!({
        "metadata": { "name": "web", "namespace": "ns", "uid": "u" },
        "spec": { "containers": [{ "name": "c", "tty": true }] },
    });
    ServerDeps {
        node_name: "node-1".to_owned(),
        pods: Arc::new(Pods(vec![Arc::new(serde_json::from_value(pod).unwrap())])),
        runtime: RuntimeConnection { channel: runtime, request_timeout: Duration::from_secs(120) },
        configz: Arc::new(|| json!({ "kind": "KubeletConfiguration" })),
        flagz: vec![("v".to_owned(), "2".to_owned())],
        version: "v1.36.3+gantry.0.1.0".to_owned(),
        metrics: Arc::default(),
        probe_metrics: Arc::default(),
        checks: vec![Check::new("syncloop", || Ok(()))],
        oom_counts: Arc::new(|_| None),
        system: SystemVersion::default(),
        stats: stats::Stats::new(stats_of(folder)).unwrap(),
        verbosity: Arc::new(|level| if level < 10 { Ok(()) } else { Err("too much".to_owned()) }),
        tracer: Some(unheard()),
    }
}

fn settings(folder: &std::path::Path) -> Settings {
    Settings {
        switches: Switches::ALL,
        stream_idle: Duration::from_secs(60),
        web_sockets: true,
        checkpoints: "/nonexistent".into(),
        node_logs: folder.to_owned(),
        pod_logs: folder.to_owned(),
        system_log_query: false,
        journalctl: "/nonexistent".into(),
    }
}

/// Nobody listens there.
fn no_runtime() -> Channel {
    Endpoint::from_static("http://127.0.0.1:1").connect_lazy()
}

const WEBHOOK: Mode =
    Mode::Webhook { allowed_for: Duration::from_secs(300), denied_for: Duration::from_secs(30) };
const TOKENS: Option<Duration> = Some(Duration::from_secs(120));

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn certificate(
    ca: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> (CertificateDer<'static>, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, "org");
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth, rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    change(&mut params);
    (params.signed_by(&key, ca).unwrap().der().clone(), key)
}

async fn said(answer: answer::Answer) -> (u16, String) {
    let status = answer.status().as_u16();
    let bytes = to_bytes(answer.into_body(), 1 << 24).await.unwrap();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

struct House {
    server: Server,
    asked: SharedReviews,
    ca: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

async fn house(anonymous: bool, mode: Mode) -> House {
    let (client, asked) = api_server().await;
    let (ca, folder) = (authority("ca"), tempfile::tempdir().unwrap());
    let client_ca = ClientCa::new(ca.pem().as_bytes()).unwrap();
    let how = Authentication { client_ca, tokens_for: TOKENS, anonymous };
    let sources = sources(folder.path(), no_runtime());
    let server = Server::new(settings(folder.path()), sources, how, mode, Some(client)).unwrap();
    House { server, asked, ca, folder }
}

/// Who somebody is.
#[derive(Debug, Clone, PartialEq)]
enum Who {
    Nobody,
    Certificate(CertificateDer<'static>),
    Token(String),
}

impl House {
    async fn ask(&self, method: &str, path: &str, who: &Who) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        let mut chain = Vec::new();
        match who {
            Who::Nobody => {}
            Who::Certificate(certificate) => chain.push(certificate.clone()),
            Who::Token(token) => request = request.header("authorization", format!("Bearer {token}")),
        }
        let request = request.body(Body::empty()).unwrap();
        said(serve(self.server.inner.clone(), Door::ReadWrite(chain.into()), request).await).await
    }

    fn certificate(&self, name: &str) -> Who {
        Who::Certificate(certificate(&self.ca, name, |_| {}).0)
    }
}

fn token(name: &str) -> Who {
    Who::Token(format!("of-{name}"))
}

/// Every path, its verb, and what of the node it is about.
const PATHS: [(&str, &str, &[&str]); 34] = [
    ("GET", "/healthz", &["healthz", "proxy"]),
    ("GET", "/healthz/ping", &["healthz", "proxy"]),
    ("GET", "/healthz/syncloop", &["healthz", "proxy"]),
    ("GET", "/pods", &["pods", "proxy"]),
    ("GET", "/pods/", &["pods", "proxy"]),
    ("GET", "/runningpods/", &["pods", "proxy"]),
    ("GET", "/configz", &["configz", "proxy"]),
    ("GET", "/flagz", &["configz"]),
    ("GET", "/statusz", &["statusz"]),
    ("GET", "/metrics", &["metrics"]),
    ("GET", "/metrics/cadvisor", &["metrics"]),
    ("GET", "/metrics/resource", &["metrics"]),
    ("GET", "/metrics/probes", &["metrics"]),
    ("GET", "/metrics/slis", &["metrics"]),
    ("GET", "/stats/summary", &["stats"]),
    ("POST", "/stats/summary", &["stats"]),
    ("GET", "/logs/", &["log"]),
    ("GET", "/logs/some/file", &["log"]),
    ("POST", "/checkpoint/ns/web/c", &["checkpoint"]),
    ("GET", "/containerLogs/ns/web/c", &["proxy"]),
    ("GET", "/exec/ns/web/c?command=id&output=1", &["proxy"]),
    ("POST", "/exec/ns/web/c?command=id&output=1", &["proxy"]),
    ("POST", "/exec/ns/web/u/c?command=id&output=1", &["proxy"]),
    ("POST", "/attach/ns/web/c?output=1", &["proxy"]),
    ("GET", "/attach/ns/web/u/c?output=1", &["proxy"]),
    ("POST", "/portForward/ns/web", &["proxy"]),
    ("GET", "/portForward/ns/web/u", &["proxy"]),
    ("POST", "/run/ns/web/c?cmd=id", &["proxy"]),
    ("GET", "/debug/pprof/", &["proxy"]),
    ("GET", "/debug/pprof/cmdline", &["proxy"]),
    ("PUT", "/debug/flags/v", &["proxy"]),
    ("GET", "/", &["proxy"]),
    ("GET", "/no/such/path", &["proxy"]),
    ("DELETE", "/pods", &["pods", "proxy"]),
];

#[tokio::test]
async fn every_path_and_everybody() {
    let house = house(false, WEBHOOK).await;
    let stranger = Who::Certificate(certificate(&authority("ca"), "may-proxy", |_| {}).0);
    let expired = Who::Certificate(
        certificate(&house.ca, "may-proxy", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1)).0,
    );
    let servers_own = Who::Certificate(
        certificate(&house.ca, "may-proxy", |params| {
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        })
        .0,
    );
    let nameless = house.certificate("");
    for (method, path, about) in PATHS {
        for who in [&Who::Nobody, &stranger, &expired, &servers_own, &nameless, &Who::Token("x".to_owned())] {
            let refusal = (401, "Unauthorized".to_owned());
            assert_eq!(house.ask(method, path, who).await, refusal, "{method} {path} {who:?}");
        }
        let verb =
            BTreeMap::from([("GET", "get"), ("POST", "create"), ("PUT", "update"), ("DELETE", "delete")])
                [method];
        for who in [house.certificate("bob"), token("bob")] {
            let text = format!(
                "Forbidden (user=bob, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
                about.join(" ")
            );
            assert_eq!(house.ask(method, path, &who).await, (403, text), "{method} {path}");
        }
        for right in
            ["pods", "healthz", "configz", "statusz", "metrics", "stats", "log", "checkpoint", "proxy"]
        {
            let name = format!("may-{right}");
            for who in [house.certificate(&name), token(&name)] {
                let (status, text) = house.ask(method, path, &who).await;
                let in_ = !matches!(status, 401 | 403) && !text.starts_with("Authorization error");
                assert_eq!(in_, about.contains(&right), "{method} {path} {name}: {status} {text}");
            }
        }
    }
}

/// Warnings, field by field.
#[derive(Debug, Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line.push_str(&format!("{field}={value:?} "));
        });
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn strangers_do_not_fill_the_log() {
    let warnings = Warnings::default();
    let _heard = tracing::subscriber::set_default(warnings.clone());
    // tracing asks the only subscriber there is on the thread that first comes to a line, where another test may have
    // none, and remembers the answer; of two it asks both.
    let _second = tracing::Dispatch::new(Warnings::default());
    let house = house(false, WEBHOOK).await;
    let stranger = Who::Certificate(certificate(&authority("ca"), "bob", |_| {}).0);
    let (begun, path) = (std::time::Instant::now(), format!("/{}", "x".repeat(10_000)));
    for _ in 0..20 {
        assert_eq!(house.ask("GET", &path, &stranger).await.0, 401);
    }
    let bob = house.certificate("bob");
    house.asked.lock().unwrap().broken = true;
    for _ in 0..20 {
        assert_eq!(house.ask("GET", &path, &bob).await.0, 500);
    }
    let most = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    let lines = warnings.0.lock().unwrap();
    assert!((1..=most).contains(&lines.len()), "{most}: {lines:?}");
    assert!(lines.iter().all(|line| line.len() < 1500), "{lines:?}");
}

#[tokio::test]
async fn the_anonymous_are_somebody_only_where_they_are_let_in() {
    let house = house(true, WEBHOOK).await;
    for (method, path, _) in PATHS {
        let (status, text) = house.ask(method, path, &Who::Nobody).await;
        assert_eq!(status, 403, "{path}");
        assert!(text.starts_with("Forbidden (user=system:anonymous, verb="), "{text}");
        // A credential that is no good is not forgiven.
        let stranger = Who::Certificate(certificate(&authority("ca"), "bob", |_| {}).0);
        assert_eq!(house.ask(method, path, &stranger).await.0, 401, "{path}");
    }
    let last = house.asked.lock().unwrap().access.last().cloned().unwrap();
    assert_eq!(last["groups"], json!(["system:unauthenticated"]));
}

#[tokio::test]
async fn who_may_do_everything_still_has_to_say_who_they_are() {
    let house = house(false, Mode::AlwaysAllow).await;
    assert_eq!(house.ask("GET", "/pods", &Who::Nobody).await.0, 401);
    assert_eq!(house.ask("GET", "/pods", &token("bob")).await.0, 200);
    assert!(house.asked.lock().unwrap().access.is_empty());
}

#[tokio::test]
async fn what_the_api_server_is_asked_and_how_often() {
    let house = house(false, WEBHOOK).await;
    let bob = house.certificate("may-stats");
    for _ in 0..3 {
        assert_eq!(house.ask("GET", "/healthz", &bob).await.0, 403);
        assert_eq!(house.ask("GET", "/healthz", &token("may-healthz")).await.0, 200);
    }
    let asked = house.asked.lock().unwrap();
    assert_eq!(asked.tokens, ["of-may-healthz"]);
    assert_eq!(asked.access.len(), 3);
    let attributes = json!({ "verb": "get", "version": "v1", "resource": "nodes", "name": "node-1",
        "subresource": "healthz" });
    assert_eq!(asked.access[0]["resourceAttributes"], attributes);
    assert_eq!(asked.access[0]["user"], "may-stats");
    assert_eq!(asked.access[0]["groups"], json!(["org", "system:authenticated"]));
    let id = asked.access[0]["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap();
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{id}");
    assert_eq!(asked.access[2]["groups"], json!(["g", "system:authenticated"]));
}

#[tokio::test]
async fn an_api_server_that_cannot_say_lets_nobody_in() {
    let house = house(false, WEBHOOK).await;
    house.asked.lock().unwrap().broken = true;
    let text = "Authorization error (user=bob, verb=get, resource=nodes, subresource=pods)".to_owned();
    assert_eq!(house.ask("GET", "/pods", &token("bob")).await, (500, text));
    // It was no answer: it is asked again.
    house.asked.lock().unwrap().broken = false;
    assert_eq!(house.ask("GET", "/pods", &token("bob")).await.0, 403);
}

/// A thousand made-up tokens while the API server is silent: the last ones are told so at once, and
/// who needs no answer of it gets in.
#[tokio::test]
async fn a_crowd_at_the_door_is_sent_away() {
    let (silent, folder) =
        (tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(), tempfile::tempdir().unwrap());
    let config = kube::Config::new(format!("http://{}", silent.local_addr().unwrap()).parse().unwrap());
    let ca = authority("ca");
    let client_ca = ClientCa::new(ca.pem().as_bytes()).unwrap();
    let how = Authentication { client_ca, tokens_for: TOKENS, anonymous: false };
    let sources = sources(folder.path(), no_runtime());
    let client = Client::try_from(config).unwrap();
    let server = Server::new(settings(folder.path()), sources, how, Mode::AlwaysAllow, Some(client)).unwrap();
    let ask = |token: String| {
        let request =
            Request::get("/pods").header("authorization", format!("Bearer {token}")).body(Body::empty());
        serve(server.inner.clone(), Door::ReadWrite(Vec::new().into()), request.unwrap())
    };
    let crowd: Vec<_> = (0..256).map(|number| tokio::spawn(ask(format!("t{number}")))).collect();
    for _ in 0..10_000 {
        if server.inner.gate.free() == Some(0) {
            break;
        }
        tokio::task::yield_now().await;
    }
    let (status, text) = said(ask("last".to_owned()).await).await;
    assert_eq!((status, text.as_str()), (429, "Too many requests, please try again later."));
    let known = Door::ReadWrite(vec![certificate(&ca, "bob", |_| {}).0].into());
    let request = Request::get("/pods").body(Body::empty()).unwrap();
    assert_eq!(said(serve(server.inner.clone(), known, request).await).await.0, 200);
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    for one in crowd {
        assert!(one.await.unwrap_err().is_cancelled());
    }
    assert_eq!(server.inner.gate.free(), Some(256));
}

#[tokio::test]
async fn a_token_beside_a_certificate_is_passed_on_to_nobody() {
    let ca = authority("ca");
    let client_ca = ClientCa::new(ca.pem().as_bytes()).unwrap();
    let how = Authentication { client_ca, tokens_for: None, anonymous: false };
    let authenticator = super::authn::Authenticator::new(how, None).unwrap();
    let mut headers = http::HeaderMap::new();
    headers.insert(http::header::AUTHORIZATION, "Bearer secret".parse().unwrap());
    let chain = [certificate(&ca, "bob", |_| {}).0];
    assert_eq!(authenticator.who(&chain, &mut headers).await.ok().unwrap().name, "bob");
    assert!(headers.is_empty(), "{headers:?}");
}

#[tokio::test]
async fn a_new_ca_counts_at_once_and_a_bad_one_not_at_all() {
    let house = house(false, Mode::AlwaysAllow).await;
    let (old, next) = (house.certificate("bob"), authority("next"));
    let new = Who::Certificate(certificate(&next, "eve", |_| {}).0);
    assert_eq!(house.ask("GET", "/pods", &old).await.0, 200);
    assert_eq!(house.ask("GET", "/pods", &new).await.0, 401);
    let client_ca = ClientCa::new(house.ca.pem().as_bytes()).unwrap();
    for bad in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(client_ca.replace(bad.as_bytes()).is_err());
    }
    let chain = |who: &Who| match who {
        Who::Certificate(certificate) => vec![certificate.clone()],
        _ => Vec::new(),
    };
    assert_eq!(client_ca.user(&chain(&old)).unwrap().unwrap().name, "bob");
    client_ca.replace(next.pem().as_bytes()).unwrap();
    assert!(client_ca.user(&chain(&old)).is_err());
    assert_eq!(client_ca.user(&chain(&new)).unwrap().unwrap().name, "eve");
    assert_eq!(ClientCa::default().user(&chain(&old)).unwrap(), None);
}

#[tokio::test]
async fn the_read_only_port_shows_little() {
    let house = house(false, WEBHOOK).await;
    for (method, path, _) in PATHS {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let (status, text) = said(serve(house.server.inner.clone(), Door::ReadOnly, request).await).await;
        let root = path.trim_start_matches('/').split(['/', '?']).next().unwrap();
        match root {
            "exec" | "attach" | "run" | "portForward" | "containerLogs" | "runningpods" | "logs" => {
                assert_eq!((status, text.as_str()), (405, "Debug endpoints are disabled.\n"), "{path}");
            }
            "debug" if path.starts_with("/debug/pprof/") => assert_eq!(status, 405, "{path}"),
            "configz" | "flagz" | "statusz" | "debug" | "checkpoint" | "" | "no" => {
                assert_eq!(status, 404, "{path}");
            }
            "healthz" | "metrics" => assert_eq!(status, 200, "{path}: {text}"),
            "pods" if method == "GET" => assert_eq!(status, 200, "{path}: {text}"),
            "pods" => assert_eq!(status, 405, "{path}"),
            // There is no runtime to ask.
            "stats" => assert_eq!(status, 500, "{path}: {text}"),
            other => unreachable!("{other}"),
        }
    }
    let asked = house.asked.lock().unwrap();
    assert!(asked.tokens.is_empty() && asked.access.is_empty());
}

#[tokio::test]
async fn answers_of_those_who_may() {
    let house = house(false, Mode::AlwaysAllow).await;
    let me = token("bob");
    std::fs::write(house.folder.path().join("syslog"), "hello").unwrap();
    let get = async |path: &str| house.ask("GET", path, &me).await;
    let (status, pods) = get("/pods").await;
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(
        (status, &pods["kind"], &pods["items"][0]["metadata"]["name"]),
        (200, &json!("PodList"), &json!("web"))
    );
    let (_, configz) = get("/configz").await;
    assert_eq!(
        serde_json::from_str::<Value>(&configz).unwrap()["kubeletconfig"]["kind"],
        "KubeletConfiguration"
    );
    assert_eq!(get("/logs/syslog").await, (200, "hello".to_owned()));
    assert!(get("/logs/").await.1.contains("<a href=\"syslog\">syslog</a>"));
    assert_eq!(get("/logs/%2e%2e/passwd").await.0, 404);
    assert!(get("/flagz").await.1.ends_with("\nv=2\n"));
    assert!(get("/statusz").await.1.contains("Binary version: 1.36.3\n"));
    let (_, metrics) = get("/metrics").await;
    assert!(metrics.contains("git_version=\"v1.36.3+gantry.0.1.0\""));
    assert!(metrics.contains("\nkubelet_desired_pods{static=\"\"} 1\n"), "{metrics}");
    assert!(get("/metrics/resource").await.1.contains("\nresource_scrape_error 1\n"));
    assert!(get("/metrics/slis").await.1.contains("process_start_time_seconds"));
    assert_eq!(
        get("/containerLogs/ns/web/x").await,
        (404, "container \"x\" not found in pod \"web\"".to_owned())
    );
    assert_eq!(get("/containerLogs/ns/x/c").await, (404, "pod \"x\" does not exist".to_owned()));
    assert_eq!(
        get("/containerLogs/ns/web/c").await,
        (400, "container \"c\" in pod \"web\" is not available".to_owned())
    );
    assert_eq!(
        get("/containerLogs/ns/web/c?tailLines=-1").await,
        (422, "{\"message\": \"Invalid request.\"}".to_owned())
    );
    assert_eq!(get("/exec/ns/x/c?output=1").await, (404, "pod does not exist".to_owned()));
    assert_eq!(
        get("/exec/ns/web/c").await,
        (400, "you must specify at least 1 of stdin, stdout, stderr".to_owned())
    );
    assert_eq!(get("/portForward/ns/web/other").await, (404, "pod not found".to_owned()));
    assert_eq!(get("/no/such").await.0, 404);
    assert_eq!(house.ask("POST", "/pods", &me).await, (405, "405: Method Not Allowed".to_owned()));
    assert_eq!(house.ask("GET", "/%zz", &me).await.0, 400);
    let put = Request::put("/debug/flags/v")
        .header("authorization", "Bearer of-bob")
        .body(Body::from("5"))
        .unwrap();
    let door = Door::ReadWrite(Vec::new().into());
    let (status, text) = said(serve(house.server.inner.clone(), door, put).await).await;
    assert_eq!((status, text.as_str()), (200, "successfully set klog.logging.verbosity to 5"));
    let metrics = &house.server.inner.sources.metrics;
    assert_eq!(metrics.http_requests.get(["GET", "logs", "readwrite", "false"]), Some(3.0));
    assert_eq!(metrics.http_inflight_requests.get(["GET", "logs", "readwrite", "false"]), Some(0.0));
}

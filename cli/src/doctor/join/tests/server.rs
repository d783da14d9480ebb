//! As much of an API server as a join asks for, on loopback, with one fault at most.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::join::discovery::{CaHash, Endpoint, Token};
use crate::join::fake::{authority, sign};

pub(super) const TOKEN: &str = "abcdef.0123456789abcdef";

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ServerFault {
    None,
    /// No TLS.
    Plain,
    /// Its clock is so far ahead.
    Date(SignedDuration),
    NoInfo,
    /// The days of its certificate.
    Dates(Timestamp, Timestamp),
    /// Its certificate is of an authority that cluster-info does not know.
    OtherSigner,
    /// All names in its certificate.
    Names(Vec<String>),
    /// What cluster-info calls it, as HOST:PORT.
    Named(String),
    /// Its answer to whoever shows the token.
    Answer(u16),
    /// It has a node of our name; whether that is Ready.
    Twin(bool),
    /// kubelet-config, and its release.
    Kubelet(String, String),
}

#[derive(Debug)]
pub(super) struct FakeApiServer {
    pub(super) endpoint: Endpoint,
    /// Of its authority's key.
    pub(super) hash: String,
    /// Paths that the token was shown with.
    shown: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeApiServer {
    pub(super) async fn start(fault: ServerFault) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (ca, stranger) = (authority(), authority());
        let signer = if fault == ServerFault::OtherSigner { &stranger } else { &ca };
        let acceptor = acceptor(&fault, signer);
        let hash = CaHash::of(ca.der()).unwrap().to_string();
        let info = cluster_info(&fault, &endpoint, &ca.pem());
        let shown = Arc::default();
        let seen = Arc::clone(&shown);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (fault, info, seen) = (fault.clone(), info.clone(), Arc::clone(&seen));
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if fault == ServerFault::Plain {
                        let mut stream = stream;
                        // Whatever is asked; who asks may be gone.
                        let _ =
                            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
                    } else if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, &fault, &info, &seen).await;
                    }
                });
            }
        });
        Self { endpoint, hash, shown, task }
    }

    /// Paths that the token was shown with.
    pub(super) fn shown_to(&self) -> Vec<String> {
        self.shown.lock().unwrap().clone()
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn acceptor(fault: &ServerFault, signer: &Authority) -> TlsAcceptor {
    let names = match fault {
        ServerFault::Names(names) => names.clone(),
        ServerFault::Named(name) if !name.starts_with("127") => {
            vec!["127.0.0.1".to_owned(), name.split_once(':').unwrap().0.to_owned()]
        }
        _ => vec!["127.0.0.1".to_owned()],
    };
    let mut params = CertificateParams::new(names).unwrap();
    if let ServerFault::Dates(from, until) = fault {
        let time = |at: &Timestamp| std::time::SystemTime::from(*at).into();
        (params.not_before, params.not_after) = (time(from), time(until));
    }
    let key = KeyPair::generate().unwrap();
    let certificate: CertificateDer<'static> = params.signed_by(&key, signer).unwrap().into();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

fn cluster_info(fault: &ServerFault, endpoint: &Endpoint, ca: &str) -> Value {
    let server = match fault {
        ServerFault::Named(name) => name.clone(),
        _ => endpoint.to_string(),
    };
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: ''\n  cluster:\n    certificate-authority-data: {}\n    server: \
         https://{server}\nusers: []\n",
        STANDARD.encode(ca)
    );
    let token: Token = TOKEN.parse().unwrap();
    let signed = format!("jws-kubeconfig-{}", token.id());
    let signature = sign(&kubeconfig, &token);
    map("kube-public", "cluster-info", &json!({ "kubeconfig": kubeconfig, signed: signature }))
}

fn map(namespace: &str, name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": namespace, "name": name }, "data": data })
}

fn status(code: u16) -> (u16, Value) {
    let body = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "" });
    (code, body)
}

/// One request for a connection.
async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    fault: &ServerFault,
    info: &Value,
    shown: &Mutex<Vec<String>>,
) {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 4096];
        match stream.read(&mut part).await {
            Ok(read @ 1..) => request.extend_from_slice(&part[..read]),
            // A handshake and no more.
            Ok(0) | Err(_) => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap().split('?').next().unwrap();
    let trusted = request.contains(&format!("Bearer {TOKEN}"));
    if trusted {
        shown.lock().unwrap().push(path.to_owned());
    }
    let (code, body) = content(fault, info, path, trusted);
    let date =
        Timestamp::now() + if let ServerFault::Date(ahead) = fault { *ahead } else { SignedDuration::ZERO };
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&date).unwrap();
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} Some\r\nDate: {date}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: \
         {}\r\n\r\n",
        body.len()
    );
    // Who asked may be gone.
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn content(fault: &ServerFault, info: &Value, path: &str, trusted: bool) -> (u16, Value) {
    let (kubelet, release) = match fault {
        ServerFault::Kubelet(file, release) => (file.as_str(), release.as_str()),
        _ => ("cgroupDriver: systemd\n", "v1.36.3"),
    };
    match path {
        "/version" => (200, json!({ "major": "1", "minor": "36", "gitVersion": release })),
        "/api/v1/namespaces/kube-public/configmaps/cluster-info" if *fault != ServerFault::NoInfo => {
            (200, info.clone())
        }
        _ if path.starts_with("/api/v1/namespaces/kube-public/") => status(404),
        _ if !trusted => status(403),
        _ if matches!(fault, ServerFault::Answer(_)) => {
            let ServerFault::Answer(code) = fault else { unreachable!() };
            status(*code)
        }
        "/api/v1/namespaces/kube-system/configmaps/kubelet-config" => {
            (200, map("kube-system", "kubelet-config", &json!({ "kubelet": kubelet })))
        }
        "/api/v1/namespaces/kube-system/configmaps/kubeadm-config" => {
            let file = format!(
                "kubernetesVersion: {release}\nnetworking:\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/16\n"
            );
            (200, map("kube-system", "kubeadm-config", &json!({ "ClusterConfiguration": file })))
        }
        "/api/v1/nodes/vm1" if matches!(fault, ServerFault::Twin(_)) => {
            let ready = if *fault == ServerFault::Twin(true) { "True" } else { "Unknown" };
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            (
                200,
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "vm1" }, "status": { "conditions": conditions } }),
            )
        }
        _ => status(404),
    }
}

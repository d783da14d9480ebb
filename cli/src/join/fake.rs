//! A cluster for tests: an API server over TLS on loopback with the objects that kubeadm keeps. Owns its authority and
//! certificate; what it answers is [`FakeApiServer`]'s. Called by tests of join and doctor.

#![expect(clippy::disallowed_methods, reason = "the fake is served until its test ends")]

use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use gantry_kube_client::fake_apiserver::FakeApiServer;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::discovery::{CaHash, Endpoint, Token};

const INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// See the module.
pub(crate) struct FakeCluster {
    pub(crate) api: FakeApiServer,
    pub(crate) address: SocketAddr,
    pub(crate) token: Token,
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// An authority of its own.
pub(crate) fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// As kubeadm signs.
pub(crate) fn sign(text: &str, token: &Token) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{}"}}"#, token.id()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    let code = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(text)).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(code))
}

impl FakeCluster {
    /// Serves; its certificate is for these names.
    pub(crate) async fn start(names: &[&str]) -> Self {
        let authority = authority();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = FakeApiServer::default();
        let (acceptor, router) = (TlsAcceptor::from(Arc::new(tls)), api.router());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A client that goes away is no matter.
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let token = "abcdef.0123456789abcdef".parse().unwrap();
        let cluster = Self { api, address, token, authority };
        cluster.publish(&format!("https://{address}"), &cluster.ca());
        cluster
            .configure(&json!({ "cgroupDriver": "systemd", "cgroupRoot": "/kubelet", "failSwapOn": false }));
        cluster
    }

    /// Where it is.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.address.to_string().parse().unwrap()
    }

    /// Its certificate authority, PEM.
    pub(crate) fn ca(&self) -> String {
        self.authority.pem()
    }

    /// Of its authority.
    pub(crate) fn hash(&self) -> CaHash {
        CaHash::of(self.authority.der()).unwrap()
    }

    /// Another cluster's authority, PEM.
    pub(crate) fn other_ca() -> String {
        authority().pem()
    }

    /// Makes cluster-info, signed with the token.
    pub(crate) fn publish(&self, server: &str, ca: &str) {
        let text = format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: {server}\n  name: \
             \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n",
            STANDARD.encode(ca)
        );
        let signature = sign(&text, &self.token);
        self.put_info(
            &json!({ "kubeconfig": text, (format!("jws-kubeconfig-{}", self.token.id())): signature }),
        );
    }

    /// cluster-info with this data.
    pub(crate) fn put_info(&self, data: &serde_json::Value) {
        self.api.put(INFO, json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": data }));
    }

    /// The ConfigMaps of kube-system, with a kubelet-config of these fields.
    pub(crate) fn configure(&self, kubelet: &serde_json::Value) {
        let put = |name: &str, data: serde_json::Value| {
            let path = format!("/api/v1/namespaces/kube-system/configmaps/{name}");
            self.api.put(&path, json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": data }));
        };
        let cluster = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.3\n\
                       networking:\n  podSubnet: 10.244.0.0/16,fd00::/48\n";
        put("kubeadm-config", json!({ "ClusterConfiguration": cluster }));
        put("kubelet-config", json!({ "kubelet": kubelet.to_string() }));
        put("kube-proxy", json!({ "config.conf": "" }));
    }
}

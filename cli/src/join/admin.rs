//! What a join does as the cluster's administrator: reaching the API server with a kubeconfig, a bootstrap token for one
//! join. Owns the Secret's form and life; never who is let in. Called by [`super`] and [`crate::leave`].

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use gantry_kube_client::identity::client;
use gantry_kube_client::identity::kubeconfig::Access;
use gantry_metrics::Metrics;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};

use super::discovery::{self, ClusterInfo, Endpoint, Token};

/// Of a token that is for one join and deleted after it.
const LIFE: SignedDuration = SignedDuration::from_mins(15);
/// What its holder belongs to: kubeadm's roles are bound to it.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const KIND: &str = "bootstrap.kubernetes.io/token";
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Where a kubeconfig says that its server is.
///
/// # Errors
/// When it names no port and no usual one.
pub(super) fn endpoint(access: &Access) -> Result<Endpoint> {
    let server = &access.server;
    let host = server.host().context("the kubeconfig's server has no host")?;
    let port = server.port_u16().unwrap_or(443);
    format!("{host}:{port}").parse().map_err(|error: String| anyhow!("the kubeconfig's server: {error}"))
}

/// The same server at another address, under the name that the kubeconfig has for it.
///
/// # Errors
/// When the address is none.
pub(super) fn with_endpoint(access: Access, to: &Endpoint) -> Result<Access> {
    let name = match access.server_name {
        Some(name) => name,
        None => endpoint(&access)?.host,
    };
    Ok(to.access(Some(&name), access.trust, access.user)?)
}

/// A client with the kubeconfig's credentials.
///
/// # Errors
/// When they cannot be read.
pub(crate) fn connect(access: &Access) -> Result<kube::Client> {
    let pair = match &access.user.certificate {
        Some(certificate) => Some(Arc::new(certificate.load().context("the kubeconfig's certificate")?)),
        None => None,
    };
    let (_, current) = tokio::sync::watch::channel(pair);
    client::single(access, &current, &Arc::new(Metrics::default())).context("the kubeconfig's server")
}

/// cluster-info, from whom the kubeconfig trusts.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn cluster_info(client: &kube::Client) -> Result<ClusterInfo> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    let map = maps.get("cluster-info").await;
    let map =
        map.context("read the ConfigMap kube-public/cluster-info: was this cluster made by kubeadm?")?;
    Ok(discovery::parse(discovery::kubeconfig(&map)?)?)
}

/// Makes a token.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn make_token(client: &kube::Client, node: &str) -> Result<Token> {
    let token = random()?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    let secret = secret(&token, node, Timestamp::now());
    secrets.create(&PostParams::default(), &secret).await.context("make a bootstrap token")?;
    Ok(token)
}

/// Deletes it; none is fine.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn delete_token(client: &kube::Client, token: &Token) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    match secrets.delete(&name(token), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop).context("delete the bootstrap token"),
    }
}

fn name(token: &Token) -> String {
    format!("bootstrap-token-{}", token.id())
}

fn secret(token: &Token, node: &str, now: Timestamp) -> Secret {
    // Whole seconds, as kubeadm writes them.
    let until = Timestamp::from_second(now.as_second()).unwrap_or(now) + LIFE;
    let data = [
        ("token-id", token.id().to_owned()),
        ("token-secret", token.secret().to_owned()),
        ("expiration", until.to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("usage-bootstrap-signing", "true".to_owned()),
        ("auth-extra-groups", GROUP.to_owned()),
        ("description", format!("gantry join of {node}")),
    ];
    Secret {
        metadata: ObjectMeta { name: Some(name(token)), ..ObjectMeta::default() },
        type_: Some(KIND.to_owned()),
        string_data: Some(
            data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        ),
        ..Secret::default()
    }
}

/// Each letter alike: bytes beyond the last whole alphabet are passed over.
fn random() -> Result<Token> {
    let source = SystemRandom::new();
    let mut text = String::new();
    while text.len() < 22 {
        let mut byte = [0];
        source.fill(&mut byte).map_err(|_| anyhow!("the system has no random numbers"))?;
        let [byte] = byte;
        if let (Some(letter), true) = (ALPHABET.get(usize::from(byte % 36)), byte < 252) {
            text.push(char::from(*letter));
        }
    }
    let (id, secret) = text.split_at(6);
    format!("{id}.{secret}").parse().map_err(|error: String| anyhow!("a token of our own: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_join() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert_ne!(one, other);
        let secret = secret(&one, "n1", "2026-01-01T00:00:00.7Z".parse().unwrap());
        let data = secret.string_data.unwrap();
        assert_eq!(secret.metadata.name.unwrap(), format!("bootstrap-token-{}", one.id()));
        assert_eq!(data["expiration"], "2026-01-01T00:15:00Z");
        assert_eq!(format!("{}.{}", data["token-id"], data["token-secret"]), one.to_string());
        assert!(!format!("{one:?}").contains(one.secret()), "not in a log");
    }
}

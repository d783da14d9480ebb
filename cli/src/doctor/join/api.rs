//! What of the cluster a join depends on, as this node sees it: first what anybody may see, then, from a server that the
//! cluster's own authority vouches for, what the token opens. Owns asking; never judges, and shows the token to nobody
//! else. Called by [`super`].

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use gantry_base::error::chain;
use gantry_kube_client::identity::client::shown::Chain;
use gantry_kube_client::identity::kubeconfig::{Trust, User};
use gantry_kube_client::identity::pair::{self, Leaf};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::join::discovery::{self, CaHash, ClusterInfo, Endpoint, Token};
use crate::join::facts::{Release, release};

/// For one step on the way to an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a join is given.
#[derive(Debug, Clone)]
pub(crate) struct JoinTarget {
    pub(crate) endpoint: Endpoint,
    /// As it was typed.
    pub(crate) token: Option<String>,
    /// As they were typed.
    pub(crate) hashes: Vec<String>,
}

/// The cluster, as far as a join cares.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: Option<Result<Token, String>>,
    pub(crate) hashes: Vec<Result<CaHash, String>>,
    /// What answers at the endpoint.
    pub(crate) server: Result<ApiServer, ConnectFailure>,
    /// Only of a server that shakes hands; so are the next two.
    pub(crate) clock: Option<Clock>,
    /// `gitVersion`, as anybody may ask it.
    pub(crate) version: Option<String>,
    pub(crate) info: Result<Info, String>,
    /// What the token opens; none without a token, or when it must not be shown to this server.
    pub(crate) member: Option<Member>,
}

/// Why nobody shows a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// The host has no address.
    Name(String),
    /// Nobody takes connections there.
    Connect(String),
    /// Somebody does, who speaks no TLS.
    Handshake(String),
}

/// Who answers.
#[derive(Debug, Clone)]
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    pub(crate) leaf: Leaf,
    /// Whether the certificate is for the host that was asked.
    pub(crate) bears: bool,
}

/// Two clocks at about the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// The server's Date, in whole seconds.
    pub(crate) theirs: Timestamp,
    pub(crate) ours: Timestamp,
}

/// What the ConfigMap cluster-info says, and what speaks for it.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    pub(crate) cluster: ClusterInfo,
    /// Whether the token has signed it; none without a token.
    pub(crate) signature: Option<Signature>,
    /// Hashes of the authorities' keys.
    pub(crate) found: Vec<CaHash>,
    /// Whether the authorities vouch for the server that answered, whatever the hour.
    pub(crate) vouched: Result<(), String>,
    /// Of the authority that ends last.
    pub(crate) until: Option<Timestamp>,
    /// Whether the server's certificate is for the name that the cluster gives itself.
    pub(crate) bears: bool,
    pub(crate) named: Named,
}

/// How a token and cluster-info go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signature {
    Good,
    /// With another secret.
    Bad,
    /// No token of this id has signed.
    Absent,
}

/// The name that nodes reach the API server by.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) addresses: Result<Vec<IpAddr>, String>,
    /// Of the connection to it; none when it is the endpoint itself, or has no address.
    pub(crate) reached: Option<Result<(), ConnectFailure>>,
}

/// What a bootstrap token opens.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) kubelet: Result<KubeletFile, ReadFailure>,
    pub(crate) cluster: Result<ClusterFile, ReadFailure>,
    /// A node of our name: whether it is Ready.
    pub(crate) twin: Result<Option<bool>, ReadFailure>,
}

/// Why something was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// 401: the server does not know the token.
    Unknown,
    /// 403: it does, and it may not.
    Forbidden,
    Other(String),
}

/// Of the kubelet's configuration, what the node must be able to do. A field that is not set has the kubelet's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct KubeletFile {
    pub(crate) cgroup_driver: Option<String>,
    pub(crate) cgroup_root: Option<String>,
    #[serde(rename = "failCgroupV1")]
    pub(crate) fail_cgroup_v1: Option<bool>,
    pub(crate) fail_swap_on: Option<bool>,
}

/// Of kubeadm's ClusterConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClusterFile {
    pub(crate) kubernetes_version: String,
    pub(crate) networking: Networking,
}

/// Networks of the cluster; two with a comma between when it has two families.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Networking {
    pub(crate) pod_subnet: String,
    pub(crate) service_subnet: String,
}

/// Asks the cluster; `name` is the node's.
pub(crate) async fn look(target: &JoinTarget, name: &str) -> Api {
    let endpoint = target.endpoint.clone();
    let token = target.token.as_deref().map(str::parse::<Token>);
    let (server, shown) = server(&endpoint)
        .await
        .map(|(server, chain)| (Ok(server), Some(chain)))
        .unwrap_or_else(|trouble| (Err(trouble), None));
    let mut api = Api {
        hashes: target.hashes.iter().map(|hash| hash.parse()).collect(),
        info: Err("the API server does not answer".to_owned()),
        endpoint,
        token,
        server,
        clock: None,
        version: None,
        member: None,
    };
    let Some(shown) = shown else { return api };
    (api.clock, api.version) = clock(&api.endpoint).await;
    api.info = info(&api, &shown).await;
    if let (Ok(info), Some(Ok(token))) = (&api.info, &api.token)
        && is_meant(&api, info)
    {
        api.member = Some(member(&api.endpoint, info, token, name).await);
    }
    api
}

/// Whether this is the cluster that the token belongs to: whoever gets it may join machines of his own.
fn is_meant(api: &Api, info: &Info) -> bool {
    info.signature == Some(Signature::Good)
        && info.vouched.is_ok()
        && (api.hashes.is_empty() || api.is_pinned(info))
}

impl Api {
    /// The kubelet's configuration, if it was read.
    pub(crate) fn kubelet(&self) -> Option<&KubeletFile> {
        self.member.as_ref()?.kubelet.as_ref().ok()
    }

    /// Where nodes find the API server, if this one does; else where it answered.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let named =
            self.info.as_ref().ok().and_then(|info| info.named.addresses.as_ref().ok()?.first().copied());
        named.or_else(|| Some(self.server.as_ref().ok()?.address.ip()))
    }

    /// Of the API server; else of the cluster's configuration.
    pub(crate) fn release(&self) -> Option<Release> {
        let file = || Some(self.member.as_ref()?.cluster.as_ref().ok()?.kubernetes_version.as_str());
        self.version.as_deref().or_else(file).and_then(release)
    }

    /// Whether one of the authorities has one of the hashes that were given.
    pub(crate) fn is_pinned(&self, info: &Info) -> bool {
        self.hashes.iter().flatten().any(|hash| info.found.contains(hash))
    }
}

async fn addresses(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, String> {
    let look = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
    match tokio::time::timeout(PATIENCE, look).await {
        Err(_) => Err(late()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(found)) => match found.collect::<Vec<_>>() {
            none if none.is_empty() => Err("it has no address".to_owned()),
            some => Ok(some),
        },
    }
}

fn late() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// The first address that takes a connection; else what the last one said.
async fn connection(addresses: &[SocketAddr]) -> Result<(SocketAddr, TcpStream), ConnectFailure> {
    let mut last = String::new();
    for address in addresses {
        match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok((*address, stream)),
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address}: {}", late()),
        }
    }
    Err(ConnectFailure::Connect(last))
}

async fn server(endpoint: &Endpoint) -> Result<(ApiServer, Chain), ConnectFailure> {
    let addresses = addresses(endpoint).await.map_err(ConnectFailure::Name)?;
    let (address, stream) = connection(&addresses).await?;
    let trouble = |error: &dyn std::error::Error| ConnectFailure::Handshake(chain(error));
    let shown = match tokio::time::timeout(PATIENCE, Chain::of(stream, &endpoint.host)).await {
        Ok(shown) => shown.map_err(|error| trouble(&error))?,
        Err(_) => return Err(ConnectFailure::Handshake(late())),
    };
    let leaf = shown.leaf().map_err(|error| trouble(&error))?;
    Ok((ApiServer { address, bears: shown.bears(&endpoint.host), leaf }, shown))
}

/// The Date of an answer, whatever else it says, and the server's version if it may be known.
async fn clock(endpoint: &Endpoint) -> (Option<Clock>, Option<String>) {
    let ask = async {
        let access = endpoint.access(None, Trust::Anybody, User::default()).ok()?;
        let client = discovery::connect(&access).ok()?;
        let request = http_get("/version")?;
        let answer = client.send(request).await.ok()?;
        let ours = Timestamp::now();
        let date = answer.headers().get("date").and_then(|text| text.to_str().ok()).and_then(date);
        let body = axum::body::to_bytes(axum::body::Body::new(answer.into_body()), 1 << 16).await.ok();
        let told = body.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        let version = told.and_then(|told| Some(told.get("gitVersion")?.as_str()?.to_owned()));
        Some((date.map(|theirs| Clock { theirs, ours }), version))
    };
    tokio::time::timeout(PATIENCE, ask).await.ok().flatten().unwrap_or_default()
}

fn http_get(path: &str) -> Option<hyper::Request<Body>> {
    hyper::Request::get(path).body(Body::empty()).ok()
}

/// `Wed, 25 Nov 2026 15:25:24 GMT`.
fn date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

async fn info(api: &Api, shown: &Chain) -> Result<Info, String> {
    let map = discovery::read(&api.endpoint, None, Trust::Anybody).await.map_err(|error| chain(&error))?;
    let text = discovery::kubeconfig(&map).map_err(|error| chain(&error))?;
    let cluster = discovery::parse(text).map_err(|error| chain(&error))?;
    let authorities = pair::certificates_of(&cluster.authority).map_err(|error| chain(&error))?;
    let found =
        authorities.iter().map(CaHash::of).collect::<Result<_, _>>().map_err(|error| chain(&error))?;
    let signature = match &api.token {
        Some(Ok(token)) => Some(signature(&map, token)),
        _ => None,
    };
    Ok(Info {
        signature,
        found,
        vouched: shown.signed_by(&authorities).map_err(|error| error.to_string()),
        until: authorities.iter().filter_map(|one| Some(Leaf::parse(one).ok()?.not_after)).max(),
        bears: shown.bears(&cluster.server.host),
        named: check_named_endpoint(&api.endpoint, &cluster.server).await,
        cluster,
    })
}

fn signature(map: &ConfigMap, token: &Token) -> Signature {
    match discovery::verify_signature(map, token) {
        Ok(_) => Signature::Good,
        Err(discovery::Error::UnknownToken(_)) => Signature::Absent,
        Err(_) => Signature::Bad,
    }
}

async fn check_named_endpoint(given: &Endpoint, named: &Endpoint) -> Named {
    match addresses(named).await {
        Err(error) => Named { addresses: Err(error), reached: None },
        Ok(found) => {
            let reached = match named == given {
                true => None,
                false => Some(connection(&found).await.map(drop)),
            };
            Named { addresses: Ok(found.iter().map(SocketAddr::ip).collect()), reached }
        }
    }
}

/// Asked over TLS that the cluster's authority vouches for.
async fn member(endpoint: &Endpoint, info: &Info, token: &Token, name: &str) -> Member {
    let trust = Trust::Data(info.cluster.authority.clone());
    let client = match endpoint
        .access(None, trust, discovery::bearer(token))
        .map_err(|error| chain(&error))
        .and_then(|access| discovery::connect(&access).map_err(|error| chain(&error)))
    {
        Ok(client) => client,
        Err(error) => {
            let refusal = ReadFailure::Other(error);
            return Member {
                kubelet: Err(refusal.clone()),
                cluster: Err(refusal.clone()),
                twin: Err(refusal),
            };
        }
    };
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(client.clone(), "kube-system");
    let nodes: kube::Api<Node> = kube::Api::all(client);
    Member {
        kubelet: asked(maps.get("kubelet-config")).await.and_then(|map| file(&map, "kubelet")),
        cluster: asked(maps.get("kubeadm-config")).await.and_then(|map| file(&map, "ClusterConfiguration")),
        twin: asked(nodes.get_opt(name)).await.map(|node| node.as_ref().map(is_ready)),
    }
}

async fn asked<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ReadFailure> {
    match tokio::time::timeout(PATIENCE, call).await {
        Err(_) => Err(ReadFailure::Other(late())),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => Err(ReadFailure::Unknown),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(ReadFailure::Forbidden),
        Ok(Err(error)) => Err(ReadFailure::Other(chain(&error))),
    }
}

fn file<T: serde::de::DeserializeOwned>(map: &ConfigMap, key: &str) -> Result<T, ReadFailure> {
    let text = map.data.as_ref().and_then(|data| data.get(key));
    let text = text.ok_or_else(|| ReadFailure::Other(format!("the ConfigMap has no {key}")))?;
    serde_saphyr::from_str(text).map_err(|error| ReadFailure::Other(format!("{key}: {error}")))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

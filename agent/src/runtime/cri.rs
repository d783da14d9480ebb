//! The runtime behind CRI v1, over any tonic channel. Owns the calls, their timeouts and
//! the mapping of answers; never decides what to call. Called by the pod workers through
//! [`Runtime`].

mod about;
mod annotations;
mod container_config;
pub mod driver;
mod keeper;
mod log_end;
mod observe;
mod resources;
mod sandbox_config;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use gantry_base::error::root_cause;
use gantry_metrics::Metrics;
use gantry_model::cgroup::limits::Rules;
use gantry_model::failure::{Failure, FailureKind};
use gantry_model::pod::{Container, Pod, PodUid};
use gantry_numa::affinity::Affinity;
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::cri::{self as wire};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::{
    Changes, Effect, Error, ExecOutput, Image, KnownPod, NewContainer, NewSandbox, Observed, PodStates,
    PullImage, RegistryAuth, Runtime, Subject,
};
use crate::dns::{Resolver, source};
use crate::runtime::Users;
use crate::runtime_ext::pulls::Pulls;
use crate::runtime_ext::pulls::progress::Progress;
use crate::timeline::{Span, parse_runtime_spans};
use gantry_grpc::counted::Counted;
use gantry_grpc::in_go;

/// As the kubelet sets it: lists of a full node exceed gRPC's own 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;
/// The kubelet's runtimeRequestTimeout, unless it is set.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Past a command's own deadline.
const EXEC_SLACK: Duration = Duration::from_secs(10);

/// What the node adds to each pod's configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Where pods' log folders are made.
    pub pod_logs_dir: PathBuf,
    /// For oom_score_adj of burstable pods.
    pub memory_capacity: i64,
    /// Of pods.
    pub resolver: Arc<Resolver>,
    /// Sizes of huge pages that the kernel has, in KiB.
    pub page_sizes: Vec<i64>,
    /// Whether the controllers are on cgroup v2.
    pub cgroup_v2: bool,
    /// Whether the kernel counts swap, so that it can be forbidden.
    pub swap: bool,
    /// With LimitedSwap the bytes that the node has; without, containers get none.
    pub limited_swap: Option<i64>,
    /// Containers that say nothing about seccomp get the runtime's default profile.
    pub seccomp_default: bool,
    /// Where profiles of type Localhost are.
    pub seccomp_root: PathBuf,
    /// For pods whose host name is their FQDN.
    pub cluster_domain: String,
    /// By what CPU and processes are held.
    pub rules: Rules,
    /// For an answer of the runtime; sandboxes wait for the network, and get twice that.
    pub request_timeout: Duration,
}

/// What the runtime can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// Such as `containerd`.
    pub runtime_name: String,
    /// The default handler makes mounts read-only with all that is below them.
    pub recursive_read_only: bool,
    /// Processes can be held to the pod's own groups (supplementalGroupsPolicy Strict).
    pub strict_groups: bool,
    /// Handlers that make user namespaces; the default one is the empty text.
    pub user_namespaces: BTreeSet<String>,
}

/// A CRI runtime.
#[derive(Debug, Clone)]
pub struct CriRuntime {
    runtime: RuntimeServiceClient<Counted>,
    images: ImageServiceClient<Counted>,
    node: NodeConfig,
    metrics: Arc<Metrics>,
    /// Where pulls are told, when somebody looks at them.
    pulls: Option<Pulls>,
}

/// Dials a runtime's socket: `unix:///path`, `unix:/path` or a path alone.
///
/// # Errors
/// When the endpoint is no unix socket or nobody answers there.
pub async fn connect(endpoint: &str) -> Result<Channel, Error> {
    let bad = |reason: &str| Error::Endpoint { endpoint: endpoint.to_owned(), reason: reason.to_owned() };
    let path = socket(endpoint).map_err(|reason| bad(&reason))?;
    let dial = Endpoint::from_shared(format!("unix://{path}")).map_err(|error| bad(&error.to_string()))?;
    dial.connect_timeout(Duration::from_secs(10)).connect().await.map_err(|error| Error::Connect {
        endpoint: endpoint.to_owned(),
        source: Failure {
            code: "",
            ..Failure::new(FailureKind::Unavailable, root_cause(&error).to_string())
        },
    })
}

/// The path in an endpoint, as upstream reads one: what has no scheme is a unix socket's, and what
/// stands between two slashes and the next is a host, which nobody asks.
fn socket(endpoint: &str) -> Result<&str, String> {
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let (scheme, rest) = match endpoint.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest.to_owned()),
        _ => ("unix".to_owned(), format!("//{endpoint}")),
    };
    match scheme.as_str() {
        "unix" => {}
        "tcp" => return Err("only support unix socket endpoint".to_owned()),
        other => return Err(format!("protocol {other:?} not supported")),
    }
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find('/').map_or(0, |slash| rest.len() - slash),
        None => rest.len(),
    };
    let path = &endpoint[endpoint.len() - path..];
    if path.starts_with('/') { Ok(path) } else { Err("there is no path of a socket in it".to_owned()) }
}

impl CriRuntime {
    /// Speaks CRI over `channel`, and counts what it says.
    #[must_use]
    pub fn new(channel: Channel, node: NodeConfig, metrics: Arc<Metrics>) -> Self {
        let channel = Counted::new(channel, metrics.clone());
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            node,
            metrics,
            pulls: None,
        }
    }

    /// Tells its pulls there, and knows their stages from there.
    #[must_use]
    pub fn telling(self, pulls: Option<Pulls>) -> Self {
        Self { pulls, ..self }
    }

    /// What a kubelet reads from Version and Status, too.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn features(&self) -> Result<Features, Error> {
        let wrap = |status: Status| Error::Features { source: failure(&status) };
        let ask = wire::VersionRequest { version: String::new() };
        let version =
            self.runtime().version(timed(ask, self.node.request_timeout)).await.map_err(wrap)?.into_inner();
        let ask = wire::StatusRequest { verbose: false };
        let status =
            self.runtime().status(timed(ask, self.node.request_timeout)).await.map_err(wrap)?.into_inner();
        Ok(Features { runtime_name: version.runtime_name, ..features(&status) })
    }

    /// Which ranges of the node's users the sandboxes of a pod have, whatever their state.
    ///
    /// # Errors
    /// When the runtime does not answer, or a sandbox has users that are no range.
    pub async fn users_of(&self, uid: &PodUid) -> Result<Vec<Users>, String> {
        let users = observe::users(self.runtime(), uid, self.node.request_timeout).await;
        users.map_err(|status| failure(&status).in_go())?.into_iter().collect()
    }

    fn runtime(&self) -> RuntimeServiceClient<Counted> {
        self.runtime.clone()
    }

    fn images(&self) -> ImageServiceClient<Counted> {
        self.images.clone()
    }

    /// With the resolver as it is now; none of the runtime's calls without it, as upstream.
    async fn sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
        cgroup_parent: &str,
        users: Option<Users>,
    ) -> Result<wire::PodSandboxConfig, Failure> {
        let formed = self.node.resolver.of_pod(pod).await;
        let unread = |error: source::Error| Failure {
            code: "",
            ..Failure::new(FailureKind::Failed, error.to_string())
        };
        let dns = formed.map_err(unread)?.config;
        Ok(sandbox_config::sandbox(pod, attempt, cgroup_parent, users, (&self.node, dns)))
    }

    async fn info(&self, of: Subject<'_>) -> Result<BTreeMap<String, String>, Status> {
        Ok(match of {
            Subject::Image(image) => {
                let ask = wire::ImageStatusRequest { image: Some(image_spec(image)), verbose: true };
                self.images().image_status(timed(ask, self.node.request_timeout)).await?.into_inner().info
            }
            Subject::Sandbox(id) => {
                let ask = wire::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
                self.runtime()
                    .pod_sandbox_status(timed(ask, self.node.request_timeout))
                    .await?
                    .into_inner()
                    .info
            }
            Subject::Container(id) => {
                let ask = wire::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
                self.runtime()
                    .container_status(timed(ask, self.node.request_timeout))
                    .await?
                    .into_inner()
                    .info
            }
        })
    }
}

impl Runtime for CriRuntime {
    fn observe<'a>(&'a self, uid: &'a PodUid) -> Effect<'a, Observed> {
        Box::pin(async move {
            observe::pod(self.runtime(), uid, &self.node)
                .await
                .map_err(|status| Error::Observe { uid: uid.to_string(), source: failure(&status) })
        })
    }

    fn pods(&self) -> Effect<'_, Vec<KnownPod>> {
        Box::pin(async move {
            observe::pods(self.runtime(), self.node.request_timeout)
                .await
                .map_err(|status| Error::Pods { source: failure(&status) })
        })
    }

    fn states(&self) -> Effect<'_, PodStates> {
        Box::pin(async move {
            observe::states(self.runtime(), self.node.request_timeout)
                .await
                .map_err(|status| Error::Pods { source: failure(&status) })
        })
    }

    fn image<'a>(&'a self, image: &'a str) -> Effect<'a, Option<Image>> {
        Box::pin(async move {
            let ask = wire::ImageStatusRequest { image: Some(image_spec(image)), verbose: false };
            let answer = self
                .images()
                .image_status(timed(ask, self.node.request_timeout))
                .await
                .map_err(|status| Error::Image { image: image.to_owned(), source: failure(&status) })?;
            Ok(answer.into_inner().image.map(observe::image))
        })
    }

    fn pulling<'a>(&'a self, image: &'a str) -> Effect<'a, Option<Progress>> {
        Box::pin(async move {
            if let Some(watched) = self.pulls.as_ref().and_then(|pulls| pulls.progress(image)) {
                return Ok(Some(watched));
            }
            let info = self.info(Subject::Image(image)).await;
            let info =
                info.map_err(|status| Error::Image { image: image.to_owned(), source: failure(&status) })?;
            // Another runtime may have words of its own under this name.
            Ok(info.get("pull").and_then(|text| serde_json::from_str(text).ok()))
        })
    }

    fn pull_image<'a>(&'a self, ask: PullImage<'a>) -> Effect<'a, String> {
        Box::pin(async move {
            let PullImage { image, pod, auth } = ask;
            let sandbox = self.sandbox_config(pod, 0, "", None).await;
            let sandbox = sandbox.map_err(|source| Error::PullImage { image: image.to_owned(), source })?;
            let _under_way = self.pulls.as_ref().map(|pulls| pulls.begin(image));
            let ask = wire::PullImageRequest {
                image: Some(image_spec(image)),
                auth: auth.cloned().map(auth_config),
                sandbox_config: Some(sandbox),
            };
            // No deadline: how long a pull may take depends on the image.
            let answer = self
                .images()
                .pull_image(ask)
                .await
                .map_err(|status| Error::PullImage { image: image.to_owned(), source: failure(&status) })?;
            Ok(answer.into_inner().image_ref)
        })
    }

    fn run_sandbox<'a>(&'a self, new: NewSandbox<'a>) -> Effect<'a, String> {
        Box::pin(async move {
            let pod = new.pod;
            let config = self.sandbox_config(pod, new.attempt, new.cgroup_parent, new.users).await;
            let config = config.map_err(|source| Error::RunSandbox { pod: pod.full_name(), source })?;
            let ask =
                wire::RunPodSandboxRequest { config: Some(config), runtime_handler: new.handler.to_owned() };
            let begun = Instant::now();
            let answer = self.runtime().run_pod_sandbox(timed(ask, self.node.request_timeout * 2)).await;
            self.metrics.run_podsandbox_duration.took([new.handler], begun.elapsed());
            if answer.is_err() {
                self.metrics.run_podsandbox_errors.inc([new.handler]);
            }
            let answer = answer
                .map_err(|status| Error::RunSandbox { pod: pod.full_name(), source: failure(&status) })?;
            Ok(answer.into_inner().pod_sandbox_id)
        })
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = wire::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
            let answer =
                self.runtime().stop_pod_sandbox(timed(ask, self.node.request_timeout * 2)).await.map(drop);
            gone_is_fine(answer).map_err(|source| Error::StopSandbox { id: id.to_owned(), source })
        })
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = wire::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
            let answer =
                self.runtime().remove_pod_sandbox(timed(ask, self.node.request_timeout * 2)).await.map(drop);
            gone_is_fine(answer).map_err(|source| Error::RemoveSandbox { id: id.to_owned(), source })
        })
    }

    fn create_container<'a>(&'a self, new: NewContainer<'a>) -> Effect<'a, String> {
        Box::pin(async move {
            let wrap = |source| Error::CreateContainer { name: new.container.name.clone(), source };
            let sandbox =
                self.sandbox_config(new.pod, new.sandbox_attempt, new.cgroup_parent, new.users).await;
            let ask = wire::CreateContainerRequest {
                pod_sandbox_id: new.sandbox.to_owned(),
                config: Some(container_config::container(&new, &self.node)),
                sandbox_config: Some(sandbox.map_err(wrap)?),
            };
            let answer = self.runtime().create_container(timed(ask, self.node.request_timeout)).await;
            let answer = answer.map_err(|status| wrap(failure(&status)))?;
            Ok(answer.into_inner().container_id)
        })
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = wire::StartContainerRequest { container_id: id.to_owned() };
            match self.runtime().start_container(timed(ask, self.node.request_timeout)).await {
                Ok(_) => Ok(()),
                Err(status) => Err(Error::StartContainer { id: id.to_owned(), source: failure(&status) }),
            }
        })
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Effect<'a, ()> {
        Box::pin(async move {
            // Whole seconds on the wire; a part of one is rounded up, nothing stays nothing.
            let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
            let ask = wire::StopContainerRequest {
                container_id: id.to_owned(),
                timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
            };
            let answer = self
                .runtime()
                .stop_container(timed(ask, grace.saturating_add(self.node.request_timeout)))
                .await
                .map(drop);
            gone_is_fine(answer).map_err(|source| Error::StopContainer { id: id.to_owned(), source })
        })
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = wire::RemoveContainerRequest { container_id: id.to_owned() };
            let answer =
                self.runtime().remove_container(timed(ask, self.node.request_timeout)).await.map(drop);
            gone_is_fine(answer).map_err(|source| Error::RemoveContainer { id: id.to_owned(), source })
        })
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        pod: &'a Pod,
        container: &'a Container,
        affinity: &'a Affinity,
    ) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = resources::container_update(id, pod, container, (&self.node, affinity));
            let answer =
                self.runtime().update_container_resources(timed(ask, self.node.request_timeout)).await;
            let wrap =
                |status: Status| Error::UpdateContainer { id: id.to_owned(), source: failure(&status) };
            answer.map(drop).map_err(wrap)
        })
    }

    fn update_container_cpus<'a>(&'a self, id: &'a str, cpus: &'a str) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = resources::cpus_update(id, cpus);
            let answer =
                self.runtime().update_container_resources(timed(ask, self.node.request_timeout)).await;
            let wrap =
                |status: Status| Error::UpdateContainer { id: id.to_owned(), source: failure(&status) };
            answer.map(drop).map_err(wrap)
        })
    }

    fn memory_in_use<'a>(&'a self, id: &'a str) -> Effect<'a, Option<u64>> {
        Box::pin(async move {
            let ask = wire::ContainerStatsRequest { container_id: id.to_owned() };
            let answer = self.runtime().container_stats(timed(ask, self.node.request_timeout)).await;
            let wrap = |status: Status| Error::Stats { id: id.to_owned(), source: failure(&status) };
            let memory = answer.map_err(wrap)?.into_inner().stats.and_then(|stats| stats.memory);
            Ok(memory.and_then(|memory| memory.usage_bytes).map(|bytes| bytes.value))
        })
    }

    fn update_sandbox_resources<'a>(&'a self, id: &'a str, pod: &'a Pod) -> Effect<'a, ()> {
        Box::pin(async move {
            let ask = resources::sandbox_update(id, pod, &self.node.rules);
            let answer =
                self.runtime().update_pod_sandbox_resources(timed(ask, self.node.request_timeout)).await;
            match answer {
                Err(status) if status.code() != Code::Unimplemented => {
                    Err(Error::UpdateSandbox { id: id.to_owned(), source: failure(&status) })
                }
                _ => Ok(()),
            }
        })
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> Effect<'a, ExecOutput> {
        Box::pin(async move {
            // Whole seconds on the wire, 0 being for ever; the call's own deadline is a little later,
            // so that the runtime's answer wins.
            let seconds = (timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0)).max(1);
            let ask = wire::ExecSyncRequest {
                container_id: id.to_owned(),
                cmd: command.to_vec(),
                timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
            };
            let answer = self.runtime().exec_sync(timed(ask, timeout.saturating_add(EXEC_SLACK))).await;
            let wire::ExecSyncResponse { stdout, stderr, exit_code } = answer
                .map_err(|status| Error::ExecSync { id: id.to_owned(), source: failure(&status) })?
                .into_inner();
            Ok(ExecOutput { code: exit_code, stdout, stderr })
        })
    }

    fn log_end<'a>(&'a self, log_path: &'a str) -> Effect<'a, String> {
        Box::pin(async move { Ok(log_end::read(Path::new(log_path)).await) })
    }

    fn changes(&self) -> Effect<'_, Changes> {
        Box::pin(async move {
            let wrap = |status: &Status| Error::Changes { source: failure(status) };
            // No deadline: it goes on for as long as both sides live.
            let stream = self
                .runtime()
                .get_container_events(wire::GetEventsRequest {})
                .await
                .map_err(|status| wrap(&status))?
                .into_inner();
            Ok(stream
                .map(move |event| event.map(|event| observe::changed_pod(&event)).map_err(|s| wrap(&s)))
                .boxed())
        })
    }

    fn timeline<'a>(&'a self, of: Subject<'a>) -> Effect<'a, Vec<Span>> {
        Box::pin(async move {
            let info = self
                .info(of)
                .await
                .map_err(|status| Error::Timeline { of: format!("{of:?}"), source: failure(&status) })?;
            let mut spans = info.get("timeline").map(|json| parse_runtime_spans(json)).unwrap_or_default();
            if let (Some(pulls), Subject::Image(image)) = (&self.pulls, of) {
                spans.extend(pulls.stages(image).await);
            }
            Ok(spans)
        })
    }
}

fn auth_config(auth: RegistryAuth) -> wire::AuthConfig {
    let RegistryAuth { username, password, identity_token, registry_token } = auth;
    wire::AuthConfig { username, password, identity_token, registry_token, ..wire::AuthConfig::default() }
}

/// A runtime that names no handler says nothing of features, and is not asked for them.
fn features(status: &wire::StatusResponse) -> Features {
    let can = |of: fn(&wire::RuntimeHandlerFeatures) -> bool| {
        let handlers = status.runtime_handlers.iter();
        let able = handlers.filter(move |handler| handler.features.as_ref().is_some_and(of));
        able.map(|handler| handler.name.clone()).collect::<BTreeSet<String>>()
    };
    Features {
        runtime_name: String::new(),
        recursive_read_only: can(|f| f.recursive_read_only_mounts).contains(""),
        strict_groups: status.features.as_ref().is_some_and(|f| f.supplemental_groups_policy),
        user_namespaces: can(|f| f.user_namespaces),
    }
}

fn image_spec(image: &str) -> wire::ImageSpec {
    wire::ImageSpec {
        image: image.to_owned(),
        user_specified_image: image.to_owned(),
        ..wire::ImageSpec::default()
    }
}

/// The deadline goes on the wire as well, so that the runtime knows that nobody waits.
fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// Stop and remove are idempotent by the CRI; some runtimes say NotFound all the same.
fn gone_is_fine(answer: Result<(), Status>) -> Result<(), Failure> {
    match answer {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        answer => answer.map_err(|status| failure(&status)),
    }
}

fn failure(status: &Status) -> Failure {
    let kind = match status.code() {
        Code::NotFound => FailureKind::NotFound,
        Code::Unavailable => FailureKind::Unavailable,
        Code::DeadlineExceeded | Code::Cancelled => FailureKind::TimedOut,
        Code::Unimplemented => FailureKind::Unsupported,
        _ => FailureKind::Failed,
    };
    let message = match status.message() {
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    };
    Failure { kind, message, code: in_go(status.code()) }
}

#[cfg(test)]
mod tests;

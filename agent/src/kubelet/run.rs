//! A kubelet at work. Owns the order of start and end, and what each part is told of the
//! configuration; never decides about a pod. Called by the command line.

#![expect(
    clippy::disallowed_methods,
    reason = "the assembly starts the parts; each ends with the drain or the process"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::identity::bootstrap::{self, Identity};
use gantry_kube_client::identity::serving::{Serving, ServingCertSource};
use gantry_kube_client::identity::{Clients, Names, Notice};
use gantry_metrics::Metrics;
use gantry_model::clock::SystemClock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::error::Error;
use super::parts::{Parts, Running};
use super::pod_deps::{BuiltPodDeps, Setup};
use super::wiring::Pods;
use super::{Kubelet, KubeletDeps, Notify, health, host, managers, spans, watchdog, wiring};
use crate::api::Api;
use crate::api::cluster::Cluster;
use crate::api::files::Files;
use crate::config::{self, KubeletConfiguration, KubeletFlags};
use crate::healthz::Checks;
use crate::images::Images;
use crate::logs::dir::LogDir;
use crate::logs::links;
use crate::node::NodeOverrides;
use crate::operator::socket::{self, Socket};
use crate::operator::{Ending, OperatorDeps};
use crate::pod::run::Deps;
use crate::registration::machine;
use crate::root::Root;
use crate::runtime;
use crate::runtime::cri::{self, CriRuntime, driver};
use crate::users::Range;
use crate::volumes;
use gantry_model::drain::DrainWatcher;
use gantry_server::Server;
use gantry_trace::span::Tracer;

/// For answers under way at the end; streams of a runtime may never end by themselves.
pub(super) const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Where others look for the pods' kubelet.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// Notices that wait for a recorder of events.
const NOTICES: usize = 16;

/// The ways to the API server, if there is one, and to the runtime.
struct Reached {
    metrics: Arc<Metrics>,
    identity: Option<Identity>,
    serving: Serving,
    /// Where the serving certificate learns the node's names.
    names: watch::Sender<Option<Names>>,
    notices: mpsc::Receiver<Notice>,
    channel: Channel,
}

/// A kubelet between its start and its end.
struct Started {
    server: Server,
    operator: JoinHandle<Result<(), socket::Error>>,
    /// What `gantry down` asks for.
    asked: watch::Receiver<Ending>,
    /// Why there is no way to the API server any more.
    over: Option<watch::Receiver<Option<String>>>,
    /// Held to the end, as the next two: what is in it is this kubelet's alone.
    _root: Root,
    _identity: Option<Identity>,
    _serving: Serving,
}

impl Kubelet {
    /// Starts the parts and goes on until the drain. The pods go on after it.
    ///
    /// # Errors
    /// When something cannot be started, or nothing here helps any more.
    pub async fn run(mut self, mut drain: DrainWatcher) -> Result<(), Error> {
        let Some(reached) = self.reach(&mut drain).await? else { return Ok(()) };
        // From here on something is made that stays.
        self.prepare()?;
        let (tracer, exporter) = spans::start(&self.config, &self.name)?.unzip();
        let started = self.start(reached, tracer, drain.clone()).await?;
        let ended = started.finish(drain).await;
        if let Some(exporter) = exporter {
            exporter.end().await;
        }
        ended
    }

    /// None when the drain starts before the runtime answers.
    async fn reach(&mut self, drain: &mut DrainWatcher) -> Result<Option<Reached>, Error> {
        let (notices_in, notices) = mpsc::channel::<Notice>(NOTICES);
        let metrics = Arc::new(Metrics::default());
        let identity = self.identify(notices_in.clone(), metrics.clone()).await?;
        let (names, named) = watch::channel(None::<Names>);
        let told = (notices_in, metrics.clone());
        let serving = serving(&self.flags, &mut self.config, &self.name, identity.as_ref(), named, told)?;
        // Cancel-safe: nothing was begun.
        let channel = tokio::select! {
            channel = connect(&self.config, self.deps.runtime.take()) => channel?,
            () = drain.wait_started() => return Ok(None),
        };
        adopt_driver(&mut self.config, channel.clone()).await?;
        managers::reserve_cpus(&mut self.config)?;
        Ok(Some(Reached { metrics, identity, serving, names, notices, channel }))
    }

    async fn identify(
        &self,
        notices: mpsc::Sender<Notice>,
        metrics: Arc<Metrics>,
    ) -> Result<Option<Identity>, Error> {
        let Self { flags, config, is_api_limit_set, name, .. } = self;
        if flags.kubeconfig.is_empty() {
            tracing::info!("Standalone mode, no API client");
            return Ok(None);
        }
        let settings = wiring::identity(flags, config, *is_api_limit_set, name, metrics);
        Ok(Some(bootstrap::start(settings, notices).await?))
    }

    /// The machine, for pods.
    fn prepare(&self) -> Result<(), Error> {
        let root_dir = Path::new(&self.flags.root_dir);
        host::lay_out(root_dir, Path::new(&self.config.pod_logs_dir))?;
        volumes::share(root_dir).map_err(|source| Error::Share { path: root_dir.to_owned(), source })?;
        host::settle(&self.config);
        tracing::debug!(configuration = %config::configz(&self.config), "KubeletConfiguration");
        Ok(())
    }

    async fn start(
        self,
        reached: Reached,
        tracer: Option<Tracer>,
        drain: DrainWatcher,
    ) -> Result<Started, Error> {
        let Self { flags, config, flagz, name, deps, .. } = self;
        let KubeletDeps { verbosity, notify, watchdog, runtime: _ } = deps;
        let Reached { metrics, identity, serving, names, notices, channel } = reached;
        let clients = identity.as_ref().map(|identity| identity.clients.clone());
        let (root, socket, BuiltPodDeps { mut deps, runtime, ips, labels, csi }) =
            set_up(&flags, &config, &name, clients.as_ref(), channel.clone(), metrics).await?;
        deps.tracer = tracer;
        look_after_images(&mut deps, &runtime, &flags, &config).await?;
        let checks = Checks::default();
        let (node, clock, pulls) = (deps.node.clone(), deps.clock.clone(), deps.runtime_ext.pulls.clone());
        let volumes = deps.volumes.clone();
        let parts = Parts {
            flags: &flags,
            config: &config,
            flagz,
            name,
            clients,
            channel: channel.clone(),
            deps,
            runtime,
            csi,
            certificate: serving.resolver(),
            names,
            ips,
            labels,
            notices,
            checks: checks.clone(),
            verbosity,
            drain: drain.clone(),
        };
        let Running { pods, server } = parts.start().await?;
        let (ending, asked) = watch::channel(Ending::Not);
        let runtime = Some(channel);
        let sources = OperatorDeps { pods, node, clock, runtime, pulls, volumes, additions: None, ending };
        let mut stop = drain;
        let operator = tokio::spawn(socket.serve(sources, async move { stop.wait_started().await }));
        let over = identity.as_ref().map(|identity| identity.over.clone());
        watch_over(wiring::listen(&config)?.healthz, checks, watchdog, notify);
        Ok(Started { server, operator, asked, over, _root: root, _identity: identity, _serving: serving })
    }
}

impl Started {
    /// Until the drain; then answers under way get a moment.
    async fn finish(mut self, mut drain: DrainWatcher) -> Result<(), Error> {
        loop {
            // All arms are cancel-safe: states are watched.
            tokio::select! {
                reason = hopeless(&mut self.over) => return Err(Error::Credentials(reason)),
                Ok(()) = self.asked.changed() => {
                    tracing::warn!("pods of a kubelet end when they are deleted: it goes on");
                }
                () = drain.wait_started() => break,
            }
        }
        self.server.end();
        tokio::time::timeout(LAST_ANSWERS, self.operator)
            .await
            .map_or(Ok(()), |ended| ended.map_err(Error::OperatorDied)?.map_err(Error::Operator))
    }
}

/// For whoever watches over this process: the service manager, and those who ask for `/healthz`.
fn watch_over(healthz: Option<SocketAddr>, checks: Checks, watchdog: Option<Duration>, notify: Notify) {
    if let Some(address) = healthz {
        tokio::spawn(health::serve(address, checks.clone()));
    }
    if let Some(period) = watchdog {
        tokio::spawn(watchdog::keep_alive(period, checks, notify));
    }
    if let Err(error) = notify("READY=1") {
        tracing::warn!(err = %error, "Failed to notify systemd");
    }
    tracing::info!("Started kubelet");
}

/// Only new credentials from outside help.
async fn hopeless(over: &mut Option<watch::Receiver<Option<String>>>) -> String {
    if let Some(over) = over
        && let Ok(reason) = over.wait_for(Option::is_some).await
    {
        return reason.clone().unwrap_or_default();
    }
    std::future::pending().await
}

/// The certificate of our own API.
fn serving(
    flags: &KubeletFlags,
    config: &mut KubeletConfiguration,
    name: &str,
    identity: Option<&Identity>,
    names: watch::Receiver<Option<Names>>,
    (notices, metrics): (mpsc::Sender<Notice>, Arc<Metrics>),
) -> Result<Serving, Error> {
    let cert_dir = Path::new(&flags.cert_dir);
    let files = match (config.tls_cert_file.as_str(), config.tls_private_key_file.as_str()) {
        ("", "") => None,
        (certificate, key) => Some((PathBuf::from(certificate), PathBuf::from(key))),
    };
    let source = match (config.server_tls_bootstrap, identity, files) {
        (true, Some(identity), given) => ServingCertSource::Requested {
            node: name.to_owned(),
            names,
            client: identity.clients.pods.clone(),
            given,
            notices,
            metrics,
        },
        (true, None, _) => return Err(Error::NoApiServer),
        (false, _, Some((certificate, key))) => ServingCertSource::Files { certificate, key },
        (false, _, None) => {
            // As they are shown in /configz.
            config.tls_cert_file = cert_dir.join("kubelet.crt").to_string_lossy().into_owned();
            config.tls_private_key_file = cert_dir.join("kubelet.key").to_string_lossy().into_owned();
            ServingCertSource::SelfSigned { host: name.to_owned() }
        }
    };
    Serving::start(cert_dir, source).map_err(Error::Certificate)
}

/// One that does not answer ends the kubelet, as upstream: whoever started it sees why, and starts it
/// again.
async fn connect(config: &KubeletConfiguration, within: Option<Channel>) -> Result<Channel, Error> {
    let endpoint = &config.container_runtime_endpoint;
    let invalid = |reason| Error::Validate { endpoint: endpoint.clone(), reason };
    let channel = match within {
        Some(channel) => channel,
        None => match cri::connect(endpoint).await {
            Ok(channel) => channel,
            Err(error @ runtime::Error::Connect { .. }) => return Err(invalid(error.in_go())),
            Err(error) => return Err(error.into()),
        },
    };
    driver::speaks(channel.clone(), config.runtime_request_timeout.duration()).await.map_err(invalid)?;
    Ok(channel)
}

/// What a kubelet does about images and `gantry run` does not: credentials of the node, records of who
/// may use what, waiting for a turn, and links for collectors of logs.
async fn look_after_images(
    deps: &mut Deps,
    runtime: &CriRuntime,
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
) -> Result<(), Error> {
    let settings = wiring::pulls(flags, config)?;
    let images = Images::start(settings, runtime, deps.clock.clone(), deps.metrics.clone()).await?;
    deps.images = Arc::new(images);
    let links = PathBuf::from(links::FOLDER);
    std::fs::create_dir_all(&links).map_err(|source| Error::Folder { path: links.clone(), source })?;
    deps.logs = Arc::new(LogDir::new(PathBuf::from(&config.pod_logs_dir)).linked_in(links));
    Ok(())
}

/// The runtime's cgroup driver wins over the configuration's.
async fn adopt_driver(config: &mut KubeletConfiguration, channel: Channel) -> Result<(), Error> {
    if let Some(driver) =
        driver::of(channel, config.runtime_request_timeout.duration()).await.map_err(Error::Driver)?
    {
        tracing::info!(
            cgroupDriver = driver.name(),
            "Using cgroup driver setting received from the CRI runtime"
        );
        driver.name().clone_into(&mut config.cgroup_driver);
    }
    wiring::driver(config)?;
    if config.cgroup_root.is_empty() {
        tracing::info!("--cgroups-per-qos enabled, but --cgroup-root was not specified.  Defaulting to /");
        "/".clone_into(&mut config.cgroup_root);
    }
    Ok(())
}

/// The root folder, the socket of `gantry ps`, and what pods are run with.
async fn set_up(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    name: &str,
    clients: Option<&Clients>,
    channel: Channel,
    metrics: Arc<Metrics>,
) -> Result<(Root, Socket, BuiltPodDeps), Error> {
    let root_dir = Path::new(&flags.root_dir);
    // Next to a root that is not the usual one: several kubelets may live on one machine.
    let runtime_dir = if flags.root_dir == DEFAULT_ROOT {
        PathBuf::from("/run/gantry")
    } else {
        root_dir.join("gantry").join("run")
    };
    std::fs::create_dir_all(&runtime_dir)
        .map_err(|source| Error::Folder { path: runtime_dir.clone(), source })?;
    let agent_socket = runtime_dir.join("agent.sock");
    let root = Root::open(root_dir)?;
    let socket = Socket::bind(&agent_socket).await.map_err(Error::Operator)?;
    let Pods { logs, cgroup_root, seccomp_default } = wiring::pods(flags, config);
    let machine = machine::read(root_dir)?;
    let setup = Setup {
        agent_socket,
        pod_logs_dir: logs,
        root: &root,
        cgroup_root,
        driver: Some(wiring::driver(config)?),
        seccomp_default,
        given: NodeOverrides {
            allocatable: Some(wiring::registration(flags, config, name)?.allocatable(&machine)),
            ..wiring::parse_node_overrides(flags, config, name)?
        },
        tuning: wiring::tuning(config),
        users: Range::of_kubelet(config.max_pods).await.map_err(Error::UserNamespaces)?,
    };
    let api: Arc<dyn Api> = match clients {
        Some(clients) => Arc::new(Cluster::new(clients.pods.clone(), Arc::new(SystemClock::new()))),
        None => Arc::new(Files::default()),
    };
    let made = setup.make(channel, api, metrics).await?;
    Ok((root, socket, made))
}

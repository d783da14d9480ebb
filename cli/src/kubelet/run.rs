//! A kubelet at work. Owns the order of start and end, and what each part is told of the
//! configuration; never decides about a pod. Called by [`super`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use gantry_agent::api::Api;
use gantry_agent::api::cluster::Cluster;
use gantry_agent::api::files::Files;
use gantry_agent::clock::SystemClock;
use gantry_agent::config::{self, KubeletConfiguration, KubeletFlags, Loaded};
use gantry_agent::healthz::Checks;
use gantry_agent::identity::bootstrap::{self, Identity};
use gantry_agent::identity::serving::{Serving, Source};
use gantry_agent::identity::{Clients, Names, Notice};
use gantry_agent::images::Images;
use gantry_agent::logs::dir::LogDir;
use gantry_agent::logs::links;
use gantry_agent::metrics::Metrics;
use gantry_agent::node::Given;
use gantry_agent::operator::socket::Socket;
use gantry_agent::operator::{Ending, Sources};
use gantry_agent::pod::run::Deps;
use gantry_agent::registration::machine;
use gantry_agent::root::Root;
use gantry_agent::runtime;
use gantry_agent::runtime::cri::{self, CriRuntime, driver};

use gantry_agent::users::Range;
use gantry_agent::volumes;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::Channel;

use super::log::Verbosity;
use super::parts::{Parts, Running};
use super::wiring::Pods;
use super::{health, host, lock, systemd, wiring};
use crate::run::signals::Signals;
use crate::sd_notify;
use crate::session::{Made, Setup};

/// For answers under way when it ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Where others look for the pods' kubelet.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// Notices that wait for a recorder of events.
const NOTICES: usize = 16;

/// Until a signal, or until something that cannot be helped here.
pub(super) async fn run(loaded: Loaded, verbosity: Verbosity) -> Result<()> {
    let mut signals = Signals::new()?;
    let Loaded { flags, config, flagz, notes: _ } = loaded;
    let watchdog = systemd::watchdog()?;
    let (_lock, contended) = locked(&flags).await?;
    let (stop, stopped) = watch::channel(false);
    let work = Work { flags, config, flagz, watchdog, verbosity, stopped };
    let mut serving = Box::pin(serve(work));
    let contended = async {
        match contended {
            Some(contended) => contended.await.map_err(|_| anyhow!("the watch of the lock file died")),
            None => std::future::pending().await,
        }
    };
    // All arms are cancel-safe: the work is polled by reference, a signal is kept.
    let why = tokio::select! {
        done = &mut serving => return done,
        () = signals.next() => "a signal",
        contended = contended => {
            contended?;
            "another kubelet wants the lock file"
        }
    };
    tracing::info!(why, "ending; the pods go on");
    stop.send_replace(true);
    tokio::select! {
        done = &mut serving => done,
        () = signals.next() => bail!("ended by a second signal"),
    }
}

async fn locked(flags: &KubeletFlags) -> Result<(Option<std::fs::File>, Option<oneshot::Receiver<()>>)> {
    if flags.lock_file.is_empty() {
        if flags.exit_on_lock_contention {
            bail!("cannot exit on lock file contention: no lock file specified");
        }
        return Ok((None, None));
    }
    tracing::info!(path = flags.lock_file, "Acquiring file lock");
    let file = lock::acquire(&flags.lock_file).await?;
    let contended = flags.exit_on_lock_contention.then(|| lock::contention(&flags.lock_file)).transpose()?;
    Ok((Some(file), contended))
}

/// A kubelet between its start and its end.
struct Work {
    flags: KubeletFlags,
    config: KubeletConfiguration,
    flagz: Vec<(String, String)>,
    watchdog: Option<Duration>,
    verbosity: Verbosity,
    stopped: watch::Receiver<bool>,
}

async fn serve(work: Work) -> Result<()> {
    let Work { flags, mut config, flagz, watchdog, verbosity, mut stopped } = work;
    let name = host::name(&flags.hostname_override)?;
    wiring::judge(&flags, &config)?;
    host::judge(&flags, &config)?;
    let (notices_in, notices) = mpsc::channel::<Notice>(NOTICES);
    let metrics = Arc::new(Metrics::default());
    let identity = identify(&flags, &config, &name, notices_in.clone(), metrics.clone()).await?;
    let (names, named) = watch::channel(None::<Names>);
    let serving =
        serving(&flags, &mut config, &name, identity.as_ref(), named, (notices_in, metrics.clone()))?;
    // Cancel-safe: nothing was begun.
    let channel = tokio::select! {
        channel = runtime(&config) => channel?,
        _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
    };
    adopt_driver(&mut config, channel.clone()).await?;
    // From here on something is made that stays.
    host::lay_out(Path::new(&flags.root_dir), Path::new(&config.pod_logs_dir))?;
    volumes::share(Path::new(&flags.root_dir))
        .with_context(|| format!("failed to make {} a shared mount", flags.root_dir))?;
    host::settle(&config);
    tracing::debug!(configuration = %config::configz(&config), "KubeletConfiguration");
    let clients = identity.as_ref().map(|identity| identity.clients.clone());
    let (Made { mut deps, root: _root, runtime, ips }, socket) =
        setup(&flags, &config, &name, clients.as_ref(), channel.clone(), metrics).await?;
    look_after_images(&mut deps, &runtime, &flags, &config).await?;
    let checks = Checks::default();
    let (node, clock, pulls) = (deps.node.clone(), deps.clock.clone(), deps.beyond.pulls.clone());
    let parts = Parts {
        flags: &flags,
        config: &config,
        flagz,
        name,
        clients,
        channel: channel.clone(),
        deps,
        runtime,
        certificate: serving.resolver(),
        names,
        ips,
        notices,
        checks: checks.clone(),
        verbosity,
        stopped: stopped.clone(),
    };
    let Running { pods, server } = parts.start().await?;
    let (ending, mut asked) = watch::channel(Ending::Not);
    let sources = Sources { pods, node, clock, runtime: Some(channel), pulls, additions: None, ending };
    let mut stop = stopped.clone();
    let operator = tokio::spawn(socket.serve(sources, async move {
        // Stopped, or nobody can stop it any more.
        let _ = stop.wait_for(|stopped| *stopped).await;
    }));
    announce(wiring::listen(&config)?.healthz, checks, watchdog);
    let mut over = identity.as_ref().map(|identity| identity.over.clone());
    loop {
        // All arms are cancel-safe: states are watched.
        tokio::select! {
            reason = hopeless(&mut over) => bail!("{reason}"),
            Ok(()) = asked.changed() => {
                tracing::warn!("pods of a kubelet end when they are deleted: it goes on");
            }
            _ = stopped.wait_for(|stopped| *stopped) => break,
        }
    }
    server.end();
    tokio::time::timeout(LAST_ANSWERS, operator)
        .await
        .map_or(Ok(()), |ended| ended.context("the operator API died")?.context("offer the operator API"))
}

/// To whoever watches over this process.
fn announce(healthz: Option<SocketAddr>, checks: Checks, watchdog: Option<Duration>) {
    if let Some(address) = healthz {
        tokio::spawn(health::serve(address, checks.clone()));
    }
    if let Some(period) = watchdog {
        tokio::spawn(systemd::keep_alive(period, checks));
    }
    if let Err(error) = sd_notify::notify("READY=1") {
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

async fn identify(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    name: &str,
    notices: mpsc::Sender<Notice>,
    metrics: Arc<Metrics>,
) -> Result<Option<Identity>> {
    if flags.kubeconfig.is_empty() {
        tracing::info!("Standalone mode, no API client");
        return Ok(None);
    }
    Ok(Some(bootstrap::start(wiring::identity(flags, config, name, metrics), notices).await?))
}

/// The certificate of our own API.
fn serving(
    flags: &KubeletFlags,
    config: &mut KubeletConfiguration,
    name: &str,
    identity: Option<&Identity>,
    names: watch::Receiver<Option<Names>>,
    (notices, metrics): (mpsc::Sender<Notice>, Arc<Metrics>),
) -> Result<Serving> {
    let cert_dir = Path::new(&flags.cert_dir);
    let files = match (config.tls_cert_file.as_str(), config.tls_private_key_file.as_str()) {
        ("", "") => None,
        (certificate, key) => Some((PathBuf::from(certificate), PathBuf::from(key))),
    };
    let source = match (config.server_tls_bootstrap, identity, files) {
        (true, Some(identity), given) => Source::Requested {
            node: name.to_owned(),
            names,
            client: identity.clients.pods.clone(),
            given,
            notices,
            metrics,
        },
        (true, None, _) => bail!("serverTLSBootstrap needs an API server: give --kubeconfig as well"),
        (false, _, Some((certificate, key))) => Source::Files { certificate, key },
        (false, _, None) => {
            // As they are shown in /configz.
            config.tls_cert_file = cert_dir.join("kubelet.crt").to_string_lossy().into_owned();
            config.tls_private_key_file = cert_dir.join("kubelet.key").to_string_lossy().into_owned();
            Source::SelfSigned { host: name.to_owned() }
        }
    };
    Serving::start(cert_dir, source).context("the certificate of the kubelet's own API")
}

/// One that does not answer ends the kubelet, as upstream: whoever started it sees why, and starts it
/// again.
async fn runtime(config: &KubeletConfiguration) -> Result<Channel> {
    let endpoint = &config.container_runtime_endpoint;
    let invalid = |told: String| {
        anyhow!("validate service connection: validate CRI v1 runtime API for endpoint {endpoint:?}: {told}")
    };
    let channel = match cri::connect(endpoint).await {
        Ok(channel) => channel,
        Err(error @ runtime::Error::Connect { .. }) => return Err(invalid(error.in_go())),
        Err(error) => return Err(error.into()),
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
) -> Result<()> {
    let settings = wiring::pulls(flags, config)?;
    let images = Images::start(settings, runtime, deps.clock.clone(), deps.metrics.clone()).await?;
    deps.images = Arc::new(images);
    let links = PathBuf::from(links::FOLDER);
    std::fs::create_dir_all(&links).with_context(|| format!("make {}", links.display()))?;
    deps.logs = Arc::new(LogDir::new(PathBuf::from(&config.pod_logs_dir)).linked_in(links));
    Ok(())
}

/// The runtime's cgroup driver wins over the configuration's.
async fn adopt_driver(config: &mut KubeletConfiguration, channel: Channel) -> Result<()> {
    if let Some(driver) =
        driver::of(channel, config.runtime_request_timeout.duration()).await.map_err(|e| anyhow!(e))?
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

/// What pods are run with, and the socket of `gantry ps`.
async fn setup(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    name: &str,
    clients: Option<&Clients>,
    channel: Channel,
    metrics: Arc<Metrics>,
) -> Result<(Made, Socket)> {
    let root_dir = Path::new(&flags.root_dir);
    // Next to a root that is not the usual one: several kubelets may live on one machine.
    let runtime_dir = if flags.root_dir == DEFAULT_ROOT {
        PathBuf::from("/run/gantry")
    } else {
        root_dir.join("gantry").join("run")
    };
    std::fs::create_dir_all(&runtime_dir).with_context(|| format!("make {}", runtime_dir.display()))?;
    let agent_socket = runtime_dir.join("agent.sock");
    let root = Root::open(root_dir)?;
    let socket = Socket::bind(&agent_socket).await.context("offer the operator API")?;
    let Pods { logs, cgroup_root, seccomp_default } = wiring::pods(flags, config);
    let machine = machine::read(root_dir)?;
    let setup = Setup {
        agent_socket,
        pod_logs_dir: logs,
        root,
        cgroup_root,
        driver: Some(wiring::driver(config)?),
        seccomp_default,
        given: Given {
            allocatable: Some(wiring::registration(flags, config, name)?.allocatable(&machine)),
            ..wiring::given(flags, config, name)?
        },
        tuning: wiring::tuning(config),
        users: Range::of_kubelet(config.max_pods)
            .await
            .map_err(|error| anyhow!("user namespaces: {error}"))?,
    };
    let api: Arc<dyn Api> = match clients {
        Some(clients) => Arc::new(Cluster::new(clients.pods.clone(), Arc::new(SystemClock::new()))),
        None => Arc::new(Files::default()),
    };
    Ok((setup.make(channel, api, metrics).await?, socket))
}

//! A kubelet at work. Owns the order of start and end, and what each part is told of the
//! configuration; never decides about a pod. Called by [`super`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use gantry_agent::api::files::Files;
use gantry_agent::config::{self, KubeletConfiguration, KubeletFlags, Loaded};
use gantry_agent::healthz::Checks;
use gantry_agent::identity::bootstrap::{self, Identity};
use gantry_agent::identity::client::{Limits, Pace};
use gantry_agent::identity::serving::{Serving, Source};
use gantry_agent::identity::{Names, Notice};
use gantry_agent::operator::socket::Socket;
use gantry_agent::root::Root;
use gantry_agent::runtime::cri::{self, driver};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::Channel;

use super::{health, host, lock, systemd};
use crate::run::signals::Signals;
use crate::session::{News, Place, Session, Setup};

/// Where others look for the pods' kubelet.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// Notices that wait for a recorder of events.
const NOTICES: usize = 16;

/// Until a signal, or until something that cannot be helped here.
pub(super) async fn run(loaded: Loaded) -> Result<()> {
    let mut signals = Signals::new()?;
    let Loaded { flags, mut config, notes: _ } = loaded;
    let checks = Checks::default();
    let watchdog = systemd::watchdog()?;
    let (_lock, contended) = locked(&flags).await?;
    let (stop, stopped) = watch::channel(false);
    let serving = serve(&flags, &mut config, checks, watchdog, stopped);
    tokio::pin!(serving);
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

async fn serve(
    flags: &KubeletFlags,
    config: &mut KubeletConfiguration,
    checks: Checks,
    watchdog: Option<Duration>,
    mut stopped: watch::Receiver<bool>,
) -> Result<()> {
    let name = host::name(&flags.hostname_override)?;
    let (notices, mut told) = mpsc::channel::<Notice>(NOTICES);
    let identity = identify(flags, config, &name, notices.clone()).await?;
    let _serving = serving(flags, config, &name, identity.as_ref(), notices)?;
    if config.fail_swap_on != Some(false) {
        host::refuse_swap()?;
    }
    let root_dir = PathBuf::from(&flags.root_dir);
    host::lay_out(&root_dir, Path::new(&config.pod_logs_dir))?;
    host::settle(config);
    // Cancel-safe: nothing was begun.
    let channel = tokio::select! {
        channel = runtime(&config.container_runtime_endpoint) => channel,
        _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
    };
    adopt_driver(config, channel.clone()).await?;
    tracing::debug!(configuration = %config::configz(config), "KubeletConfiguration");
    let (mut session, _root) = session(flags, config, name, channel).await?;
    if let (Ok(port @ 1..), Ok(address)) =
        (u16::try_from(config.healthz_port.unwrap_or_default()), config.healthz_bind_address.parse())
    {
        tokio::spawn(health::serve(address, port, checks.clone()));
    }
    if let Some(period) = watchdog {
        tokio::spawn(systemd::keep_alive(period, checks));
    }
    if let Err(error) = systemd::notify("READY=1") {
        tracing::warn!(err = %error, "Failed to notify systemd");
    }
    tracing::info!("Started kubelet");
    let mut over = identity.as_ref().map(|identity| identity.over.clone());
    loop {
        // All arms are cancel-safe: news stay marked, notices are kept, a state is watched.
        tokio::select! {
            news = session.next() => if let News::Ending(ending) = news {
                tracing::info!(?ending, "asked to end the pods");
            },
            Some(notice) = told.recv() => tracing::warn!(reason = notice.reason, "{}", notice.message),
            reason = hopeless(&mut over) => bail!("{reason}"),
            _ = stopped.wait_for(|stopped| *stopped) => break,
        }
    }
    session.leave().await
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
) -> Result<Option<Identity>> {
    if flags.kubeconfig.is_empty() {
        tracing::info!("Standalone mode, no API client");
        return Ok(None);
    }
    let settings = bootstrap::Settings {
        kubeconfig: PathBuf::from(&flags.kubeconfig),
        bootstrap: Some(PathBuf::from(&flags.bootstrap_kubeconfig))
            .filter(|path| !path.as_os_str().is_empty()),
        cert_dir: PathBuf::from(&flags.cert_dir),
        node: name.to_owned(),
        rotate: config.rotate_certificates,
        limits: limits(config),
    };
    Ok(Some(bootstrap::start(settings, notices).await?))
}

fn limits(config: &KubeletConfiguration) -> Limits {
    let pace = |per_second: Option<i32>, burst: i32| Pace {
        per_second: per_second.unwrap_or_default().into(),
        burst: burst.into(),
    };
    let lease = Duration::from_secs(u64::try_from(config.node_lease_duration_seconds).unwrap_or(40));
    Limits {
        pods: pace(config.kube_api_qps, config.kube_api_burst),
        events: pace(config.event_record_qps, config.event_burst),
        lease: lease.min(config.node_status_update_frequency.duration()),
    }
}

/// The certificate of our own API.
fn serving(
    flags: &KubeletFlags,
    config: &mut KubeletConfiguration,
    name: &str,
    identity: Option<&Identity>,
    notices: mpsc::Sender<Notice>,
) -> Result<Serving> {
    let cert_dir = Path::new(&flags.cert_dir);
    let files = match (config.tls_cert_file.as_str(), config.tls_private_key_file.as_str()) {
        ("", "") => None,
        (certificate, key) => Some((PathBuf::from(certificate), PathBuf::from(key))),
    };
    let source = match (config.server_tls_bootstrap, identity, files) {
        (true, Some(identity), given) => Source::Requested {
            node: name.to_owned(),
            names: watch::channel(None::<Names>).1,
            client: identity.clients.pods.clone(),
            given,
            notices,
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

/// One that is not there yet may come.
async fn runtime(endpoint: &str) -> Channel {
    loop {
        match cri::connect(endpoint).await {
            Ok(channel) => return channel,
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::error!(err = format!("{error:#}"), endpoint, "waiting for the container runtime");
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The runtime's cgroup driver wins over the configuration's.
async fn adopt_driver(config: &mut KubeletConfiguration, channel: Channel) -> Result<()> {
    if let Some(driver) = driver::of(channel).await.map_err(|e| anyhow!(e))? {
        tracing::info!(
            cgroupDriver = driver.name(),
            "Using cgroup driver setting received from the CRI runtime"
        );
        driver.name().clone_into(&mut config.cgroup_driver);
    }
    if config.cgroup_driver != driver::Driver::Cgroupfs.name() {
        bail!(
            "cgroup driver {:?} is not supported by this kubelet yet: set the runtime to cgroupfs (containerd: \
             SystemdCgroup = false)",
            config.cgroup_driver
        );
    }
    if config.cgroup_root.is_empty() {
        tracing::info!("--cgroups-per-qos enabled, but --cgroup-root was not specified.  Defaulting to /");
        "/".clone_into(&mut config.cgroup_root);
    }
    Ok(())
}

async fn session(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    name: String,
    channel: Channel,
) -> Result<(Session, Root)> {
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
    let setup = Setup {
        agent_socket,
        pod_logs_dir: PathBuf::from(&config.pod_logs_dir),
        root,
        cgroup_root: config.cgroup_root.clone(),
        seccomp_default: flags.seccomp_default || config.seccomp_default == Some(true),
        place: Place {
            node_name: Some(name),
            cluster_domain: Some(config.cluster_domain.clone()).filter(|domain| !domain.is_empty()),
            resolv_conf: config.resolv_conf.as_deref().map(PathBuf::from),
        },
    };
    let (deps, root) = setup.deps(channel.clone(), Files::default()).await?;
    let folder = Some(PathBuf::from(&config.static_pod_path)).filter(|path| !path.as_os_str().is_empty());
    let folder = folder.map(|path| (path, config.file_check_frequency.duration()));
    Ok((Session::start(Vec::new(), folder, deps, channel, socket).await, root))
}

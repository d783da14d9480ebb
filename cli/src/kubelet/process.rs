//! A kubelet's process: what makes it end. Owns the signals, the lock file and the order in which a node's two halves
//! start and end; never a part of either. Called by [`super`].

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use gantry_agent::config::{KubeletFlags, Loaded};
use gantry_agent::kubelet::{Kubelet, KubeletDeps, Verbosity};
use gantry_model::drain;
use gantry_shim::config::RuntimeConfig;
use tokio::sync::oneshot;
use tonic::transport::Channel;

use super::{lock, systemd};
use crate::in_process::InProcess;
use crate::run::signals::Signals;
use crate::sd_notify;

/// The runtime of `gantry node`.
#[derive(Debug)]
pub(super) struct NodeRuntime {
    pub(super) config: RuntimeConfig,
    /// Where other clients than the kubelet find it.
    pub(super) socket: PathBuf,
}

/// Until a signal, or until something that cannot be helped here.
pub(super) async fn run(
    mut loaded: Loaded,
    verbosity: Verbosity,
    runtime: Option<NodeRuntime>,
) -> Result<()> {
    let signals = Signals::new()?;
    let Some(NodeRuntime { config, socket }) = runtime else {
        return run_on(None, loaded, verbosity, signals).await;
    };
    loaded.config.container_runtime_endpoint = format!("unix://{}", socket.display());
    let (mut served, channel) = InProcess::start_on(config, socket).await?;
    // Cancel-safe: what serves goes on by itself, and a kubelet without a runtime has nothing to keep.
    let done = tokio::select! {
        done = run_on(Some(channel), loaded, verbosity, signals) => done,
        error = served.ended() => return Err(error),
    };
    match (done, served.stop().await) {
        // A kubelet whose runtime has ended says that alone; the runtime says why.
        (Err(error), Err(why)) => Err(why.context(format!("{error:#}"))),
        (done, stopped) => done.and(stopped),
    }
}

/// The kubelet alone, whatever runtime it has.
async fn run_on(
    runtime: Option<Channel>,
    loaded: Loaded,
    verbosity: Verbosity,
    mut signals: Signals,
) -> Result<()> {
    let watchdog = systemd::watchdog()?;
    let (_lock, contended) = acquire_lock(&loaded.flags).await?;
    let deps = KubeletDeps { verbosity, notify: sd_notify::notify, watchdog, runtime };
    let kubelet = Kubelet::build(loaded, deps)?;
    let (trigger, drain) = drain::token();
    let mut running = Box::pin(kubelet.run(drain));
    let contended = async {
        match contended {
            Some(contended) => contended.await.map_err(|_| anyhow!("the watch of the lock file died")),
            None => std::future::pending().await,
        }
    };
    // All arms are cancel-safe: the work is polled by reference, a signal is kept.
    let why = tokio::select! {
        done = &mut running => return Ok(done?),
        () = signals.next() => "a signal",
        contended = contended => {
            contended?;
            "another kubelet wants the lock file"
        }
    };
    tracing::info!(why, "ending; the pods go on");
    trigger.start();
    tokio::select! {
        done = &mut running => Ok(done?),
        () = signals.next() => bail!("ended by a second signal"),
    }
}

async fn acquire_lock(flags: &KubeletFlags) -> Result<(Option<File>, Option<oneshot::Receiver<()>>)> {
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

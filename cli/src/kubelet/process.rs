//! A kubelet's process: what makes it end. Owns the signals and the lock file; never a part of the kubelet. Called by
//! [`super`].

use std::fs::File;

use anyhow::{Result, anyhow, bail};
use gantry_agent::config::{KubeletFlags, Loaded};
use gantry_agent::kubelet::{Kubelet, KubeletDeps, Verbosity};
use gantry_model::drain;
use tokio::sync::oneshot;

use super::{lock, systemd};
use crate::run::signals::Signals;
use crate::sd_notify;

/// Until a signal, or until something that cannot be helped here.
pub(super) async fn run(loaded: Loaded, verbosity: Verbosity) -> Result<()> {
    let mut signals = Signals::new()?;
    let watchdog = systemd::watchdog()?;
    let (_lock, contended) = acquire_lock(&loaded.flags).await?;
    let kubelet = Kubelet::build(loaded, KubeletDeps { verbosity, notify: sd_notify::notify, watchdog })?;
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

//! Rotation of container logs: renames, compresses, removes, and asks the runtime to open the log
//! anew. Owns the files beside a log; never writes into one. Started by the kubelet.
//!
//! ```text
//! 0.log                        written by the runtime
//! 0.log.20261121-101112        the one before: a reader may still be in it
//! 0.log.20261121-100908.gz     older ones
//! ```

mod plan;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;

use super::Keeper;
use crate::clock::Clock;

/// As in KubeletConfiguration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// containerLogMaxSize: bytes from which on a log is rotated.
    pub max_size: u64,
    /// containerLogMaxFiles: of one container, the current one included; at least 2.
    pub max_files: usize,
    /// containerLogMaxWorkers: how many are rotated at once.
    pub workers: usize,
    /// containerLogMonitorInterval.
    pub interval: Duration,
}

/// Why a log was not rotated.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is one step and its cause")]
pub enum Error {
    #[error("list the containers: {0}")]
    List(crate::runtime::Failure),
    #[error("ask for the log of container {id}")]
    Path { id: String, source: crate::runtime::Failure },
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the runtime does not open the log of container {id} anew")]
    Reopen { id: String, source: crate::runtime::Failure },
    #[error("the work on a log died")]
    Died(#[source] tokio::task::JoinError),
}

impl Error {
    fn chain(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}

/// Rotates for ever, until told to stop.
pub async fn run(
    settings: Settings,
    keeper: Arc<dyn Keeper>,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            // Nobody can stop it any more: as good as stopped.
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(settings.interval) => {}
        }
        for error in round(settings, keeper.as_ref(), clock.as_ref()).await {
            tracing::warn!(error = error.chain(), "a log is not rotated");
        }
    }
}

/// Looks at every running container once. What failed is told; the others are rotated all the same.
pub async fn round(settings: Settings, keeper: &dyn Keeper, clock: &dyn Clock) -> Vec<Error> {
    let running = match keeper.running().await {
        Ok(running) => running,
        Err(error) => return vec![Error::List(error)],
    };
    let unique: BTreeSet<String> = running.into_iter().collect();
    let work = futures_util::stream::iter(unique)
        .map(|id| async move { look(settings, keeper, clock, &id).await })
        .buffer_unordered(settings.workers.max(1));
    let results: Vec<Result<(), Error>> = work.collect().await;
    results.into_iter().filter_map(Result::err).collect()
}

async fn look(settings: Settings, keeper: &dyn Keeper, clock: &dyn Clock, id: &str) -> Result<(), Error> {
    let path = keeper.log_path(id).await.map_err(|source| Error::Path { id: id.to_owned(), source })?;
    if path.is_empty() {
        return Ok(());
    }
    let path = PathBuf::from(path);
    let reopen =
        async || keeper.reopen_log(id).await.map_err(|source| Error::Reopen { id: id.to_owned(), source });
    // Not on a thread that serves others: the disk of the logs may hang.
    let size = match tokio::fs::symlink_metadata(&path).await {
        Ok(found) => found.len(),
        // Somebody took it away: the container writes where nobody reads.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return reopen().await,
        Err(source) => return Err(Error::File { what: "stat", path, source }),
    };
    if size < settings.max_size {
        return Ok(());
    }
    let (log, most) = (path.clone(), settings.max_files);
    let tidied = tokio::task::spawn_blocking(move || tidy(&log, most)).await;
    tidied.map_err(Error::Died)??;
    // In local time as upstream: names of both are sorted as one list.
    let stamp = plan::stamp(clock.wall_nanos(), jiff::tz::TimeZone::system());
    let rotated = with_suffix(&path, &stamp);
    let moved = async |what, from: &Path, to: &Path| {
        let done = tokio::fs::rename(from, to).await;
        done.map_err(|source| Error::File { what, path: from.to_owned(), source })
    };
    moved("rotate", &path, &rotated).await?;
    if let Err(error) = reopen().await {
        // The next round tries again, with the log as it was.
        moved("rename back", &rotated, &path).await?;
        return Err(error);
    }
    Ok(())
}

/// Removes what is not needed, and compresses what nobody writes any more.
fn tidy(log: &Path, most: usize) -> Result<(), Error> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { what, path, source }
    };
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let mut beside = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let entry = entry.map_err(failed("list", folder))?;
        if let Some(suffix) = entry.file_name().to_str().and_then(|other| plan::suffix(other, name)) {
            beside.push(suffix.to_owned());
        }
    }
    let plan::Tidy { remove, compress } = plan::tidy(beside, most);
    for suffix in remove {
        let path = with_suffix(log, &suffix);
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    for suffix in compress {
        let path = with_suffix(log, &suffix);
        pack(&path).map_err(failed("compress", &path))?;
    }
    Ok(())
}

fn with_suffix(log: &Path, suffix: &str) -> PathBuf {
    let mut path = log.as_os_str().to_owned();
    path.push(".");
    path.push(suffix);
    path.into()
}

/// A log as its gzip file; a crash leaves either, and a `.tmp` that the next round removes.
fn pack(path: &Path) -> io::Result<()> {
    let mut from = fs::File::open(path)?;
    let mode = from.metadata()?.permissions().mode() & 0o7777;
    let (tmp, packed) = (with_suffix(path, plan::TMP), with_suffix(path, plan::GZ));
    let to = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&tmp)?;
    let mut writer = flate2::write::GzEncoder::new(to, flate2::Compression::default());
    io::copy(&mut from, &mut writer)?;
    writer.finish()?;
    fs::rename(&tmp, &packed)?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests;

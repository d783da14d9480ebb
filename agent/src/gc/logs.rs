//! Rotation of container logs: renames, asks the runtime to open the log anew, then removes and
//! compresses older ones. Owns the files beside a log; never writes into one. Started by the kubelet.
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
use gantry_base::error::chain;
use gantry_model::clock::Clock;
use tokio::sync::oneshot;

use super::Keeper;
use gantry_base::open;
use gantry_model::drain::DrainWatcher;

/// As in KubeletConfiguration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// containerLogMaxSize: bytes from which on a log is rotated.
    pub max_size: u64,
    /// containerLogMaxFiles: of one container, the current one included; at least 2.
    pub max_files: usize,
    /// containerLogMaxWorkers: how many are rotated at once.
    pub workers: usize,
    /// containerLogMonitorInterval.
    pub interval: Duration,
}

/// Why a log was not rotated, or an older one not removed or compressed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("list the containers: {0}")]
    List(gantry_model::failure::Failure),
    #[error("ask for the log of container {id}")]
    Path { id: String, source: gantry_model::failure::Failure },
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the runtime does not open the log of container {id} anew")]
    Reopen { id: String, source: gantry_model::failure::Failure },
    #[error("start a thread to work on a log")]
    Thread(#[source] io::Error),
    #[error("the work on a log died")]
    Died,
}

/// Rotates for ever, until the drain.
pub(crate) async fn run(
    settings: Settings,
    keeper: Arc<dyn Keeper>,
    clock: Arc<dyn Clock>,
    mut drain: DrainWatcher,
) {
    loop {
        tokio::select! {
            () = drain.wait_started() => return,
            () = tokio::time::sleep(settings.interval) => {}
        }
        for error in round(settings, keeper.as_ref(), clock.as_ref()).await {
            tracing::warn!(error = chain(&error), "a log is not rotated as it should be");
        }
    }
}

/// Looks at every running container once. What failed is told; the others are rotated all the same.
pub(crate) async fn round(settings: Settings, keeper: &dyn Keeper, clock: &dyn Clock) -> Vec<Error> {
    let running = match keeper.running().await {
        Ok(running) => running,
        Err(error) => return vec![Error::List(error)],
    };
    let unique: BTreeSet<String> = running.into_iter().collect();
    let work = futures_util::stream::iter(unique)
        .map(|id| async move { look(settings, keeper, clock, &id).await })
        .buffer_unordered(settings.workers.max(1));
    let results: Vec<Result<Vec<Error>, Error>> = work.collect().await;
    results.into_iter().flat_map(|told| told.unwrap_or_else(|error| vec![error])).collect()
}

async fn look(
    settings: Settings,
    keeper: &dyn Keeper,
    clock: &dyn Clock,
    id: &str,
) -> Result<Vec<Error>, Error> {
    let path = keeper.log_path(id).await.map_err(|source| Error::Path { id: id.to_owned(), source })?;
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let path = PathBuf::from(path);
    let reopen =
        async || keeper.reopen_log(id).await.map_err(|source| Error::Reopen { id: id.to_owned(), source });
    let log = path.clone();
    match aside(move || size(&log)).await?? {
        // Somebody took it away: the container writes where nobody reads.
        None => return reopen().await.map(|()| Vec::new()),
        Some(size) if size < settings.max_size => return Ok(Vec::new()),
        Some(_) => {}
    }
    // In local time as upstream: names of both are sorted as one list.
    let stamp = plan::stamp(clock.wall_nanos(), jiff::tz::TimeZone::system());
    let rotated = with_suffix(&path, &stamp);
    rename_file("rotate", &path, &rotated).await?;
    if let Err(error) = reopen().await {
        // The next round tries again, with the log as it was.
        rename_file("rename back", &rotated, &path).await?;
        return Err(error);
    }
    // Last: a disk without room to compress must not keep the log growing.
    aside(move || tidy(&path, settings.max_files, &stamp)).await
}

/// Works on a thread of its own. A disk that hangs keeps no more of them than logs are rotated at once,
/// and none of those on which the rest of the agent works.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("log rotation".to_owned());
    // Who gave up waiting is not told.
    thread.spawn(move || drop(tell.send(work()))).map_err(Error::Thread)?;
    told.await.map_err(|_| Error::Died)
}

/// Of a log; none when it is not there. What is no file does not grow.
fn size(path: &Path) -> Result<Option<u64>, Error> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(if found.is_file() { found.len() } else { 0 })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("stat", path)(source)),
    }
}

async fn rename_file(what: &'static str, from: &Path, to: &Path) -> Result<(), Error> {
    let (from, to) = (from.to_owned(), to.to_owned());
    aside(move || fs::rename(&from, &to).map_err(failed(what, &from))).await?
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

/// Removes what is not needed, and compresses what nobody writes any more. What fails for one file is
/// told, and done for the others all the same.
fn tidy(log: &Path, most: usize, newest: &str) -> Vec<Error> {
    let beside = match beside(log) {
        Ok(beside) => beside,
        Err(error) => return vec![error],
    };
    // Somebody may still read the newest.
    let older = beside.into_iter().filter(|suffix| suffix != newest).collect();
    let plan::Tidy { remove, compress } = plan::tidy(older, most);
    let mut errors = Vec::new();
    for suffix in remove {
        let path = with_suffix(log, &suffix);
        errors.extend(fs::remove_file(&path).map_err(failed("remove", &path)).err());
    }
    for suffix in compress {
        let path = with_suffix(log, &suffix);
        errors.extend(pack(&path).map_err(failed("compress", &path)).err());
    }
    errors
}

/// What the files beside a log add to its name. Links, pipes and folders are none of a log's: somebody
/// else put them there, and they stay.
fn beside(log: &Path) -> Result<Vec<String>, Error> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let mut beside = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let entry = entry.map_err(failed("list", folder))?;
        let found = entry.file_name();
        let Some(suffix) = found.to_str().and_then(|other| plan::suffix(other, name)) else { continue };
        if entry.file_type().map_err(failed("stat", &entry.path()))?.is_file() {
            beside.push(suffix.to_owned());
        }
    }
    Ok(beside)
}

fn with_suffix(log: &Path, suffix: &str) -> PathBuf {
    let mut path = log.as_os_str().to_owned();
    path.push(".");
    path.push(suffix);
    path.into()
}

/// A log as its gzip file; a crash leaves either, and a `.tmp` that the next round removes.
fn pack(path: &Path) -> io::Result<()> {
    let mut from = open::plain(path)?;
    let mode = from.metadata()?.permissions().mode() & 0o7777;
    let (tmp, packed) = (with_suffix(path, plan::TMP), with_suffix(path, plan::GZ));
    // New: whatever stands there is not written to.
    let to = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&tmp)?;
    let written = (|| {
        let mut writer = flate2::write::GzEncoder::new(to, flate2::Compression::default());
        io::copy(&mut from, &mut writer)?;
        writer.finish()?;
        fs::rename(&tmp, &packed)
    })();
    if let Err(error) = written {
        // On a full disk its room is wanted.
        if let Err(left) = fs::remove_file(&tmp) {
            tracing::debug!(path = %tmp.display(), error = %left, "a half-compressed log stays");
        }
        return Err(error);
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests;

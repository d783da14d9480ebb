//! One layer: download → bounded channel → a blocking thread that hashes and passes on to a confined
//! process that inflates → another thread that hashes what comes back and passes it on to a confined
//! process that parses and writes (ADR 0013). Owns the pipeline and the verdict over the bytes: both
//! digests are the runtime's own work. Never talks HTTP, parses nothing of a layer itself, and never
//! decides where a layer goes. Called by `pull`.

mod disk_guard;
mod flow;
mod worker;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;

use super::digest::Digest;
use super::ingest::{Ingest, IngestError};
use super::manifest::LayerBlob;
use super::progress::PulledLayer;
use super::registry::{Download, RegistryError};
use super::store::StoreError;
use flow::{FeedEnd, Flow, TapResult};
use gantry_unpack::{UnpackError, UnpackErrorKind, UnpackRefusal, UnpackReport, UnpackVerdict, mark_opaque};
pub(crate) use worker::UnpackOptions;
pub use worker::Unpacker;

/// Chunks on their way between network and thread, hyper's of 8 KiB to 400 KiB, and the bytes in them.
const CHUNKS: usize = 64;
const RING: usize = 1 << 20;
const HALF: u32 = 1 << 19;
/// Of a file at once.
const PART: usize = 1 << 18;
const MAX_ENTRIES: u64 = 2_000_000;
/// What a layer may unpack to: a generous base, and more for larger ones. Deflate itself ends at
/// about 1000 to 1.
const MAX_BASE: u64 = 4 << 30;
const MAX_RATIO: u64 = 300;

/// Why a layer is no good. The compressed blob's digest stands in the error around this one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LayerError {
    /// The bytes did not come.
    #[error("download")]
    Download {
        #[source]
        source: RegistryError,
    },
    /// The archive that has them can no longer be read.
    #[error("read from the archive")]
    Archive {
        #[source]
        source: Arc<io::Error>,
    },
    /// More or fewer bytes than the manifest promises.
    #[error("size mismatch: the manifest promises {wanted} bytes, got {found}")]
    Size { wanted: u64, found: u64 },
    /// Other bytes than the manifest promises.
    #[error("digest mismatch: the manifest promises {wanted}, got {found}")]
    Digest { wanted: Digest, found: Digest },
    /// The archive in it is not the one of the image's config.
    #[error("diff id mismatch: the image config promises {wanted}, got {found}")]
    DiffId { wanted: Digest, found: Digest },
    /// The blob is what the manifest promises, but not packed as it says.
    #[error("corrupt {packing} stream: {detail}")]
    Inflate { packing: &'static str, detail: &'static str },
    /// It is packed in a way that takes a lot of memory to unpack.
    #[error(
        "its zstd frames have a window of more than 32 MiB, which builders of images don't write: \
         recompress the layer without --long, and with --ultra at level 20 at most"
    )]
    Window,
    /// Too large when unpacked.
    #[error("unpacks to more than the {limit} bytes allowed for its size: refused as a bomb")]
    Bomb { limit: u64 },
    /// The archive can't be unpacked.
    #[error("unpack")]
    Unpack {
        #[source]
        source: UnpackRefusal,
    },
    /// Directories that no entry describes are remembered: they must not be too many.
    #[error(
        "{count} of its directories have no entry of their own, only files in them: their names take {weight} bytes, \
         {limit} are allowed; build the layer with entries for its directories"
    )]
    Implied { count: usize, weight: u64, limit: u64 },
    /// A mark that only the runtime may make failed.
    #[error("marking opaque directories")]
    Opaque {
        #[source]
        source: UnpackError,
    },
    /// The confined process can't be started or talked to.
    #[error("{operation} the program gantry-unpack")]
    Worker {
        operation: &'static str,
        #[source]
        source: Arc<io::Error>,
    },
    /// The confined process ended before its work: killed by a limit, by a call that it may not make,
    /// or by somebody.
    #[error("the confined {which} ended early: {detail}")]
    Killed { which: &'static str, detail: String },
    /// The disk is for others too.
    #[error("no room in {}: {detail}; remove files or unused images from that disk, or enlarge it", folder.display())]
    Full { folder: PathBuf, detail: String },
    /// Neither disk nor processor let it go on.
    #[error("the confined unpacker took nothing for {seconds} s: the image disk may hang")]
    Stuck { seconds: u64 },
    /// The temporary folder failed.
    #[error("temporary folder")]
    Ingest {
        #[source]
        source: IngestError,
    },
    /// The layer can't be made known.
    #[error("image store")]
    Store {
        #[source]
        source: Box<StoreError>,
    },
    /// Nobody could unpack what had come, and so the rest was not asked for: whether the bytes were those that were
    /// promised is not known.
    #[error("stopped after {found} of {wanted} bytes")]
    Aborted {
        wanted: u64,
        found: u64,
        #[source]
        source: Box<LayerError>,
    },
    /// The download ended before the blob did; its own error says why.
    #[error("the download was given up")]
    GivenUp,
    /// The thread ended without an answer.
    #[error("the unpacking thread died")]
    Thread,
}

impl LayerError {
    /// Whether the bytes are not those promised, or did not come: another place may do better.
    pub(crate) fn is_transfer(&self) -> bool {
        match self {
            Self::Download { .. } | Self::Size { .. } | Self::Digest { .. } => true,
            Self::Aborted { source, .. } => matches!(
                **source,
                Self::Inflate { .. } | Self::Unpack { .. } | Self::Bomb { .. } | Self::Killed { .. }
            ),
            _ => false,
        }
    }
}

/// What the thread hears from the download.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// With its permit for the buffer.
    Bytes(Bytes, OwnedSemaphorePermit),
    /// The answer is complete. A sender dropped without this has failed or was cancelled.
    End,
}

/// What must come out.
#[derive(Debug, Clone)]
pub(crate) struct ExpectedLayer {
    pub(crate) layer: LayerBlob,
    pub(crate) diff_id: Digest,
}

/// A verified layer in its temporary folder.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) ingest: Ingest,
    pub(crate) report: UnpackReport,
}

/// The pipe between download and thread.
pub(crate) fn pipe() -> (mpsc::Sender<Chunk>, mpsc::Receiver<Chunk>) {
    mpsc::channel(CHUNKS)
}

/// Feeds the thread. `false`: the thread has hung up, and knows why.
///
/// # Errors
/// The network's.
pub(crate) async fn feed(
    mut download: Download,
    wanted: u64,
    chunks: mpsc::Sender<Chunk>,
    progress: &PulledLayer,
) -> Result<bool, RegistryError> {
    let (ring, mut found) = (Arc::new(Semaphore::new(RING)), 0);
    loop {
        let next = tokio::select! {
            next = download.chunk(|| ring.available_permits() == RING) => next?,
            // Either of them is dropped only when this returns.
            () = chunks.closed() => return Ok(false),
        };
        let Some(chunk) = next else { break };
        found += chunk.len() as u64;
        if found > wanted {
            return Err(RegistryError::Size { url: download.url().to_owned(), wanted, found });
        }
        progress.set_downloaded(found);
        let needed = u32::try_from(chunk.len().min(RING)).unwrap_or(u32::MAX);
        // Never closed. A thread that has hung up has given all permits back.
        let Ok(permit) = acquire_buffer_space(&ring, needed).await else { return Ok(false) };
        if chunks.send(Chunk::Bytes(chunk, permit)).await.is_err() {
            return Ok(false);
        }
    }
    progress.set_unpacking();
    Ok(chunks.send(Chunk::End).await.is_ok())
}

/// As [`feed`], from a part of a file.
///
/// # Errors
/// The disk's.
pub(crate) async fn feed_file(
    file: &Arc<File>,
    from: u64,
    size: u64,
    chunks: mpsc::Sender<Chunk>,
) -> io::Result<bool> {
    let (ring, end) = (Arc::new(Semaphore::new(RING)), from.saturating_add(size));
    let mut at = from;
    while at < end {
        let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(PART);
        let file = Arc::clone(file);
        let read = spawn_blocking(move || {
            let mut chunk = vec![0; count];
            file.read_exact_at(&mut chunk, at).map(|()| Bytes::from(chunk))
        });
        let chunk = read.await.map_err(io::Error::other)??;
        at += count as u64;
        let needed = u32::try_from(count).unwrap_or(u32::MAX);
        // Never closed. A thread that has hung up has given all permits back.
        let Ok(permit) = acquire_buffer_space(&ring, needed).await else { return Ok(false) };
        if chunks.send(Chunk::Bytes(chunk, permit)).await.is_err() {
            return Ok(false);
        }
    }
    Ok(chunks.send(Chunk::End).await.is_ok())
}

/// Buffer space for a chunk. Once there is none it waits until half of all is free: the thread on the other side has
/// work until then, and each would wake the other for every chunk.
async fn acquire_buffer_space(
    ring: &Arc<Semaphore>,
    needed: u32,
) -> Result<OwnedSemaphorePermit, AcquireError> {
    if ring.available_permits() < needed as usize {
        drop(ring.acquire_many(HALF).await?);
    }
    Arc::clone(ring).acquire_many_owned(needed).await
}

/// Unpacks what comes through `chunks` into a new folder in `parent` and verifies all of it. Blocks.
///
/// # Errors
/// [`LayerError`]; the folder is gone then.
pub(crate) fn receive(
    chunks: mpsc::Receiver<Chunk>,
    expected: &ExpectedLayer,
    parent: &Path,
    options: &UnpackOptions,
) -> Result<Unpacked, LayerError> {
    let ingest = Ingest::new(parent).map_err(|source| LayerError::Ingest { source })?;
    let limit = MAX_BASE.saturating_add(expected.layer.blob.size.saturating_mul(MAX_RATIO));
    let flow = flow::run(chunks, &expected.layer, ingest.path(), limit, options)?;
    let report = judge(flow, expected, limit, parent)?;
    mark_opaque(ingest.path(), &report.opaque).map_err(|source| LayerError::Opaque { source })?;
    Ok(Unpacked { ingest, report })
}

/// Wrong bytes break inflater and archive long before their digest is known: of several failures the
/// one that explains the others counts.
fn judge(
    flow: Flow,
    expected: &ExpectedLayer,
    limit: u64,
    parent: &Path,
) -> Result<UnpackReport, LayerError> {
    let Flow { feed_result: fed, inflate_result: inflated, tap_result: tapped, verdict } = flow;
    if fed.end == FeedEnd::GivenUp {
        return Err(LayerError::GivenUp);
    }
    match &verdict {
        Ok(UnpackVerdict::Refused(source)) if source.kind == UnpackErrorKind::Full => {
            return Err(LayerError::Full { folder: parent.to_owned(), detail: source.message.clone() });
        }
        Ok(UnpackVerdict::Refused(source)) if source.kind == UnpackErrorKind::Node => {
            return Err(LayerError::Unpack { source: source.clone() });
        }
        _ => {}
    }
    if fed.end == FeedEnd::DiskFull {
        // The unpacker ended for want of room, and could not even say so.
        return Err(verdict.err().unwrap_or(LayerError::GivenUp));
    }
    let (wanted, size) = (expected.layer.blob.digest, expected.layer.blob.size);
    if fed.end == FeedEnd::Aborted {
        let source =
            combine_results(inflated, tapped, verdict, limit).err().unwrap_or(LayerError::GivenUp).into();
        return Err(LayerError::Aborted { wanted: size, found: fed.count, source });
    }
    if fed.count != size {
        return Err(LayerError::Size { wanted: size, found: fed.count });
    }
    if fed.digest != wanted {
        return Err(LayerError::Digest { wanted, found: fed.digest });
    }
    let (found, report) = combine_results(inflated, tapped, verdict, limit)?;
    match found {
        found if found == expected.diff_id => Ok(report),
        found => Err(LayerError::DiffId { wanted: expected.diff_id, found }),
    }
}

/// What the processes say: the archive's digest, and what was unpacked.
fn combine_results(
    inflated: Result<(), LayerError>,
    tapped: Result<TapResult, LayerError>,
    verdict: Result<UnpackVerdict, LayerError>,
    limit: u64,
) -> Result<(Digest, UnpackReport), LayerError> {
    let TapResult { digest, bomb } = tapped?;
    if bomb {
        return Err(LayerError::Bomb { limit });
    }
    // One that had nobody to write to any more knows nothing of its own.
    match (inflated, verdict?) {
        (Err(error), _) => Err(error),
        (Ok(()), UnpackVerdict::Refused(source)) => Err(LayerError::Unpack { source }),
        (Ok(()), UnpackVerdict::Unpacked(report)) => Ok((digest, report)),
    }
}

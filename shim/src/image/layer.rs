//! One layer: download → bounded channel → one blocking thread that hashes, inflates, hashes again,
//! parses and writes. Owns the pipeline and the verdict over the bytes; never talks HTTP itself and
//! never decides where a layer goes. Called by `pull`.

mod stream;

use std::io::{self, BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use tokio::sync::mpsc;

use super::digest::Digest;
use super::ingest::{Ingest, IngestError};
use super::manifest::{LayerBlob, Packing};
use super::progress::Layer;
use super::registry::{Download, RegistryError};
use super::store::StoreError;
use super::tarball::{TarError, Tarball};
use super::unpack::{self, Report, Tree, UnpackError};
use stream::{Chunks, Fault, Tee, fault};

/// Chunks on their way between network and thread. hyper's are 8 KiB to 400 KiB.
const CHUNKS: usize = 16;
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
    /// More or fewer bytes than the manifest promises.
    #[error("size mismatch: the manifest promises {wanted} bytes, got {found}")]
    Size { wanted: u64, found: u64 },
    /// Other bytes than the manifest promises.
    #[error("digest mismatch: the manifest promises {wanted}, got {found}")]
    Digest { wanted: Digest, found: Digest },
    /// The archive in it is not the one of the image's config.
    #[error("diff id mismatch: the image config promises {wanted}, got {found}")]
    DiffId { wanted: Digest, found: Digest },
    /// The blob is what the manifest promises, but no gzip stream.
    #[error("corrupt gzip stream")]
    Gzip {
        #[source]
        source: Arc<io::Error>,
    },
    /// Too large when unpacked.
    #[error("unpacks to more than the {limit} bytes allowed for its size: refused as a bomb")]
    Bomb { limit: u64 },
    /// The archive can't be unpacked.
    #[error("unpack")]
    Unpack {
        #[source]
        source: UnpackError,
    },
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
        matches!(self, Self::Download { .. } | Self::Size { .. } | Self::Digest { .. })
    }
}

/// What the thread hears from the download.
#[derive(Debug)]
pub(crate) enum Piece {
    Chunk(Bytes),
    /// The answer is complete. A sender dropped without this has failed or was cancelled.
    End,
}

/// What must come out.
#[derive(Debug, Clone)]
pub(crate) struct Promise {
    pub(crate) layer: LayerBlob,
    pub(crate) diff_id: Digest,
}

/// A verified layer in its temporary folder.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) ingest: Ingest,
    pub(crate) report: Report,
}

/// The pipe between download and thread.
pub(crate) fn pipe() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(CHUNKS)
}

/// Feeds the thread. `false`: the thread has hung up, and knows why.
///
/// # Errors
/// The network's.
pub(crate) async fn feed(
    mut download: Download,
    wanted: u64,
    pieces: mpsc::Sender<Piece>,
    progress: &Layer,
) -> Result<bool, RegistryError> {
    let mut found = 0;
    while let Some(chunk) = download.chunk().await? {
        found += chunk.len() as u64;
        if found > wanted {
            return Err(RegistryError::Size { url: download.url().to_owned(), wanted, found });
        }
        progress.downloaded(found);
        if pieces.send(Piece::Chunk(chunk)).await.is_err() {
            return Ok(false);
        }
    }
    progress.unpacking();
    Ok(pieces.send(Piece::End).await.is_ok())
}

/// Unpacks what comes through `pieces` into a new folder in `parent` and verifies all of it. Blocks.
///
/// # Errors
/// [`LayerError`]; the folder is gone then.
pub(crate) fn receive(
    pieces: mpsc::Receiver<Piece>,
    promise: &Promise,
    parent: &Path,
) -> Result<Unpacked, LayerError> {
    let ingest = Ingest::new(parent).map_err(|source| LayerError::Ingest { source })?;
    let chunks = Chunks::new(pieces);
    let (done, chunks) = match promise.layer.packing {
        Packing::Plain => through(chunks, promise, ingest.path()),
        Packing::Gzip => {
            let (done, gzip) = through(MultiGzDecoder::new(chunks), promise, ingest.path());
            (done, gzip.into_inner())
        }
    };
    // Wrong bytes break gzip and tar long before the digest is known: read on to name the cause.
    let verdict = match &done {
        Err(LayerError::GivenUp | LayerError::Ingest { .. } | LayerError::Thread) => None,
        Err(LayerError::Unpack { source }) if !source.is_content() => None,
        _ => verdict(chunks, promise),
    };
    match verdict {
        Some(error) => Err(error),
        None => done.map(|report| Unpacked { ingest, report }),
    }
}

/// Inflated bytes → diff id → tar → files.
fn through<R: Read>(inflated: R, promise: &Promise, folder: &Path) -> (Result<Report, LayerError>, R) {
    let limit = MAX_BASE.saturating_add(promise.layer.blob.size.saturating_mul(MAX_RATIO));
    let mut tar = Tarball::new(Tee::new(inflated, limit));
    let report = Tree::open(folder).and_then(|tree| unpack::unpack(&mut tar, tree, MAX_ENTRIES));
    let mut tee = tar.into_inner();
    let report = match report {
        Ok(report) => tee.drain().map(|()| report).map_err(|error| broken(error, limit, promise)),
        Err(UnpackError::Tar { source: TarError::Read { source } }) => Err(broken(source, limit, promise)),
        Err(source) => Err(LayerError::Unpack { source }),
    };
    let (inflated, found) = tee.into_parts();
    let report = report.and_then(|report| match found {
        found if found == promise.diff_id => Ok(report),
        found => Err(LayerError::DiffId { wanted: promise.diff_id, found }),
    });
    (report, inflated)
}

fn broken(error: Arc<io::Error>, limit: u64, promise: &Promise) -> LayerError {
    match fault(&error) {
        Some(Fault::GivenUp) => LayerError::GivenUp,
        Some(Fault::Bomb) => LayerError::Bomb { limit },
        None if promise.layer.packing == Packing::Gzip => LayerError::Gzip { source: error },
        None => LayerError::Unpack { source: UnpackError::Tar { source: TarError::Read { source: error } } },
    }
}

/// What is wrong with the compressed bytes, if anything.
fn verdict(mut chunks: Chunks, promise: &Promise) -> Option<LayerError> {
    loop {
        match chunks.fill_buf() {
            Ok([]) => break,
            Ok(rest) => {
                let length = rest.len();
                chunks.consume(length);
            }
            Err(_) => return Some(LayerError::GivenUp),
        }
    }
    let (found_size, found) = chunks.into_count();
    let (wanted, size) = (promise.layer.blob.digest, promise.layer.blob.size);
    if found_size != size {
        return Some(LayerError::Size { wanted: size, found: found_size });
    }
    (found != wanted).then_some(LayerError::Digest { wanted, found })
}

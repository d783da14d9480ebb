//! Images from an archive instead of a registry: an OCI layout or what `docker save` writes, as a tar. Owns
//! the order of work; the archive's file is `spool`'s, its documents `contents`'. Layers take the way of a
//! pull's: through the confined unpacker, both digests verified. Called by `Images`.

mod contents;
mod spool;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::digest::{Digest, DigestError};
use super::hold::{Hold, Lease};
use super::layer::{self, ExpectedLayer, LayerError};
use super::manifest::ManifestError;
use super::pull;
use super::reference::ReferenceError;
use super::store::record::ImageRecord;
use super::{Error, Image, ImagesInner};
use contents::ArchivedImage;
use gantry_base::timeline::Recorder;
use gantry_unpack::TarError;
use spool::Spool;
pub use spool::Upload;

/// Layers of one image that are at work or wait for a slot.
const AT_ONCE: usize = 16;

/// Why an archive can't be loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ArchiveError {
    /// The client went before its end.
    #[error("the archive did not come to its end: the client gave up")]
    GivenUp,
    /// No tar.
    #[error("it is no tar archive that can be read; a compressed one is to be unpacked first")]
    Tar {
        #[source]
        source: TarError,
    },
    /// A tar of something else.
    #[error(
        "it has neither index.json (an OCI layout) nor manifest.json (docker save): make one with docker save, \
         podman save or skopeo copy"
    )]
    Unknown,
    /// Nothing in it is for this machine.
    #[error("it has no image for this machine")]
    Empty,
    /// The disk is for others too.
    #[error("no room in {}: {detail}; remove files or unused images from that disk, or enlarge it", folder.display())]
    Full { folder: PathBuf, detail: String },
    /// The file that holds it meanwhile.
    #[error("keeping the archive in {}", folder.display())]
    Io {
        folder: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// The same, on the way back.
    #[error("reading what came of the archive")]
    Read {
        #[source]
        source: Arc<io::Error>,
    },
    /// Too many entries.
    #[error("it has more than {limit} files")]
    Many { limit: usize },
    /// Too many images.
    #[error("it has more than {limit} images")]
    Images { limit: usize },
    /// Too many layers.
    #[error("image {digest} has more than {limit} layers")]
    Layers { digest: Digest, limit: usize },
    /// A name for two contents.
    #[error("{path} stands in it twice, with different contents")]
    Twice { path: String },
    /// A file that a document of it names.
    #[error("it lacks {path}, which it names itself")]
    Missing { path: String },
    /// A document over its limit.
    #[error("{path}: larger than the {limit} bytes allowed for a manifest or config")]
    Large { path: String, limit: u64 },
    /// A document of another form.
    #[error("{path} is not valid JSON of its kind: {detail}")]
    Json { path: String, detail: String },
    /// Bytes that are not what their name says.
    #[error("{path} has digest {found}")]
    Digest { path: String, found: Digest },
    /// A digest in a document can't be used.
    #[error("{path} holds a digest that can't be used")]
    BadDigest {
        path: String,
        #[source]
        source: DigestError,
    },
    /// An index of an index of an index.
    #[error("{digest}: more than {limit} manifests refer to one another")]
    Nested { digest: Digest, limit: usize },
    /// Nothing to call it by.
    #[error("it does not name image {digest}: give it a name with gantry image load --name")]
    Unnamed { digest: Digest },
    /// A name that nothing is left for.
    #[error("it names its images itself ({own}), so none can be called {name}: leave --name away")]
    Named { name: String, own: String },
    /// A name for two images, of which one would lose it.
    #[error("two of its images are called {name}")]
    Called { name: String },
    /// A name in it is none.
    #[error("a name of an image")]
    Name {
        #[source]
        source: ReferenceError,
    },
    /// What it has is no image for this node.
    #[error("an image in it")]
    Manifest {
        #[source]
        source: Box<ManifestError>,
    },
}

impl ArchiveError {
    fn of_tar(error: TarError, folder: &Path) -> Self {
        match error {
            TarError::Read { source } => {
                Self::of_io(io::Error::new(source.kind(), source.to_string()), folder)
            }
            source => Self::Tar { source },
        }
    }

    fn of_io(source: io::Error, folder: &Path) -> Self {
        let folder = folder.to_owned();
        match source.kind() {
            io::ErrorKind::ConnectionAborted => Self::GivenUp,
            io::ErrorKind::StorageFull => Self::Full { folder, detail: source.to_string() },
            _ => Self::Io { folder, source: Arc::new(source) },
        }
    }
}

/// What to call an image that its archive does not name.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// A name; empty for none. An archive that names all its images is refused then.
    pub name: String,
    /// Where there is no name: a repository, for `REPOSITORY@DIGEST`; empty for none.
    pub repository: String,
}

/// Loads every image of an archive that is for this machine.
///
/// # Errors
/// [`Error::Archive`], and those of a pull's layers; images before the one that failed stay.
pub(super) async fn load(
    inner: &Arc<ImagesInner>,
    naming: Naming,
    chunks: mpsc::Receiver<Upload>,
) -> Result<Vec<Arc<Image>>, Error> {
    let folder = inner.store.ingest_dir().to_owned();
    let platform = inner.platform.clone();
    let task = spawn_blocking(move || {
        let spool = Spool::receive(chunks, &folder)?;
        let found = contents::read(&spool, &naming, &platform)?;
        Ok((Arc::new(spool), found))
    });
    let read = task.await.map_err(|_| Error::Task { reference: "archive".to_owned() })?;
    let (spool, found) = read.map_err(|source| Error::Archive { source: Box::new(source) })?;
    let mut images = Vec::new();
    for found in found {
        images.push(image(inner, &spool, found).await?);
    }
    Ok(images)
}

async fn image(
    inner: &Arc<ImagesInner>,
    spool: &Arc<Spool>,
    found: ArchivedImage,
) -> Result<Arc<Image>, Error> {
    let name = found.names.first().map(ToString::to_string).unwrap_or_default();
    let id = found.id.digest.to_string();
    let size = found.layers.iter().fold(found.id.size, |sum, layer| sum.saturating_add(layer.blob.size));
    let ArchivedImage { names, named, manifest, manifest_digest, config, layers, diff_ids, places, .. } =
        found;
    let names = names
        .iter()
        .map(|name| name.tag_name().unwrap_or_else(|| format!("{}@{named}", name.repository())))
        .collect();
    let manifest_digest = manifest_digest.to_string();
    let (record, lease) = match pull::find_known_image(inner, &id) {
        Some((known, lease)) => (ImageRecord { manifest_digest, manifest, size, ..known }, lease),
        None => {
            let expected_layers = pull::expected_layers(&layers, &diff_ids);
            let diff_ids = diff_ids.iter().map(ToString::to_string).collect();
            let record = ImageRecord { manifest_digest, manifest, config, diff_ids, size, fixup: None };
            let lease = Lease::new(Hold::new(Arc::clone(inner), record.diff_ids.clone()));
            if let Err(error) = fetch_layer(inner, spool, &name, expected_layers, &places).await {
                lease.end().await;
                return Err(error);
            }
            (record, lease)
        }
    };
    pull::finish(Arc::clone(inner), id, record, names, lease).await
}

/// Unpacks the layers that are not here.
async fn fetch_layer(
    inner: &Arc<ImagesInner>,
    spool: &Arc<Spool>,
    name: &str,
    expected_layers: Vec<ExpectedLayer>,
    places: &[u64],
) -> Result<(), Error> {
    let keys: Vec<String> = expected_layers.iter().map(|expected| expected.diff_id.to_string()).collect();
    let mut seen = HashSet::new();
    let wanted: Vec<(ExpectedLayer, u64)> = expected_layers
        .into_iter()
        .zip(places.iter().copied())
        .filter(|(expected, _)| seen.insert(expected.diff_id))
        .collect();
    let (quota, keys) = (&inner.unpack_slots.pull_quota(), &keys);
    stream::iter(wanted)
        .map(|(expected, at)| async move {
            let _slot = quota.acquire(expected.layer.blob.size).await;
            let digest = expected.layer.blob.digest;
            unpack(inner, spool, expected, at).await.map_err(|source| Error::Unpack {
                image: name.to_owned(),
                digest,
                source: source.into(),
            })?;
            pull::check_implied_weight(inner, name, keys)
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn unpack(
    inner: &Arc<ImagesInner>,
    spool: &Arc<Spool>,
    expected: ExpectedLayer,
    at: u64,
) -> Result<(), LayerError> {
    let key = expected.diff_id.to_string();
    if inner.store.layer(&key).is_some() {
        return Ok(());
    }
    let (send, chunks) = layer::pipe();
    let size = expected.layer.blob.size;
    // The thread's own: whoever wanted the layer may be gone when it is done.
    let hold = Hold::new(Arc::clone(inner), vec![key]);
    let owned = Arc::clone(inner);
    let thread = spawn_blocking(move || {
        let _hold = hold;
        pull::unpack_and_store(&owned, &expected, chunks, &Recorder::default())
    });
    let fed = layer::feed_file(spool.file(), at, size, send).await;
    let kept = thread.await.map_err(|_| LayerError::Thread)?;
    match (fed, kept) {
        (Err(source), Err(LayerError::GivenUp) | Ok(())) => {
            Err(LayerError::Archive { source: Arc::new(source) })
        }
        (_, kept) => kept,
    }
}

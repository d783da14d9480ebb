//! A pull from name to image: resolve, layers side by side, fix-up, commit. Owns the order of work
//! and its spans; each step is another file's. Called by `Images`.

mod commit;
mod layers;

use std::sync::Arc;

use super::auth::Auth;
use super::digest::Digest;
use super::hold::{Hold, Lease};
use super::layer::{ExpectedLayer, LayerError};
use super::manifest::{self, Blob, LayerBlob, ManifestDocument, ManifestError, Platform};
use super::reference::Reference;
use super::registry::{RegistryError, Repository};
use super::store::record::ImageRecord;
use super::{Error, Image, ImagesInner, Optimisation};
use gantry_base::timeline::{Recorder, Span};
pub(super) use layers::{check_implied_weight, unpack_and_store};

const MAX_CONFIG: usize = 8 << 20;
/// An index may name an index; a chain of them is a trick.
const MAX_DEPTH: usize = 4;

/// What everybody on an image's flight gets.
pub(super) type PullResult = (Result<Arc<Image>, Error>, Recorder);
/// What everybody on a layer's flight gets.
pub(super) type LayerResult = Result<Arc<Vec<Span>>, LayerError>;

/// The image's documents, digests verified.
struct ResolvedImage {
    /// Of the document that the name pointed at: an index's, or the manifest's.
    named: Digest,
    manifest_digest: Digest,
    manifest: String,
    config: Blob,
    layers: Vec<LayerBlob>,
}

/// One pull. Failed, or dropped at any await, it leaves nothing: an unfinished folder belongs to a
/// blocking thread that removes it as soon as its pipe breaks, a finished one to those who hold it.
pub(super) async fn pull(
    inner: Arc<ImagesInner>,
    reference: Reference,
    auth: Option<Auth>,
    spans: Recorder,
) -> Result<Arc<Image>, Error> {
    let name = reference.to_string();
    let progress = inner.under_way.pull(&name);
    let registry = |source: RegistryError| Error::Registry { reference: name.clone(), source: source.into() };
    let repository = {
        let (inner, reference) = (Arc::clone(&inner), reference.clone());
        let job = move || Repository::new(&inner.http, &inner.sources, &reference, auth.as_ref());
        tokio::task::spawn_blocking(job).await.map_err(|_| Error::Task { reference: name.clone() })?
    };
    let repository = Arc::new(repository.map_err(registry)?);
    let resolved = {
        let mut stage = spans.stage("resolve");
        stage.detail(name.clone());
        resolve(&repository, &reference, &inner.platform).await?
    };
    let id = resolved.config.digest.to_string();
    let (record, lease) = match find_known_image(&inner, &id) {
        Some((known, lease)) => (resolved.with_manifest(known), lease),
        None => {
            let (config, diff_ids) = config(&inner, &repository, &name, &resolved, &spans).await?;
            let expected_layers = expected_layers(&resolved.layers, &diff_ids);
            progress
                .set_layers(expected_layers.iter().map(|expected| inner.under_way.layer(expected)).collect());
            let record = resolved.record(config, &expected_layers);
            let lease = Lease::new(Hold::new(Arc::clone(&inner), record.diff_ids.clone()));
            if let Err(error) =
                layers::fetch_layers(&inner, &repository, &name, expected_layers, &spans).await
            {
                lease.end().await;
                return Err(error);
            }
            (record, lease)
        }
    };
    let _stage = spans.stage("commit");
    progress.set_committing();
    let named = resolved.named;
    let mut names = vec![format!("{}@{named}", reference.repository())];
    names.extend(reference.tag_name());
    finish(inner, id, record, names, lease).await
}

/// Makes an image known whose layers are here, with more names.
///
/// # Errors
/// [`Error::Fixup`], [`Error::Layer`], [`Error::Store`].
pub(super) async fn finish(
    inner: Arc<ImagesInner>,
    id: String,
    record: ImageRecord,
    names: Vec<String>,
    lease: Lease,
) -> Result<Arc<Image>, Error> {
    let named = names.last().cloned().unwrap_or_default();
    let task = tokio::task::spawn_blocking(move || {
        // From here on nobody can cancel: the layers become the image's before they are let go.
        let hold = lease.into_hold();
        let image = commit::commit(&inner, &id, record, names);
        let image = image.and_then(|image| flush_if_durable(&inner).map(|()| image));
        inner.wake();
        drop(hold);
        image
    });
    match task.await {
        Ok(image) => image,
        Err(_) => Err(Error::Task { reference: named }),
    }
}

/// A committed image is usable at once; durable before that only where it is asked for. Blocks.
fn flush_if_durable(inner: &ImagesInner) -> Result<(), Error> {
    if inner.switches.has(Optimisation::SyncBehind) {
        return Ok(());
    }
    inner.store.flush().map_err(|source| Error::Store { source: Box::new(source) })
}

/// An image that is here already, and the hold on its layers. Looked for again once they are held: it
/// may have been removed in between.
pub(super) fn find_known_image(inner: &Arc<ImagesInner>, id: &str) -> Option<(ImageRecord, Lease)> {
    let record = inner.store.image_record(id)?;
    let lease = Lease::new(Hold::new(Arc::clone(inner), record.keys().cloned().collect()));
    inner.store.image_record(id).is_some().then(|| (ImageRecord::clone(&record), lease))
}

pub(super) fn expected_layers(blobs: &[LayerBlob], diff_ids: &[Digest]) -> Vec<ExpectedLayer> {
    let pairs = blobs.iter().zip(diff_ids);
    pairs.map(|(layer, diff_id)| ExpectedLayer { layer: layer.clone(), diff_id: *diff_id }).collect()
}

impl ResolvedImage {
    fn record(&self, config: String, expected_layers: &[ExpectedLayer]) -> ImageRecord {
        ImageRecord {
            manifest_digest: self.manifest_digest.to_string(),
            manifest: self.manifest.clone(),
            config,
            diff_ids: expected_layers.iter().map(|expected| expected.diff_id.to_string()).collect(),
            size: self.size(),
            fixup: None,
        }
    }

    /// A known image by what may be another manifest of it.
    fn with_manifest(&self, known: ImageRecord) -> ImageRecord {
        let (manifest_digest, manifest) = (self.manifest_digest.to_string(), self.manifest.clone());
        ImageRecord { manifest_digest, manifest, size: self.size(), ..known }
    }

    fn size(&self) -> u64 {
        let blobs = self.layers.iter().map(|layer| layer.blob.size);
        blobs.fold(self.config.size, u64::saturating_add)
    }
}

/// The config's text, and the diff ids in it.
async fn config(
    inner: &ImagesInner,
    repository: &Repository,
    name: &str,
    resolved: &ResolvedImage,
    spans: &Recorder,
) -> Result<(String, Vec<Digest>), Error> {
    let _stage = spans.stage("config");
    let digest = resolved.config.digest;
    let bytes = repository
        .small_blob(&resolved.config, MAX_CONFIG)
        .await
        .map_err(|source| Error::Registry { reference: name.to_owned(), source: source.into() })?;
    let parsed = manifest::config(&bytes, digest, resolved.layers.len(), &inner.platform);
    let (_, diff_ids) = parsed.map_err(|source| invalid(name, source))?;
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| {
        let detail = "not UTF-8".to_owned();
        invalid(name, ManifestError::Json { what: "image config", digest, detail })
    })?;
    Ok((text, diff_ids))
}

async fn resolve(
    repository: &Repository,
    reference: &Reference,
    platform: &Platform,
) -> Result<ResolvedImage, Error> {
    let name = reference.to_string();
    let mut wanted = reference.digest();
    let mut address = match (wanted, reference.tag()) {
        (Some(digest), _) => digest.to_string(),
        (None, tag) => tag.unwrap_or("latest").to_owned(),
    };
    let mut named = None;
    for _ in 0..MAX_DEPTH {
        let fetched = repository
            .manifest(&address, wanted)
            .await
            .map_err(|source| Error::Registry { reference: name.clone(), source: source.into() })?;
        let named = *named.get_or_insert(fetched.digest);
        let document = manifest::document(&fetched.bytes, fetched.digest, &fetched.content_type, platform);
        match document.map_err(|source| invalid(&name, source))? {
            ManifestDocument::Index(entry) => {
                wanted = Some(entry.digest);
                address = entry.digest.to_string();
            }
            ManifestDocument::Image { config, layers } => {
                let manifest = String::from_utf8_lossy(&fetched.bytes).into_owned();
                return Ok(ResolvedImage {
                    named,
                    manifest_digest: fetched.digest,
                    manifest,
                    config,
                    layers,
                });
            }
        }
    }
    Err(Error::Nested { reference: name, limit: MAX_DEPTH })
}

fn invalid(reference: &str, source: ManifestError) -> Error {
    Error::Manifest { reference: reference.to_owned(), source: source.into() }
}

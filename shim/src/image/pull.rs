//! A pull from name to image: resolve, layers side by side, fix-up, commit. Owns the order of work
//! and its spans; each step is another file's. Called by `Images`.

mod commit;

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::auth::Auth;
use super::digest::Digest;
use super::hold::{Hold, Lease};
use super::layer::{self, LayerError, Piece, Promise};
use super::manifest::{self, Blob, Document, LayerBlob, ManifestError, Platform};
use super::reference::Reference;
use super::registry::{RegistryError, Repository};
use super::store::record::{ImageRecord, LayerRecord, weigh};
use super::{Error, Image, Inner, Optimisation};
use crate::timeline::{Recorder, Span, unix_nanos};
use crate::unpack::escape;

/// Layers of one image on their way at the same time.
const AT_ONCE: usize = 4;
const MAX_CONFIG: usize = 8 << 20;
/// Of a layer's directories that only paths of files imply, by `weigh`: 20,000 of them with 40 bytes each.
/// Usual layers have a few dozen. Each pull holds them in memory and in /run until they are on disk.
const MOST_IMPLIED: u64 = 2 << 20;
/// Of all layers of an image: what its fix-up layer is planned from.
const MOST_IMPLIED_OF_IMAGE: u64 = 8 << 20;
/// An index may name an index; a chain of them is a trick.
const MAX_DEPTH: usize = 4;

/// What everybody on an image's flight gets.
pub(super) type PullResult = (Result<Arc<Image>, Error>, Recorder);
/// What everybody on a layer's flight gets.
pub(super) type LayerResult = Result<Arc<Vec<Span>>, LayerError>;

/// The image's documents, digests verified.
struct Resolved {
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
    inner: Arc<Inner>,
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
    let (record, lease) = match known(&inner, &id) {
        Some((known, lease)) => (resolved.again(known), lease),
        None => {
            let (config, diff_ids) = config(&inner, &repository, &name, &resolved, &spans).await?;
            let promises = promises(&resolved.layers, &diff_ids);
            progress.layers(promises.iter().map(|promise| inner.under_way.layer(promise)).collect());
            let record = resolved.record(config, &promises);
            let lease = Lease::new(Hold::new(Arc::clone(&inner), record.diff_ids.clone()));
            if let Err(error) = layers(&inner, &repository, &name, promises, &spans).await {
                lease.end().await;
                return Err(error);
            }
            (record, lease)
        }
    };
    let _stage = spans.stage("commit");
    progress.committing();
    let named = resolved.named;
    let mut names = vec![format!("{}@{named}", reference.repository())];
    names.extend(reference.tag_name());
    let task = tokio::task::spawn_blocking(move || {
        // From here on nobody can cancel: the layers become the image's before they are let go.
        let hold = lease.into_hold();
        let image = commit::commit(&inner, &id, record, names);
        let image = image.and_then(|image| usable(&inner).map(|()| image));
        inner.wake();
        drop(hold);
        image
    });
    match task.await {
        Ok(image) => image,
        Err(_) => Err(Error::Task { reference: name }),
    }
}

/// A committed image is usable at once; durable before that only where it is asked for. Blocks.
fn usable(inner: &Inner) -> Result<(), Error> {
    if inner.switches.has(Optimisation::SyncBehind) {
        return Ok(());
    }
    inner.store.flush().map_err(|source| Error::Store { source: Box::new(source) })
}

/// An image that is here already, and the hold on its layers. Looked for again once they are held: it
/// may have been removed in between.
fn known(inner: &Arc<Inner>, id: &str) -> Option<(ImageRecord, Lease)> {
    let record = inner.store.image_record(id)?;
    let lease = Lease::new(Hold::new(Arc::clone(inner), record.keys().cloned().collect()));
    inner.store.image_record(id).is_some().then(|| (ImageRecord::clone(&record), lease))
}

fn promises(blobs: &[LayerBlob], diff_ids: &[Digest]) -> Vec<Promise> {
    let pairs = blobs.iter().zip(diff_ids);
    pairs.map(|(layer, diff_id)| Promise { layer: layer.clone(), diff_id: *diff_id }).collect()
}

impl Resolved {
    fn record(&self, config: String, promises: &[Promise]) -> ImageRecord {
        ImageRecord {
            manifest_digest: self.manifest_digest.to_string(),
            manifest: self.manifest.clone(),
            config,
            diff_ids: promises.iter().map(|promise| promise.diff_id.to_string()).collect(),
            size: self.size(),
            fixup: None,
        }
    }

    /// A known image by what may be another manifest of it.
    fn again(&self, known: ImageRecord) -> ImageRecord {
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
    inner: &Inner,
    repository: &Repository,
    name: &str,
    resolved: &Resolved,
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
) -> Result<Resolved, Error> {
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
            Document::Index(entry) => {
                wanted = Some(entry.digest);
                address = entry.digest.to_string();
            }
            Document::Image { config, layers } => {
                let manifest = String::from_utf8_lossy(&fetched.bytes).into_owned();
                return Ok(Resolved { named, manifest_digest: fetched.digest, manifest, config, layers });
            }
        }
    }
    Err(Error::Nested { reference: name, limit: MAX_DEPTH })
}

async fn layers(
    inner: &Arc<Inner>,
    repository: &Arc<Repository>,
    name: &str,
    promises: Vec<Promise>,
    spans: &Recorder,
) -> Result<(), Error> {
    let mut seen = HashSet::new();
    let promises: Vec<(usize, Promise)> =
        promises.into_iter().enumerate().filter(|(_, promise)| seen.insert(promise.diff_id)).collect();
    let keys: Vec<String> = promises.iter().map(|(_, promise)| promise.diff_id.to_string()).collect();
    let keys = &keys;
    stream::iter(promises)
        .map(|(index, promise)| async move {
            let digest = promise.layer.blob.digest;
            let done = one_layer(inner, repository, promise).await;
            let done = done.map_err(|source| Error::Layer {
                reference: name.to_owned(),
                digest,
                source: source.into(),
            })?;
            bear(inner, name, keys)?;
            for span in done.iter() {
                let span = Span { name: format!("layer.{index}.{}", span.name), ..span.clone() };
                spans.add(span);
            }
            Ok(())
        })
        .buffer_unordered(if inner.switches.has(Optimisation::SideBySide) { AT_ONCE } else { 1 })
        .try_collect()
        .await
}

/// Looked at with each layer that comes: the next one may be refused before it fills anything.
fn bear(inner: &Inner, name: &str, keys: &[String]) -> Result<(), Error> {
    bearable(name, keys.iter().filter_map(|key| inner.store.layer(key)).map(|layer| layer.implied_weight))
}

fn bearable(name: &str, weights: impl Iterator<Item = u64>) -> Result<(), Error> {
    match weights.sum() {
        weight if weight > MOST_IMPLIED_OF_IMAGE => {
            Err(Error::Implied { reference: name.to_owned(), weight, limit: MOST_IMPLIED_OF_IMAGE })
        }
        _ => Ok(()),
    }
}

/// A layer by whoever brings it first. Another pull's failure is not ours: its registry or its
/// credentials may be worse.
async fn one_layer(inner: &Arc<Inner>, repository: &Arc<Repository>, promise: Promise) -> LayerResult {
    let key = promise.diff_id.to_string();
    loop {
        if inner.store.layer(&key).is_some() {
            inner.under_way.layer(&promise).present();
            let now = unix_nanos();
            let span = Span { name: "present".to_owned(), start: now, end: now, detail: String::new() };
            return Ok(Arc::new(vec![span]));
        }
        let seat = inner.layers.board(&promise.diff_id, || {
            let (inner, repository, promise) = (Arc::clone(inner), Arc::clone(repository), promise.clone());
            Box::pin(async move { fetch(inner, &repository, promise).await.map(Arc::new) })
        });
        match seat.work.await {
            Err(_) if seat.joined => {}
            done => return done,
        }
    }
}

/// A layer from the first place whose bytes are good: a mirror may lie or break, and the registry
/// itself still have it.
async fn fetch(
    inner: Arc<Inner>,
    repository: &Repository,
    promise: Promise,
) -> Result<Vec<Span>, LayerError> {
    let mut place = 0;
    loop {
        let own = Recorder::default();
        let mut asked = place;
        match fetch_from(&inner, repository, &promise, &mut asked, &own).await {
            Ok(()) => return Ok(own.spans()),
            Err(error) if error.is_transfer() && repository.has_another(asked) => {
                let layer = promise.layer.blob.digest;
                tracing::warn!(%layer, error = crate::error::chain(&error), "asking the next place");
                place = asked + 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// One try, from `place` on; `place` is then the one that answered.
async fn fetch_from(
    inner: &Arc<Inner>,
    repository: &Repository,
    promise: &Promise,
    place: &mut usize,
    own: &Recorder,
) -> Result<(), LayerError> {
    let download = |source| LayerError::Download { source };
    let blob = &promise.layer.blob;
    let progress = inner.under_way.layer(promise);
    progress.begin();
    let mut downloading = own.stage("download");
    downloading.detail(format!("{} bytes", blob.size));
    let (source, answered) = match repository.blob(blob, *place).await {
        Ok(found) => found,
        Err(source) => {
            // All have been asked.
            *place = usize::MAX - 1;
            return Err(download(source));
        }
    };
    *place = answered;
    let (send, pieces) = layer::pipe();
    // The thread's own: whoever wanted the layer may be gone when it is done.
    let hold = Hold::new(Arc::clone(inner), vec![promise.diff_id.to_string()]);
    let (owned, recorder, promised) = (Arc::clone(inner), own.clone(), promise.clone());
    let thread = tokio::task::spawn_blocking(move || {
        let _hold = hold;
        keep(&owned, &promised, pieces, &recorder)
    });
    let fed = layer::feed(source, blob.size, send, &progress).await;
    drop(downloading);
    let unpacked = thread.await.map_err(|_| LayerError::Thread)?;
    // The thread's verdict counts unless the network kept it from having one.
    match (fed, unpacked) {
        (Err(source), Err(LayerError::GivenUp) | Ok(())) => Err(download(source)),
        (_, Err(error)) => Err(error),
        (Ok(_), Ok(())) => {
            progress.done();
            Ok(())
        }
    }
}

/// Unpacks what comes and makes it known. Blocks.
fn keep(
    inner: &Inner,
    promise: &Promise,
    pieces: mpsc::Receiver<Piece>,
    recorder: &Recorder,
) -> Result<(), LayerError> {
    let mut stage = recorder.stage("unpack");
    let begun = inner.store.begin();
    let unpacked = layer::receive(pieces, promise, inner.store.ingest_dir(), &inner.means)?;
    stage.detail(format!("{} bytes, {} entries", unpacked.report.bytes, unpacked.report.entries));
    let (implied, implied_weight) = implied(&unpacked.report.implied)?;
    let record = LayerRecord {
        folder: promise.diff_id.short(),
        blob: promise.layer.blob.digest.to_string(),
        compressed: promise.layer.blob.size,
        unpacked: unpacked.report.bytes,
        implied,
        implied_weight,
        empty: unpacked.report.entries == 0,
        opaque_root: unpacked.report.opaque_root,
    };
    let added = inner.store.add_layer(&promise.diff_id.to_string(), record, unpacked.ingest, &begun);
    added
        .and_then(|()| inner.store.relieve())
        .map_err(|source| LayerError::Store { source: Box::new(source) })
}

/// What is remembered of directories that a layer only implies, and its weight.
fn implied(paths: &[Vec<u8>]) -> Result<(Vec<String>, u64), LayerError> {
    let implied: Vec<String> = paths.iter().map(|path| escape(path)).collect();
    match weigh(&implied) {
        weight if weight > MOST_IMPLIED => {
            Err(LayerError::Implied { count: implied.len(), weight, limit: MOST_IMPLIED })
        }
        weight => Ok((implied, weight)),
    }
}

fn invalid(reference: &str, source: ManifestError) -> Error {
    Error::Manifest { reference: reference.to_owned(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 60 MB of them, from a layer of a few KB on the wire, went to memory and to /run for each layer of an
    /// image.
    #[test]
    fn a_layer_that_implies_too_many_directories_is_refused_and_says_what_to_do() {
        let paths = |count: usize| vec![vec![b'd'; 40]; count];
        assert_eq!(implied(&paths(20_000)).unwrap().1, 20_000 * 104);
        let refused = implied(&paths(21_000)).unwrap_err();
        assert!(refused.to_string().contains("21000 of its directories"), "{refused}");
        assert!(implied(&[vec![b'd'; 3 << 20]]).is_err(), "few, and long");
        let refused =
            Error::Layer { reference: "r".to_owned(), digest: Digest::of(b""), source: Box::new(refused) };
        assert_eq!(refused.class(), crate::image::Class::Invalid);
    }

    #[test]
    fn layers_that_imply_too_many_directories_together_are_refused() {
        assert!(bearable("r", [MOST_IMPLIED; 4].into_iter()).is_ok());
        let refused = bearable("r", [MOST_IMPLIED; 5].into_iter()).unwrap_err();
        assert!(matches!(refused, Error::Implied { .. }), "{refused}");
        assert_eq!(refused.class(), crate::image::Class::Invalid);
    }
}

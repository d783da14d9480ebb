//! The end of a pull: the fix-up layer, if the chain needs one, and the image's record. Owns their
//! order; touches no network. Called by `pull` on a blocking thread, which holds the layers.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use crate::image::digest::Digest;
use crate::image::fixup::{self, Below};
use crate::image::hold::Hold;
use crate::image::ingest::{Ingest, IngestError};
use crate::image::layer::LayerError;
use crate::image::store::StoreError;
use crate::image::store::chain::chain;
use crate::image::store::record::{ImageRecord, LayerRecord};
use crate::image::{Error, Image, Inner};
use crate::unpack::unescape;

/// Makes an image known whose layers are here and held.
///
/// # Errors
/// [`Error::Fixup`], [`Error::Layer`], [`Error::Store`].
pub(super) fn commit(
    inner: &Arc<Inner>,
    id: &str,
    mut record: ImageRecord,
    names: Vec<String>,
) -> Result<Arc<Image>, Error> {
    // Held until the image has it. That of a known image is held by the caller.
    let mut made = None;
    if record.fixup.is_none() {
        made = fix_up(inner, id, &record.diff_ids)?;
        record.fixup = made.as_ref().map(|(key, _)| key.clone());
    }
    failpoint!("pull.layers");
    let image = inner.store.add_image(id, record, names).map_err(unstored);
    drop(made);
    image
}

/// The key of the chain's fix-up layer, made if need be; None when the chain needs none.
fn fix_up(inner: &Arc<Inner>, id: &str, diff_ids: &[String]) -> Result<Option<(String, Hold)>, Error> {
    let store = &inner.store;
    let records: HashMap<&str, Arc<LayerRecord>> =
        diff_ids.iter().filter_map(|key| Some((key.as_str(), store.layer(key)?))).collect();
    let layers = chain(diff_ids, |key| records.get(key).map(Arc::as_ref))
        .map_err(|layer| unstored(StoreError::Incomplete { id: id.to_owned(), layer }))?;
    let folders: Vec<PathBuf> =
        layers.iter().map(|(_, layer)| store.layers_dir().join(&layer.folder)).collect();
    let implied = |layer: &LayerRecord| -> BTreeSet<Vec<u8>> {
        layer.implied.iter().map(|path| unescape(path)).collect()
    };
    let below: Vec<Below<'_>> = layers
        .iter()
        .zip(&folders)
        .map(|((_, layer), folder)| Below { folder, implied: implied(layer) })
        .collect();
    let fail = |source| Error::Fixup { id: id.to_owned(), source };
    let fixes = fixup::plan(&below, |index, path| fixup::look(&below, index, path)).map_err(fail)?;
    if fixes.is_empty() {
        return Ok(None);
    }
    let keys: Vec<&str> = layers.iter().map(|(key, _)| *key).collect();
    let digest = Digest::of(format!("fixup {}", keys.join(" ")).as_bytes());
    let key = format!("fixup:{}", digest.hex());
    let hold = Hold::new(Arc::clone(inner), vec![key.clone()]);
    if store.layer(&key).is_none() {
        let ingest = Ingest::new(store.ingest_dir()).map_err(|source| unmade(id, digest, source))?;
        fixup::build(&fixes, ingest.path()).map_err(fail)?;
        // Two images of one chain may come here at once: the first one's layer counts.
        store.add_layer(&key, record(digest.short()), ingest).map_err(unstored)?;
    }
    Ok(Some((key, hold)))
}

fn record(folder: String) -> LayerRecord {
    LayerRecord {
        folder,
        blob: String::new(),
        compressed: 0,
        unpacked: 0,
        implied: Vec::new(),
        empty: false,
        opaque_root: false,
    }
}

fn unmade(id: &str, digest: Digest, source: IngestError) -> Error {
    let source = Box::new(LayerError::Ingest { source });
    Error::Layer { reference: id.to_owned(), digest, source }
}

fn unstored(source: StoreError) -> Error {
    Error::Store { source: Box::new(source) }
}

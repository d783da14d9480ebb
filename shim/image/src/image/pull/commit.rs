//! The end of a pull: the fix-up layer, if the chain needs one, and the image's record. Owns their
//! order; touches no network. Called by `pull` on a blocking thread, which holds the layers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use gantry_failpoint::failpoint;

use crate::image::digest::Digest;
use crate::image::fixup::{self, ChainLayer, PathState};
use crate::image::hold::Hold;
use crate::image::ingest::{Ingest, IngestError};
use crate::image::layer::LayerError;
use crate::image::store::StoreError;
use crate::image::store::chain::chain;
use crate::image::store::record::{ImageRecord, LayerRecord};
use crate::image::{Error, Image, ImagesInner};
use gantry_unpack::{UnpackError, unescape};

/// Half a minute of looking into folders, on a thread that nobody can stop. An image of thirty layers with
/// a thousand directories that nobody described needs a tenth of it.
const MOST_LOOKS: u64 = 5_000_000;

/// Makes an image known whose layers are here and held.
///
/// # Errors
/// [`Error::Fixup`], [`Error::Layer`], [`Error::Store`].
pub(super) fn commit(
    inner: &Arc<ImagesInner>,
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
    let image = inner.store.add_image(id, record, names).map_err(store_error);
    drop(made);
    image
}

/// The key of the chain's fix-up layer, made if need be; None when the chain needs none.
fn fix_up(inner: &Arc<ImagesInner>, id: &str, diff_ids: &[String]) -> Result<Option<(String, Hold)>, Error> {
    let store = &inner.store;
    let records: HashMap<&str, Arc<LayerRecord>> =
        diff_ids.iter().filter_map(|key| Some((key.as_str(), store.layer(key)?))).collect();
    let layers = chain(diff_ids, |key| records.get(key).map(Arc::as_ref))
        .map_err(|layer| store_error(StoreError::Incomplete { id: id.to_owned(), layer }))?;
    let folders: Vec<PathBuf> =
        layers.iter().map(|(_, layer)| store.layers_dir().join(&layer.folder)).collect();
    let mut below = Vec::new();
    for ((key, _), folder) in layers.iter().zip(&folders) {
        let implied =
            store.implied_directories(key).map_err(store_error)?.iter().map(|path| unescape(path)).collect();
        below.push(ChainLayer { folder, implied });
    }
    let fail = |source| Error::Fixup { id: id.to_owned(), source };
    let fixes = fixup::plan(&below, plan_fix_up(&below, MOST_LOOKS)).map_err(fail)?;
    if fixes.is_empty() {
        return Ok(None);
    }
    let keys: Vec<&str> = layers.iter().map(|(key, _)| *key).collect();
    let digest = Digest::of(format!("fixup {}", keys.join(" ")).as_bytes());
    let key = format!("fixup:{}", digest.hex());
    let hold = Hold::new(Arc::clone(inner), vec![key.clone()]);
    if store.layer(&key).is_none() {
        let begun = store.loss_mark();
        let ingest = Ingest::new(store.ingest_dir()).map_err(|source| ingest_error(id, digest, source))?;
        fixup::build(&fixes, ingest.path()).map_err(fail)?;
        // Two images of one chain may come here at once: the first one's layer counts.
        store.add_layer(&key, record(digest.short()), ingest, &begun).map_err(store_error)?;
    }
    Ok(Some((key, hold)))
}

/// Looks into the layers, `most` times.
fn plan_fix_up(
    below: &[ChainLayer<'_>],
    most: u64,
) -> impl FnMut(usize, &[u8]) -> Result<PathState, UnpackError> {
    let mut looks = 0;
    move |index, path| {
        looks += 1;
        match looks > most {
            true => Err(UnpackError::Looks { limit: most }),
            false => fixup::look(below, index, path),
        }
    }
}

fn record(folder: String) -> LayerRecord {
    LayerRecord {
        folder,
        blob: String::new(),
        compressed: 0,
        unpacked: 0,
        implied: Vec::new(),
        implied_weight: 0,
        empty: false,
        opaque_root: false,
        exact: false,
    }
}

fn ingest_error(id: &str, digest: Digest, source: IngestError) -> Error {
    let source = Box::new(LayerError::Ingest { source });
    Error::Layer { reference: id.to_owned(), digest, source }
}

fn store_error(source: StoreError) -> Error {
    Error::Store { source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_looks_for_too_long_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let implied = [b"a".to_vec(), b"b".to_vec()].into();
        let below = [ChainLayer { folder: folder.path(), implied }];
        assert!(fixup::plan(&below, plan_fix_up(&below, 100)).is_ok());
        let given_up = fixup::plan(&below, plan_fix_up(&below, 2)).unwrap_err();
        assert!(matches!(given_up, UnpackError::Looks { limit: 2 }), "{given_up}");
    }
}

//! Whether the disk has what the index says. Owns the looks and their order; changes nothing. Called by `Images::check` on
//! a blocking thread.
//!
//! A layer's folder has no checksum of its own: the digest is the archive's, and the archive is gone. What is held against
//! the record is what a power cut takes first: the bytes in its files.

use std::collections::HashSet;
use std::sync::Arc;

use super::record::{ImageRecord, LayerRecord};
use super::{Store, StoreError};
use crate::image::digest::Digest;
use crate::usage::{FileBytes, of_files};

/// What a store was found to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreCheck {
    /// How many images were looked at.
    pub images: usize,
    /// How many layers were looked at.
    pub layers: usize,
    /// In the files of these layers.
    pub bytes: u64,
    /// What is wrong.
    pub faults: Vec<StoreFault>,
}

/// One thing that is wrong with a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// Its files are not there.
    #[error("the folder {folder} of layer {layer} is not there")]
    LayerGone { layer: String, folder: String },
    /// Files of it were cut short or written to.
    #[error(
        "the files of layer {layer} in {folder} have {found} bytes, and had {unpacked} when it was unpacked"
    )]
    LayerSize { layer: String, folder: String, unpacked: u64, found: u64 },
    /// The disk does not give it back.
    #[error("layer {layer} in {folder} can't be read: {error}")]
    LayerUnreadable { layer: String, folder: String, error: String },
    /// A container of the image would lack files.
    #[error("image {image} lacks layer {layer}")]
    ImageIncomplete { image: String, layer: String },
    /// A document of the image is not the one that was pulled.
    #[error("the stored {document} of image {image} has another digest")]
    ImageDocument { image: String, document: &'static str },
    /// Space that nothing will give back before the next start.
    #[error("no layer has the folder {folder}")]
    StrayFolder { folder: String },
}

/// What the index says at one moment.
struct Index {
    layers: Vec<(String, Arc<LayerRecord>)>,
    images: Vec<(String, Arc<ImageRecord>)>,
    strays: Vec<String>,
}

impl Store {
    /// Holds images and layers against the disk. Blocks for as long as it takes to look at each file of each layer.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the folder of layers can't be listed.
    pub(crate) fn check(&self) -> Result<StoreCheck, StoreError> {
        let Index { layers, images, strays } = self.index()?;
        let mut check = StoreCheck { images: images.len(), layers: layers.len(), ..StoreCheck::default() };
        check.faults.extend(strays.into_iter().map(|folder| StoreFault::StrayFolder { folder }));
        let known: HashSet<&str> = layers.iter().map(|(key, _)| key.as_str()).collect();
        for (id, record) in &images {
            check.faults.extend(image_faults(id, record, &known));
        }
        for (key, record) in &layers {
            let outcome = of_files(&self.layers_dir.join(&record.folder)).map_err(|error| error.to_string());
            if let Ok(FileBytes::Counted(bytes)) = outcome {
                check.bytes += bytes;
            }
            let fault = layer_fault(key, record, outcome);
            // One that was removed meanwhile had to go.
            check
                .faults
                .extend(fault.filter(|_| self.layer(key).is_some_and(|now| now.folder == record.folder)));
        }
        Ok(check)
    }

    /// No layer is on its way in or out while it looks.
    fn index(&self) -> Result<Index, StoreError> {
        let _journal = self.journal();
        let folders = self.folders();
        let mut strays = Vec::new();
        for path in Self::paths(&self.layers_dir)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if !folders.contains(&name) {
                strays.push(name);
            }
        }
        strays.sort();
        Ok(self.read(|state| {
            let layers = state.layers.iter().map(|(key, record)| (key.clone(), Arc::clone(record)));
            let images = state.images.iter().map(|(id, held)| (id.clone(), Arc::clone(&held.record)));
            let (mut layers, mut images): (Vec<_>, Vec<_>) = (layers.collect(), images.collect());
            layers.sort_by(|(a, _), (b, _)| a.cmp(b));
            images.sort_by(|(a, _), (b, _)| a.cmp(b));
            Index { layers, images, strays }
        }))
    }
}

fn image_faults(id: &str, record: &ImageRecord, known: &HashSet<&str>) -> Vec<StoreFault> {
    let lacking = record.keys().filter(|key| !known.contains(key.as_str()));
    let mut faults: Vec<_> = lacking
        .map(|layer| StoreFault::ImageIncomplete { image: id.to_owned(), layer: layer.clone() })
        .collect();
    for (document, text, digest) in
        [("config", &record.config, id), ("manifest", &record.manifest, record.manifest_digest.as_str())]
    {
        if Digest::of(text.as_bytes()).to_string() != digest {
            faults.push(StoreFault::ImageDocument { image: id.to_owned(), document });
        }
    }
    faults
}

fn layer_fault(key: &str, record: &LayerRecord, outcome: Result<FileBytes, String>) -> Option<StoreFault> {
    let (layer, folder) = (key.to_owned(), record.folder.clone());
    let unpacked = record.unpacked;
    match outcome {
        Err(error) => Some(StoreFault::LayerUnreadable { layer, folder, error }),
        Ok(FileBytes::Gone) => Some(StoreFault::LayerGone { layer, folder }),
        // Files that a later entry of the archive replaced have been counted with the others.
        Ok(FileBytes::Counted(found)) if found > unpacked || (record.exact && found < unpacked) => {
            Some(StoreFault::LayerSize { layer, folder, unpacked, found })
        }
        Ok(FileBytes::Counted(_) | FileBytes::TooMany) => None,
    }
}

#[cfg(test)]
mod tests;

//! Whether the disk has what the index says. Owns the looks and their order; changes nothing. Called by `Images::check` on
//! a blocking thread.
//!
//! A layer's folder has no checksum of its own: the digest is the archive's, and the archive is gone. What is held against
//! the record is what a power cut takes first: the bytes in its files.

use std::collections::HashSet;
use std::sync::Arc;

use super::record::{ImageRecord, LayerRecord};
use super::{ImageStore, StoreError};
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

/// One thing that is wrong with a store. `images` are names of those that have the layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// Its files are not there.
    #[error("{images}: the folder {folder} of layer {layer} is not there")]
    LayerGone { layer: String, folder: String, images: String },
    /// Files of it were cut short or written to.
    #[error("{images}: the files of layer {layer} in {folder} have {found} bytes; {unpacked} were unpacked")]
    LayerSize { layer: String, folder: String, images: String, unpacked: u64, found: u64 },
    /// The disk does not give it back.
    #[error("{images}: layer {layer} in {folder} cannot be read: {error}")]
    LayerUnreadable { layer: String, folder: String, images: String, error: String },
    /// A container of the image would lack files.
    #[error("{image} lacks layer {layer}")]
    ImageIncomplete { image: String, layer: String },
    /// A document of the image is not the one that was pulled.
    #[error("{image}: the stored {document} has another digest")]
    ImageDocument { image: String, document: &'static str },
    /// Space that nothing will give back before the next start.
    #[error("no layer has the folder {folder}")]
    StrayFolder { folder: String },
}

impl StoreFault {
    /// What to do.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::StrayFolder { .. } => "restart the runtime: its start deletes what no layer has",
            Self::LayerGone { .. }
            | Self::LayerSize { .. }
            | Self::LayerUnreadable { .. }
            | Self::ImageIncomplete { .. }
            | Self::ImageDocument { .. } => {
                "stop the pods of the image, remove it (gantry rmi), pull it again; the kernel's log has errors of the disk"
            }
        }
    }
}

/// An image as the index has it.
struct IndexedImage {
    id: String,
    /// One of its names, else its ID.
    name: String,
    record: Arc<ImageRecord>,
}

/// What the index says at one moment.
struct Index {
    layers: Vec<(String, Arc<LayerRecord>)>,
    images: Vec<IndexedImage>,
    strays: Vec<String>,
}

impl Index {
    /// Names of the images that have a layer.
    fn images_of(&self, layer: &str) -> String {
        let has = |image: &&IndexedImage| image.record.keys().any(|key| key == layer);
        let names: Vec<&str> = self.images.iter().filter(has).map(|image| image.name.as_str()).collect();
        // A container still stands on it.
        if names.is_empty() { "an image that was removed".to_owned() } else { names.join(", ") }
    }
}

impl ImageStore {
    /// Holds images and layers against the disk. Blocks for as long as it takes to look at each file of each layer.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the folder of layers can't be listed.
    pub(crate) fn check(&self) -> Result<StoreCheck, StoreError> {
        let index = self.index()?;
        let (images, layers) = (index.images.len(), index.layers.len());
        let mut check = StoreCheck { images, layers, ..StoreCheck::default() };
        check
            .faults
            .extend(index.strays.iter().map(|folder| StoreFault::StrayFolder { folder: folder.clone() }));
        let known: HashSet<&str> = index.layers.iter().map(|(key, _)| key.as_str()).collect();
        for image in &index.images {
            check.faults.extend(image_faults(image, &known));
        }
        for (key, record) in &index.layers {
            let outcome = of_files(&self.layers_dir.join(&record.folder)).map_err(|error| error.to_string());
            if let Ok(FileBytes::Counted(bytes)) = outcome {
                check.bytes += bytes;
            }
            let fault = layer_fault(key, record, outcome, || index.images_of(key));
            // One that was removed meanwhile had to go.
            let is_here = || self.layer(key).is_some_and(|now| now.folder == record.folder);
            check.faults.extend(fault.filter(|_| is_here()));
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
            let images = state.images.iter().map(|(id, held)| {
                let name = held.shown.repo_tags.first().or(held.shown.repo_digests.first()).unwrap_or(id);
                IndexedImage { id: id.clone(), name: name.clone(), record: Arc::clone(&held.record) }
            });
            let (mut layers, mut images): (Vec<_>, Vec<_>) = (layers.collect(), images.collect());
            layers.sort_by(|(a, _), (b, _)| a.cmp(b));
            images.sort_by(|a, b| a.name.cmp(&b.name));
            Index { layers, images, strays }
        }))
    }
}

fn image_faults(image: &IndexedImage, known: &HashSet<&str>) -> Vec<StoreFault> {
    let IndexedImage { id, name, record } = image;
    let lacking = record.keys().filter(|key| !known.contains(key.as_str()));
    let mut faults: Vec<_> = lacking
        .map(|layer| StoreFault::ImageIncomplete { image: name.clone(), layer: layer.clone() })
        .collect();
    for (document, text, digest) in
        [("config", &record.config, id), ("manifest", &record.manifest, &record.manifest_digest)]
    {
        if Digest::of(text.as_bytes()).to_string() != *digest {
            faults.push(StoreFault::ImageDocument { image: name.clone(), document });
        }
    }
    faults
}

fn layer_fault(
    key: &str,
    record: &LayerRecord,
    outcome: Result<FileBytes, String>,
    images: impl FnOnce() -> String,
) -> Option<StoreFault> {
    let (layer, folder) = (key.to_owned(), record.folder.clone());
    let unpacked = record.unpacked;
    match outcome {
        Err(error) => Some(StoreFault::LayerUnreadable { layer, folder, images: images(), error }),
        Ok(FileBytes::TooMany) => {
            let error = "it has more files, or folders within folders, than are looked at".to_owned();
            Some(StoreFault::LayerUnreadable { layer, folder, images: images(), error })
        }
        Ok(FileBytes::Gone) => Some(StoreFault::LayerGone { layer, folder, images: images() }),
        // Files that a later entry of the archive replaced have been counted with the others.
        Ok(FileBytes::Counted(found)) if found > unpacked || (record.exact && found < unpacked) => {
            Some(StoreFault::LayerSize { layer, folder, images: images(), unpacked, found })
        }
        Ok(FileBytes::Counted(_)) => None,
    }
}

#[cfg(test)]
mod tests;

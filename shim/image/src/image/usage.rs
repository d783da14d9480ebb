//! How much of the disk all layers take. Owns what is remembered of the counting, which `usage::walker`
//! does. Called by the CRI's ImageFsInfo.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Images;
use crate::usage::Usage;
use crate::usage::walker::{Figure, Job};

/// Layers never change, so each is counted once.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<HashMap<String, Arc<Figure>>>);

impl Images {
    /// All layers; those that have been counted are counted no more.
    pub fn to_measure(&self) -> Vec<Job> {
        let mut cache = self.inner.usages.0.lock().unwrap_or_else(PoisonError::into_inner);
        let folders = self.inner.store.folders();
        cache.retain(|folder, _| folders.contains(folder));
        let job = |folder: String| Job {
            folder: self.layers_dir().join(&folder),
            figure: Arc::clone(cache.entry(folder).or_default()),
            last: true,
        };
        folders.into_iter().map(job).collect()
    }

    /// What all layers take on disk, as far as they have been counted.
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        for known in self.to_measure().iter().filter_map(|layer| layer.figure.last_count()) {
            all += known.usage;
        }
        all
    }
}

//! How much of the disk all layers take. Owns what is remembered of the counting, which `usage` does.
//! Called by the CRI's ImageFsInfo. Blocks for as long as the layers are large.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::Images;
use crate::usage::{Usage, of_folder};

/// Layers never change, so each is counted once. The lock is held while counting: callers at the same
/// time wait for one count instead of each making their own.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<HashMap<String, Usage>>);

impl Images {
    /// What all layers take on disk. Blocks.
    ///
    /// # Errors
    /// The first folder that can't be read.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut cache = self.inner.usages.0.lock().unwrap_or_else(PoisonError::into_inner);
        let folders = self.inner.store.folders();
        cache.retain(|folder, _| folders.contains(folder));
        let mut all = Usage::default();
        for folder in folders {
            let usage = match cache.get(&folder) {
                Some(usage) => *usage,
                None => of_folder(&self.layers_dir().join(&folder))?,
            };
            // A layer that went in the meantime counts nothing, and is not remembered.
            if usage.inodes > 0 {
                cache.insert(folder, usage);
            }
            all += usage;
        }
        Ok(all)
    }
}

//! What containers need: the layers of a container's image stay from its creation to its removal,
//! whatever becomes of the image and its names (runtime-traps 1.11), also across restarts of the
//! runtime. Owns who holds what; which layers then go is the store's to decide. Called by
//! CreateContainer, RemoveContainer and the start of the runtime.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Image, Images};

/// Container id → keys of the layers it needs.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<HashMap<String, Vec<String>>>);

/// A container's hold on its layers until the container is known: dropped before that, it is undone.
/// Dropping may delete folders and so blocks.
#[derive(Debug)]
pub struct Pin {
    images: Images,
    container: String,
    kept: bool,
}

impl Pins {
    pub(super) fn with(pinned: impl IntoIterator<Item = (String, Vec<String>)>) -> Self {
        Self(Mutex::new(pinned.into_iter().collect()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Images {
    /// The image of this name or id, its layers pinned for a container. None: it is not here.
    pub fn pin(&self, name_or_id: &str, container: &str) -> Option<(Arc<Image>, Pin)> {
        let store = &self.inner.store;
        loop {
            let image = store.find(name_or_id)?;
            let keys = image.layer_keys().to_vec();
            store.hold(&keys);
            self.inner.pins.lock().insert(container.to_owned(), keys);
            let pin = Pin { images: self.clone(), container: container.to_owned(), kept: false };
            // Removed between the look and the hold, its layers may be gone: look again.
            if store.image_record(&image.id).is_some() {
                return Some((image, pin));
            }
        }
    }

    /// The container is gone, and lets go of its layers. Deletes what nobody else needs, and so
    /// blocks; unknown containers have none.
    pub fn unpin(&self, container: &str) {
        let keys = self.inner.pins.lock().remove(container);
        if let Some(keys) = keys
            && self.inner.store.release(&keys) > 0
        {
            self.inner.wake();
        }
    }

    /// Lets go of what containers held that turned out to be gone. Blocks.
    pub fn unpin_except(&self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.inner.pins.lock().keys().filter(|id| !is_there(id)).cloned().collect();
        gone.iter().for_each(|id| self.unpin(id));
    }
}

impl Pin {
    /// One more image, for the same container. None: it is not here. Blocks.
    pub fn also(&self, name_or_id: &str) -> Option<Arc<Image>> {
        let inner = &self.images.inner;
        loop {
            let image = inner.store.find(name_or_id)?;
            inner.store.hold(image.layer_keys());
            if inner.store.image_record(&image.id).is_some() {
                let mut pins = inner.pins.lock();
                pins.entry(self.container.clone()).or_default().extend_from_slice(image.layer_keys());
                return Some(image);
            }
            inner.store.release(image.layer_keys());
        }
    }

    /// The container is known, and unpins itself when it goes.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.kept {
            self.images.unpin(&self.container);
        }
    }
}

//! How far pulls have come, readable while they run. Owns counters that cost the pull an atomic store
//! for each chunk; never slows it down and never outlives it. Written by `pull` and `layer`, read by
//! the CRI's ImageStatus.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use serde::Serialize;

use super::Images;
use super::digest::Digest;
use super::layer::ExpectedLayer;
use super::reference::Reference;
use gantry_base::timeline::unix_nanos;

/// All pulls and layers under way.
#[derive(Debug, Default)]
pub(super) struct PullBoard {
    pulls: Mutex<HashMap<String, Weak<Pull>>>,
    /// By diff id: pulls that wait for one layer see the same numbers.
    layers: Mutex<HashMap<Digest, Weak<PulledLayer>>>,
}

/// One pull.
#[derive(Debug)]
pub(super) struct Pull {
    image: String,
    started: i64,
    stage: AtomicU8,
    layers: OnceLock<Vec<Arc<PulledLayer>>>,
}

/// One layer.
#[derive(Debug)]
pub(super) struct PulledLayer {
    digest: Digest,
    total: u64,
    downloaded: AtomicU64,
    stage: AtomicU8,
    /// The registry that the flight asks which others join.
    registry: Mutex<String>,
}

/// ```text
/// Waiting ──▶ Downloading (and unpacking what has come) ──▶ Unpacking (the rest) ──▶ Done
///    └──────▶ Exists
/// ```
const STAGES: [&str; 5] = ["waiting", "downloading", "unpacking", "done", "exists"];
/// `resolving ──▶ layers ──▶ committing`
const PULL_STAGES: [&str; 3] = ["resolving", "layers", "committing"];

/// A pull as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PullProgress {
    /// Canonical name.
    pub image: String,
    /// Unix nanoseconds.
    pub started_at: i64,
    /// `resolving`, `layers` or `committing`.
    pub stage: &'static str,
    /// In the image's order, base first; empty while the image is resolved.
    pub layers: Vec<LayerProgress>,
}

/// A layer as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerProgress {
    /// Of the compressed blob.
    pub digest: String,
    /// Compressed bytes.
    pub total: u64,
    /// Of these, so far.
    pub downloaded: u64,
    /// `waiting`, `downloading`, `unpacking`, `done` or `exists`.
    pub stage: &'static str,
}

impl PullBoard {
    pub(super) fn pull(&self, image: &str) -> Arc<Pull> {
        let pull = Arc::new(Pull {
            image: image.to_owned(),
            started: unix_nanos(),
            stage: AtomicU8::new(0),
            layers: OnceLock::new(),
        });
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.retain(|_, pull| pull.strong_count() > 0);
        pulls.insert(image.to_owned(), Arc::downgrade(&pull));
        pull
    }

    pub(super) fn layer(&self, expected: &ExpectedLayer) -> Arc<PulledLayer> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = layers.get(&expected.diff_id).and_then(Weak::upgrade) {
            return layer;
        }
        layers.retain(|_, layer| layer.strong_count() > 0);
        let blob = &expected.layer.blob;
        let layer = Arc::new(PulledLayer {
            digest: blob.digest,
            total: blob.size,
            downloaded: AtomicU64::new(0),
            stage: AtomicU8::new(0),
            registry: Mutex::default(),
        });
        layers.insert(expected.diff_id, Arc::downgrade(&layer));
        layer
    }
}

impl Pull {
    pub(super) fn set_layers(&self, layers: Vec<Arc<PulledLayer>>) {
        // One pull resolves once.
        let _ = self.layers.set(layers);
        self.stage.store(1, Ordering::Relaxed);
    }

    pub(super) fn set_committing(&self) {
        self.stage.store(2, Ordering::Relaxed);
    }
}

impl PulledLayer {
    /// A download begins, maybe anew after another pull's failure.
    pub(super) fn restart(&self) {
        self.downloaded.store(0, Ordering::Relaxed);
        self.stage.store(1, Ordering::Relaxed);
    }

    /// Of two flights the one that has come farther is shown.
    pub(super) fn set_downloaded(&self, bytes: u64) {
        self.downloaded.fetch_max(bytes, Ordering::Relaxed);
    }

    /// A flight begins, which others may join.
    pub(super) fn set_registry(&self, domain: &str) {
        domain.clone_into(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Which registry that flight asks.
    pub(super) fn registry(&self) -> String {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes so far.
    pub(super) fn downloaded_bytes(&self) -> u64 {
        self.downloaded.load(Ordering::Relaxed)
    }

    /// Nothing more is to be downloaded.
    pub(super) fn is_here(&self) -> bool {
        self.stage.load(Ordering::Relaxed) > 1
    }

    pub(super) fn set_unpacking(&self) {
        self.stage.store(2, Ordering::Relaxed);
    }

    pub(super) fn set_done(&self) {
        self.stage.store(3, Ordering::Relaxed);
    }

    /// It was here before this pull, or another one brought it.
    pub(super) fn set_present(&self) {
        // One that this pull's flight has brought stays "done".
        let _ = self.stage.compare_exchange(0, 4, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn show(&self) -> LayerProgress {
        LayerProgress {
            digest: self.digest.to_string(),
            total: self.total,
            downloaded: self.downloaded_bytes(),
            stage: word(&STAGES, &self.stage),
        }
    }
}

fn word(words: &[&'static str], at: &AtomicU8) -> &'static str {
    words.get(usize::from(at.load(Ordering::Relaxed))).copied().unwrap_or_default()
}

impl Images {
    /// How far the pull of this name has come; None when none is under way.
    #[must_use]
    pub fn progress(&self, name: &str) -> Option<PullProgress> {
        let name = Reference::parse(name).ok()?.to_string();
        let pull = {
            let pulls = self.inner.under_way.pulls.lock().unwrap_or_else(PoisonError::into_inner);
            pulls.get(&name).and_then(Weak::upgrade)?
        };
        let layers = pull.layers.get().map(Vec::as_slice).unwrap_or_default();
        Some(PullProgress {
            image: pull.image.clone(),
            started_at: pull.started,
            stage: word(&PULL_STAGES, &pull.stage),
            layers: layers.iter().map(|layer| layer.show()).collect(),
        })
    }
}

//! Records as they are written to redb and to the journal. Never the domain's own types: these may
//! only change with the format's version. Called by `store`.

use serde::{Deserialize, Serialize};

/// The format of all records here; another one is refused.
pub(crate) const VERSION: u64 = 1;

/// One unpacked layer, keyed by diff id; fix-up layers are keyed `fixup:` and a hash of their chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    /// Name under `layers/`.
    pub(crate) folder: String,
    /// Digest of the compressed blob it came from; empty for fix-up layers.
    pub(crate) blob: String,
    pub(crate) compressed: u64,
    pub(crate) unpacked: u64,
    /// Directories without an entry of their own, escaped as by `unpack::escape`. In the journal and on disk
    /// only: in memory the list is empty, and `ImageStore::implied_directories` has it.
    pub(crate) implied: Vec<String>,
    /// What that list weighs, by `weigh`.
    #[serde(default)]
    pub(crate) implied_weight: u64,
    /// Nothing in it at all.
    pub(crate) empty: bool,
    /// It hides all layers below.
    pub(crate) opaque_root: bool,
    /// Its files have `unpacked` bytes, no fewer: no entry of the archive took the place of another one. Not so in
    /// records of earlier versions, which did not look.
    #[serde(default)]
    pub(crate) exact: bool,
}

/// What a list of paths takes of memory, roughly: each path and what holds it. A record or a set of them
/// is no smaller.
pub(crate) fn weigh(paths: &[String]) -> u64 {
    paths.iter().map(|path| path.len() as u64 + 64).sum()
}

/// One image, keyed by the digest of its config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) manifest_digest: String,
    /// The documents as they came; their digests are over these very bytes.
    pub(crate) manifest: String,
    pub(crate) config: String,
    /// Base first.
    pub(crate) diff_ids: Vec<String>,
    pub(crate) size: u64,
    /// Key of the fix-up layer, if the chain needs one.
    pub(crate) fixup: Option<String>,
}

impl ImageRecord {
    /// Keys of all layers that the image needs.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &String> {
        self.diff_ids.iter().chain(&self.fixup)
    }
}

/// What can happen to the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StoreChange {
    Layer {
        key: String,
        record: LayerRecord,
    },
    Image {
        id: String,
        record: ImageRecord,
        names: Vec<String>,
    },
    Name {
        name: String,
        id: String,
    },
    DropLayer {
        key: String,
    },
    /// With the names it had: on disk they may still be those of an image that had them before.
    DropImage {
        id: String,
        #[serde(default)]
        names: Vec<String>,
    },
}

/// A change on its way to the disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PendingChange {
    pub(crate) version: u64,
    /// /run may be a disk: after a reboot the layer's files may be half-written all the same.
    pub(crate) boot_id: String,
    pub(crate) change: StoreChange,
}

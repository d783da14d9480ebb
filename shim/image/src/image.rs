//! Images of the runtime: pulled from registries by its own client, unpacked a folder per layer,
//! known by name and id. Owns `layers/`, `ingest/` and `images.redb` under the root and `images/`
//! under the state folder; never mounts anything. Called by the CRI's image RPCs and by
//! CreateContainer.
//!
//! ```text
//!   pull ─ resolve ─┬ layer 0: download ─► sha256 ─► inflate ─► sha256 ─► tar ─► files ┬─ fix-up ─ commit
//!                   └ layer n: …                                                       ┘
//! ```

mod auth;
mod class;
mod digest;
mod fixup;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hold;
mod ingest;
mod layer;
mod load;
mod manifest;
pub mod pins;
pub mod prepull;
mod progress;
mod pull;
mod reference;
mod registry;
mod single_flight;
mod store;
mod switches;
mod sync;
mod unpack_slots;
mod usage;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::usage::Usage;
pub use auth::{Auth, AuthError};
pub use digest::{Digest, DigestError};
pub use ingest::IngestError;
pub use layer::LayerError;
pub use load::ArchiveError;
pub use load::{Naming, Upload};
pub use manifest::{ImageConfig, ManifestError};
pub use progress::{LayerProgress, PullProgress};
pub use reference::{Reference, ReferenceError};
pub use registry::{DockerConfigError, HostsError, RegistryError, login};
pub use store::StoreError;
pub use store::check::{StoreCheck, StoreFault};
pub use switches::{Optimisation, Switches, UnknownOptimisation};

use tokio::sync::{Notify, mpsc};

use gantry_base::timeline::{Recorder, Span};
use gantry_unpack::UnpackError;
use layer::UnpackOptions;
pub use layer::Unpacker;
use manifest::Platform;
use pins::Pins;
use pull::{LayerResult, PullResult};
use registry::{Http, RangeSpool, Sources, TransferLimits};
use single_flight::SingleFlight;
use store::ImageStore;
use sync::Syncer;
use unpack_slots::UnpackSlots;

/// Where images live.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// On disk, survives reboots: `/var/lib/gantry`.
    pub root: PathBuf,
    /// Gone with a reboot: `/run/gantry`.
    pub state: PathBuf,
    /// Where `HOST/hosts.toml` stands, in containerd's layout: `/etc/containerd/certs.d`.
    pub hosts_dir: Option<PathBuf>,
    /// Docker's `config.json`, for pulls that bring no credentials.
    pub docker_config: Option<PathBuf>,
    /// Who unpacks layers.
    pub unpacker: Unpacker,
    /// What of the pulls' speed is left out.
    pub switches: Switches,
}

/// All images of this node; a cheap handle.
#[derive(Debug, Clone)]
pub struct Images {
    inner: Arc<ImagesInner>,
}

/// One image, as it was when asked for: names may have moved since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of its config, `sha256:` and 64 hex digits.
    pub id: String,
    /// `repository:tag`, canonical.
    pub repo_tags: Vec<String>,
    /// `repository@digest`, canonical; the digest is what the name pointed at, maybe an index's.
    pub repo_digests: Vec<String>,
    /// Compressed layers and config, in bytes.
    pub size: u64,
    /// What the image asks of a container's process.
    pub config: ImageConfig,
    /// Digests of the unpacked layers, base first.
    pub diff_ids: Vec<String>,
    /// Digest of the manifest for this platform.
    pub manifest_digest: String,
    /// The manifest's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Of the layers and the fix-up layer, each under which the store knows it.
    keys: Vec<String>,
    folders: Vec<String>,
}

/// Why an image is not to be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The registry, or the way to it.
    #[error("pull {reference}")]
    Registry {
        reference: String,
        #[source]
        source: Box<RegistryError>,
    },
    /// What the registry gave is no image for this node.
    #[error("pull {reference}")]
    Manifest {
        reference: String,
        #[source]
        source: Box<ManifestError>,
    },
    /// An index of an index of an index.
    #[error("pull {reference}: more than {limit} manifests refer to one another")]
    Nested { reference: String, limit: usize },
    /// One layer.
    #[error("pull {reference}: layer {digest}")]
    Layer {
        reference: String,
        digest: Digest,
        #[source]
        source: Box<LayerError>,
    },
    /// An archive that images were to come from.
    #[error("load the archive")]
    Archive {
        #[source]
        source: Box<ArchiveError>,
    },
    /// One layer of it.
    #[error("load {image}: layer {digest}")]
    Unpack {
        image: String,
        digest: Digest,
        #[source]
        source: Box<LayerError>,
    },
    /// Layers whose lists of directories are too long together.
    #[error(
        "pull {reference}: in its layers so many directories have no entry of their own that their names take \
         {weight} bytes, {limit} are allowed; build it with entries for its directories"
    )]
    Implied { reference: String, weight: u64, limit: u64 },
    /// The layer of directories that goes on top of an image's own.
    #[error("fix-up layer of image {id}")]
    Fixup {
        id: String,
        #[source]
        source: UnpackError,
    },
    /// The index of images.
    #[error("image store")]
    Store {
        #[source]
        source: Box<StoreError>,
    },
    /// The thread that makes images durable.
    #[error("starting the image sync thread")]
    Sync {
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The work ended without an answer.
    #[error("pull {reference}: its task died")]
    Task { reference: String },
}

/// What kind of failure it is, for those who must answer with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The registry has no such image, or none for this platform.
    NotFound,
    /// The credentials don't do.
    Unauthorized,
    /// Network or registry trouble that may pass.
    Unavailable,
    /// The image is of a kind that can't be used here.
    Invalid,
    /// Bytes that are not what they should be.
    Corrupt,
    /// This node's disk.
    Io,
}

#[derive(Debug)]
struct ImagesInner {
    store: Arc<ImageStore>,
    http: Arc<Http>,
    sources: Sources,
    unpack_options: UnpackOptions,
    switches: Switches,
    platform: Platform,
    /// By canonical name and credentials: nobody gets what only another may see.
    images: SingleFlight<(String, Option<Auth>), PullResult>,
    layers: SingleFlight<Digest, LayerResult>,
    /// Beside those of `layers` that are slow, by layer and registry.
    hedges: SingleFlight<(Digest, String), LayerResult>,
    /// Notified when a hedged request has brought its layer.
    hedge_won: Notify,
    unpack_slots: Arc<UnpackSlots>,
    pins: Pins,
    under_way: progress::PullBoard,
    usages: usage::Cache,
    pulls: Mutex<HashMap<String, Vec<Span>>>,
    syncer: Option<Syncer>,
}

impl Images {
    /// Whether anybody ever opened a store under this root. Changes nothing; what may not be looked at counts as there.
    #[must_use]
    pub fn are_there(root: &Path) -> bool {
        store::is_there(root)
    }

    /// Opens the store: reads the index, drops layers that no image has (of pulls that died with
    /// their process) and folders that nobody knows. What `pinned` names for containers stays. Blocks.
    ///
    /// # Errors
    /// [`Error::Store`], of an unknown format version above all; [`Error::Sync`].
    pub fn open(config: &ImagesConfig, pinned: HashMap<String, Vec<String>>) -> Result<Self, Error> {
        let store = open_store(config, &pinned)?;
        let syncer = Syncer::start(Arc::clone(&store));
        let syncer = syncer.map_err(|source| Error::Sync { source: Arc::new(source) })?;
        Ok(Self::with(config, store, TransferLimits::default(), Some(syncer), pinned))
    }

    fn with(
        config: &ImagesConfig,
        store: Arc<ImageStore>,
        limits: TransferLimits,
        syncer: Option<Syncer>,
        pinned: HashMap<String, Vec<String>>,
    ) -> Self {
        let sources =
            Sources { hosts_dir: config.hosts_dir.clone(), docker_config: config.docker_config.clone() };
        let in_ranges = config.switches.has(Optimisation::Pieces);
        let spool = in_ranges.then(|| RangeSpool::of_machine(store.ingest_dir()));
        let inner = ImagesInner {
            store,
            http: Arc::new(Http::new(limits, spool)),
            sources,
            unpack_options: UnpackOptions::new(config.unpacker.clone(), &config.switches),
            switches: config.switches.clone(),
            platform: Platform::host(),
            images: SingleFlight::new(),
            layers: SingleFlight::new(),
            hedges: SingleFlight::new(),
            hedge_won: Notify::new(),
            unpack_slots: UnpackSlots::of_this_node(),
            pins: Pins::with(pinned),
            under_way: progress::PullBoard::default(),
            usages: usage::Cache::default(),
            pulls: Mutex::new(HashMap::new()),
            syncer,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Brings an image, or finds that it is here already; the name then points at what the registry
    /// has now. Equal pulls at the same time are one. Dropping the future ends the pull unless
    /// others wait for it. A pull that fails or ends so leaves nothing behind: layers that no image
    /// has and no other pull needs are removed, complete ones too.
    ///
    /// # Errors
    /// [`Error`]; its [`Error::class`] says of what kind.
    pub async fn pull(
        &self,
        reference: &Reference,
        auth: Option<Auth>,
        spans: &Recorder,
    ) -> Result<Arc<Image>, Error> {
        let key = (reference.to_string(), auth.clone());
        let flight = self.inner.images.join(&key, || {
            let (inner, reference) = (Arc::clone(&self.inner), reference.clone());
            Box::pin(async move {
                let own = Recorder::default();
                let image = pull::pull(inner, reference, auth, own.clone()).await;
                (image, own)
            })
        });
        let (image, own) = flight.work.await;
        let own = own.spans();
        own.iter().for_each(|span| spans.add(span.clone()));
        if let Ok(image) = &image {
            let mut pulls = self.inner.pulls.lock().unwrap_or_else(PoisonError::into_inner);
            pulls.insert(image.id.clone(), own);
        }
        image
    }

    /// Loads every image for this machine of an archive that comes in chunks: an OCI layout or what `docker save`
    /// writes, as a tar. `naming`: what an image is called that the archive does not name. Dropping the future ends it;
    /// layers that no image has are removed then.
    ///
    /// # Errors
    /// [`Error::Archive`] and those of layers; images before the one that failed stay.
    pub async fn load(
        &self,
        naming: Naming,
        chunks: mpsc::Receiver<Upload>,
    ) -> Result<Vec<Arc<Image>>, Error> {
        load::load(&self.inner, naming, chunks).await
    }

    /// Gives the image of this name or id one more name, `repository:tag`, which leaves the image that had it. None
    /// when there is no such image.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn tag(&self, name_or_id: &str, tag: String) -> Result<Option<Arc<Image>>, Error> {
        let Some(image) = self.find(name_or_id) else { return Ok(None) };
        let Some((record, lease)) = pull::find_known_image(&self.inner, &image.id) else { return Ok(None) };
        pull::finish(Arc::clone(&self.inner), image.id.clone(), record, vec![tag], lease).await.map(Some)
    }

    /// By id (`sha256:…`, bare, or a beginning of 12 digits and more that fits one image only) or by
    /// name; familiar names are normalised.
    #[must_use]
    pub fn find(&self, name_or_id: &str) -> Option<Arc<Image>> {
        self.inner.store.find(name_or_id)
    }

    /// All images, by id.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Image>> {
        self.inner.store.list()
    }

    /// The image's config as it came: JSON of the OCI image specification.
    #[must_use]
    pub fn config_document(&self, id: &str) -> Option<String> {
        self.inner.store.image_record(id).map(|record| record.config.clone())
    }

    /// Folders under [`Images::layers_dir`] that make up the image, topmost first, each once, as
    /// overlayfs wants them for `lowerdir`. Empty only for an image without layers.
    #[must_use]
    pub fn layers(&self, image: &Image) -> Vec<String> {
        image.folders.clone()
    }

    /// Removes the image of this name or id: all its names, at once and durably, and those of its
    /// layers that nothing else needs. Says which one; None when there is none. Blocks.
    ///
    /// # Errors
    /// [`Error::Store`]; the image stays then.
    pub fn remove(&self, name_or_id: &str) -> Result<Option<String>, Error> {
        let Some(image) = self.find(name_or_id) else { return Ok(None) };
        let removed = self.inner.store.remove_image(&image.id);
        let removed = removed.map_err(|source| Error::Store { source: Box::new(source) })?;
        self.inner.pulls.lock().unwrap_or_else(PoisonError::into_inner).remove(&image.id);
        self.remove_unneeded_layers();
        Ok(removed.then(|| image.id.clone()))
    }

    /// Removes all layers that no image has and no pull under way or container needs, and says how
    /// many. Pulls and containers see to their own. Blocks.
    fn remove_unneeded_layers(&self) -> usize {
        let removed = self.inner.store.release(&[]);
        if removed > 0 {
            self.inner.wake();
        }
        removed
    }

    /// Makes durable what has come so far. The store does so by itself, some time later. Blocks.
    ///
    /// # Errors
    /// [`Error::Store`] of the disk.
    pub fn flush(&self) -> Result<(), Error> {
        self.inner.store.flush().map_err(|source| Error::Store { source: Box::new(source) })
    }

    /// Holds images and layers against the disk. Blocks for as long as it takes to look at each file of each layer.
    ///
    /// # Errors
    /// [`Error::Store`] when the folder of layers can't be listed.
    pub fn check(&self) -> Result<StoreCheck, Error> {
        self.inner.store.check().map_err(|source| Error::Store { source: Box::new(source) })
    }

    /// Where layer folders stand; their names have 26 characters, a few more where a layer had to be pulled again
    /// beside one that is still in use.
    #[must_use]
    pub fn layers_dir(&self) -> &Path {
        self.inner.store.layers_dir()
    }

    /// Spans of the last pull of the image with this id in this process; empty without one.
    #[must_use]
    pub fn last_pull(&self, id: &str) -> Vec<Span> {
        let pulls = self.inner.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.get(id).cloned().unwrap_or_default()
    }
}

impl ImagesInner {
    fn wake(&self) {
        if let Some(syncer) = &self.syncer {
            syncer.wake();
        }
    }
}

impl Image {
    /// Identity of the layers together (image-spec, config.md "Layer ChainID"); empty without layers.
    #[must_use]
    pub fn chain_id(&self) -> String {
        let join = |below: String, id: &String| match below.is_empty() {
            true => id.clone(),
            false => Digest::of(format!("{below} {id}").as_bytes()).to_string(),
        };
        self.diff_ids.iter().fold(String::new(), join)
    }

    /// Keys of everything that a container of it needs.
    pub fn layer_keys(&self) -> &[String] {
        &self.keys
    }

    /// Before its record has been read.
    pub fn with_id(id: String) -> Self {
        Self {
            id,
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            size: 0,
            config: ImageConfig::default(),
            diff_ids: Vec::new(),
            manifest_digest: String::new(),
            annotations: BTreeMap::new(),
            keys: Vec::new(),
            folders: Vec::new(),
        }
    }
}

fn open_store(
    config: &ImagesConfig,
    pinned: &HashMap<String, Vec<String>>,
) -> Result<Arc<ImageStore>, Error> {
    ImageStore::open(config, pinned.values().flatten())
        .map(Arc::new)
        .map_err(|source| Error::Store { source: Box::new(source) })
}

//! Pulls from a scripted registry on loopback, whole ways through. Need root: layers hold devices,
//! owners and trusted xattrs.

pub(crate) mod archive;
mod durable;
mod failures;
mod leftovers;
mod load;
mod mirrors;
mod network;
mod prepull;
mod pulls;
mod ranges;
mod removal;
pub(crate) mod server;

use gantry_shim_testing::archive::Archive;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::registry::TransferLimits;
use super::{Class, Error, Image, Images, ImagesConfig, Reference, Switches, Unpacker, open_store};
use gantry_base::timeline::Recorder;
use server::{Registry, RegistryRequest, TestAnswer};

/// A node's folders and its images, without the sync thread unless a test starts it.
struct TestNode {
    folder: tempfile::TempDir,
    images: Images,
}

impl TestNode {
    fn new() -> Self {
        require_root();
        let folder = tempfile::tempdir().unwrap();
        let images = open(folder.path());
        Self { folder, images }
    }

    /// To which every network is slow, so that large layers come in ranges.
    fn slow() -> Self {
        require_root();
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let store = open_store(&config, &HashMap::new()).unwrap();
        let patience = TransferLimits { slow: f64::INFINITY, ..TransferLimits::default() };
        let images = Images::with(&config, store, patience, None, HashMap::new());
        Self { folder, images }
    }

    async fn pull(&self, name: &str) -> Result<Arc<Image>, Error> {
        self.images.pull(&Reference::parse(name).unwrap(), None, &Recorder::default()).await
    }

    /// Path of a file in the image's `index`th layer from the top.
    fn file(&self, image: &Image, index: usize, path: &str) -> PathBuf {
        self.images.layers_dir().join(&self.images.layers(image)[index]).join(path)
    }

    fn ingest(&self) -> usize {
        count(&self.folder.path().join("root/ingest"))
    }

    /// Changes that are not on disk yet.
    fn journal(&self) -> usize {
        count(&self.folder.path().join("state/images"))
    }

    /// Polls until no pull is under way and all that one leaves is these many layer folders.
    async fn wait_settled(&self, layers: usize) {
        let what = format!("{layers} layer folders and nothing else");
        let store = &self.images.inner.store;
        until(&what, || store.held_layers() == 0 && self.layer_folders() == layers && self.ingest() == 0)
            .await;
    }

    fn layer_folders(&self) -> usize {
        count(&self.folder.path().join("root/layers"))
    }
}

fn config(folder: &Path) -> ImagesConfig {
    ImagesConfig {
        root: folder.join("root"),
        state: folder.join("state"),
        hosts_dir: Some(folder.join("certs.d")),
        docker_config: Some(folder.join("config.json")),
        unpacker: Unpacker::Thread,
        switches: Switches::default(),
    }
}

fn open(folder: &Path) -> Images {
    let patience = TransferLimits {
        connect: Duration::from_secs(20),
        stall: Duration::from_secs(20),
        ..TransferLimits::default()
    };
    let config = config(folder);
    let store = open_store(&config, &HashMap::new()).unwrap();
    Images::with(&config, store, patience, None, HashMap::new())
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// A test without root would prove nothing about owners and devices.
pub(crate) fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test unpacks layers: run it as root");
}

/// All messages from the outside in, as the edge prints them.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Polls until `done`, with a deadline that only a bug meets.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    let poll = async {
        while !done() {
            tick.tick().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), poll).await.is_ok(), "never: {what}");
}

fn hello() -> Archive {
    Archive::new().directory("etc/", 0o755).file("etc/hello", b"hello\n")
}

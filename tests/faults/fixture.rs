//! A node, a real registry with one image, and the fault proxy between them. Owns what is looked at after a pull
//! that failed: nothing half of the image is there. Called by the tests of this tier.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::fault_proxy::{FaultProxy, ProxyFault};
use gantry_tests::image::{Built, Image, Layer};
use gantry_tests::leakcheck::Snapshot;
use gantry_tests::node::Node;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;

const PATIENCE: Duration = Duration::from_secs(60);
/// What the layer that is spoiled has in it: packing makes it no shorter.
const NOISE: u32 = 3_000_000;

/// One test's own.
pub(crate) struct PullFixture {
    pub(crate) node: Node,
    pub(crate) way: FaultProxy,
    pub(crate) built: Built,
    pub(crate) image: String,
    pub(crate) registry: Registry,
    before: Snapshot,
}

/// Bytes that no packer makes fewer.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_be_bytes()[0]
    };
    (0..NOISE).map(&mut next).collect()
}

/// Two layers: a small one, and one that is worth being cut.
pub(crate) fn two_layers() -> Result<Built> {
    let layers = vec![
        Layer::default().dir("srv/", 0o755).file("srv/small", 0o644, "small\n"),
        Layer::default().file("srv/large", 0o644, noise()).file("srv/last", 0o600, "last\n"),
    ];
    Image { layers, ..Image::default() }.build()
}

impl PullFixture {
    pub(crate) fn new() -> Result<Self> {
        Self::with(two_layers()?)
    }

    pub(crate) fn with(built: Built) -> Result<Self> {
        place::require_own_namespaces()?;
        let registry = Registry::start()?;
        registry.push("demo/web", "v1", &built)?;
        let way = FaultProxy::before(registry.addr())?;
        let image = format!("{}/demo/web:v1", way.host());
        let node = Node::start()?;
        let before = node.snapshot()?;
        Ok(Self { node, way, built, image, registry, before })
    }

    /// The layer that is worth it.
    pub(crate) fn large(&self) -> &str {
        &self.built.layers[1].digest
    }

    /// Its bytes on the wire.
    pub(crate) fn length(&self) -> u64 {
        self.built.layers[1].bytes.len() as u64
    }

    /// Of the answers for the large layer.
    pub(crate) fn spoil(&self, times: u32, fault: ProxyFault) {
        self.way.spoil(&format!("/blobs/{}", self.large()), times, fault);
    }

    pub(crate) fn pull(&self) -> Result<String, String> {
        self.node.pull(&self.image).map_err(|status| status.message().to_owned())
    }

    /// The pull comes to its end in spite of what was spoiled.
    pub(crate) fn survives(self) -> Result<()> {
        self.pull().map_err(anyhow::Error::msg).context("the pull should have survived it")?;
        ensure!(self.way.is_used_up(), "the fault never came to be");
        self.whole()?;
        self.clean()
    }

    /// The pull fails in words, leaves nothing, and is whole once the way is straight again.
    pub(crate) fn fails(self, words: &[&str]) -> Result<()> {
        let Err(message) = self.pull() else { anyhow::bail!("the pull should have failed") };
        for word in words.iter().chain([&self.image.as_str()]) {
            ensure!(message.contains(word), "{word:?} is not in: {message}");
        }
        ensure!(self.way.is_used_up(), "the fault never came to be");
        self.bare()?;
        self.way.mend();
        self.survives()
    }

    /// No image, no layer and no unfinished folder.
    pub(crate) fn bare(&self) -> Result<()> {
        let images = self.node.cri().list_images(cri::ListImagesRequest::default())?.images;
        ensure!(images.is_empty(), "half an image shows: {images:?}");
        // A layer that is whole belongs to the failed pull until its thread is through.
        for folder in ["layers", "ingest"] {
            let folder = self.node.root().join(folder);
            poll("nothing to be left", PATIENCE, || match names(&folder) {
                Ok(left) if left.is_empty() => Ok(()),
                Ok(left) => Err(format!("{}: {left:?}", folder.display())),
                Err(error) => Err(error.to_string()),
            })?;
        }
        Ok(())
    }

    /// The image, with each byte of its files.
    pub(crate) fn whole(&self) -> Result<()> {
        let image = Some(cri::ImageSpec { image: self.image.clone(), ..Default::default() });
        let found = self.node.cri().image_status(cri::ImageStatusRequest { image, verbose: false })?;
        ensure!(found.image.is_some(), "the image does not show");
        let layers = self.node.root().join("layers");
        let folders = names(&layers)?;
        let read =
            |name: &str| folders.iter().find_map(|folder| std::fs::read(layers.join(folder).join(name)).ok());
        ensure!(read("srv/large").context("srv/large")? == noise(), "srv/large is not what was pushed");
        ensure!(read("srv/last").context("srv/last")? == b"last\n", "srv/last is not what was pushed");
        Ok(())
    }

    /// After the image's removal there is nothing beyond what was there before.
    pub(crate) fn clean(self) -> Result<()> {
        let image = Some(cri::ImageSpec { image: self.image.clone(), ..Default::default() });
        self.node.cri().remove_image(cri::RemoveImageRequest { image })?;
        self.bare()?;
        self.node.assert_clean(&self.before)
    }
}

fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder)?;
    entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
}

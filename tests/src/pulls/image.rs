//! The images of the pull bench: layers of the sizes that well-known images have, filled with real files and
//! kept in a registry's storage in the cache, so that they are made once. Owns the shapes and the stamps;
//! pulls nothing. Called by `pulls`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::corpus::{self, Content, Item};
use super::pack::{Packed, Packing, Writing};
use crate::image::sha256;
use crate::registry::Registry;

/// Raised when the same shape gives other bytes.
const RECIPE: u32 = 1;

const MB: u64 = 1_000_000;
/// A layer below this is one small file: what `COPY entrypoint.sh /` makes.
const TINY: u64 = 10_000;
/// A file whose plain size is over so many times the layer's room is left out of it.
const FITS: u64 = 4;

/// An image's layers by their compressed sizes in bytes, base first.
#[derive(Debug, Clone, Copy)]
pub struct ImageShape {
    pub name: &'static str,
    layers: &'static [u64],
}

/// Of the images that users complain about, and two extremes.
pub const SHAPES: [ImageShape; 5] = [
    ImageShape {
        name: "nginx-alpine",
        layers: &[36 * MB / 10, 18 * MB / 10, 627, 956, 405, 1_210, 1_400, 126 * MB / 10],
    },
    ImageShape { name: "nginx", layers: &[292 * MB / 10, 439 * MB / 10, 629, 955, 404, 1_210, 1_400] },
    ImageShape {
        name: "python",
        layers: &[
            495 * MB / 10,
            24 * MB,
            644 * MB / 10,
            2_113 * MB / 10,
            62 * MB / 10,
            201 * MB / 10,
            245,
            29 * MB / 10,
        ],
    },
    ImageShape { name: "small", layers: &[200_000; 60] },
    ImageShape { name: "giant", layers: &[292 * MB / 10, 1_970 * MB] },
];

/// An image in the registry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PushedImage {
    recipe: u32,
    /// Names of the packages' archives: other versions are other files.
    corpus: Vec<String>,
    /// `bench/NAME:PACKING`: the registry's address is another one each time.
    pub name: String,
    /// Compressed bytes of each layer.
    pub layers: Vec<u64>,
    /// Of the archives.
    pub unpacked: u64,
    pub files: u64,
}

impl PushedImage {
    /// Compressed bytes of all layers.
    #[must_use]
    pub fn compressed(&self) -> u64 {
        self.layers.iter().sum()
    }
}

impl ImageShape {
    /// The one of this name.
    #[must_use]
    pub fn find_shape(name: &str) -> Option<ImageShape> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }
}

/// The image of `shape` in the registry's storage, made unless it is there. `cache` is the storage's parent.
///
/// # Errors
/// When packages are missing, the disk is full or the registry refuses.
pub(super) fn push_image(
    shape: ImageShape,
    packing: Packing,
    registry: &Registry,
    cache: &Path,
) -> Result<PushedImage> {
    let archives = corpus::archives()?;
    let names = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let corpus: Vec<String> = archives.iter().map(names).collect();
    let stamp = cache.join(format!("{}-{}.json", shape.name, packing.name()));
    if let Ok(text) = std::fs::read(&stamp)
        && let Ok(made) = serde_json::from_slice::<PushedImage>(&text)
        && made.recipe == RECIPE
        && made.corpus == corpus
    {
        return Ok(made);
    }
    let scratch = tempfile::Builder::new().prefix("pack-").tempdir_in(cache)?;
    let layers = pack(shape, packing, &archives, scratch.path())?;
    let name = format!("bench/{}", shape.name);
    push(registry, &name, packing, &layers)?;
    let made = PushedImage {
        recipe: RECIPE,
        corpus,
        name: format!("{name}:{}", packing.name()),
        layers: layers.iter().map(|layer| layer.compressed).collect(),
        unpacked: layers.iter().map(|layer| layer.unpacked).sum(),
        files: layers.iter().map(|layer| layer.files).sum(),
    };
    std::fs::write(&stamp, serde_json::to_vec_pretty(&made)?)?;
    Ok(made)
}

/// Fills the layers from the packages one after the other. When the packages are at an end they come
/// again in another folder: equal bytes are then so far apart that no packer's window sees both.
fn pack(shape: ImageShape, packing: Packing, archives: &[PathBuf], folder: &Path) -> Result<Vec<Packed>> {
    let open = |index: usize| Writing::new(&folder.join(index.to_string()), packing);
    let (mut done, mut writing) = (Vec::new(), open(0)?);
    for pass in 0..100 {
        for archive in archives {
            let more = corpus::each(archive, |mut item| {
                // Tiny ones are done at once.
                while let Some(size) = shape.layers.get(done.len()).filter(|size| **size < TINY) {
                    writing.add(&tiny(done.len(), *size))?;
                    done.push(std::mem::replace(&mut writing, open(done.len() + 1)?).finish()?);
                }
                let Some(size) = shape.layers.get(done.len()) else { return Ok(false) };
                let room = size.saturating_sub(writing.compressed());
                if matches!(&item.content, Content::File(bytes) if bytes.len() as u64 > room * FITS) {
                    return Ok(true);
                }
                if pass > 0 {
                    item.path = format!("copy-{pass}/{}", item.path);
                }
                writing.add(&item)?;
                if writing.compressed() >= *size {
                    done.push(std::mem::replace(&mut writing, open(done.len() + 1)?).finish()?);
                }
                Ok(true)
            })?;
            if !more {
                return Ok(done);
            }
        }
    }
    anyhow::bail!("the packages hold too little for {}: {} layers are full", shape.name, done.len())
}

/// Text that does not pack well, of about that many bytes when packed in an archive.
fn tiny(index: usize, size: u64) -> Item {
    let mut text = String::new();
    while (text.len() as u64) < size {
        text.push_str(&sha256(format!("{index} {}", text.len()).as_bytes()));
    }
    let path = format!("docker-entrypoint.d/{index}.sh");
    Item { path, mode: 0o755, content: Content::File(text.into_bytes()) }
}

fn push(registry: &Registry, name: &str, packing: Packing, layers: &[Packed]) -> Result<()> {
    for layer in layers {
        registry.push_file(name, &layer.digest, &layer.file)?;
    }
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let config = serde_json::to_vec(&json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "2023-11-14T22:13:20Z",
        "config": { "Cmd": ["/bin/sh"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    }))?;
    let config_digest = registry.push_bytes(name, config.clone())?;
    let descriptors: Vec<_> = layers
        .iter()
        .map(|layer| {
            json!({ "mediaType": packing.media_type(), "digest": layer.digest, "size": layer.compressed })
        })
        .collect();
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config_digest, "size": config.len(),
        },
        "layers": descriptors,
    }))?;
    registry.push_manifest(name, packing.name(), media_type, &manifest).context("push the manifest")
}

/// Downloads what the images are filled with, unless it is there.
///
/// # Errors
/// When apt cannot be reached.
pub(super) fn fetch() -> Result<()> {
    corpus::fetch()
}

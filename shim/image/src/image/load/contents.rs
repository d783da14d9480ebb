//! What images an archive has: an OCI layout (image-layout.md of the OCI image specification), or what
//! `docker save` writes. Owns reading its documents, which are a stranger's, and holds every digest that
//! they name against the bytes. Unpacks nothing. Called by `load` on a blocking thread.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::spool::{Spool, SpooledFile};
use super::{ArchiveError, Naming};
use crate::image::digest::Digest;
use crate::image::manifest::{
    self, Blob, DOCKER_MANIFEST, LayerBlob, ManifestDocument, ManifestError, Packing, Platform, RawPlatform,
};
use crate::image::reference::Reference;
use gantry_unpack::clip;

/// As of a registry's: distribution's own limit.
const MAX_MANIFEST: u64 = 4 << 20;
const MAX_CONFIG: u64 = 8 << 20;
/// Of images in one archive.
const MOST_IMAGES: usize = 500;
const MOST_LAYERS: usize = 500;
/// An index may name an index; a chain of them is a trick.
const MAX_DEPTH: usize = 4;
/// The name with its registry, as containerd and docker write it.
const FULL_NAME: &str = "io.containerd.image.name";
/// The OCI specification's: often a bare tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// An image of the archive, its documents checked.
#[derive(Debug)]
pub(super) struct ArchivedImage {
    /// At least one.
    pub(super) names: Vec<Reference>,
    /// What the archive's index points at: an index's digest, or the manifest's.
    pub(super) named: Digest,
    pub(super) manifest: String,
    pub(super) manifest_digest: Digest,
    pub(super) config: String,
    /// The image's id, and the config's size.
    pub(super) id: Blob,
    pub(super) layers: Vec<LayerBlob>,
    pub(super) diff_ids: Vec<Digest>,
    /// Where in the archive each layer's bytes begin.
    pub(super) places: Vec<u64>,
}

#[derive(Deserialize)]
struct IndexDocument {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    platform: Option<RawPlatform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// An entry of docker's manifest.json.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerSaveEntry {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// [`Naming`], parsed.
struct ParsedNaming {
    name: Option<Reference>,
    repository: Option<String>,
    /// Something was called by `name`.
    used: Cell<bool>,
}

impl ParsedNaming {
    fn parse(naming: &Naming) -> Result<Self, ArchiveError> {
        let given = |text: &str| (!text.is_empty()).then(|| reference(text)).transpose();
        Ok(Self {
            name: given(&naming.name)?,
            repository: given(&naming.repository)?.map(|own| own.repository()),
            used: Cell::new(false),
        })
    }

    /// Of an image that has at most a tag. `shown`: by which the archive's reader knows it.
    fn of(&self, digest: Digest, tag: Option<&str>, shown: Digest) -> Result<Reference, ArchiveError> {
        match (&self.name, tag, &self.repository) {
            (Some(name), tag, _) => {
                self.used.set(true);
                tag.map_or_else(|| Ok(name.clone()), |tag| reference(&format!("{}:{tag}", name.repository())))
            }
            (None, _, Some(repository)) => reference(&format!("{repository}@{digest}")),
            (None, _, None) => Err(ArchiveError::Unnamed { digest: shown }),
        }
    }

    /// A name that was given in vain is refused.
    fn finish(&self, found: &[ArchivedImage]) -> Result<(), ArchiveError> {
        match &self.name {
            Some(name) if !self.used.get() && !found.is_empty() => {
                let own = found.iter().flat_map(|image| &image.names).map(ToString::to_string);
                let own = clip(&own.collect::<Vec<_>>().join(", "));
                Err(ArchiveError::Named { name: name.to_string(), own })
            }
            _ => Ok(()),
        }
    }
}

/// All images for this machine. Blocks.
///
/// # Errors
/// [`ArchiveError`].
pub(super) fn read(
    spool: &Spool,
    naming: &Naming,
    platform: &Platform,
) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let names = ParsedNaming::parse(naming)?;
    // Docker writes both since version 25: the layout says more, and containerd believes it, too.
    let found = if spool.find("index.json").is_some() {
        layout(spool, &names, platform)?
    } else if spool.find("manifest.json").is_some() {
        read_docker_save(spool, &names, platform)?
    } else {
        return Err(ArchiveError::Unknown);
    };
    let mut ids = HashMap::new();
    for (name, id) in found.iter().flat_map(|image| image.names.iter().map(|name| (name, image.id.digest))) {
        if ids.insert(name, id).is_some_and(|other| other != id) {
            return Err(ArchiveError::Called { name: name.to_string() });
        }
    }
    names.finish(&found)?;
    if found.is_empty() { Err(ArchiveError::Empty) } else { Ok(found) }
}

fn layout(
    spool: &Spool,
    names: &ParsedNaming,
    platform: &Platform,
) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let layout: IndexDocument = json(spool, "index.json", MAX_MANIFEST)?.0;
    if layout.manifests.len() > MOST_IMAGES {
        return Err(ArchiveError::Images { limit: MOST_IMAGES });
    }
    let mut images: Vec<ArchivedImage> = Vec::new();
    let mut foreign = None;
    for descriptor in &layout.manifests {
        if descriptor.platform.as_ref().is_some_and(|own| !platform.fits(own)) {
            continue;
        }
        let digest = digest_in("index.json", &descriptor.digest)?;
        let own = name_of(descriptor, digest, names)?;
        match image(spool, digest, &descriptor.media_type, platform) {
            // One digest under several names has an entry for each.
            Ok(found) => match images.iter_mut().find(|known| known.manifest_digest == found.manifest_digest)
            {
                Some(known) => known.names.push(own),
                None => images.push(ArchivedImage { names: vec![own], ..found }),
            },
            // An archive of several platforms may hold others beside ours.
            Err(ArchiveError::Manifest { source }) if is_foreign(&source) => {
                foreign = Some(ArchiveError::Manifest { source });
            }
            Err(error) => return Err(error),
        }
    }
    match foreign {
        Some(error) if images.is_empty() => Err(error),
        _ => Ok(images),
    }
}

fn is_foreign(error: &ManifestError) -> bool {
    matches!(error, ManifestError::Foreign { .. } | ManifestError::Platform { .. })
}

fn name_of(descriptor: &Descriptor, digest: Digest, names: &ParsedNaming) -> Result<Reference, ArchiveError> {
    let annotation = |key| descriptor.annotations.as_ref().and_then(|all| all.get(key));
    if let Some(full) = annotation(FULL_NAME) {
        return reference(full);
    }
    match annotation(REF_NAME) {
        Some(own) if own.contains(['/', ':']) => reference(own),
        tag => names.of(digest, tag.map(String::as_str), digest),
    }
}

/// Follows indexes down to the manifest for this machine, and reads it with its config.
fn image(
    spool: &Spool,
    named: Digest,
    media: &str,
    platform: &Platform,
) -> Result<ArchivedImage, ArchiveError> {
    let (mut digest, mut media) = (named, media.to_owned());
    for _ in 0..MAX_DEPTH {
        let bytes = blob(spool, digest, MAX_MANIFEST)?;
        match manifest::document(&bytes, digest, &media, platform).map_err(invalid)? {
            ManifestDocument::Index(entry) => (digest, media) = (entry.digest, String::new()),
            ManifestDocument::Image { config, layers } => {
                let places = layers
                    .iter()
                    .map(|layer| Ok(verified_file(spool, &path_of(layer.blob.digest), layer.blob.digest)?.at))
                    .collect::<Result<_, ArchiveError>>()?;
                let text = blob(spool, config.digest, MAX_CONFIG)?;
                let (_, diff_ids) =
                    manifest::config(&text, config.digest, layers.len(), platform).map_err(invalid)?;
                return Ok(ArchivedImage {
                    names: Vec::new(),
                    named,
                    manifest: String::from_utf8_lossy(&bytes).into_owned(),
                    manifest_digest: digest,
                    id: Blob { digest: config.digest, size: text.len() as u64 },
                    config: utf8(text, config.digest)?,
                    layers,
                    diff_ids,
                    places,
                });
            }
        }
    }
    Err(ArchiveError::Nested { digest: named, limit: MAX_DEPTH })
}

fn read_docker_save(
    spool: &Spool,
    names: &ParsedNaming,
    platform: &Platform,
) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let entries: Vec<DockerSaveEntry> = json(spool, "manifest.json", MAX_MANIFEST)?.0;
    if entries.len() > MOST_IMAGES {
        return Err(ArchiveError::Images { limit: MOST_IMAGES });
    }
    entries.iter().map(|entry| read_docker_save_image(spool, entry, names, platform)).collect()
}

/// The archive has no manifest: one of docker's kind is made, as containerd does.
fn read_docker_save_image(
    spool: &Spool,
    entry: &DockerSaveEntry,
    names: &ParsedNaming,
    platform: &Platform,
) -> Result<ArchivedImage, ArchiveError> {
    let (text, digest) = spool.document(&entry.config, MAX_CONFIG)?;
    let id = Blob { digest, size: text.len() as u64 };
    if entry.layers.len() > MOST_LAYERS {
        return Err(ArchiveError::Layers { digest, limit: MOST_LAYERS });
    }
    let (_, diff_ids) = manifest::config(&text, digest, entry.layers.len(), platform).map_err(invalid)?;
    let mut own: Vec<Reference> =
        entry.repo_tags.iter().flatten().map(|tag| reference(tag)).collect::<Result<_, _>>()?;
    let (mut layers, mut places) = (Vec::new(), Vec::new());
    for path in &entry.layers {
        let stored = spool.find(path).ok_or_else(|| ArchiveError::Missing { path: clip(path) })?;
        let blob = Blob { digest: stored.digest, size: stored.size };
        layers.push(LayerBlob { blob, packing: packing(spool, stored)? });
        places.push(stored.at);
    }
    let manifest = docker_manifest(&id, &layers);
    let manifest_digest = Digest::of(manifest.as_bytes());
    if own.is_empty() {
        own.push(names.of(manifest_digest, None, digest)?);
    }
    Ok(ArchivedImage {
        names: own,
        named: manifest_digest,
        manifest_digest,
        manifest,
        config: utf8(text, digest)?,
        id,
        layers,
        diff_ids,
        places,
    })
}

fn docker_manifest(config: &Blob, layers: &[LayerBlob]) -> String {
    let descriptor = |media: &str, blob: &Blob| serde_json::json!({"mediaType": media, "size": blob.size, "digest": blob.digest.to_string()});
    let media = |packing| match packing {
        Packing::Plain => "application/vnd.docker.image.rootfs.diff.tar",
        Packing::Gzip => "application/vnd.docker.image.rootfs.diff.tar.gzip",
        Packing::Zstd => "application/vnd.docker.image.rootfs.diff.tar.zstd",
    };
    let layers: Vec<_> = layers.iter().map(|layer| descriptor(media(layer.packing), &layer.blob)).collect();
    let config = descriptor("application/vnd.docker.container.image.v1+json", config);
    serde_json::json!({
        "schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": config, "layers": layers,
    })
    .to_string()
}

/// By the first bytes: docker's archive does not say.
fn packing(spool: &Spool, stored: SpooledFile) -> Result<Packing, ArchiveError> {
    let mut magic = [0; 4];
    if stored.size < magic.len() as u64 {
        return Ok(Packing::Plain);
    }
    spool.read_at(&mut magic, stored.at)?;
    Ok(match magic {
        [0x1f, 0x8b, ..] => Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Packing::Zstd,
        _ => Packing::Plain,
    })
}

fn path_of(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Where a file stands whose bytes are what they are said to be.
fn verified_file(spool: &Spool, path: &str, wanted: Digest) -> Result<SpooledFile, ArchiveError> {
    let stored = spool.find(path).ok_or_else(|| ArchiveError::Missing { path: path.to_owned() })?;
    match stored.digest {
        found if found == wanted => Ok(stored),
        found => Err(ArchiveError::Digest { path: path.to_owned(), found }),
    }
}

fn blob(spool: &Spool, digest: Digest, limit: u64) -> Result<Vec<u8>, ArchiveError> {
    let path = path_of(digest);
    verified_file(spool, &path, digest)?;
    spool.document(&path, limit).map(|(bytes, _)| bytes)
}

fn json<T: DeserializeOwned>(spool: &Spool, path: &str, limit: u64) -> Result<(T, Digest), ArchiveError> {
    let (bytes, digest) = spool.document(path, limit)?;
    let parsed = serde_json::from_slice(&bytes);
    let parsed = parsed
        .map_err(|error| ArchiveError::Json { path: path.to_owned(), detail: clip(&error.to_string()) })?;
    Ok((parsed, digest))
}

fn digest_in(path: &str, text: &str) -> Result<Digest, ArchiveError> {
    text.parse().map_err(|source| ArchiveError::BadDigest { path: path.to_owned(), source })
}

fn reference(text: &str) -> Result<Reference, ArchiveError> {
    Reference::parse(text).map_err(|source| ArchiveError::Name { source })
}

fn utf8(bytes: Vec<u8>, digest: Digest) -> Result<String, ArchiveError> {
    String::from_utf8(bytes).map_err(|_| {
        let detail = "not UTF-8".to_owned();
        invalid(ManifestError::Json { what: "image config", digest, detail })
    })
}

fn invalid(source: ManifestError) -> ArchiveError {
    ArchiveError::Manifest { source: source.into() }
}

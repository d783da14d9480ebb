//! Manifests, indexes and image configs: from untrusted bytes to checked values. Pure: no network,
//! no files. Called by `pull` with bytes whose digest is already known.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::digest::{Digest, DigestError, clip};
pub(crate) use gantry_unpack::Packing;

/// More layers than overlayfs can stack are of no use to anybody.
const MAX_LAYERS: usize = 500;
/// An index this long is an attack, not a list of platforms.
const MAX_INDEX: usize = 1000;

pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Why bytes are not an image that this node can run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON of the expected form.
    #[error("{what} {digest} is not valid JSON of its kind: {detail}")]
    Json { what: &'static str, digest: Digest, detail: String },
    /// A manifest that is both index and manifest may be read differently by different tools
    /// (CVE-2021-41190).
    #[error("manifest {digest} has both \"layers\" and \"manifests\": refused as ambiguous")]
    Ambiguous { digest: Digest },
    /// A media type that is not supported.
    #[error("{what} {digest} has media type {media_type:?}, which is not supported: {remedy}")]
    MediaType { what: &'static str, digest: Digest, media_type: String, remedy: &'static str },
    /// No entry of the index fits.
    #[error("index {digest} has no image for {wanted}: it has {found}")]
    Platform { digest: Digest, wanted: String, found: String },
    /// The image is for another machine.
    #[error("image config {digest} is for {found}, this node is {wanted}")]
    Foreign { digest: Digest, wanted: String, found: String },
    /// A digest in a descriptor can't be used.
    #[error("{what} {digest} holds a digest that can't be used")]
    Digest {
        what: &'static str,
        digest: Digest,
        #[source]
        source: DigestError,
    },
    /// Manifest and config don't agree.
    #[error("image config {digest} lists {diff_ids} diff ids for {layers} layers")]
    Count { digest: Digest, diff_ids: usize, layers: usize },
    /// Too many entries.
    #[error("{what} {digest} lists {count} entries: more than the {limit} allowed")]
    Many { what: &'static str, digest: Digest, count: usize, limit: usize },
}

/// Something to fetch: its digest and its exact size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// One layer as the manifest promises it, base first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerBlob {
    pub(crate) blob: Blob,
    pub(crate) packing: Packing,
}

/// What a digest under `manifests/` turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ManifestDocument {
    /// An index; the entry for this node.
    Index(Blob),
    /// The manifest of one image.
    Image { config: Blob, layers: Vec<LayerBlob> },
}

/// The machine that an image must be made for.
#[derive(Debug, Clone)]
pub(crate) struct Platform {
    pub(crate) architecture: &'static str,
}

/// What the image asks of a container's process. Empty where the image says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// `NAME=value`.
    #[serde(rename = "Env", deserialize_with = "null_default")]
    pub env: Vec<String>,
    /// The program and its first arguments.
    #[serde(rename = "Entrypoint", deserialize_with = "null_default")]
    pub entrypoint: Vec<String>,
    /// Arguments, or the program where there is no entry point.
    #[serde(rename = "Cmd", deserialize_with = "null_default")]
    pub cmd: Vec<String>,
    /// `user`, `uid`, `user:group`, … by name or number.
    #[serde(rename = "User", deserialize_with = "null_default")]
    pub user: String,
    /// Absolute path, or empty for `/`.
    #[serde(rename = "WorkingDir", deserialize_with = "null_default")]
    pub working_dir: String,
    /// `SIGTERM` or a number; empty for the default.
    #[serde(rename = "StopSignal", deserialize_with = "null_default")]
    pub stop_signal: String,
    /// Free-form.
    #[serde(rename = "Labels", deserialize_with = "null_default")]
    pub labels: BTreeMap<String, String>,
    /// Paths that want a volume.
    #[serde(rename = "Volumes", deserialize_with = "keys")]
    pub volumes: Vec<String>,
    /// `80/tcp`.
    #[serde(rename = "ExposedPorts", deserialize_with = "keys")]
    pub exposed_ports: Vec<String>,
}

#[derive(Deserialize)]
struct RawDocument {
    #[serde(rename = "mediaType")]
    media_type: Option<String>,
    #[serde(rename = "schemaVersion")]
    schema_version: Option<u32>,
    manifests: Option<Vec<RawDescriptor>>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
struct RawDescriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<RawPlatform>,
}

#[derive(Deserialize)]
pub(crate) struct RawPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: String,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default, deserialize_with = "null_default")]
    config: ImageConfig,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default, deserialize_with = "null_default")]
    diff_ids: Vec<String>,
}

impl Platform {
    /// This machine, in the words of the image specification (those of Go).
    pub(crate) fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture }
    }

    fn name(&self) -> String {
        format!("linux/{}", self.architecture)
    }

    pub(crate) fn fits(&self, platform: &RawPlatform) -> bool {
        // Baseline variants only: v2 and up of amd64 need processor features nobody checked.
        let variant = match self.architecture {
            "amd64" => matches!(platform.variant.as_str(), "" | "v1"),
            "arm64" => matches!(platform.variant.as_str(), "" | "v8"),
            _ => platform.variant.is_empty(),
        };
        platform.os == "linux" && platform.architecture == self.architecture && variant
    }
}

/// Reads what stands under a digest in `manifests/`. `content_type` is the server's word, used only
/// where the document itself says nothing.
///
/// # Errors
/// [`ManifestError`]: not JSON, ambiguous, of an unsupported type, or without an image for us.
pub(crate) fn document(
    bytes: &[u8],
    digest: Digest,
    content_type: &str,
    platform: &Platform,
) -> Result<ManifestDocument, ManifestError> {
    let raw: RawDocument = json(bytes, "manifest", digest)?;
    if raw.manifests.is_some() && (raw.layers.is_some() || raw.config.is_some()) {
        return Err(ManifestError::Ambiguous { digest });
    }
    let declared = raw.media_type.as_deref().unwrap_or(content_type);
    let unsupported =
        |remedy| ManifestError::MediaType { what: "manifest", digest, media_type: clip(declared), remedy };
    if raw.schema_version == Some(1) {
        return Err(unsupported("docker schema 1 is obsolete; push the image again with a current tool"));
    }
    let typed = |types: [&str; 2]| raw.media_type.as_deref().is_none_or(|declared| types.contains(&declared));
    match (raw.manifests, raw.config, raw.layers) {
        (Some(entries), _, _) if typed([OCI_INDEX, DOCKER_LIST]) => {
            pick(&entries, digest, platform).map(ManifestDocument::Index)
        }
        (None, Some(config), Some(layers)) if typed([OCI_MANIFEST, DOCKER_MANIFEST]) => {
            image(&config, &layers, digest)
        }
        _ => Err(unsupported("want an OCI or docker schema 2 image manifest or index")),
    }
}

/// Reads an image config and holds it against its manifest.
///
/// # Errors
/// [`ManifestError`]: not JSON, for another machine, or at odds with the manifest.
pub(crate) fn config(
    bytes: &[u8],
    digest: Digest,
    layers: usize,
    platform: &Platform,
) -> Result<(ImageConfig, Vec<Digest>), ManifestError> {
    let raw: RawConfig = json(bytes, "image config", digest)?;
    let foreign = |named: &str, own: &str| !named.is_empty() && named != own;
    if foreign(&raw.os, "linux") || foreign(&raw.architecture, platform.architecture) {
        let found = format!("{}/{}", clip(&raw.os), clip(&raw.architecture));
        return Err(ManifestError::Foreign { digest, wanted: platform.name(), found });
    }
    let diff_ids = raw.rootfs.diff_ids;
    if diff_ids.len() != layers {
        return Err(ManifestError::Count { digest, diff_ids: diff_ids.len(), layers });
    }
    let parse = |text: &String| {
        text.parse().map_err(|source| ManifestError::Digest { what: "image config", digest, source })
    };
    Ok((raw.config, diff_ids.iter().map(parse).collect::<Result<_, _>>()?))
}

/// The annotations of a manifest that was accepted before; those that are no text are none.
pub(crate) fn annotations(manifest: &[u8]) -> BTreeMap<String, String> {
    #[derive(Deserialize)]
    struct Annotated {
        #[serde(default, deserialize_with = "null_default")]
        annotations: BTreeMap<String, String>,
    }
    serde_json::from_slice(manifest).map(|found: Annotated| found.annotations).unwrap_or_default()
}

fn image(
    config: &RawDescriptor,
    layers: &[RawDescriptor],
    digest: Digest,
) -> Result<ManifestDocument, ManifestError> {
    if layers.len() > MAX_LAYERS {
        return Err(ManifestError::Many { what: "manifest", digest, count: layers.len(), limit: MAX_LAYERS });
    }
    if !matches!(
        config.media_type.as_str(),
        "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json" | ""
    ) {
        return Err(ManifestError::MediaType {
            what: "config of manifest",
            digest,
            media_type: clip(&config.media_type),
            remedy: "it is an artifact, not a container image",
        });
    }
    let layers = layers.iter().map(|layer| {
        Ok(LayerBlob { blob: blob(layer, digest)?, packing: packing(&layer.media_type, digest)? })
    });
    Ok(ManifestDocument::Image { config: blob(config, digest)?, layers: layers.collect::<Result<_, _>>()? })
}

fn packing(media_type: &str, digest: Digest) -> Result<Packing, ManifestError> {
    let remedy = match media_type {
        "application/vnd.oci.image.layer.v1.tar"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar"
        | "application/vnd.docker.image.rootfs.diff.tar" => return Ok(Packing::Plain),
        "application/vnd.oci.image.layer.v1.tar+gzip"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
        | "application/vnd.docker.image.rootfs.diff.tar.gzip" => return Ok(Packing::Gzip),
        "application/vnd.oci.image.layer.v1.tar+zstd"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
        | "application/vnd.docker.image.rootfs.diff.tar.zstd" => return Ok(Packing::Zstd),
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => {
            "foreign layers hold Windows; choose another image"
        }
        other if other.contains("encrypted") => "encrypted layers need keys this node has not",
        _ => "want a tar layer: plain, gzip or zstd",
    };
    Err(ManifestError::MediaType {
        what: "a layer of manifest",
        digest,
        media_type: clip(media_type),
        remedy,
    })
}

fn pick(entries: &[RawDescriptor], digest: Digest, platform: &Platform) -> Result<Blob, ManifestError> {
    if entries.len() > MAX_INDEX {
        return Err(ManifestError::Many { what: "index", digest, count: entries.len(), limit: MAX_INDEX });
    }
    let named = |entry: &&RawDescriptor| entry.platform.as_ref().is_some_and(|own| platform.fits(own));
    // An entry without a platform is looked into only when no entry claims ours; its config decides.
    let unnamed = |entry: &&RawDescriptor| entry.platform.is_none();
    if let Some(entry) = entries.iter().find(named).or_else(|| entries.iter().find(unnamed)) {
        return blob(entry, digest);
    }
    let mut found: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .filter(|own| own.os != "unknown")
        .take(16)
        .map(|own| clip(format!("{}/{}/{}", own.os, own.architecture, own.variant).trim_end_matches('/')))
        .collect();
    if found.is_empty() {
        found.push("none".to_owned());
    }
    Err(ManifestError::Platform { digest, wanted: platform.name(), found: found.join(", ") })
}

fn blob(descriptor: &RawDescriptor, digest: Digest) -> Result<Blob, ManifestError> {
    let parsed = descriptor.digest.parse();
    let own = parsed.map_err(|source| ManifestError::Digest { what: "manifest", digest, source })?;
    Ok(Blob { digest: own, size: descriptor.size })
}

fn json<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    what: &'static str,
    digest: Digest,
) -> Result<T, ManifestError> {
    serde_json::from_slice(bytes).map_err(|error| ManifestError::Json {
        what,
        digest,
        detail: clip(&error.to_string()),
    })
}

/// Docker writes `null` for empty lists and maps.
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn keys<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let map: BTreeMap<String, serde::de::IgnoredAny> = null_default(from)?;
    Ok(map.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const AMD64: Platform = Platform { architecture: "amd64" };

    fn read(text: &str) -> Result<ManifestDocument, ManifestError> {
        document(text.as_bytes(), Digest::of(text.as_bytes()), "", &AMD64)
    }

    fn manifest(media: &str, layer: &str) -> String {
        format!(
            r#"{{"schemaVersion":2,"mediaType":"{media}","config":{{"mediaType":"","digest":"{A}","size":3}},
            "layers":[{{"mediaType":"{layer}","digest":"{B}","size":9}}]}}"#
        )
    }

    fn index(entries: &[(&str, &str, &str)]) -> String {
        let entries: Vec<String> = entries
            .iter()
            .map(|(os, arch, variant)| {
                let digest = if *arch == "amd64" { A } else { B };
                format!(
                    r#"{{"mediaType":"x","digest":"{digest}","size":1,
                    "platform":{{"os":"{os}","architecture":"{arch}","variant":"{variant}"}}}}"#
                )
            })
            .collect();
        format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","))
    }

    #[test]
    fn both_kinds_of_manifest_and_packing_are_read() {
        for (media, layer, packing) in [
            (OCI_MANIFEST, "application/vnd.oci.image.layer.v1.tar+gzip", Packing::Gzip),
            (OCI_MANIFEST, "application/vnd.oci.image.layer.v1.tar", Packing::Plain),
            (OCI_MANIFEST, "application/vnd.oci.image.layer.v1.tar+zstd", Packing::Zstd),
            (DOCKER_MANIFEST, "application/vnd.docker.image.rootfs.diff.tar.gzip", Packing::Gzip),
        ] {
            let ManifestDocument::Image { config, layers } = read(&manifest(media, layer)).unwrap() else {
                panic!("an image")
            };
            assert_eq!(config, Blob { digest: A.parse().unwrap(), size: 3 });
            assert_eq!(layers, [LayerBlob { blob: Blob { digest: B.parse().unwrap(), size: 9 }, packing }]);
        }
    }

    #[test]
    fn unsupported_types_say_so() {
        let bzip2 =
            read(&manifest(OCI_MANIFEST, "application/vnd.oci.image.layer.v1.tar+bzip2")).unwrap_err();
        assert!(bzip2.to_string().contains("plain, gzip or zstd"), "{bzip2}");
        let helm = manifest(OCI_MANIFEST, "x").replace(r#""mediaType":"""#, r#""mediaType":"helm""#);
        assert!(read(&helm).unwrap_err().to_string().contains("artifact"));
        let schema1 = read(r#"{"schemaVersion":1,"fsLayers":[]}"#).unwrap_err();
        assert!(schema1.to_string().contains("schema 1"), "{schema1}");
        let wrong = manifest(OCI_INDEX, "application/vnd.oci.image.layer.v1.tar");
        assert!(matches!(read(&wrong), Err(ManifestError::MediaType { .. })), "an index type on a manifest");
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        let both = format!(r#"{{"manifests":[],"layers":[],"config":{{"digest":"{A}","size":1}}}}"#);
        assert!(matches!(read(&both), Err(ManifestError::Ambiguous { .. })));
    }

    #[test]
    fn the_index_entry_of_this_platform_is_taken() {
        let list = index(&[("linux", "arm64", "v8"), ("linux", "amd64", ""), ("unknown", "unknown", "")]);
        assert_eq!(
            read(&list).unwrap(),
            ManifestDocument::Index(Blob { digest: A.parse().unwrap(), size: 1 })
        );
        let error = read(&index(&[("linux", "arm64", "v8"), ("linux", "amd64", "v3")])).unwrap_err();
        assert!(error.to_string().ends_with("it has linux/arm64/v8, linux/amd64/v3"), "{error}");
    }

    #[test]
    fn config_with_nulls_is_read_and_held_against_the_manifest() {
        let text = format!(
            r#"{{"os":"linux","architecture":"amd64","config":{{"Env":["A=b"],"Cmd":null,"Volumes":{{"/v":{{}}}},
            "ExposedPorts":null,"User":"1:2"}},"rootfs":{{"type":"layers","diff_ids":["{A}"]}}}}"#
        );
        let digest = Digest::of(text.as_bytes());
        let (read, diff_ids) = config(text.as_bytes(), digest, 1, &AMD64).unwrap();
        assert_eq!(
            (read.env, read.volumes, read.user),
            (vec!["A=b".into()], vec!["/v".into()], "1:2".into())
        );
        assert_eq!(diff_ids, [A.parse().unwrap()]);
        assert!(matches!(config(text.as_bytes(), digest, 2, &AMD64), Err(ManifestError::Count { .. })));
        let arm = Platform { architecture: "arm64" };
        assert!(matches!(config(text.as_bytes(), digest, 1, &arm), Err(ManifestError::Foreign { .. })));
    }

    #[test]
    fn negative_and_missing_sizes_are_refused() {
        let negative = manifest(OCI_MANIFEST, "x").replace(r#""size":9"#, r#""size":-9"#);
        assert!(matches!(read(&negative), Err(ManifestError::Json { .. })));
    }
}

//! Archives as `docker save` writes them, of images made on the spot. Owns the bytes; who loads them is the test's
//! matter. Called by the tiers that load images.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::image::{Built, sha256};

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Before version 25: a folder for each layer, its tar not compressed, and a list of images. Without tags as by
/// `docker save ID`.
///
/// # Errors
/// When a layer is no gzip.
pub fn classic(image: &Built, tags: &[&str]) -> Result<Vec<u8>> {
    let config = format!("{}.json", hex(&image.config.digest));
    let mut files = Files::default();
    let mut layers = Vec::new();
    for layer in &image.layers {
        let folder = hex(&layer.digest);
        let mut tar = Vec::new();
        let mut packed = flate2::read::GzDecoder::new(layer.bytes.as_slice());
        std::io::Read::read_to_end(&mut packed, &mut tar).context("inflate a layer")?;
        files.add(&format!("{folder}/VERSION"), b"1.0");
        files.add(&format!("{folder}/layer.tar"), &tar);
        layers.push(format!("{folder}/layer.tar"));
    }
    files.add(&config, &image.config.bytes);
    let tags = if tags.is_empty() { Value::Null } else { json!(tags) };
    let list = json!([{ "Config": config, "RepoTags": tags, "Layers": layers }]);
    files.add("manifest.json", list.to_string().as_bytes());
    files.tar()
}

/// Since version 25: an OCI layout that has the list beside it. With containerd's image store, as here, the name
/// stands for an index of platforms, with the attestation that buildx made of the image, and of other platforms the
/// blobs are not there.
///
/// # Errors
/// When a name does not fit a header.
pub fn layout(image: &Built, name: &str) -> Result<Vec<u8>> {
    let mut files = Files::default();
    for blob in image.layers.iter().chain([&image.config, &image.manifest]) {
        files.blob(&blob.bytes);
    }
    let attestation = attestation(&mut files, image);
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            entry(b"another platform's", "linux", "s390x"),
            entry(&image.manifest.bytes, "linux", "amd64"),
            attestation,
        ],
    })
    .to_string();
    files.blob(index.as_bytes());
    let mut named = descriptor(INDEX_TYPE, index.as_bytes());
    let tag = name.rsplit(':').next().unwrap_or(name);
    named["annotations"] =
        json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag });
    files.add("index.json", json!({ "schemaVersion": 2, "manifests": [named] }).to_string().as_bytes());
    let blob = |digest: &str| format!("blobs/sha256/{}", hex(digest));
    let layers: Vec<String> = image.layers.iter().map(|layer| blob(&layer.digest)).collect();
    let list = json!([{ "Config": blob(&image.config.digest), "RepoTags": [name], "Layers": layers }]);
    files.add("manifest.json", list.to_string().as_bytes());
    files.add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    files.tar()
}

/// What buildx says of how the image came to be: its blobs, and the index's entry.
fn attestation(files: &mut Files, image: &Built) -> Value {
    let said = json!({ "_type": "https://in-toto.io/Statement/v0.1" }).to_string();
    let about = json!({ "architecture": "unknown", "os": "unknown", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [sha256(said.as_bytes())] } })
    .to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor("application/vnd.oci.image.config.v1+json", about.as_bytes()),
        "layers": [descriptor("application/vnd.in-toto+json", said.as_bytes())],
    })
    .to_string();
    for bytes in [&said, &about, &manifest] {
        files.blob(bytes.as_bytes());
    }
    let mut entry = entry(manifest.as_bytes(), "unknown", "unknown");
    entry["annotations"] = json!({
        "vnd.docker.reference.digest": image.manifest.digest,
        "vnd.docker.reference.type": "attestation-manifest",
    });
    entry
}

fn entry(manifest: &[u8], os: &str, architecture: &str) -> Value {
    let mut entry = descriptor(MANIFEST_TYPE, manifest);
    entry["platform"] = json!({ "os": os, "architecture": architecture });
    entry
}

fn hex(digest: &str) -> &str {
    digest.trim_start_matches("sha256:")
}

fn descriptor(media: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media, "digest": sha256(bytes), "size": bytes.len() })
}

/// By name, as docker sorts them.
#[derive(Default)]
struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    fn add(&mut self, name: &str, bytes: &[u8]) {
        self.0.insert(name.to_owned(), bytes.to_vec());
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.add(&format!("blobs/sha256/{}", hex(&sha256(bytes))), bytes);
    }

    fn tar(self) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in self.0 {
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o644);
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, &name, bytes.as_slice()).with_context(|| name.clone())?;
        }
        builder.into_inner().context("end of the tar archive")
    }
}

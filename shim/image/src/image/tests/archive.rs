//! Layers and images for tests, as pushed.

use gantry_shim_testing::archive::{Archive, gzip};

use crate::image::digest::Digest;

/// One layer as pushed.
#[derive(Clone)]
pub(crate) struct PushedLayer {
    pub(crate) media: &'static str,
    pub(crate) blob: Vec<u8>,
    pub(crate) diff_id: Digest,
}

impl PushedLayer {
    pub(crate) fn gzip(archive: &Archive) -> Self {
        let tar = archive.tar();
        let media = "application/vnd.oci.image.layer.v1.tar+gzip";
        Self { media, blob: gzip(&tar), diff_id: Digest::of(&tar) }
    }

    pub(crate) fn zstd(archive: &Archive) -> Self {
        let tar = archive.tar();
        let media = "application/vnd.oci.image.layer.v1.tar+zstd";
        Self { media, blob: zstd::encode_all(tar.as_slice(), 3).unwrap(), diff_id: Digest::of(&tar) }
    }

    /// As podman and buildah write `zstd:chunked`: a frame for each part, then table and footer in frames that
    /// whoever does not know them skips (containers/storage, pkg/chunked/internal/minimal).
    pub(crate) fn zstd_chunked(archive: &Archive) -> Self {
        let tar = archive.tar();
        let frame = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
        let skipped = |bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).unwrap();
            [&0x184D_2A50_u32.to_le_bytes(), &length.to_le_bytes(), bytes].concat()
        };
        let mut blob: Vec<u8> = tar.chunks(512).flat_map(frame).collect();
        blob.extend(skipped(&frame(br#"{"version":1,"entries":[]}"#)));
        blob.extend(skipped(&[&[0; 56][..], b"GNUlInUx"].concat()));
        let media = "application/vnd.oci.image.layer.v1.tar+zstd";
        Self { media, blob, diff_id: Digest::of(&tar) }
    }

    pub(crate) fn plain(archive: &Archive) -> Self {
        let tar = archive.tar();
        Self { media: "application/vnd.oci.image.layer.v1.tar", diff_id: Digest::of(&tar), blob: tar }
    }
}

/// The config of an image with these layers.
pub(crate) fn image_config(layers: &[PushedLayer], env: &str) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id.to_string()).collect();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({
        "os": "linux", "architecture": arch,
        "config": {"Env": [env], "Entrypoint": ["/bin/sh"], "Cmd": null, "Labels": {"a": "b"}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    serde_json::to_vec(&config).unwrap()
}

/// The manifest over `config` and `layers`.
pub(crate) fn image_manifest(config: &[u8], layers: &[PushedLayer]) -> Vec<u8> {
    let descriptor = |media: &str, bytes: &[u8]| serde_json::json!({"mediaType": media, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": layers.iter().map(|layer| descriptor(layer.media, &layer.blob)).collect::<Vec<_>>(),
    });
    serde_json::to_vec(&manifest).unwrap()
}

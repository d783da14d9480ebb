//! Archives and images for tests, hostile ones too. Owns raw header blocks: no library writes what
//! these tests need.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::image::digest::Digest;

/// A tar stream under construction.
#[derive(Clone, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    owner: (u64, u64),
    mtime: u64,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), owner: (0, 0), mtime: 1_000_000_000 }
    }

    pub(crate) fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.owner = (uid, gid);
        self
    }

    pub(crate) fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(b'0', path, "", 0o644, (0, 0), data)
    }

    pub(crate) fn mode_file(self, path: &str, mode: u32, data: &[u8]) -> Self {
        self.entry(b'0', path, "", mode, (0, 0), data)
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(b'5', path, "", mode, (0, 0), b"")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target, 0o777, (0, 0), b"")
    }

    pub(crate) fn hardlink(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path, target, 0o644, (0, 0), b"")
    }

    pub(crate) fn device(self, path: &str, major: u32, minor: u32) -> Self {
        self.entry(b'3', path, "", 0o666, (major, minor), b"")
    }

    /// An extended header for the entry that follows.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let body = key.len() + value.len() + 3;
            let length = (1..20).map(|digits| body + digits).find(|n| n.to_string().len() + body == *n);
            write!(data, "{} {key}=", length.unwrap()).unwrap();
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.entry(b'x', "pax", "", 0o644, (0, 0), &data)
    }

    pub(crate) fn entry(
        mut self,
        kind: u8,
        path: &str,
        link: &str,
        mode: u32,
        device: (u32, u32),
        data: &[u8],
    ) -> Self {
        let mut header = tar::Header::new_ustar();
        header.set_mode(mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.mtime);
        header.set_size(data.len() as u64);
        header.set_device_major(device.0).unwrap();
        header.set_device_minor(device.1).unwrap();
        let block = header.as_mut_bytes();
        block[..path.len()].copy_from_slice(path.as_bytes());
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// The stream with its end mark.
    pub(crate) fn tar(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// One layer as pushed.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) media: &'static str,
    pub(crate) blob: Vec<u8>,
    pub(crate) diff_id: Digest,
}

impl Layer {
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
pub(crate) fn image_config(layers: &[Layer], env: &str) -> Vec<u8> {
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
pub(crate) fn image_manifest(config: &[u8], layers: &[Layer]) -> Vec<u8> {
    let descriptor = |media: &str, bytes: &[u8]| serde_json::json!({"mediaType": media, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": layers.iter().map(|layer| descriptor(layer.media, &layer.blob)).collect::<Vec<_>>(),
    });
    serde_json::to_vec(&manifest).unwrap()
}

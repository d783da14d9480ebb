//! Images made on the spot: tar layers, gzip, config and manifest of the OCI image format. Owns
//! the bytes; never talks to a registry (that is `registry`). Called by tests and the demo.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use aws_lc_rs::digest;
use serde_json::json;

/// Every entry's mtime: 2023-11-14, long before any test.
pub const MTIME: u64 = 1_700_000_000;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// What one tar entry is.
#[derive(Debug, Clone)]
enum EntryContent {
    Folder,
    File(Vec<u8>),
    HardLink(String),
    Symlink(String),
}

#[derive(Debug, Clone)]
struct LayerEntry {
    path: String,
    mode: u32,
    uid: u64,
    gid: u64,
    xattrs: Vec<(String, Vec<u8>)>,
    content: EntryContent,
}

/// The entries of one layer, in archive order.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    entries: Vec<LayerEntry>,
}

impl Layer {
    fn push(mut self, path: &str, mode: u32, content: EntryContent) -> Self {
        self.entries.push(LayerEntry {
            path: path.to_owned(),
            mode,
            uid: 0,
            gid: 0,
            xattrs: Vec::new(),
            content,
        });
        self
    }

    /// A folder.
    #[must_use]
    pub fn dir(self, path: &str, mode: u32) -> Self {
        self.push(path, mode, EntryContent::Folder)
    }

    /// A regular file.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Self {
        self.push(path, mode, EntryContent::File(bytes.into()))
    }

    /// A hard link to an earlier entry.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        self.push(path, 0o755, EntryContent::HardLink(target.to_owned()))
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.push(path, 0o777, EntryContent::Symlink(target.to_owned()))
    }

    /// Gives the last entry another owner.
    #[must_use]
    pub fn with_owner(mut self, uid: u64, gid: u64) -> Self {
        if let Some(last) = self.entries.last_mut() {
            (last.uid, last.gid) = (uid, gid);
        }
        self
    }

    /// Gives the last entry an extended attribute.
    #[must_use]
    pub fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        if let Some(last) = self.entries.last_mut() {
            last.xattrs.push((name.to_owned(), value.to_vec()));
        }
        self
    }

    /// Debian's busybox at `/bin/busybox`, each applet a hard link to it (a mask over a symlink
    /// would hide busybox itself), and the files a small system expects.
    ///
    /// # Errors
    /// When busybox-static is not installed.
    pub fn busybox() -> Result<Self> {
        let path = Path::new("/bin/busybox");
        let bytes = std::fs::read(path).with_context(|| gantry_needs::remedy("/bin/busybox"))?;
        let listed = Command::new(path).arg("--list").output().context("run /bin/busybox --list")?;
        let mut layer = Layer::default()
            .dir("bin", 0o755)
            .dir("etc", 0o755)
            .dir("tmp", 0o1777)
            .dir("root", 0o700)
            .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/:/bin/sh\n")
            .file("etc/group", 0o644, "root:x:0:\nweb:x:1000:\nextra:x:1234:web\n")
            .file("bin/busybox", 0o755, bytes);
        let applets = String::from_utf8(listed.stdout).context("busybox --list is not text")?;
        for applet in applets.lines().filter(|name| !matches!(*name, "" | "busybox" | "linuxrc")) {
            layer = layer.link(&format!("bin/{applet}"), "bin/busybox");
        }
        Ok(layer)
    }

    /// The layer as a tar archive.
    ///
    /// # Errors
    /// When a path does not fit a header.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        for entry in &self.entries {
            let mut header = tar::Header::new_ustar();
            header.set_mode(entry.mode);
            header.set_uid(entry.uid);
            header.set_gid(entry.gid);
            header.set_mtime(MTIME);
            let (kind, size) = match &entry.content {
                EntryContent::Folder => (tar::EntryType::Directory, 0),
                EntryContent::File(bytes) => (tar::EntryType::Regular, bytes.len() as u64),
                EntryContent::HardLink(_) => (tar::EntryType::Link, 0),
                EntryContent::Symlink(_) => (tar::EntryType::Symlink, 0),
            };
            header.set_entry_type(kind);
            header.set_size(size);
            let at = || format!("tar entry {}", entry.path);
            let names = entry.xattrs.iter().map(|(name, _)| format!("SCHILY.xattr.{name}"));
            let names: Vec<String> = names.collect();
            let values = entry.xattrs.iter().map(|(_, value)| value.as_slice());
            if !names.is_empty() {
                let records = names.iter().map(String::as_str).zip(values);
                builder.append_pax_extensions(records).with_context(at)?;
            }
            match &entry.content {
                EntryContent::Folder => builder.append_data(&mut header, format!("{}/", entry.path), &[][..]),
                EntryContent::File(bytes) => builder.append_data(&mut header, &entry.path, bytes.as_slice()),
                EntryContent::HardLink(target) | EntryContent::Symlink(target) => {
                    builder.append_link(&mut header, &entry.path, target)
                }
            }
            .with_context(at)?;
        }
        builder.into_inner().context("end of the tar archive")
    }
}

/// An image before it is built.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Bottom first.
    pub layers: Vec<Layer>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub env: Vec<String>,
    pub user: String,
    pub workdir: String,
}

/// Some bytes and their digest.
#[derive(Debug, Clone)]
pub struct Blob {
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: Vec<u8>,
}

/// An image ready to push.
#[derive(Debug, Clone)]
pub struct Built {
    pub manifest: Blob,
    pub config: Blob,
    /// Bottom first, gzip.
    pub layers: Vec<Blob>,
}

impl Built {
    /// The manifest's media type.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        MANIFEST_TYPE
    }

    /// Writes an OCI layout that names it.
    ///
    /// # Errors
    /// The disk's.
    pub fn write_layout(&self, folder: &Path, name: &str) -> Result<()> {
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
        for blob in self.layers.iter().chain([&self.config, &self.manifest]) {
            fs::write(blobs.join(blob.digest.trim_start_matches("sha256:")), &blob.bytes)?;
        }
        let mut manifest = descriptor(MANIFEST_TYPE, &self.manifest);
        manifest["annotations"] = json!({ "io.containerd.image.name": name });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(folder.join("index.json"), serde_json::to_vec(&index)?)?;
        Ok(fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?)
    }
}

impl Image {
    /// Packs the layers, writes config and manifest.
    ///
    /// # Errors
    /// When a path does not fit a tar header, or there is no layer.
    pub fn build(&self) -> Result<Built> {
        self.build_with(|_| {})
    }

    /// As [`Image::build`], after a last change to the config's JSON.
    ///
    /// # Errors
    /// As [`Image::build`].
    pub fn build_with(&self, change: impl FnOnce(&mut serde_json::Value)) -> Result<Built> {
        if self.layers.is_empty() {
            bail!("an image needs a layer");
        }
        let mut layers = Vec::new();
        let mut diff_ids = Vec::new();
        for layer in &self.layers {
            let tar = layer.archive()?;
            diff_ids.push(sha256(&tar));
            layers.push(blob(gzip(&tar)?));
        }
        let mut config = json!({
            "architecture": "amd64",
            "os": "linux",
            "created": "2023-11-14T22:13:20Z",
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.cmd,
                "Env": self.env,
                "User": self.user,
                "WorkingDir": self.workdir,
            },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        change(&mut config);
        let config = blob(serde_json::to_vec(&config)?);
        let manifest = blob(serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": descriptor(CONFIG_TYPE, &config),
            "layers": layers.iter().map(|layer| descriptor(LAYER_TYPE, layer)).collect::<Vec<_>>(),
        }))?);
        Ok(Built { manifest, config, layers })
    }
}

/// `sha256:<hex>` of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn blob(bytes: Vec<u8>) -> Blob {
    Blob { digest: sha256(&bytes), bytes }
}

fn descriptor(media_type: &str, blob: &Blob) -> serde_json::Value {
    json!({ "mediaType": media_type, "digest": blob.digest, "size": blob.bytes.len() })
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).context("gzip")?;
    encoder.finish().context("gzip")
}

/// Bytes that look random and are the same each time (xorshift64).
#[must_use]
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = (0..length.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(length).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn config_names_the_digests_of_the_unpacked_layers() {
        let layer = Layer::default().dir("etc", 0o755).file("etc/motd", 0o600, "hi").with_owner(7, 8);
        let built = Image { layers: vec![layer], ..Image::default() }.build().unwrap();
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(built.layers[0].bytes.as_slice()).read_to_end(&mut tar).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&built.config.bytes).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], sha256(&tar));
        let mut archive = tar::Archive::new(tar.as_slice());
        let headers: Vec<_> =
            archive.entries().unwrap().map(|entry| entry.unwrap().header().clone()).collect();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers[1].uid().unwrap(), 7);
        assert_eq!(headers[1].mode().unwrap(), 0o600);
        assert_eq!(headers[1].mtime().unwrap(), MTIME);
    }

    #[test]
    fn sha256_is_the_known_one() {
        assert_eq!(sha256(b"abc"), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn an_image_without_layers_is_refused() {
        assert!(Image::default().build().is_err());
    }

    #[test]
    fn noise_is_the_same_each_time_and_another_for_each_seed() {
        assert_eq!(noise(1, 100), noise(1, 100));
        assert_ne!(noise(1, 100), noise(2, 100));
        assert_eq!(noise(3, 13).len(), 13);
    }
}

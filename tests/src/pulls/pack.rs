//! One layer written to a file: tar, packed, hashed on both sides, its parents described as builders do.
//! Owns the form of a layer; decides nothing about what is in it. Called by `image`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use super::corpus::{Content, Item};
use crate::image::MTIME;

/// How layers are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// As docker and buildkit do when nobody says otherwise.
    Gzip,
    Zstd,
}

impl Packing {
    /// As in names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    pub(super) fn media_type(self) -> String {
        format!("application/vnd.oci.image.layer.v1.tar+{}", self.name())
    }
}

/// A finished layer.
pub(super) struct Packed {
    pub(super) file: PathBuf,
    pub(super) digest: String,
    pub(super) diff_id: String,
    pub(super) compressed: u64,
    pub(super) unpacked: u64,
    pub(super) files: u64,
}

/// A layer being written.
pub(super) struct Writing {
    file: PathBuf,
    tar: tar::Builder<Archive>,
    folders: BTreeSet<String>,
    files: u64,
}

/// The archive's bytes on their way to the file.
struct Archive {
    hash: digest::Context,
    count: u64,
    packer: Packer,
}

enum Packer {
    Gzip(flate2::write::GzEncoder<Blob>),
    Zstd(zstd::stream::write::Encoder<'static, Blob>),
}

struct Blob {
    file: BufWriter<File>,
    hash: digest::Context,
    count: u64,
}

impl Writing {
    pub(super) fn new(file: &Path, packing: Packing) -> Result<Self> {
        let opened = File::create(file).with_context(|| file.display().to_string())?;
        let blob =
            Blob { file: BufWriter::new(opened), hash: digest::Context::new(&digest::SHA256), count: 0 };
        let packer = match packing {
            // The level of docker and buildkit.
            Packing::Gzip => Packer::Gzip(flate2::write::GzEncoder::new(blob, flate2::Compression::new(6))),
            Packing::Zstd => Packer::Zstd(zstd::stream::write::Encoder::new(blob, 3)?),
        };
        let archive = Archive { hash: digest::Context::new(&digest::SHA256), count: 0, packer };
        let tar = tar::Builder::new(archive);
        Ok(Self { file: file.to_owned(), tar, folders: BTreeSet::new(), files: 0 })
    }

    /// Bytes of the blob so far, but for what the packer still holds.
    pub(super) fn compressed(&self) -> u64 {
        match &self.tar.get_ref().packer {
            Packer::Gzip(gzip) => gzip.get_ref().count,
            Packer::Zstd(zstd) => zstd.get_ref().count,
        }
    }

    /// Adds a file and the folders above it that are not there yet.
    pub(super) fn add(&mut self, item: &Item) -> Result<()> {
        let mut above: Vec<&Path> = Path::new(&item.path).ancestors().skip(1).collect();
        above.reverse();
        for folder in above.into_iter().filter_map(Path::to_str).filter(|folder| !folder.is_empty()) {
            if self.folders.insert(folder.to_owned()) {
                let mut header = header(tar::EntryType::Directory, 0o755, 0);
                self.tar.append_data(&mut header, format!("{folder}/"), io::empty())?;
            }
        }
        self.files += 1;
        match &item.content {
            Content::File(bytes) => {
                let mut header = header(tar::EntryType::Regular, item.mode, bytes.len() as u64);
                self.tar.append_data(&mut header, &item.path, bytes.as_slice())
            }
            Content::Symlink(target) => {
                let mut header = header(tar::EntryType::Symlink, 0o777, 0);
                self.tar.append_link(&mut header, &item.path, target)
            }
        }
        .with_context(|| item.path.clone())
    }

    pub(super) fn finish(self) -> Result<Packed> {
        let Archive { hash, count, packer } = self.tar.into_inner()?;
        let mut blob = match packer {
            Packer::Gzip(gzip) => gzip.finish()?,
            Packer::Zstd(zstd) => zstd.finish()?,
        };
        blob.file.flush()?;
        Ok(Packed {
            file: self.file,
            digest: text(blob.hash),
            diff_id: text(hash),
            compressed: blob.count,
            unpacked: count,
            files: self.files,
        })
    }
}

impl Write for Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.packer {
            Packer::Gzip(gzip) => gzip.write(bytes)?,
            Packer::Zstd(zstd) => zstd.write(bytes)?,
        };
        self.hash.update(&bytes[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Blob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(MTIME);
    header
}

fn text(hash: digest::Context) -> String {
    let hex: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::image::sha256;

    #[test]
    fn a_layer_has_the_digests_that_it_tells() {
        let folder = tempfile::tempdir().unwrap();
        for packing in [Packing::Gzip, Packing::Zstd] {
            let mut writing = Writing::new(&folder.path().join(packing.name()), packing).unwrap();
            let content = Content::File(b"bytes".to_vec());
            writing.add(&Item { path: "a/b/c".to_owned(), mode: 0o644, content }).unwrap();
            let packed = writing.finish().unwrap();
            let blob = std::fs::read(&packed.file).unwrap();
            assert_eq!((sha256(&blob), blob.len() as u64), (packed.digest, packed.compressed));
            let mut plain = Vec::new();
            match packing {
                Packing::Gzip => {
                    flate2::read::GzDecoder::new(blob.as_slice()).read_to_end(&mut plain).unwrap();
                }
                Packing::Zstd => plain = zstd::decode_all(blob.as_slice()).unwrap(),
            }
            assert_eq!((sha256(&plain), plain.len() as u64), (packed.diff_id, packed.unpacked));
            let mut archive = tar::Archive::new(plain.as_slice());
            let paths: Vec<_> =
                archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
            assert_eq!(paths, ["a/", "a/b/", "a/b/c"].map(PathBuf::from));
        }
    }
}

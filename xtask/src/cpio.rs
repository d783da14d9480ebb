//! An initramfs in the kernel's own format, cpio "newc" (Documentation/driver-api/early-userspace/
//! buffer-format). Owns the bytes; never chooses what is in it. Called by `vm`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

/// An archive under construction.
#[derive(Debug, Default, Clone)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    made: BTreeSet<PathBuf>,
    count: u32,
}

impl Cpio {
    /// A folder and those above it.
    pub(crate) fn dir(&mut self, path: &str) -> Result<()> {
        let path = Path::new(path.trim_start_matches('/'));
        for folder in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if folder != Path::new("") && self.made.insert(folder.to_owned()) {
                self.entry(&folder.to_string_lossy(), DIR, &[])?;
            }
        }
        Ok(())
    }

    /// A file, with the folders above it. A path that is there already is left as it is.
    pub(crate) fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent)?;
        }
        if self.made.insert(path.into()) {
            self.entry(path, FILE | mode, bytes)?;
        }
        Ok(())
    }

    /// A file of this system, under another path or its own.
    pub(crate) fn copy(&mut self, from: &Path, path: &str, mode: u32) -> Result<()> {
        let bytes = std::fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.file(path, mode, &bytes)
    }

    /// A folder of this system with all that is in it, owners apart: it is root's.
    pub(crate) fn tree(&mut self, from: &Path, path: &str) -> Result<()> {
        let at = || format!("read {}", from.display());
        self.dir(path)?;
        for entry in std::fs::read_dir(from).with_context(at)? {
            let entry = entry.with_context(at)?;
            let name = format!("{path}/{}", entry.file_name().to_string_lossy());
            let meta = entry.metadata().with_context(at)?;
            if meta.is_dir() {
                self.tree(&entry.path(), &name)?;
            } else if meta.is_symlink() {
                let target = std::fs::read_link(entry.path()).with_context(at)?;
                if self.made.insert(name.trim_start_matches('/').into()) {
                    self.entry(name.trim_start_matches('/'), LINK, target.as_os_str().as_encoded_bytes())?;
                }
            } else {
                self.copy(&entry.path(), &name, meta.permissions().mode() & 0o7777)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.count += 1;
        let size = u32::try_from(data.len()).with_context(|| format!("{name} is over 4 GiB"))?;
        let name_size = u32::try_from(name.len() + 1)?;
        let fields = [self.count, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busybox_reads_what_is_written() {
        let mut cpio = Cpio::default();
        cpio.file("/a/b/c.txt", 0o640, b"hello").unwrap();
        cpio.file("/a/b/d", 0o644, b"").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("x.cpio");
        std::fs::write(&archive, cpio.finish().unwrap()).unwrap();
        let input = std::fs::File::open(&archive).unwrap();
        let status = std::process::Command::new("/bin/busybox")
            .args(["cpio", "-i", "-d"])
            .current_dir(folder.path())
            .stdin(input)
            .status()
            .expect("busybox-static is installed");
        assert!(status.success());
        assert_eq!(std::fs::read(folder.path().join("a/b/c.txt")).unwrap(), b"hello");
        assert_eq!(std::fs::read(folder.path().join("a/b/d")).unwrap(), b"");
    }
}

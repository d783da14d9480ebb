//! A disk of the small VM: a sparse file with an empty ext4, made without a mount. Owns the file,
//! which goes when dropped. Called by `vm`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::sh;

const BYTES: u64 = 2 << 30;

/// The disk.
#[derive(Debug)]
pub(super) struct VmDisk {
    folder: tempfile::TempDir,
}

impl VmDisk {
    /// Makes an empty one.
    pub(super) fn new() -> Result<VmDisk> {
        let disk = VmDisk { folder: tempfile::Builder::new().prefix("gantry-disk-").tempdir()? };
        let path = disk.path();
        File::create(&path)
            .and_then(|file| file.set_len(BYTES))
            .with_context(|| format!("make {}", path.display()))?;
        let program = Path::new("/usr/sbin/mke2fs");
        let program = if program.is_file() { program } else { Path::new("mke2fs") };
        sh::run(Command::new(program).args(["-q", "-F", "-t", "ext4"]).arg(&path))?;
        Ok(disk)
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("disk")
    }

    /// What qemu is told of it. Its writes reach the file before the guest hears that they are done.
    pub(super) fn arguments(&self) -> [String; 4] {
        [
            "-drive".to_owned(),
            format!("file={},if=none,id=var,format=raw,cache=writethrough", self.path().display()),
            "-device".to_owned(),
            "virtio-blk-pci,drive=var".to_owned(),
        ]
    }
}

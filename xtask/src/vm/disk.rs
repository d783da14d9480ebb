//! Disks of the VMs: sparse files with ext4, made and read without a mount. Owns the files of [`VmDisk`], which go when
//! dropped; others are their caller's. Called by `vm`, and by who boots a machine with disks of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
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
        ext4(&disk.path(), BYTES, &[])?;
        Ok(disk)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// What qemu is told of it. Its writes reach the file before the guest hears that they are done.
    pub(super) fn arguments(&self) -> [String; 4] {
        plugged("var", &self.path(), "writethrough")
    }
}

/// Makes a file with ext4 in the place of one that may be there; `more` are words for mke2fs.
pub(crate) fn ext4(path: &Path, bytes: u64, more: &[&str]) -> Result<()> {
    sparse(path, bytes)?;
    sh::run(tool("mke2fs").args(["-q", "-F", "-t", "ext4"]).args(more).arg(path))
}

/// The same, with all that is in a folder.
pub(crate) fn ext4_with(tree: &Path, path: &Path, bytes: u64, more: &[&str]) -> Result<()> {
    let tree = tree.display().to_string();
    ext4(path, bytes, &[more, &["-d", &tree]].concat())
}

/// Makes a file of zeros that takes no room.
pub(crate) fn sparse(path: &Path, bytes: u64) -> Result<()> {
    let made = File::create(path).and_then(|file| file.set_len(bytes));
    made.with_context(|| format!("make {}", path.display()))
}

/// Copies all that is on a disk into a folder.
pub(crate) fn read(disk: &Path, to: &Path) -> Result<()> {
    read_folder(disk, "/", to)
}

/// Copies a folder of a disk, which is named from its root, into a folder.
pub(crate) fn read_folder(disk: &Path, from: &str, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    let request = format!("rdump {from} {}", to.display());
    sh::run(tool("debugfs").args(["-R", &request]).arg(disk))
}

/// What qemu is told of a disk. Nothing on it outlives the run.
pub(crate) fn words(name: &str, disk: &Path) -> [String; 4] {
    plugged(name, disk, "unsafe")
}

fn plugged(name: &str, disk: &Path, cache: &str) -> [String; 4] {
    [
        "-drive".to_owned(),
        format!("file={},if=none,id={name},format=raw,cache={cache}", disk.display()),
        "-device".to_owned(),
        format!("virtio-blk-pci,drive={name}"),
    ]
}

/// A program whose place is outside of PATH for people.
fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", gantry_needs::path());
    command
}

//! The disk that the bench's nodes write to: a file with a file system of its own. A host's may have no journal,
//! and then each file that one node's removal unlinks makes the next node's creates slower for minutes
//! (ext4 passes over inodes that were freed lately), whoever that is. Owns the file and the mount; both
//! end with the mount namespace. Called by `pulls`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The two largest images of two runtimes; only what is used is taken from the host's disk.
const SIZE: u64 = 40 << 30;

/// Puts a new, empty ext4 with a journal over `folder`, its blocks in a file below `cache` that nobody else sees.
///
/// # Errors
/// When mkfs.ext4 or loop devices are missing.
pub(super) fn mount(cache: &Path, folder: &Path) -> Result<()> {
    let file = tempfile::Builder::new().prefix("disk-").tempfile_in(cache)?;
    File::set_len(file.as_file(), SIZE).context("make the bench's disk")?;
    // All of it is written now, not by a thread of the kernel during the first pulls.
    let form = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-N", "2000000"];
    run(Command::new("mkfs.ext4").args(form).arg(file.path()), "e2fsprogs")?;
    // Past the host's page cache: a disk does not copy what it is given into the node's memory once more.
    let device = run(
        Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file.path()),
        "util-linux",
    )?;
    // What is removed is the host's again.
    let mounted = run(Command::new("mount").args(["-o", "discard", &device]).arg(folder), "util-linux");
    // The file has no name from here on, and goes with the mount.
    run(Command::new("losetup").args(["--detach", &device]), "util-linux")?;
    mounted.map(drop)
}

fn run(command: &mut Command, package: &str) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}: install {package}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

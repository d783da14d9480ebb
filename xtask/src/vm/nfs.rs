//! An NFS server and `mount.nfs` for the small VM, of Debian's packages. Owns where they are in there; who starts a server
//! is a test of the kernel tier. Called by [`super`].

use std::path::Path;

use anyhow::Result;
use gantry_tests::debian;

use super::{add_program, packages};
use crate::cpio::Cpio;

/// Beside those of every machine.
pub(super) const MODULES: [&str; 3] = ["nfs", "nfsv4", "nfsd"];

/// Out of the way: their libraries are not those of the other programs.
const TREE: &str = "/gantry/nfs";

/// By their folders in the packages. All are in `/usr/sbin`: mount(8) looks for its helpers in `/sbin`, a link there.
const PROGRAMS: [(&str, &str); 6] = [
    ("sbin", "mount.nfs"),
    ("sbin", "umount.nfs"),
    ("sbin", "umount.nfs4"),
    ("usr/sbin", "rpc.nfsd"),
    ("usr/sbin", "rpc.mountd"),
    ("usr/sbin", "exportfs"),
];

pub(super) fn add(cpio: &mut Cpio) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree)?;
    debian::nfs_tree(&tree)?;
    packages::add(cpio, &tree, TREE, &PROGRAMS)?;
    // busybox's own knows no helpers.
    for program in ["/usr/bin/mount", "/usr/bin/umount"] {
        add_program(cpio, Path::new(program), program, scratch.path())?;
    }
    for (path, text) in [("/etc/services", "nfs 2049/tcp\n"), ("/etc/exports", ""), ("/etc/netconfig", "")] {
        cpio.file(path, 0o644, text.as_bytes())?;
    }
    Ok(())
}

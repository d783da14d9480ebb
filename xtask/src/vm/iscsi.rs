//! An iSCSI target and open-iscsi for the small VM: the kernel's modules and Debian's packages, with the udevd that links
//! disks by their path. Owns where they are in there; who starts them is a test of the kernel tier. Called by [`super`].

use std::path::Path;

use anyhow::Result;
use gantry_tests::debian;

use super::{add_program, packages};
use crate::cpio::Cpio;

/// Beside those of every machine.
pub(super) const MODULES: [&str; 4] = ["iscsi_target_mod", "target_core_file", "iscsi_tcp", "sd_mod"];

/// Out of the way: their libraries are not those of the other programs.
const TREE: &str = "/gantry/iscsi";

/// By their folders in the packages.
const PROGRAMS: [(&str, &str); 4] =
    [("sbin", "iscsid"), ("sbin", "iscsiadm"), ("bin", "udevadm"), ("lib/systemd", "systemd-udevd")];

/// The host's, by whose names they do what is wanted: busybox's own know neither ext4 nor a probe.
const OF_DISKS: [(&str, &str); 5] = [
    ("/usr/sbin/mke2fs", "/usr/sbin/mkfs.ext4"),
    ("/usr/sbin/e2fsck", "/usr/sbin/fsck.ext4"),
    ("/usr/sbin/fsck", "/usr/sbin/fsck"),
    ("/usr/sbin/blkid", "/usr/sbin/blkid"),
    ("/usr/sbin/resize2fs", "/usr/sbin/resize2fs"),
];

/// The rules that name disks. Nobody reads those of the other devices.
const RULES: &str = "lib/udev/rules.d/60-persistent-storage.rules";

const CONFIG: &str = "etc/iscsi/iscsid.conf";

pub(super) fn add(cpio: &mut Cpio) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree)?;
    debian::iscsi_tree(&tree)?;
    packages::add(cpio, &tree, TREE, &PROGRAMS)?;
    for (program, to) in OF_DISKS {
        add_program(cpio, Path::new(program), to, scratch.path())?;
    }
    for (file, mode) in [(RULES, 0o644), (CONFIG, 0o600)] {
        cpio.copy(&tree.join(file), &format!("/{file}"), mode)?;
    }
    cpio.file("/etc/iscsi/initiatorname.iscsi", 0o600, b"InitiatorName=iqn.2026-01.io.gantry:node\n")
}

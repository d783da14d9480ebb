//! AppArmor's parser for a VM, of Debian's package, with what profiles include. The kernels of VMs have AppArmor on. Owns where
//! the files are in there. Called by [`super`] and by the suites that run in a VM.

use anyhow::Result;
use gantry_tests::debian;

use super::add_program;
use crate::cpio::Cpio;

/// The parser and its files, under `root`: empty where containers are to be confined.
pub(crate) fn add(cpio: &mut Cpio, root: &str) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree)?;
    debian::apparmor_tree(&tree)?;
    let to = format!("{root}/usr/sbin/apparmor_parser");
    add_program(cpio, &tree.join("sbin/apparmor_parser"), &to, scratch.path())?;
    for folder in ["etc/apparmor", "etc/apparmor.d", "usr/share/apparmor-features"] {
        cpio.tree(&tree.join(folder), &format!("{root}/{folder}"))?;
    }
    Ok(())
}

//! `cargo xtask vagrant-box`: a whole Debian machine with systemd, sshd, kubeadm and kubectl, as a disk with its kernel in
//! the cache, and as a box for Vagrant's libvirt provider in `vagrant` of the target folder. Owns what is in it; never
//! boots it. Called by `main`, and by the tiers
//! that boot it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use gantry_tests::cluster::programs::{self, KUBERNETES, Set};
use gantry_tests::image::sha256;

use crate::{debian_repository, sh};

/// Makes the tree and the disk, in a mount namespace of its own.
const TREE: &str = include_str!("vagrant_box/tree.sh");
const VAGRANTFILE: &str = include_str!("vagrant_box/Vagrantfile");
/// Vagrant wants the size in GiB, that of the disk in `tree.sh`.
const METADATA: &str = r#"{"provider":"libvirt","format":"qcow2","virtual_size":8}"#;

/// The box's file.
const NAME: &str = "gantry-debian12.box";

/// Makes the box and says what comes next.
///
/// # Errors
/// When a program is missing, or Debian's packages or Go's modules are out of reach.
pub(crate) fn run() -> Result<()> {
    let file = make()?;
    println!("{}\n`vagrant up` in the folder vagrant takes it from there", file.display());
    Ok(())
}

/// The box's file, made anew only when the disk is another one.
pub(crate) fn make() -> Result<PathBuf> {
    let files = files()?;
    let folder = sh::target_dir().join("vagrant");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let (boxed, stamp) = (folder.join(NAME), folder.join("stamp"));
    let wanted = sha256(format!("{}{VAGRANTFILE}{METADATA}", recipe()).as_bytes());
    if boxed.is_file() && fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(boxed);
    }
    let scratch = tempfile::Builder::new().prefix("box-").tempdir_in(&folder)?;
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("Vagrantfile"), VAGRANTFILE)?;
    fs::write(at("metadata.json"), METADATA)?;
    fs::copy(&files.kernel, at("vmlinuz")).context("copy the kernel")?;
    fs::copy(&files.initrd, at("initrd.img")).context("copy the initrd")?;
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&files.disk).arg(at("box.img"));
    sh::run(&mut convert)?;
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(at(NAME)).arg("--directory").arg(scratch.path());
    sh::run(tar.args(["metadata.json", "Vagrantfile", "vmlinuz", "initrd.img", "box.img"]))?;
    fs::rename(at(NAME), &boxed).with_context(|| format!("move to {}", boxed.display()))?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(boxed)
}

/// What boots.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    /// A whole file system, raw and sparse.
    pub(crate) disk: PathBuf,
}

/// What the machine is made of.
fn recipe() -> String {
    format!("{TREE}\n{KUBERNETES}\n")
}

/// The disk and its kernel from the cache, or made into it.
///
/// # Errors
/// As [`run`].
pub(crate) fn files() -> Result<Files> {
    sh::require_root("a Debian system")?;
    let folder = sh::cache_dir().join("machine");
    let (stamp, wanted) = (folder.join("stamp"), sha256(recipe().as_bytes()));
    if !fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        debian(&folder)?;
        // Only a whole machine gets its stamp.
        fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    }
    let at = |name: &str| folder.join(name);
    Ok(Files { kernel: at("vmlinuz"), initrd: at("initrd.img"), disk: at("disk.raw") })
}

fn debian(folder: &Path) -> Result<()> {
    programs::build(&[Set::ControlPlane, Set::Kubeadm])?;
    let kubeadm = programs::path("kubeadm")?;
    let beside = kubeadm.parent().context("kubeadm has no folder")?;
    let repository = debian_repository::find()?;
    println!("making a Debian {} machine in {}", repository.suite, folder.display());
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--", "sh", "-c", TREE, "sh"]).arg(folder).arg(debian_repository::KEYRING);
    sh::run(unshare.args([&repository.suite, &repository.uri]).arg(beside))
}

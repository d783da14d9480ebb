//! Debian's podman as a peer: its package and what it is linked with, extracted and not installed, with every
//! folder in a place of its own. Owns the command line; keeps no process, since podman has none between two
//! commands. Called by `side`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::meter::Meter;
use crate::debian;

/// The list in the cache of packages.
const PODMAN: &str = "podman";

/// podman starts neither conmon nor crun to pull, and refuses to begin without them.
const PACKAGES: [&str; 10] = [
    "podman",
    "conmon",
    "crun",
    "libyajl2",
    "libgpgme11",
    "libassuan0",
    "libdevmapper1.02.1",
    "libsubid4",
    "golang-github-containers-common",
    "golang-github-containers-image",
];

/// Its programs and its storage.
#[derive(Debug)]
pub(super) struct Podman {
    folder: TempDir,
    /// Enters the meter's cgroups first.
    program: PathBuf,
}

/// Downloads it, unless it is there.
///
/// # Errors
/// When apt cannot be reached.
pub(super) fn fetch() -> Result<()> {
    debian::fetch_alone(PODMAN, &PACKAGES)
}

impl Podman {
    pub(super) fn new(meter: &Meter) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("gantry-podman-").tempdir()?;
        let tree = folder.path().join("programs");
        std::fs::create_dir(&tree)?;
        debian::extract(&debian::archives(PODMAN)?, &tree)?;
        let program = folder.path().join("podman");
        meter.write_wrapper(&tree.join("usr/bin/podman"), &program)?;
        let podman = Self { folder, program };
        podman.run(&["info"])?;
        Ok(podman)
    }

    /// # Errors
    /// podman's own words.
    pub(super) fn pull(&self, image: &str) -> Result<()> {
        let policy = self.at("programs/etc/containers/policy.json");
        self.run(&["pull", "--quiet", "--tls-verify=false", "--signature-policy", &policy, image])
    }

    /// # Errors
    /// When it is not there.
    pub(super) fn look(&self, image: &str) -> Result<()> {
        self.run(&["image", "exists", image])
    }

    /// # Errors
    /// podman's own words.
    pub(super) fn remove(&self, image: &str) -> Result<()> {
        self.run(&["rmi", image])
    }

    /// Where layers are.
    pub(super) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["--root", &self.at("root"), "--runroot", &self.at("run"), "--tmpdir", &self.at("tmp")]);
        command.args(["--storage-driver=overlay", "--cgroup-manager=cgroupfs", "--events-backend=none"]);
        command.args(["--conmon", &self.at("programs/usr/bin/conmon")]);
        command.args(["--runtime", &self.at("programs/usr/bin/crun")]);
        command.args(words);
        command.env("LD_LIBRARY_PATH", self.at("programs/usr/lib/x86_64-linux-gnu"));
        command.env("HOME", self.folder.path()).env("XDG_CONFIG_HOME", self.at("config"));
        command.env("CONTAINERS_CONF", self.at("programs/usr/share/containers/containers.conf"));
        command.env("CONTAINERS_REGISTRIES_CONF", self.at("programs/etc/containers/registries.conf"));
        // What a layer is read into before it is unpacked: on the disk that is measured.
        command.env("TMPDIR", self.folder.path());
        let output = command.output().context("start podman")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "podman {}: {}", words.join(" "), said.trim());
        Ok(())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // It binds its storage upon itself.
        let overlay: &Path = &self.root().join("overlay");
        let _ = rustix::mount::unmount(overlay, rustix::mount::UnmountFlags::DETACH);
    }
}

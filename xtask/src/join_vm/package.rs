//! The package in the machine: its installation, its upgrade under running pods, and its purge. Called by the tier.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::machine::THERE;
use super::{JoinVmFixture, NODE};
use crate::kind::pods;
use crate::sh;

/// Without a way to a mirror: the package needs nothing that the machine lacks.
const APT: &str = "DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet --no-install-recommends";
/// The file of the package.
pub(super) const FIRST: &str = "gantry.deb";
/// That of its upgrade.
const LATER: &str = "later.deb";
/// Each pod's monitor, and since when it runs.
const MONITORS: &str = "ps -C gantry-monitor -o pid=,lstart= | sort";

/// Where the machine has it.
pub(super) fn there(name: &str) -> String {
    format!("{THERE}/{name}")
}

/// Writes the package into that folder, and an upgrade of it: the same files as a later version. Returns that version.
pub(super) fn write(deb: &Path, to: &Path) -> Result<String> {
    fs::copy(deb, to.join(FIRST)).with_context(|| format!("copy {}", deb.display()))?;
    let tree = tempfile::tempdir()?;
    sh::run(Command::new("dpkg-deb").arg("--raw-extract").arg(deb).arg(tree.path()))?;
    let control = tree.path().join("DEBIAN/control");
    let text = fs::read_to_string(&control).with_context(|| control.display().to_string())?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("Version: "))
        .context("a package without a version")?;
    let later = format!("{version}+later");
    fs::write(&control, text.replace(&format!("Version: {version}\n"), &format!("Version: {later}\n")))?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]).arg(tree.path()).arg(to.join(LATER));
    sh::run(&mut build)?;
    Ok(later)
}

pub(super) fn install(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let machine = fixture.machine()?;
    machine.run(&format!("{APT} install {}", there(FIRST)))?;
    let said = machine.run("systemctl is-active gantry.service; gantry version")?;
    println!("{said}");
    Ok(())
}

pub(super) fn upgrade(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let (bed, version) = (fixture.bed, fixture.later.clone());
    let pods_before = pods::containers(bed, NODE)?;
    let machine = fixture.machine()?;
    let before = machine.run(MONITORS)?;
    ensure!(before.lines().count() >= pods_before.lines().count(), "monitors: {before}\npods: {pods_before}");
    machine.run(&format!("{APT} install {}", there(LATER)))?;
    let installed = machine.run("dpkg-query --show --showformat '${Version}' gantry")?;
    ensure!(installed == version, "installed is {installed}, not {version}");
    machine.run("systemctl is-active gantry.service kubelet.service")?;
    let boot = machine.boot_id()?;
    let after = machine.run(MONITORS)?;
    ensure!(before == after, "the monitors before:\n{before}\nand after:\n{after}");
    fixture.nodes(|it| it.await_ready(&boot).and_then(|()| it.by_name()))?;
    let pods_after = pods::containers(bed, NODE)?;
    ensure!(pods_before == pods_after, "the containers before:\n{pods_before}\nand after:\n{pods_after}");
    Ok(())
}

pub(super) fn purge(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    println!("{}", fixture.machine()?.run(&format!("{APT} purge gantry"))?);
    Ok(())
}

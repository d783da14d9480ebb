//! The machine's life in the cluster: boot, images, join, reboot, leave, and the comparison at the end. Called by the
//! tier.

use std::fs;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll;

use super::before_after::Seen;
use super::machine::{QemuMachine, THERE, brought};
use super::network::Place;
use super::{JoinVmFixture, NODE, WAIT, package};
use crate::{sh, vagrant_box};

pub(super) fn boot(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let place = Place::make(fixture.bed)?;
    let machine = QemuMachine::boot(fixture.bed, &vagrant_box::files()?, &fixture.folder, &place)?;
    poll("the second card to have its address", WAIT, || match machine.run("hostname --all-ip-addresses") {
        Ok(said) if said.split_whitespace().any(|address| address == machine.address) => Ok(()),
        Ok(said) => Err(said),
        Err(error) => Err(format!("{error:#}")),
    })?;
    let before = Seen::now(&machine)?;
    fixture.booted = Some((machine, before));
    Ok(())
}

/// There is no registry within reach.
pub(super) fn load_images(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let said =
        fixture.machine()?.run(&format!("for image in {THERE}/*.tar; do gantry image load $image; done"))?;
    println!("{said}");
    Ok(())
}

/// As Vagrant does it, by the same script.
pub(super) fn join(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let (bed, folder) = (fixture.bed, fixture.folder.clone());
    let mirror = fixture.mirror.clone().unwrap_or_default();
    let machine = fixture.machine()?;
    let facts = folder.join("facts");
    let said = bed.vagrant_script(&["facts", bed.name(), &machine.address, &mirror])?;
    fs::write(&facts, said + "\n")?;
    machine.put(&facts, "/tmp/gantry-facts")?;
    machine.put(&sh::root().join("vagrant/provision.sh"), "/tmp/provision.sh")?;
    let call = format!("sh /tmp/provision.sh {} /tmp/gantry-facts", package::there(package::FIRST));
    // On a starved machine kubeadm's own time limits run out; docs/join.md says what to do then, and it must do.
    let said = match machine.run(&call) {
        Err(error) => {
            println!("the first call: {error:#}\nthe same command again");
            machine.run(&call)?
        }
        Ok(said) => said,
    };
    println!("{said}");
    let boot = machine.boot_id()?;
    fixture.nodes(|it| it.await_ready(&boot))
}

pub(super) fn deploy(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let archive = brought(&fixture.folder).join("web.tar");
    fixture.nodes(|it| it.deploy(&archive))
}

pub(super) fn reboot(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let boot = fixture.machine()?.reboot()?;
    fixture.nodes(|it| {
        it.await_ready(&boot)?;
        it.await_restarts(1)?;
        it.by_name()?;
        it.by_node_port()
    })
}

pub(super) fn leave(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let bed = fixture.bed;
    bed.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"])?;
    let machine = fixture.machine()?;
    println!("{}", machine.run("gantry leave --dry-run")?);
    println!("{}", machine.run("gantry leave")?);
    bed.vagrant_script(&["forget", bed.name(), NODE])?;
    let left = bed.kubectl(&["get", "nodes", "--output", "name"])?;
    ensure!(left == format!("node/{}", bed.control_plane()), "the cluster has {left}");
    Ok(())
}

pub(super) fn as_before(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let (machine, before) = fixture.booted.as_ref().context("the machine has not been booted")?;
    let differences = before.compare(&Seen::now(machine)?);
    ensure!(differences.is_empty(), "{} differences:\n  {}", differences.len(), differences.join("\n  "));
    Ok(())
}

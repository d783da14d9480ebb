//! The machine's life in the cluster: boot, images, join, reboot, leave, and the comparison at the end. Called by the
//! tier.

use std::fs;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll;

use super::before_after::Seen;
use super::machine::{Machine, THERE, brought};
use super::network::Place;
use super::{NODE, Stage, WAIT, package};
use crate::{sh, vagrant_box};

pub(super) fn boot(stage: &mut Stage<'_>) -> Result<()> {
    let place = Place::make(stage.bed)?;
    let machine = Machine::boot(stage.bed, &vagrant_box::files()?, &stage.folder, &place)?;
    poll("the second card to have its address", WAIT, || match machine.run("hostname --all-ip-addresses") {
        Ok(said) if said.split_whitespace().any(|address| address == machine.address) => Ok(()),
        Ok(said) => Err(said),
        Err(error) => Err(format!("{error:#}")),
    })?;
    let before = Seen::now(&machine)?;
    stage.booted = Some((machine, before));
    Ok(())
}

/// There is no registry within reach.
pub(super) fn load_images(stage: &mut Stage<'_>) -> Result<()> {
    let said =
        stage.machine()?.run(&format!("for image in {THERE}/*.tar; do gantry image load $image; done"))?;
    println!("{said}");
    Ok(())
}

/// As Vagrant does it, by the same script.
pub(super) fn join(stage: &mut Stage<'_>) -> Result<()> {
    let (bed, folder) = (stage.bed, stage.folder.clone());
    let mirror = stage.mirror.clone().unwrap_or_default();
    let machine = stage.machine()?;
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
    stage.nodes(|it| it.await_ready(&boot))
}

pub(super) fn deploy(stage: &mut Stage<'_>) -> Result<()> {
    let archive = brought(&stage.folder).join("web.tar");
    stage.nodes(|it| it.deploy(&archive))
}

pub(super) fn reboot(stage: &mut Stage<'_>) -> Result<()> {
    let boot = stage.machine()?.reboot()?;
    stage.nodes(|it| {
        it.await_ready(&boot)?;
        it.await_restarts(1)?;
        it.by_name()?;
        it.by_node_port()
    })
}

pub(super) fn leave(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    bed.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"])?;
    let machine = stage.machine()?;
    println!("{}", machine.run("gantry leave --dry-run")?);
    println!("{}", machine.run("gantry leave")?);
    bed.vagrant_script(&["forget", bed.name(), NODE])?;
    let left = bed.kubectl(&["get", "nodes", "--output", "name"])?;
    ensure!(left == format!("node/{}", bed.control_plane()), "the cluster has {left}");
    Ok(())
}

pub(super) fn as_before(stage: &mut Stage<'_>) -> Result<()> {
    let (machine, before) = stage.booted.as_ref().context("the machine has not been booted")?;
    let differences = before.compare(&Seen::now(machine)?);
    ensure!(differences.is_empty(), "{} differences:\n  {}", differences.len(), differences.join("\n  "));
    Ok(())
}

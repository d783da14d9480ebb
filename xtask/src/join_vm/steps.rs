//! The machine's life in the cluster: boot, images, join, reboot, leave, and the comparison at the end. Called by the
//! tier.

use std::fs;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll;

use super::before_after::Seen;
use super::machine::{Machine, THERE};
use super::network::{self, Place};
use super::{CLUSTER, NODE, Stage, WAIT, package};
use crate::kind::Bed;
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
    let machine = stage.machine()?;
    let facts = folder.join("facts");
    fs::write(&facts, network::cluster(bed, &["facts", CLUSTER, &machine.address])? + "\n")?;
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
    await_ready(bed, &boot)
}

/// Until the node tells that it is ready, in that boot, and so are its system's pods.
pub(super) fn await_ready(bed: &Bed, boot: &str) -> Result<()> {
    let form = "jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type==\"Ready\")].status}";
    let wanted = format!("{boot} True");
    bed.within(WAIT, "the node to be ready", &["kubectl", "get", "node", NODE, "--output", form], |said| {
        said == wanted
    })?;
    let field = format!("--field-selector=spec.nodeName={NODE}");
    let form = "jsonpath={.items[*].status.containerStatuses[0].ready}";
    let words = ["kubectl", "get", "pods", "--namespace", "kube-system", &field, "--output", form];
    bed.within(WAIT, "kube-proxy and the network's agent", &words, |said| said == "true true").map(drop)
}

pub(super) fn reboot(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    let machine = stage.machine()?;
    let boot = machine.reboot()?;
    await_ready(bed, &boot)?;
    let field = format!("--field-selector=spec.nodeName={NODE}");
    let form = "jsonpath={range .items[*]}{.status.containerStatuses[0].ready} \
                {.status.containerStatuses[0].restartCount} {end}";
    let words = ["kubectl", "get", "pods", "--selector=app=web", &field, "--output", form];
    bed.within(WAIT, "both pods to run again, each restarted once", &words, |said| {
        said.trim() == "true 1 true 1"
    })?;
    super::pods::by_name(stage)?;
    super::pods::by_node_port(stage)
}

pub(super) fn leave(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    bed.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"])?;
    let machine = stage.machine()?;
    println!("{}", machine.run("gantry leave --dry-run")?);
    println!("{}", machine.run("gantry leave")?);
    network::cluster(bed, &["forget", CLUSTER, NODE])?;
    let left = bed.kubectl(&["get", "nodes", "--output", "name"])?;
    ensure!(left == format!("node/{}", network::container()), "the cluster has {left}");
    Ok(())
}

pub(super) fn as_before(stage: &mut Stage<'_>) -> Result<()> {
    let (machine, before) = stage.booted.as_ref().context("the machine has not been booted")?;
    let differences = before.compare(&Seen::now(machine)?);
    ensure!(differences.is_empty(), "{} differences:\n  {}", differences.len(), differences.join("\n  "));
    Ok(())
}

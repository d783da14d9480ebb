//! The tier `join-vm`: an emulated Debian machine beside a kind cluster, from Gantry's package to its purge. `gantry join`
//! as Vagrant calls it, pods on both nodes, an upgrade and a reboot under them, `gantry leave`, and the machine as it was
//! before. Owns the order of the steps, which follow one another; never uses the host's docker or network. Called by
//! the tiers.

mod before_after;
mod machine;
mod network;
mod package;
pub(crate) mod power_cuts;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use self::before_after::Seen;
use self::machine::QemuMachine;
use crate::kind::pods::{Nodes, WAIT};
use crate::kind::{self, Bed, timed, web};
use crate::summary::Counts;
use crate::{dist, sh, vagrant_box};

/// The machine's name, and so the node's.
const NODE: &str = "gantry-vm";

/// One step of the tier.
type JoinVmStep = (&'static str, fn(&mut JoinVmFixture<'_>) -> Result<()>);

const STEPS: [JoinVmStep; 13] = [
    ("join-vm: the machine boots and answers by ssh", steps::boot),
    ("join-vm: apt-get install starts the runtime", package::install),
    ("join-vm: gantry image load", steps::load_images),
    ("join-vm: Vagrant's script joins the cluster, and the node becomes ready", steps::join),
    ("join-vm: a Deployment on both nodes", steps::deploy),
    ("join-vm: its Service answers by name in a pod of each node", |fixture| {
        fixture.nodes(|it| it.by_name())
    }),
    ("join-vm: its NodePort answers on each node, asked on each", |fixture| {
        fixture.nodes(|it| it.by_node_port())
    }),
    ("join-vm: exec, logs, cp there and back, port-forward", |fixture| fixture.nodes(|it| it.talk())),
    ("join-vm: an upgrade of the package restarts no pod", package::upgrade),
    ("join-vm: the node and its pods come back after a reboot", steps::reboot),
    ("join-vm: kubectl drain, gantry leave", steps::leave),
    ("join-vm: apt-get purge", package::purge),
    ("join-vm: the machine is as it was before", steps::as_before),
];

/// What the steps share.
struct JoinVmFixture<'a> {
    bed: &'a Bed,
    /// The version of the package's upgrade.
    later: String,
    /// Of this tier's own files.
    folder: PathBuf,
    /// A registry that the machine asks before any other.
    mirror: Option<String>,
    /// From the first step on.
    booted: Option<(QemuMachine<'a>, Seen)>,
}

impl<'a> JoinVmFixture<'a> {
    /// With the package, and the images of a worker, where the machine will have them.
    fn new(bed: &'a Bed, deb: &Path, own: &Path) -> Result<Self> {
        let folder = bed.folder.join("machine");
        let brought = machine::brought(&folder);
        fs::create_dir_all(&brought).with_context(|| format!("make {}", brought.display()))?;
        kind::worker_images(&brought, own)?;
        web::archive(&brought)?;
        let later = package::write(deb, &brought)?;
        Ok(Self { bed, later, folder, mirror: None, booted: None })
    }

    fn machine(&mut self) -> Result<&mut QemuMachine<'a>> {
        self.booted.as_mut().map(|(machine, _)| machine).context("the machine has not been booted")
    }

    /// The look at the nodes' pods.
    fn nodes<T>(&self, look: impl FnOnce(&Nodes<'_>) -> Result<T>) -> Result<T> {
        let (machine, _) = self.booted.as_ref().context("the machine has not been booted")?;
        let run = |script: &str| machine.run(script);
        let (address, folder) = (&machine.address, &self.folder);
        look(&Nodes { bed: self.bed, machine: NODE, address, run: &run, folder })
    }

    /// Each step, and the machine's end. One whose predecessor has failed is not tried.
    fn run(mut self, tier: &str, steps: &[JoinVmStep]) -> Counts {
        let mut counts = Counts::default();
        for (name, step) in steps {
            if counts.failed == 0 {
                counts += timed(name, || step(&mut self));
            }
        }
        if counts.failed > 0 {
            println!("{}", self.machine().map(|it| it.state()).unwrap_or_default());
        }
        if let Some((machine, _)) = self.booted.take() {
            counts += timed(&format!("{tier}: the machine powers off"), || machine.power_off());
        }
        counts
    }
}

/// All of it.
pub(crate) fn tests() -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    let deb = dist::package()?;
    let unpacked = tempfile::tempdir()?;
    let own = dist::unpack(&deb, unpacked.path())?;
    vagrant_box::files()?;
    web::fetch()?;
    let made = kind::node_image(&own)?;
    kind::on_cluster("join-vm", "join-vm", &[&made], |bed| match JoinVmFixture::new(bed, &deb, &own) {
        Ok(fixture) => fixture.run("join-vm", &STEPS),
        Err(error) => Counts::check("join-vm: the machine's files", Err(error)),
    })
}

//! The tier `join-vm`: an emulated Debian machine beside a kind cluster, from Gantry's package to its purge. `gantry join`
//! as Vagrant calls it, pods on both nodes, an upgrade and a reboot under them, `gantry leave`, and the machine as it was
//! before. Owns the order of the steps, which follow one another; never uses the host's docker or network. Called by
//! the tiers.

mod before_after;
mod machine;
mod network;
mod package;
mod pods;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::before_after::Seen;
use self::machine::Machine;
use crate::kind::{self, Bed, web};
use crate::summary::Counts;
use crate::{dist, sh, vagrant_box};

/// Gantry's package; made anew where it is not given.
const DEB: &str = "DEB";
/// The cluster; what its docker containers are called begins with it.
const CLUSTER: &str = "join-vm";
/// The machine's name, and so the node's.
const NODE: &str = "gantry-vm";
/// For what an emulated machine does in a minute where it has its processors to itself.
const WAIT: Duration = Duration::from_secs(600);

/// One step of the tier.
type Step = (&'static str, fn(&mut Stage<'_>) -> Result<()>);

const STEPS: [Step; 13] = [
    ("join-vm: the machine boots and answers by ssh", steps::boot),
    ("join-vm: apt-get install starts the runtime", package::install),
    ("join-vm: gantry image load", steps::load_images),
    ("join-vm: Vagrant's script joins the cluster, and the node becomes ready", steps::join),
    ("join-vm: a Deployment on both nodes", pods::deploy),
    ("join-vm: its Service answers by name in a pod of each node", pods::by_name),
    ("join-vm: its NodePort answers on each node, asked on each", pods::by_node_port),
    ("join-vm: exec, logs, cp there and back, port-forward", pods::talk),
    ("join-vm: an upgrade of the package restarts no pod", package::upgrade),
    ("join-vm: the node and its pods come back after a reboot", steps::reboot),
    ("join-vm: kubectl drain, gantry leave", steps::leave),
    ("join-vm: apt-get purge", package::purge),
    ("join-vm: the machine is as it was before", steps::as_before),
];

/// What the steps share.
struct Stage<'a> {
    bed: &'a Bed,
    /// The version of the package's upgrade.
    later: String,
    /// Of this tier's own files.
    folder: PathBuf,
    /// From the first step on.
    booted: Option<(Machine<'a>, Seen)>,
}

impl<'a> Stage<'a> {
    fn machine(&mut self) -> Result<&mut Machine<'a>> {
        self.booted.as_mut().map(|(machine, _)| machine).context("the machine has not been booted")
    }
}

/// All of it: a step whose predecessor has failed is not tried.
pub(crate) fn tests() -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    let deb = package()?;
    let unpacked = tempfile::tempdir()?;
    let own = programs(&deb, unpacked.path())?;
    vagrant_box::files()?;
    web::fetch()?;
    let made = kind::node_image(&own)?;
    let host = kind::seen()?;
    let bed = Bed::start(sh::target_dir().join("join-vm-tier"), CLUSTER)?;
    let mut counts = timed("join-vm: create cluster", || bed.create(&made, 1));
    let folder = bed.folder.join("machine");
    let brought = machine::brought(&folder);
    fs::create_dir_all(&brought).with_context(|| format!("make {}", brought.display()))?;
    kind::worker_images(&brought, &own)?;
    web::archive(&brought)?;
    let later = package::write(&deb, &brought)?;
    let mut stage = Stage { bed: &bed, later, folder, booted: None };
    for (name, step) in STEPS {
        if counts.failed == 0 {
            counts += timed(name, || step(&mut stage));
        }
    }
    if counts.failed > 0 {
        println!("{}\n{}", bed.state(), stage.machine().map(|it| it.state()).unwrap_or_default());
    }
    if let Some((machine, _)) = stage.booted.take() {
        counts += timed("join-vm: the machine powers off", || machine.power_off());
    }
    counts += timed("join-vm: delete cluster", || bed.delete());
    counts += timed("join-vm: docker's end leaves no cgroup", || bed.end());
    counts += timed("join-vm: the host has the links and mounts that it had", || kind::as_before(&host));
    Ok(counts)
}

/// A check, and how long it took.
fn timed(name: &str, step: impl FnOnce() -> Result<()>) -> Counts {
    let begin = Instant::now();
    let outcome = step();
    println!("{:>5} s", begin.elapsed().as_secs());
    Counts::check(name, outcome)
}

fn package() -> Result<PathBuf> {
    match std::env::var_os(DEB) {
        Some(deb) => fs::canonicalize(&deb).with_context(|| format!("{DEB}={}", deb.display())),
        None => dist::package(),
    }
}

/// What the package has is what the cluster's first node is made of.
fn programs(deb: &Path, to: &Path) -> Result<PathBuf> {
    sh::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(to))?;
    Ok(to.join("usr/lib/gantry"))
}

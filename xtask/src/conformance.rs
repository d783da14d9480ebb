//! `cargo xtask conformance node|e2e|csi-hostpath|conformance`: upstream's own suites on a kubelet and a runtime, in a place of their own. Owns the
//! order: build, place, run, table; how a suite is called and what its report says is in the files beside. Called by
//! `main`.
//!
//! Without an argument it runs the list of `tests/suites.toml`. A spec that passes on the peer (upstream kubelet and
//! containerd: `tests/suites/peer-*.txt`) and fails, is skipped or is missing here is a failure.

mod asked;
mod call;
mod in_vm;
mod on_kind;
mod own_disk;
mod report;
mod storage;
mod suites;
mod units;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use gantry_tests::cluster::{images, programs};

pub(crate) use self::call::{Called, inside};
use self::report::{SpecOutcome, SpecTable};
use self::suites::{Choice, Suite};
use crate::cell;
use crate::cluster::{self, KubeletName, RuntimeName};
use crate::sh;
use crate::summary::Counts;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// e2e_node.test: it brings its own API server and starts the kubelet itself
    Node,
    /// e2e.test: on a whole cluster
    E2e,
    /// e2e.test, its storage suites: on a whole cluster with the tests' CSI driver
    CsiHostpath,
    /// e2e.test, all of [Conformance]: on a kind cluster with kube-proxy and CoreDNS
    Conformance,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Wanted {
    #[arg(value_enum)]
    suite: Name,
    /// Every spec of [NodeConformance] that may run beside others, instead of the list
    #[arg(long)]
    all: bool,
    /// Only specs whose text this regular expression finds; may be given again
    #[arg(long, conflicts_with = "all")]
    focus: Vec<String>,
    /// What runs the containers
    #[arg(long, value_enum, default_value = "containerd")]
    runtime: RuntimeName,
    /// What makes the node
    #[arg(long, value_enum, default_value = "gantry")]
    kubelet: KubeletName,
    /// Of the node suite, specs that want the node for themselves, [Serial], [Disruptive] and [Flaky] ones, too: one at a
    /// time, with a kubelet that they restart and a logind that they play
    #[arg(long, requires = "focus", conflicts_with_all = ["procs", "on_kind"])]
    serial: bool,
    /// In a VM with systemd, cgroup v2, a disk and swap of its own, instead of on this host
    #[arg(long, requires = "serial")]
    vm: bool,
    /// The VM's memory, in MiB. Specs of swap fill it within five minutes, 0.4 % at a time: less of it is sooner full
    #[arg(long, requires = "vm", default_value_t = 4096)]
    memory: u32,
    /// The VM's swap, in MiB; none at 0
    #[arg(long, requires = "vm", default_value_t = 2048)]
    swap: u64,
    /// The VM's processors. Specs of the CPU manager want 8 and more
    #[arg(long, requires = "vm", default_value_t = 2)]
    processors: u8,
    /// The VM's NUMA nodes, which share its processors and memory. Each node is a socket then
    #[arg(long, requires = "vm", default_value_t = 0)]
    numa: u8,
    /// Processors of a core, of a VM with NUMA nodes. Specs of the topology manager want 1: with 2 they expect the processor
    /// that is reserved
    #[arg(long, requires = "numa", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: u8,
    /// With AppArmor's parser in the VM, and a name of the node by which upstream's suite knows that
    #[arg(long, requires = "vm")]
    apparmor: bool,
    /// On this host: a disk of so many GiB for the node alone, a file behind a loop device
    #[arg(long, requires = "serial", conflicts_with = "vm")]
    disk: Option<u64>,
    /// How long the suite may take, in minutes: a spec that runs then is interrupted, and those after it are skipped
    #[arg(long, conflicts_with = "on_kind")]
    minutes: Option<u64>,
    /// How many specs at once, instead of what suites.toml says
    #[arg(long)]
    procs: Option<usize>,
    /// On a kind cluster whose nodes all have that kubelet, instead of a node beside a control plane. Gantry's has its own
    /// runtime, upstream's has containerd
    #[arg(long, conflicts_with = "runtime")]
    on_kind: bool,
    /// How many workers the kind cluster has beside its control plane; 1 when not given, 2 for conformance
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    nodes: Option<u8>,
    /// How often what is worse than on the peer runs again, alone, before it counts
    #[arg(long, default_value_t = 0)]
    again: usize,
    /// Where table, report and logs go; `conformance` in the target folder when not given
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The lists of both suites.
pub(crate) fn lists() -> Counts {
    let mut counts = Counts::check("conformance node", list(Name::Node));
    counts += Counts::check("conformance e2e", list(Name::E2e));
    counts
}

/// The list of a suite on our kubelet with containerd.
fn list(suite: Name) -> Result<()> {
    run(&Wanted {
        suite,
        all: false,
        focus: Vec::new(),
        runtime: RuntimeName::Containerd,
        kubelet: KubeletName::Gantry,
        serial: false,
        vm: false,
        memory: 0,
        swap: 0,
        processors: 2,
        numa: 0,
        threads: 2,
        apparmor: false,
        disk: None,
        minutes: None,
        procs: None,
        on_kind: false,
        nodes: None,
        again: 0,
        out: None,
    })
}

/// Builds, runs the suite in a place of its own, writes the table.
pub(crate) fn run(wanted: &Wanted) -> Result<()> {
    sh::require_root("a suite")?;
    if wanted.serial && wanted.suite != Name::Node {
        bail!("--serial is for the node suite: `cargo xtask conformance node --serial --focus …`");
    }
    let on_kind = wanted.on_kind || wanted.suite == Name::Conformance;
    if wanted.nodes.is_some() && !on_kind {
        bail!("--nodes is for a kind cluster: `cargo xtask conformance conformance` or --on-kind");
    }
    let suites = suites::read(&sh::root().join("tests/suites.toml"))?;
    let suite = suites.get(wanted.suite);
    let folder = out(wanted)?;
    let own = prepare(wanted.suite)?;
    if on_kind {
        return on_kind::run(wanted, suite, &own, &folder);
    }
    let attempt = |choice: &Choice, procs, folder: &Path| once(wanted, suite, choice, procs, &own, folder);
    let (table, wrongs) = attempts(wanted, suite, &folder, attempt)?;
    tell(wanted, &table, &folder)?;
    if !wrongs.is_empty() {
        bail!("beside the specs: {}", wrongs.join("; "));
    }
    Ok(())
}

/// Runs what is chosen, and what was worse than on the peer again as often as was asked for. With the table comes what
/// went wrong around the specs.
fn attempts(
    wanted: &Wanted,
    suite: &Suite,
    folder: &Path,
    mut attempt: impl FnMut(&Choice, usize, &Path) -> Result<SuiteRun>,
) -> Result<(SpecTable, Vec<String>)> {
    let processes = if wanted.serial { 1 } else { wanted.procs.unwrap_or(suite.processes) };
    let SuiteRun { specs, wrong } = attempt(&choose(wanted, suite), processes, folder)?;
    let mut wrongs: Vec<String> = wrong.into_iter().collect();
    let mut table = table(wanted, suite, specs)?;
    for turn in 1..=wanted.again {
        if table.is_green() {
            break;
        }
        let folder = folder.join(format!("again-{turn}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        println!("{} specs run again, one at a time", table.worse().count());
        let choice = Choice::named(table.worse());
        let again = attempt(&choice, 1, &folder)?;
        wrongs.extend(again.wrong);
        table.again(&again.specs);
    }
    Ok((table, wrongs))
}

/// Runs what is chosen, and reads what became of it.
fn once(
    wanted: &Wanted,
    suite: &Suite,
    choice: &Choice,
    procs: usize,
    own: &Path,
    folder: &Path,
) -> Result<SuiteRun> {
    let called = Called {
        suite: wanted.suite,
        out: folder.to_owned(),
        runtime: wanted.runtime,
        kubelet: wanted.kubelet,
        procs,
        serial: wanted.serial,
        minutes: wanted.minutes,
        disk: wanted.disk,
        in_vm: false,
        flags: suite.flags.clone(),
    };
    choice.write(folder)?;
    if wanted.vm {
        let Wanted { memory, swap, processors, numa, threads, apparmor, .. } = *wanted;
        let machine = in_vm::MachineSpec { memory, swap, processors, numa, threads, apparmor };
        return SuiteRun::read(folder, in_vm::run(&called, choice, own, machine));
    }
    let words = ["conformance-inside".into()].into_iter().chain(called.words());
    SuiteRun::read(folder, cell::run_again(words, own))
}

/// What became of one run of a suite.
struct SuiteRun {
    specs: Vec<report::SpecResult>,
    /// What failed around the specs: the teardown, or something that was left behind.
    wrong: Option<String>,
}

impl SuiteRun {
    /// Of a suite that left its report in that folder.
    fn read(folder: &Path, ended: Result<()>) -> Result<Self> {
        match (report::read(&folder.join("report.json")), ended) {
            (Err(error), Err(first)) => Err(error.context(format!("{first:#}"))),
            (Err(error), Ok(())) => Err(error),
            // Failed specs are in the report and no error of the run. What is one, or was left behind, counts
            // beside the table.
            (Ok(specs), ended) => Ok(Self { specs, wrong: ended.err().map(|error| format!("{error:#}")) }),
        }
    }
}

fn tell(wanted: &Wanted, table: &SpecTable, folder: &Path) -> Result<()> {
    let mut text = table.markdown();
    let mut wrongs = Vec::new();
    if matches!(wanted.suite, Name::E2e | Name::CsiHostpath) {
        let asked = asked::read(&folder.join(asked::LOG))?;
        text.push_str(&asked.markdown());
        wrongs = asked.wrongs;
    }
    std::fs::write(folder.join("table.md"), &text)?;
    println!("{text}\n{}", folder.join("table.md").display());
    // Upstream's kubelet earns some of what ours must not.
    let is_ours = matches!(wanted.kubelet, KubeletName::Gantry);
    if !table.is_green() || (is_ours && !wrongs.is_empty()) {
        bail!("not green");
    }
    Ok(())
}

fn prepare(suite: Name) -> Result<PathBuf> {
    let own = cluster::prepare(false)?;
    let set = if suite == Name::Node { programs::Set::E2eNode } else { programs::Set::E2e };
    programs::build(&[set])?;
    cluster::build_images(&own, &[images::Set::Suites])?;
    Ok(own)
}

fn out(wanted: &Wanted) -> Result<PathBuf> {
    let folder = wanted.out.clone().unwrap_or_else(|| sh::target_dir().join("conformance"));
    let name = match wanted.suite {
        Name::Node => "node",
        Name::E2e => "e2e",
        Name::CsiHostpath => "csi-hostpath",
        Name::Conformance => "conformance",
    };
    let folder = std::path::absolute(&folder)?.join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("clear {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

fn choose(wanted: &Wanted, suite: &Suite) -> Choice {
    if wanted.all {
        suite.everything()
    } else if wanted.focus.is_empty() {
        suite.listed()
    } else {
        let skip = if wanted.serial { Vec::new() } else { suite.skip.clone() };
        Choice { focus: wanted.focus.clone(), skip }
    }
}

/// With `--focus` nobody can say what is missing: then the report alone counts.
fn table(wanted: &Wanted, suite: &Suite, specs: Vec<report::SpecResult>) -> Result<SpecTable> {
    let peer = report::peer(&sh::root().join(&suite.peer))?;
    let whole = wanted.all || (wanted.focus.is_empty() && suite.has_no_list());
    let expected: Vec<&str> = if whole {
        peer.iter()
            .filter(|spec| spec.outcome == SpecOutcome::Passed)
            .map(|spec| spec.name.as_str())
            .collect()
    } else if wanted.focus.is_empty() {
        suite.specs().collect()
    } else {
        Vec::new()
    };
    Ok(SpecTable::new(specs, &peer, &expected))
}

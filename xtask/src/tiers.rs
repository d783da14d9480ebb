//! `cargo xtask test`: the tiers in order, each with its time beside its budget, and one closing
//! line for all. A tier whose means are missing fails and names them; nothing is skipped. Called
//! by `main`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::summary::{self, Counts};
use crate::vm::VmKind;
use crate::{
    book, build, churn, clean_room, conformance, demo, dist, flaky, fuzz, join_vm, kernel, monitor_compat,
    sh, vagrant, vm,
};

/// A tier: what it needs grows from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// Format, lints, tidy rules, licences
    Static,
    /// Unit tests: no root, no network but loopback
    Unit,
    /// Pods as root on this host, in namespaces of their own
    Kernel,
    /// The same in a small VM with cgroup v2
    Vm,
    /// `gantry runtime` as a process of its own, through its socket
    Cri,
    /// Kills, calls given up and failures at every durable step
    Failpoints,
    /// `gantry run` and the commands beside it
    Standalone,
    /// `cargo xtask demo`
    Demo,
    /// Thirteen specs of `cluster`, one of each kind
    Smoke,
    /// A kind cluster of upstream's control plane and a worker of Gantry's
    Kind,
    /// kubectl's everyday work on a real control plane, with containerd; only with --full or by name
    Cluster,
    /// Minutes in which a cluster's kubelet or API server goes and comes back under its pods; only with --full or by name
    Disruption,
    /// `gantry join` and `gantry leave` with the real kubeadm; only with --full or by name
    Join,
    /// An emulated machine joins a kind cluster by the package and leaves it without a trace; only with --full or by name
    JoinVm,
    /// The same machine and cluster by `vagrant up`; only with --full or by name
    Vagrant,
    /// Twenty power cuts of such a machine amid pulls, a network that is gone, a wrong clock; only with --full or by name
    PowerCuts,
    /// A kind cluster of two nodes, both Gantry's; only with --full or by name
    KindAll,
    /// Upstream's own specs, the lists of `tests/suites.toml`; only with --full or by name
    Conformance,
    /// Pulls over a way that is cut, stalls, lies and refuses; only with --full or by name
    Faults,
    /// The CRI tier's suite on containerd; only with --full or by name
    Peer,
    /// Pods whose monitor speaks an earlier protocol; only with --full or by name
    MonitorCompat,
    /// Five minutes of pods, kills and calls given up; only with --full or by name
    Churn,
    /// The CRI tier in the small VM; only with --full or by name
    VmCri,
    /// The failpoints in the small VM, and in one whose systemd makes the cgroups; only with --full or by name
    VmFailpoints,
    /// The kernel and CRI tiers in a VM whose systemd makes the cgroups; only with --full or by name
    VmSystemd,
    /// Each fuzz target for a minute; only with --full or by name
    Fuzz,
    /// The list of needed packages on a Debian system that has nothing else; only with --full or by name
    CleanRoom,
    /// The package on a Debian system that has nothing else; only with --full or by name
    Dist,
    /// `smoke` on the programs that are shipped; only with --full or by name
    SmokeDist,
}

const ALL: [Tier; 10] = [
    Tier::Static,
    Tier::Unit,
    Tier::Kernel,
    Tier::Failpoints,
    Tier::Vm,
    Tier::Cri,
    Tier::Standalone,
    Tier::Demo,
    Tier::Smoke,
    Tier::Kind,
];

impl Tier {
    /// Seconds it may take with a warm target folder, those of `ALL` together 35 minutes at most; cold ones add 25.
    fn budget(self) -> u64 {
        match self {
            Tier::Static => 150,
            Tier::Unit => 300,
            Tier::Kernel => 270,
            Tier::Failpoints => 140,
            Tier::Vm => 790,
            Tier::Cri => 70,
            Tier::Standalone => 80,
            Tier::Demo => 30,
            Tier::Smoke => 90,
            Tier::Kind => 140,
            Tier::Faults => 300,
            Tier::MonitorCompat => 120,
            Tier::Churn => 420,
            Tier::Cluster => 420,
            Tier::Disruption => 1800,
            Tier::Join => 120,
            Tier::JoinVm => 1500,
            Tier::Vagrant => 2400,
            Tier::PowerCuts => 5400,
            Tier::KindAll => 240,
            Tier::Conformance => 600,
            Tier::Peer => 600,
            Tier::VmCri => 600,
            Tier::VmFailpoints => 1800,
            Tier::VmSystemd => 1800,
            Tier::Fuzz => 1200,
            Tier::CleanRoom => 300,
            Tier::Dist => 1500,
            Tier::SmokeDist => 1500,
        }
    }

    fn run(self, filter: Option<&str>) -> Result<Counts> {
        match self {
            Tier::Static => Ok(static_checks()),
            Tier::Unit => {
                let mut command = sh::cargo(&["test"]);
                command.args(sh::SELECTION).arg("--no-fail-fast");
                summary::count(command.args(filter))
            }
            Tier::Kernel => kernel::on_host(&kernel::KERNEL, &with_go()?, filter),
            Tier::Vm => in_the_vm(filter),
            Tier::VmFailpoints => failpoints_in_vms(filter),
            Tier::VmCri => cri_in(VmKind::Small, &with_go()?, filter),
            Tier::VmSystemd => with_systemd(filter),
            Tier::Cri => {
                suite_and_images()?;
                gantry_tests::go::upstream_plugins()?;
                gantry_tests::go::libcni()?;
                kernel::on_host(&kernel::CRI, &with_go()?, filter)
            }
            Tier::Failpoints => kernel::on_host(&kernel::FAILPOINTS, &failpoints_with_go()?, filter),
            Tier::Faults => kernel::on_host(&kernel::FAULTS, &build::with_failpoints()?, filter),
            Tier::MonitorCompat => {
                kernel::on_host(&kernel::MONITOR_COMPAT, &monitor_compat::programs()?, filter)
            }
            Tier::Churn => Ok(Counts::check("churn", churn::outside(&churn::ChurnArgs::short()))),
            Tier::Standalone => {
                gantry_tests::debian::fetch()?;
                gantry_tests::go::upstream_plugins()?;
                gantry_tests::peers::Programs::build_kind()?;
                kernel::on_host(&kernel::STANDALONE, &build::build(false)?, filter)
            }
            Tier::Demo => Ok(Counts::check("demo", demo::outside(false, None, None))),
            Tier::Smoke => {
                kernel::on_host(&kernel::CLUSTER, &crate::cluster::prepare(false)?, filter.or(Some("smoke")))
            }
            Tier::Cluster => kernel::on_host(&kernel::CLUSTER, &crate::cluster::prepare(false)?, filter),
            Tier::Disruption => kernel::on_host(&kernel::DISRUPTION, &disruption_programs()?, filter),
            Tier::Join => {
                let programs = crate::cluster::prepare(false)?;
                gantry_tests::cluster::programs::build(&[gantry_tests::cluster::programs::Set::Kubeadm])?;
                kernel::on_host(&kernel::JOIN, &programs, filter)
            }
            Tier::JoinVm => join_vm::tests(),
            Tier::Vagrant => vagrant::tests(filter),
            Tier::PowerCuts => join_vm::power_cuts::tests(),
            Tier::Kind => crate::kind::mixed(),
            Tier::KindAll => crate::kind::all_gantry(),
            Tier::Conformance => Ok(conformance::lists()),
            Tier::Peer => {
                gantry_tests::peers::Programs::build()?;
                kernel::on_host(&kernel::PEER, &build::build(false)?, filter)
            }
            Tier::Fuzz => fuzz::checks(60),
            Tier::CleanRoom => Ok(Counts::check("clean-room", clean_room::run(&[]))),
            Tier::Dist => dist::chroot::tests(filter),
            Tier::SmokeDist => {
                let programs = dist::programs()?;
                crate::cluster::prepare_beside(&programs, false)?;
                kernel::on_host(&kernel::CLUSTER, &programs, filter.or(Some("smoke")))
            }
        }
    }

    /// The tier, and each test that failed once more, alone.
    fn run_and_settle(self, filter: Option<&str>) -> Result<Counts> {
        let counts = self.run(filter)?;
        // A machine that was booted more than once has tests that follow one another.
        let mut reboots = None;
        Ok(flaky::settle(counts, &mut |name| {
            let is_of_reboot = name.starts_with("before::") || name.starts_with("after::");
            if self == Tier::Vm && is_of_reboot {
                if reboots.is_none() {
                    reboots = Some(self.run(Some("reboot"))?);
                }
                return Ok(reboots.clone().unwrap_or_default());
            }
            match self {
                Tier::Static => summary::count(&mut sh::cargo(&["test", "--package", "xtask", name])),
                _ => self.run(Some(name)),
            }
        }))
    }
}

/// Inside there is no network but the tests' own.
fn suite_and_images() -> Result<()> {
    gantry_tests::debian::fetch()?;
    gantry_tests::peers::Programs::build_suite()
}

/// The kernel tier, then the reboots: with the filter `reboot` only those, with another none.
fn in_the_vm(filter: Option<&str>) -> Result<Counts> {
    let programs = with_go()?;
    match filter {
        None => vm::tests_and_reboots(&programs),
        Some("reboot") => vm::reboots(&programs),
        filter => {
            let counts = vm::tests(&programs, filter, VmKind::Small)?;
            Ok(Counts { repeated: counts.passed, ..counts })
        }
    }
}

/// What a hybrid host is looked at for: where pods are.
const ON_HYBRID: &str = "cgroups::";

/// The kernel and CRI tiers, and a part of the first on a hybrid host; with `cri`, `cri=TEST`, `hybrid` or
/// `hybrid=TEST` only that, with any other filter only the first.
fn with_systemd(filter: Option<&str>) -> Result<Counts> {
    let programs = with_go()?;
    let mut counts = Counts::default();
    let of = |name: &str| filter.and_then(|filter| filter.strip_prefix(name));
    let (cri, hybrid) = (of("cri"), of("hybrid"));
    if cri.or(hybrid).is_none() {
        counts += vm::tests(&programs, filter, VmKind::Systemd)?;
    }
    if filter.is_none() || hybrid.is_some() {
        let tests = hybrid.and_then(|hybrid| hybrid.strip_prefix('=')).unwrap_or(ON_HYBRID);
        counts += vm::tests(&programs, Some(tests), VmKind::Hybrid)?;
    }
    if filter.is_none() || cri.is_some() {
        counts += cri_in(VmKind::Systemd, &programs, cri.and_then(|cri| cri.strip_prefix('=')))?;
    }
    Ok(counts)
}

fn cri_in(machine: VmKind, programs: &Path, filter: Option<&str>) -> Result<Counts> {
    suite_and_images()?;
    vm::cri(programs, filter, machine)
}

/// With cgroupfs and with systemd, one machine after the other: each case has time limits of its own.
fn failpoints_in_vms(filter: Option<&str>) -> Result<Counts> {
    let programs = failpoints_with_go()?;
    let mut counts = vm::failpoints(&programs, filter, VmKind::Small)?;
    counts += vm::failpoints(&programs, filter, VmKind::Systemd)?;
    Ok(counts)
}

/// A cluster's programs, and Gantry's with failpoints; Gantry's own may have been built before.
fn disruption_programs() -> Result<std::path::PathBuf> {
    let programs = match std::env::var_os(gantry_tests::place::BIN_DIR) {
        Some(_) => gantry_tests::place::bin_dir()?,
        None => build::with_failpoints()?,
    };
    crate::cluster::prepare_beside(&programs, false)?;
    Ok(programs)
}

/// As `with_go`, and with failpoints beside it.
fn failpoints_with_go() -> Result<std::path::PathBuf> {
    let folder = build::with_failpoints()?;
    build::in_go(&folder)?;
    Ok(folder)
}

/// Everything built, the Go programs too.
fn with_go() -> Result<std::path::PathBuf> {
    let folder = build::build(false)?;
    build::in_go(&folder)?;
    Ok(folder)
}

/// Every feature there is.
const FEATURES: &str = "--workspace --features gantry/containerd,gantry/failpoints,gantry-tests/containerd";

/// Tests that no plain `cargo test` runs are not among `--all-targets`.
const BY_NAME: &str = "--test kernel --test netlink --test cri --test cni --test peer --test standalone --test cluster \
    --test disruption --test join --test reboot --test failpoints --test faults --test monitor_compat";

/// What takes longer than CI has.
const LONG: [Tier; 19] = [
    Tier::CleanRoom,
    Tier::Faults,
    Tier::MonitorCompat,
    Tier::Peer,
    Tier::Cluster,
    Tier::Conformance,
    Tier::Disruption,
    Tier::Join,
    Tier::JoinVm,
    Tier::Vagrant,
    Tier::PowerCuts,
    Tier::KindAll,
    Tier::Fuzz,
    Tier::Churn,
    Tier::VmCri,
    Tier::VmFailpoints,
    Tier::VmSystemd,
    Tier::Dist,
    Tier::SmokeDist,
];

/// Runs the tiers asked for, or all that CI runs, `repeat` times; `full` adds those that take longer.
pub(crate) fn test(asked: &[Tier], full: bool, filter: Option<&str>, repeat: u32) -> Result<()> {
    let mut tiers = if asked.is_empty() { ALL.to_vec() } else { asked.to_vec() };
    if full {
        let more = LONG.into_iter().filter(|tier| !asked.contains(tier));
        tiers.extend(more);
    }
    let runs: Vec<Counts> = (1..=repeat)
        .map(|number| {
            if repeat > 1 {
                println!("##### run {number} of {repeat}");
            }
            once(&tiers, filter)
        })
        .collect();
    if repeat > 1 {
        println!("{}", of_many(&runs));
    }
    if !runs.iter().all(is_green) {
        bail!("not green");
    }
    Ok(())
}

/// A run without a single test shows nothing.
fn is_green(run: &Counts) -> bool {
    run.failed == 0 && run.passed > 0
}

/// Which runs were green, and what was first to fail in each of the others.
fn of_many(runs: &[Counts]) -> String {
    let green = runs.iter().filter(|run| is_green(run)).count();
    let mut lines = vec![format!("{green} of {} runs were green", runs.len())];
    for (index, run) in runs.iter().enumerate().filter(|(_, run)| !is_green(run)) {
        let first = run.first.as_deref().unwrap_or("no test ran");
        lines.push(format!("run {}: {} failed, first of all {first}", index + 1, run.failed));
    }
    lines.join("\n")
}

/// All tiers, one after the other.
fn once(tiers: &[Tier], filter: Option<&str>) -> Counts {
    let (mut total, mut repeated) = (Counts::default(), 0);
    let mut lines = Vec::new();
    for &tier in tiers {
        println!("=== tier {tier:?}");
        let (start, work) = (Instant::now(), sh::cpu_of_children().unwrap_or_default());
        let mut counts = tier
            .run_and_settle(filter)
            .unwrap_or_else(|error| Counts::check(&format!("tier {tier:?}"), Err(error)));
        let work = sh::cpu_of_children().unwrap_or_default().saturating_sub(work);
        lines.push(line(tier, &counts, start.elapsed(), work));
        if tier == Tier::Vm && tiers.contains(&Tier::Kernel) {
            repeated += take_repeated(&mut counts);
        }
        total += counts;
    }
    println!("\n{}\n", lines.join("\n"));
    for line in
        total.not_run.iter().map(|what| format!("{}{what}", gantry_tests::NOT_RUN)).chain(total.flaky.clone())
    {
        println!("{line}");
    }
    if repeated > 0 {
        println!(
            "{repeated} of tier Kernel's tests passed on a second machine, too: cgroup v2, another kernel"
        );
    }
    println!("{}", closing(&total));
    total
}

/// A tier's line, with the processor time that its programs took. What takes longer than its budget is no failure, since
/// machines differ, and is said.
fn line(tier: Tier, counts: &Counts, took: Duration, work: Duration) -> String {
    let (name, budget, seconds, work) = (format!("{tier:?}"), tier.budget(), took.as_secs(), work.as_secs());
    let over = if seconds > budget { ", over its budget" } else { "" };
    format!(
        "{name:<11}{:>5} passed {:>4} failed {seconds:>6} s of {budget:>4} s, {work:>4} s of processors{over}",
        counts.passed, counts.failed
    )
}

/// The last line: each test counts once.
fn closing(total: &Counts) -> String {
    let mut line = format!("{} passed, {} failed", total.passed, total.failed);
    if !total.not_run.is_empty() {
        line.push_str(&format!(", {} skipped", total.not_run.len()));
    }
    line
}

/// Takes out of the VM's counts the tests that tier Kernel has counted already, and returns how many.
fn take_repeated(counts: &mut Counts) -> u64 {
    // What failed there counts; the reboots are no tests of tier Kernel's.
    let repeated = counts.repeated.min(counts.passed);
    counts.passed -= repeated;
    repeated
}

fn static_checks() -> Counts {
    let mut counts = Counts::default();
    let deny = sh::cache_dir().join("tools/bin/cargo-deny");
    let deny = if deny.is_file() { deny } else { Path::new("cargo-deny").to_owned() };
    let mut deny = Command::new(deny);
    deny.args(["check", "bans", "licenses", "sources"]).current_dir(sh::root());
    let clippy = |words: String| {
        let mut command = sh::cargo(&["clippy"]);
        command.args(words.split_whitespace()).args(["--", "--deny", "warnings"]);
        command
    };
    for (what, mut command) in [
        ("fmt", sh::cargo(&["fmt", "--all", "--check"])),
        ("clippy", clippy(format!("{FEATURES} --all-targets"))),
        ("clippy of the tests by name", clippy(format!("{FEATURES} {BY_NAME}"))),
        ("clippy of what is shipped", clippy("--package gantry".to_owned())),
        ("licences, bans and sources of dependencies", deny),
    ] {
        counts += Counts::check(what, sh::run(&mut command));
    }
    counts += Counts::check("go vet", go_vet());
    counts += Counts::check("gofmt", gofmt());
    // The tidy rules are tests of this crate.
    match summary::count(&mut sh::cargo(&["test", "--package", "xtask"])) {
        Ok(more) => counts += more,
        Err(error) => counts += Counts::check("tidy", Err(error)),
    }
    counts += Counts::check("the book and its links", book::run());
    counts
}

/// Of every Go module in `tests/go`; all of them are looked at, whatever the first one says.
fn go_vet() -> Result<()> {
    let mut bad = Vec::new();
    for module in go_modules(&sh::root().join("tests/go"))? {
        let folder = format!("tests/go/{module}");
        let vetted = has_packages(&folder).and_then(|has| match has {
            true => sh::run(&mut sh::go(&folder, &["vet", "./..."])),
            // It pins others' programs, and vet would call that an error.
            false => Ok(()),
        });
        if let Err(error) = vetted {
            bad.push(format!("{module}: {error:#}"));
        }
    }
    if !bad.is_empty() {
        bail!("{}", bad.join("; "));
    }
    Ok(())
}

/// Whether a module has code of its own.
fn has_packages(folder: &str) -> Result<bool> {
    let listed = sh::go(folder, &["list", "./..."]).output().context("run go list")?;
    if !listed.status.success() {
        bail!("go list: {}", String::from_utf8_lossy(&listed.stderr));
    }
    Ok(!listed.stdout.is_empty())
}

/// Folders with a `go.mod`; a folder without one is no module, and a mistake.
fn go_modules(folder: &Path) -> Result<Vec<String>> {
    let mut modules = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if !path.join("go.mod").is_file() {
            bail!("{} is no Go module: go mod init", path.display());
        }
        modules.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    modules.sort();
    Ok(modules)
}

/// gofmt lists files and succeeds all the same.
fn gofmt() -> Result<()> {
    let listed = sh::output(Command::new("gofmt").args(["-l", "tests/go"]).current_dir(sh::root()))?;
    if !listed.is_empty() {
        bail!("gofmt -w {}", String::from_utf8_lossy(&listed).trim().replace('\n', " "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_runs_are_told_by_what_failed_first_in_each() {
        let green = Counts { passed: 7, ..Counts::default() };
        let red = Counts {
            passed: 6,
            failed: 1,
            first: Some("a::b\nError: no rain".to_owned()),
            ..Counts::default()
        };
        let text = of_many(&[green.clone(), red, Counts::default(), green]);
        let expected = "2 of 4 runs were green\nrun 2: 1 failed, first of all a::b\nError: no rain\n\
                        run 3: 0 failed, first of all no test ran";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_closing_line_counts_each_test_once() {
        let mut vm = Counts { passed: 12, repeated: 10, ..Counts::default() };
        assert_eq!(take_repeated(&mut vm), 10);
        let mut total = Counts { passed: 20, ..Counts::default() };
        total += vm;
        assert_eq!(closing(&total), "22 passed, 0 failed");
        total.not_run.push("a test: no kernel for it".to_owned());
        assert_eq!(closing(&total), "22 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn what_ci_needs_is_that_of_the_tiers_that_it_runs() {
        let names = ALL.map(|tier| tier.to_possible_value().unwrap().get_name().to_owned());
        assert_eq!(names.each_ref().map(String::as_str), gantry_needs::CI);
    }

    #[test]
    fn a_tier_that_takes_longer_than_its_budget_says_so() {
        let counts = Counts { passed: 4, failed: 1, ..Counts::default() };
        let of = |seconds| line(Tier::Demo, &counts, Duration::from_secs(seconds), Duration::from_secs(7));
        assert_eq!(of(30), "Demo           4 passed    1 failed     30 s of   30 s,    7 s of processors");
        let over = of(31);
        assert_eq!(
            over,
            "Demo           4 passed    1 failed     31 s of   30 s,    7 s of processors, over its budget"
        );
    }

    #[test]
    fn what_ci_runs_may_take_thirty_five_minutes() {
        let all: u64 = ALL.iter().map(|tier| tier.budget()).sum();
        assert!(all <= 35 * 60, "{all} s");
    }

    #[test]
    fn every_go_module_is_vetted() {
        let found = go_modules(&sh::root().join("tests/go")).unwrap();
        for module in ["cni", "cri", "proto", "stream", "tour"] {
            assert!(found.iter().any(|name| name == module), "{module} is not in {found:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("stray")).unwrap();
        assert!(go_modules(folder.path()).is_err());
    }
}

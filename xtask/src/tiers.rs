//! `cargo xtask test`: the tiers in order, each with its time beside its budget, and one closing
//! line for all. A tier whose means are missing fails and names them; nothing is skipped. Called
//! by `main`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::summary::{self, Counts};
use crate::{build, demo, kernel, sh, vm};

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
    /// `gantry run` and the commands beside it
    Standalone,
    /// `cargo xtask demo`
    Demo,
    /// kubectl's everyday work on a real control plane; not among those that CI runs until Gantry's kubelet joins one
    Cluster,
    /// The CRI tier's suite on containerd; only with --full or by name
    Peer,
}

const ALL: [Tier; 7] =
    [Tier::Static, Tier::Unit, Tier::Kernel, Tier::Vm, Tier::Cri, Tier::Standalone, Tier::Demo];

impl Tier {
    /// Seconds it may take with a warm target folder; a cold one builds for up to ten minutes more.
    fn budget(self) -> u64 {
        match self {
            Tier::Static | Tier::Unit => 300,
            Tier::Kernel => 300,
            Tier::Vm => 720,
            Tier::Cri | Tier::Standalone => 300,
            Tier::Demo => 120,
            Tier::Cluster => 420,
            Tier::Peer => 600,
        }
    }

    fn run(self, filter: Option<&str>) -> Result<Counts> {
        match self {
            Tier::Static => Ok(static_checks()),
            Tier::Unit => summary::count(&mut sh::cargo(&[
                "test",
                "--workspace",
                "--exclude",
                "xtask",
                "--no-fail-fast",
            ])),
            Tier::Kernel => kernel::on_host(&kernel::KERNEL, &with_go()?, filter),
            Tier::Vm => in_the_vm(filter),
            Tier::Cri => {
                // Inside there is no network but the tests' own.
                gantry_tests::debian::fetch()?;
                gantry_tests::go::upstream_plugins()?;
                gantry_tests::go::libcni()?;
                gantry_tests::peers::Programs::build_suite()?;
                kernel::on_host(&kernel::CRI, &build::build(false)?, filter)
            }
            Tier::Standalone => {
                gantry_tests::debian::fetch()?;
                gantry_tests::go::upstream_plugins()?;
                kernel::on_host(&kernel::STANDALONE, &build::build(false)?, filter)
            }
            Tier::Demo => Ok(Counts::check("demo", demo::outside(false, None))),
            Tier::Cluster => kernel::on_host(&kernel::CLUSTER, &crate::cluster::prepare(false)?, filter),
            Tier::Peer => {
                gantry_tests::peers::Programs::build()?;
                kernel::on_host(&kernel::PEER, &build::build(false)?, filter)
            }
        }
    }
}

/// The kernel tier, then the reboots: with a filter only when it asks for them.
fn in_the_vm(filter: Option<&str>) -> Result<Counts> {
    let programs = with_go()?;
    let reboots = filter.is_none_or(|filter| filter == "reboot");
    let mut counts = Counts::default();
    if !reboots || filter.is_none() {
        counts += vm::tests(&programs, filter)?;
    }
    if reboots {
        counts += vm::reboots(&programs)?;
    }
    Ok(counts)
}

/// Everything built, the Go programs too.
fn with_go() -> Result<std::path::PathBuf> {
    let folder = build::build(false)?;
    build::in_go(&folder)?;
    Ok(folder)
}

/// Clippy's `allow-unwrap-in-tests` knows functions marked as tests only; these programs are tests
/// as a whole, their helpers too.
const KERNEL_CLIPPY: &str = "clippy --package gantry-tests --package gantry-cni \
    --test kernel --test netlink --test cri --test cni --test peer --test standalone --test cluster --test reboot -- \
    --deny warnings --allow clippy::unwrap_used --allow clippy::panic --allow clippy::needless_pass_by_value";

/// Runs the tiers asked for, or all that CI runs; `full` adds those that take longer.
pub(crate) fn test(asked: &[Tier], full: bool, filter: Option<&str>) -> Result<()> {
    let mut tiers = if asked.is_empty() { ALL.to_vec() } else { asked.to_vec() };
    if full && !tiers.contains(&Tier::Peer) {
        tiers.push(Tier::Peer);
    }
    let mut total = Counts::default();
    let mut lines = Vec::new();
    for tier in tiers {
        println!("=== tier {tier:?}");
        let start = Instant::now();
        let counts =
            tier.run(filter).unwrap_or_else(|error| Counts::check(&format!("tier {tier:?}"), Err(error)));
        let seconds = start.elapsed().as_secs();
        lines.push(format!(
            "{:<11}{:>5} passed {:>4} failed {:>6} s of {:>4} s",
            format!("{tier:?}"),
            counts.passed,
            counts.failed,
            seconds,
            tier.budget()
        ));
        total += counts;
    }
    println!("\n{}\n", lines.join("\n"));
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 || total.passed == 0 {
        bail!("not green");
    }
    Ok(())
}

fn static_checks() -> Counts {
    let mut counts = Counts::default();
    let deny = sh::cache_dir().join("tools/bin/cargo-deny");
    let deny = if deny.is_file() { deny } else { Path::new("cargo-deny").to_owned() };
    let mut deny = Command::new(deny);
    deny.args(["check", "bans", "licenses", "sources"]).current_dir(sh::root());
    let programs = ["--package", "gantry-shim", "--no-default-features", "--features", "programs"];
    let mut clippy_programs = sh::cargo(&["clippy"]);
    clippy_programs.args(programs).args(["--lib", "--bins", "--", "--deny", "warnings"]);
    for (what, mut command) in [
        ("fmt", sh::cargo(&["fmt", "--all", "--check"])),
        ("clippy", sh::cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])),
        // Tests that no plain `cargo test` runs are not among `--all-targets`.
        ("clippy of the kernel tier", sh::cargo(&KERNEL_CLIPPY.split_whitespace().collect::<Vec<_>>())),
        ("clippy of the static programs", clippy_programs),
        ("licences, bans and sources of dependencies", deny),
        ("go vet of the round trip", sh::go("tests/go/proto", &["vet", "./..."])),
    ] {
        counts += Counts::check(what, sh::run(&mut command));
    }
    counts += Counts::check("gofmt", gofmt());
    // The tidy rules are tests of this crate.
    match summary::count(&mut sh::cargo(&["test", "--package", "xtask"])) {
        Ok(more) => counts += more,
        Err(error) => counts += Counts::check("tidy", Err(error)),
    }
    counts
}

/// gofmt lists files and succeeds all the same.
fn gofmt() -> Result<()> {
    let listed = sh::output(Command::new("gofmt").args(["-l", "tests/go"]).current_dir(sh::root()))?;
    if !listed.is_empty() {
        bail!("gofmt -w {}", String::from_utf8_lossy(&listed).trim().replace('\n', " "));
    }
    Ok(())
}

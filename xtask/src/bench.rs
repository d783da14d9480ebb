//! `cargo xtask bench claims|first|pods|pull`; this file is the first: it builds what is measured, enters namespaces of its own, prints medians
//! and ratios. Keeps nothing: evidence is put into docs/evidence by hand, with the machine it came
//! from. Called by `main`.

pub(crate) mod claims;
pub(crate) mod kind_load;
mod picture;
pub(crate) mod pods;
pub(crate) mod pull;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::bench::{self, BenchOutcome, Counts, Measured, Start, median, percentile};
use gantry_tests::peers::Programs;
use gantry_tests::place;

use crate::cell::{self, Cell};
use crate::{build, cluster, sh};

/// Builds everything, then runs the other half in new namespaces.
pub(crate) fn outside(counts: Counts, built: Option<&Path>) -> Result<()> {
    sh::require_root("the bench")?;
    let programs = match built {
        Some(programs) => std::path::absolute(programs)?,
        None => build::build(true)?,
    };
    Programs::build()?;
    let own = std::env::current_exe().context("find this program")?;
    let cell = Cell::new()?;
    let mut command = cell.command(&own)?;
    command.arg("bench-inside").arg(format!("--pods={}", counts.pods));
    command.args([format!("--at-once={}", counts.at_once), format!("--pulls={}", counts.pulls)]);
    let ran = sh::run(command.env(place::BIN_DIR, programs));
    cell.close()?;
    ran
}

/// The bench itself.
pub(crate) fn inside(counts: Counts) -> Result<()> {
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let before = load();
    let outcome = bench::first(counts)?;
    show_machine();
    println!("load before: {}, after: {}", before.trim(), load().trim());
    println!("external gunzip for containerd (igzip, unpigz in PATH): {}", gunzip());
    show_starts(&outcome, counts);
    show_pulls(&outcome, counts.pulls);
    Ok(())
}

/// Builds what a bench of a cluster needs, unless Gantry's programs are built already, and runs its other half in a place
/// of its own.
fn enter(inside: &str, words: &[String], built: Option<&Path>) -> Result<()> {
    sh::require_root("the bench")?;
    let programs = match built {
        Some(programs) => std::path::absolute(programs)?,
        None => build::build(true)?,
    };
    cluster::prepare_beside(&programs, false)?;
    cell::run_again(
        [inside].into_iter().chain(words.iter().map(String::as_str)).map(OsString::from),
        &programs,
    )
}

/// Figures say little without.
fn show_machine() {
    let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("\nmachine: {cores} cores, {}", version.trim());
}

fn sides(outcome: &BenchOutcome) -> [(&'static str, &Measured); 2] {
    [("containerd", &outcome.containerd), ("gantry", &outcome.gantry)]
}

/// A call of a pod's life and how long it took.
type Step = (&'static str, fn(&Start) -> Duration);

const STEPS: [Step; 6] = [
    ("RunPodSandbox", |pod| pod.sandbox),
    ("CreateContainer", |pod| pod.create),
    ("StartContainer", |pod| pod.start),
    ("start", Start::total),
    ("StopPodSandbox", |pod| pod.stop),
    ("RemovePodSandbox", |pod| pod.remove),
];

fn show_starts(outcome: &BenchOutcome, counts: Counts) {
    println!("\npods: image present, bridge + host-local, one container; p50 and p90 in ms");
    show_steps(&format!("{} each, in turns", counts.pods), outcome, |side| &side.starts);
    show_steps(&format!("{} at once", counts.at_once), outcome, |side| &side.together);
    let total = |side: &Measured| median(side.starts.iter().map(Start::total));
    println!("ratio: gantry starts a pod {}", times(total(&outcome.containerd), total(&outcome.gantry)));
}

fn show_steps(what: &str, outcome: &BenchOutcome, pods: fn(&Measured) -> &Vec<Start>) {
    if sides(outcome).iter().all(|(_, side)| pods(side).is_empty()) {
        return;
    }
    let heads = STEPS.map(|(name, _)| format!("{name:>18}"));
    println!("\n{what:<20}{}", heads.concat());
    for (name, side) in sides(outcome) {
        let cells = STEPS.map(|(_, step)| {
            let at = |percent| percentile(pods(side).iter().map(step), percent).as_secs_f64() * 1e3;
            format!("{:>18}", format!("{:.1} {:.1}", at(50), at(90)))
        });
        println!("{name:<20}{}", cells.concat());
    }
}

fn show_pulls(outcome: &BenchOutcome, each: usize) {
    println!(
        "\npull: cold image of 3 layers, {:.1} MB compressed, {} files, registry on loopback; {each} each, in turns; s",
        outcome.image_bytes as f64 / 1e6,
        outcome.image_files
    );
    let middle = |side: &Measured| median(side.pulls.iter().copied());
    for (name, side) in sides(outcome) {
        let all: Vec<String> = side.pulls.iter().map(|pull| format!("{:.2}", pull.as_secs_f64())).collect();
        println!("{name:<12}median {:.2}  ({})", middle(side).as_secs_f64(), all.join(" "));
    }
    println!("ratio: gantry pulls {}", times(middle(&outcome.containerd), middle(&outcome.gantry)));
}

fn times(theirs: Duration, ours: Duration) -> String {
    format!("{:.2} times as fast as containerd", theirs.as_secs_f64() / ours.as_secs_f64())
}

/// containerd takes one of these when it is there; a comparison must say so.
fn gunzip() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Vec<&str> = ["igzip", "unpigz"]
        .into_iter()
        .filter(|name| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
        .collect();
    if found.is_empty() { "none, so its own Go code".to_owned() } else { found.join(", ") }
}

//! The tiers that need root, on this host: builds the test binaries and runs each in a place of its
//! own, within a leak check. Never runs a test in the host's namespaces. Called by the tiers and,
//! for the binaries, by `vm`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::isolation;
use gantry_tests::place;

use crate::cell::Cell;
use crate::side_by_side::{self, Job};
use crate::summary::{self, Counts};
use crate::{leakcheck, sh};

pub(crate) const KERNEL: [&str; 2] = ["kernel", "netlink"];
pub(crate) const CRI: [&str; 2] = ["cri", "cni"];
/// The binary whose modules two VMs share.
pub(crate) const MODULES_IN: &str = "kernel";
/// Those that run side by side on a host. A cluster serves all of its binary's specs, and failpoints come in an order.
const SIDE_BY_SIDE: [&str; 5] = ["kernel", "netlink", "cri", "cni", "standalone"];
/// Of those, who has no modules to be divided by.
const WHOLE: &str = "netlink";
pub(crate) const PEER: [&str; 1] = ["peer"];
pub(crate) const STANDALONE: [&str; 1] = ["standalone"];
pub(crate) const CLUSTER: [&str; 1] = ["cluster"];
pub(crate) const DISRUPTION: [&str; 1] = ["disruption"];
pub(crate) const JOIN: [&str; 1] = ["join"];
pub(crate) const FAILPOINTS: [&str; 1] = ["failpoints"];
pub(crate) const FAULTS: [&str; 1] = ["faults"];
pub(crate) const MONITOR_COMPAT: [&str; 1] = ["monitor_compat"];
pub(crate) const REBOOT: [&str; 1] = ["reboot"];

/// A built test binary.
#[derive(Debug, Clone)]
pub(crate) struct TestBinary {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl TestBinary {
    fn is_side_by_side(&self) -> bool {
        SIDE_BY_SIDE.contains(&self.name.as_str())
    }
}

/// Builds test binaries that need root, without running them, of the same packages and features as the unit tests.
pub(crate) fn binaries(targets: &[&str]) -> Result<Vec<TestBinary>> {
    let mut command = sh::cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(sh::SELECTION);
    for test in targets {
        command.args(["--test", test]);
        if *test == "peer" {
            // What containerd tells beyond CRI is behind a feature, whose build needs protoc.
            command.args(["--features", "gantry-tests/containerd"]);
        }
    }
    let output = sh::output(&mut command)?;
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output).lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's JSON")?;
        if let Some(path) = message["executable"].as_str()
            && message["target"]["kind"][0] == "test"
        {
            let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
            found.push(TestBinary { name, path: path.into() });
        }
    }
    if found.len() != targets.len() {
        bail!("cargo built {found:?} instead of {targets:?}");
    }
    Ok(found)
}

/// In the name of a test that needs what only the small VM has: a criu that its kernel knows.
const ONLY_IN_THE_VM: &str = "only_in_the_vm";

/// The words after a test binary's name: it runs what any of the filters fits. One test at a time: a leak check sees all
/// processes.
fn libtest_args(filters: &[String]) -> Vec<String> {
    [&["--test-threads=1".to_owned()], filters].concat()
}

/// A test binary's command line. The netlink tests want a namespace that is not pid 1's, a cluster its own `/var/lib`.
pub(crate) fn words(name: &str, path: &Path, filters: &[String]) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if name == "netlink" {
        let own_network =
            ["unshare", "--mount", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];
        words.extend(own_network.map(OsString::from));
    }
    if matches!(name, "cluster" | "disruption" | "join") {
        words.extend(gantry_tests::cluster::isolation::INIT.map(OsString::from));
    }
    words.push(path.into());
    words.extend(libtest_args(filters).into_iter().map(OsString::from));
    words
}

/// Runs a tier on this host: the tests that `filter` fits, or all, in as many places as they can be divided into.
pub(crate) fn on_host(targets: &[&str], programs: &Path, filter: Option<&str>) -> Result<Counts> {
    sh::require_root("this tier")?;
    let mut jobs: Vec<Job> = Vec::new();
    for binary in binaries(targets)? {
        let groups = match filter {
            Some(filter) => vec![vec![filter.to_owned()]],
            None if binary.is_side_by_side() && binary.name != WHOLE => {
                side_by_side::groups(&binary.path, programs, 0)?
            }
            None => vec![Vec::new()],
        };
        for filters in groups {
            let binary = binary.clone();
            jobs.push(Box::new(move || in_a_cell(&binary, programs, &filters)));
        }
    }
    side_by_side::run(jobs)
}

/// Runs a test binary in a place of its own.
fn in_a_cell(binary: &TestBinary, programs: &Path, filters: &[String]) -> Result<Counts> {
    println!("--- {} on this host {}", binary.name, filters.join(" "));
    let mut cell = Cell::new()?;
    if binary.is_side_by_side() {
        cell.hide(&isolation::HIDDEN);
    }
    let mut command = leakcheck::checked(&cell)?;
    command.args(words(&binary.name, &binary.path, filters)).env(place::BIN_DIR, programs);
    command.args(["--skip", ONLY_IN_THE_VM]);
    let ran = summary::count(&mut command);
    let closed = cell.close();
    let mut counts = ran?;
    if let Err(error) = closed {
        counts += Counts::check(&format!("what {} left on this host", binary.name), Err(error));
    }
    Ok(counts)
}

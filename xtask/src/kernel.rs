//! The kernel tier on this host: builds the test binaries and runs them as root in mount, network
//! and pid namespaces of their own. Never runs a test in the host's. Called by the tiers and,
//! for the binaries, by `vm`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::place;

use crate::sh;
use crate::summary::{self, Counts};

/// Pid 1 of the namespaces is this shell: it reaps monitors whose runtime has ended.
const INIT: &str = r#"ip link set lo up && "$@"; exit $?"#;

/// A built test binary.
#[derive(Debug, Clone)]
pub(crate) struct TestBinary {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Builds the test binaries that need root, without running them.
pub(crate) fn binaries() -> Result<Vec<TestBinary>> {
    let mut command = sh::cargo(&[
        "test",
        "--package",
        "gantry-tests",
        "--package",
        "gantry-cni",
        "--test",
        "kernel",
        "--test",
        "netlink",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
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
    if found.len() != 2 {
        bail!("cargo built {found:?} instead of the binaries kernel and netlink");
    }
    Ok(found)
}

/// A command in new mount, network and pid namespaces, `lo` up; killed with its parent.
pub(crate) fn in_own_namespaces(program: &Path) -> Result<Command> {
    unshare(&["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"], program)
}

/// As [`in_own_namespaces`], with the host's processes in sight: what starts none compares itself
/// with pid 1 to see that it is elsewhere.
fn in_own_network(program: &Path) -> Result<Command> {
    unshare(&["--mount", "--net"], program)
}

fn unshare(namespaces: &[&str], program: &Path) -> Result<Command> {
    let mut command = Command::new("unshare");
    command
        .args(namespaces)
        .args(["--propagation", "private", "sh", "-c", INIT, "sh"])
        .arg(program)
        .env(place::OUTER_NETNS, place::own_netns()?);
    Ok(command)
}

/// The words after a test binary's name. One test at a time: a leak check sees all processes.
pub(crate) fn libtest_args(filter: Option<&str>) -> Vec<String> {
    let mut args = vec!["--test-threads=1".to_owned()];
    args.extend(filter.map(str::to_owned));
    args
}

/// Runs the tier on this host.
pub(crate) fn on_host(programs: &Path, filter: Option<&str>) -> Result<Counts> {
    sh::require_root("the kernel tier")?;
    let mut counts = Counts::default();
    for binary in binaries()? {
        println!("--- {} on this host", binary.name);
        let mut command = match binary.name.as_str() {
            "netlink" => in_own_network(&binary.path)?,
            _ => in_own_namespaces(&binary.path)?,
        };
        command.args(libtest_args(filter)).env(place::BIN_DIR, programs);
        counts += summary::count(&mut command)?;
    }
    Ok(counts)
}

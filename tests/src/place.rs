//! Where the tests run: their binaries, and namespaces that are not the host's. Owns the refusal
//! to run anywhere else; never makes a namespace (`cargo xtask test` does, or the small VM).
//! Called first by everything that starts a node.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use gantry_model::cgroup::names::Driver;

/// Folder of gantry, gantry-monitor, gantry-pause and gantry-workload.
pub const BIN_DIR: &str = "GANTRY_BIN_DIR";
/// The network namespace that the tests must not be in, as `net:[N]`.
pub const OUTER_NETNS: &str = "GANTRY_OUTER_NETNS";
/// Stands at the root of the small VM's file system, and nowhere else.
pub const VM_MARK: &str = "/gantry-vm";

/// Set where the cgroup hierarchies belong to the tests alone.
pub const OWN_CGROUPS: &str = "GANTRY_OWN_CGROUPS";

/// Below the folder of programs: the same programs with failpoints.
pub const FAILPOINTS: &str = "with-failpoints";

/// A copy of the repository's sources, for a machine that has not built them.
pub const SOURCES: &str = "GANTRY_SOURCES";

/// Below the folder of programs: a folder `vN` for each protocol, the same programs with the monitor of then.
pub const MONITOR_COMPAT: &str = "monitor-compat";

const RUN_IT: &str = "run it through `cargo xtask test --tier kernel`";

/// The folder of the programs under test.
///
/// # Errors
/// When it was not told, or holds no gantry.
pub fn bin_dir() -> Result<PathBuf> {
    let dir = std::env::var_os(BIN_DIR)
        .map(PathBuf::from)
        .with_context(|| format!("{BIN_DIR} is not set: {RUN_IT}"))?;
    for program in ["gantry", "gantry-monitor", "gantry-pause", "gantry-workload"] {
        if !dir.join(program).is_file() {
            bail!("{} holds no {program}: cargo xtask build", dir.display());
        }
    }
    Ok(dir)
}

/// This process's network namespace, as `net:[N]`.
///
/// # Errors
/// Without /proc.
pub fn own_netns() -> Result<String> {
    let link = std::fs::read_link("/proc/self/ns/net").context("read /proc/self/ns/net")?;
    Ok(link.to_string_lossy().into_owned())
}

/// Set where the nodes under test have systemd make their cgroups.
pub const SYSTEMD: &str = "GANTRY_TEST_SYSTEMD";

/// Whether every cgroup here is the tests' own.
#[must_use]
pub fn owns_cgroups() -> bool {
    std::env::var_os(OWN_CGROUPS).is_some() || (Path::new(VM_MARK).exists() && !with_systemd())
}

/// Whether the nodes under test have the cgroup driver systemd.
#[must_use]
pub fn with_systemd() -> bool {
    std::env::var_os(SYSTEMD).is_some()
}

/// The same, as the agent calls it.
#[must_use]
pub fn driver() -> Driver {
    if with_systemd() { Driver::Systemd } else { Driver::Cgroupfs }
}

/// Where these steps are below the root, by the driver.
#[must_use]
pub fn cgroup(steps: &[&str]) -> String {
    if !with_systemd() {
        return format!("/{}", steps.join("/"));
    }
    let steps: Vec<String> = steps.iter().map(|step| step.replace('-', "_")).collect();
    let slices = (1..=steps.len()).map(|count| format!("/{}.slice", steps[..count].join("-")));
    slices.collect()
}

/// What a client calls `cgroup_parent`, by the driver: steps below the root, which hold no dash.
#[must_use]
pub fn cgroup_parent(steps: &[&str]) -> String {
    if with_systemd() { format!("{}.slice", steps.join("-")) } else { format!("/{}", steps.join("/")) }
}

/// Ends the cgroup of these steps, found at these folders, as whoever named it does: it is there yet, and empty.
///
/// # Errors
/// When it is not.
pub fn end_named_steps(steps: &[&str], folders: &[&PathBuf]) -> Result<()> {
    let names = (2..=steps.len()).rev().filter_map(|count| steps.get(..count));
    if with_systemd() {
        for folder in folders {
            let events = std::fs::read_to_string(folder.join("cgroup.events"))?;
            ensure!(events.lines().any(|line| line == "populated 0"), "{}: {events}", folder.display());
        }
        for slice in names.map(cgroup_parent) {
            let ended = std::process::Command::new("systemctl").args(["stop", &slice]).status()?;
            ensure!(ended.success(), "systemctl stop {slice}: {ended}");
        }
        return Ok(());
    }
    for folder in folders {
        for folder in folder.ancestors().take(names.clone().count()) {
            std::fs::remove_dir(folder)
                .with_context(|| format!("{} is gone, or not empty", folder.display()))?;
        }
    }
    Ok(())
}

/// Refuses to go on in the host's own namespaces.
///
/// # Errors
/// When these may be the host's.
pub fn require_own_namespaces() -> Result<()> {
    if Path::new(VM_MARK).exists() {
        return Ok(());
    }
    let outer = std::env::var(OUTER_NETNS).ok().filter(|name| name.starts_with("net:["));
    let Some(outer) = outer else {
        bail!("{OUTER_NETNS} is not set, so these may be the host's namespaces: {RUN_IT}");
    };
    if own_netns()? == outer {
        bail!("these are the host's namespaces; the tests would change its links: {RUN_IT}");
    }
    Ok(())
}

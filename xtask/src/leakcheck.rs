//! `cargo xtask leakcheck -- COMMAND`: runs it in a place of its own and tells what it left there.
//! Owns the order: look, run, look again until clean. Never removes what it finds. Called by
//! `main`, and around every tier that needs root.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::place;
use gantry_tests::poll::FACTOR;

use crate::cell::Cell;
use crate::{pace, sh};

/// The subcommand inside the place.
const INSIDE: &str = "leakcheck-inside";

/// Where pods leave things when nobody says otherwise.
const ROOTS: [&str; 4] = ["/run/netns", "/run/gantry", "/var/lib/gantry", "/var/lib/cni/results"];
const LEASES: &str = "/var/lib/cni/networks";

/// What the line that tells of the check begins with.
const LINE: &str = "leakcheck: ";
/// The rest of the line when all is well.
const CLEAN: &str = "nothing was left behind";

/// What was left, when the line says so.
pub(crate) fn left(line: &str) -> Option<&str> {
    line.strip_prefix(LINE).filter(|left| *left != CLEAN)
}

/// Makes a place, runs the command in it, checks both.
pub(crate) fn outside(roots: &[PathBuf], command: &[OsString]) -> Result<()> {
    sh::require_root("leakcheck")?;
    let cell = Cell::new()?;
    let mut checked = checked(&cell)?;
    checked.args(command).env(EXTRA, std::env::join_paths(roots).context("a root with a colon")?);
    let ran = sh::run(&mut checked);
    let closed = cell.close();
    ran.and(closed)
}

/// More folders to look into, as a list like PATH.
const EXTRA: &str = "GANTRY_LEAKCHECK_ROOTS";

/// A leak check in the cell; the command to check follows as its arguments.
pub(crate) fn checked(cell: &Cell) -> Result<Command> {
    let own = std::env::current_exe().context("find this program")?;
    let mut command = cell.command(&own)?;
    command.args([INSIDE, "--"]);
    Ok(command)
}

/// The half inside: ends as the command does, or with 1 when something is left.
pub(crate) fn inside(command: &[OsString]) -> Result<ExitCode> {
    place::require_own_namespaces()?;
    let Some((program, args)) = command.split_first() else { bail!("no command to run") };
    let extra = std::env::var_os(EXTRA).unwrap_or_default();
    let given = std::env::split_paths(&extra).filter(|path| !path.as_os_str().is_empty());
    let scope = Scope {
        every_cgroup: place::owns_cgroups(),
        folders: ROOTS.iter().map(PathBuf::from).chain([std::env::temp_dir()]).chain(given).collect(),
        leases: LEASES.into(),
        ..Scope::default()
    };
    let factor = pace::factor()?;
    println!("waits may be {factor:.1} times as long as usual");
    let before = Snapshot::take(&scope)?;
    let status = Command::new(program)
        .args(args)
        .env(FACTOR, factor.to_string())
        .status()
        .with_context(|| format!("start {}", program.to_string_lossy()))?;
    if let Err(error) = before.await_clean(&scope) {
        println!("{LINE}{error:#}");
        return Ok(ExitCode::FAILURE);
    }
    println!("{LINE}{CLEAN}");
    // As a shell tells of a signal.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

//! `cargo xtask demo`: two pods from YAML files, end to end, shown as a user would see them. Runs in
//! namespaces of its own, so that the host keeps its links and settings; afterwards it looks for
//! anything left. Never hides a command: each is printed before it runs. Called by `main`.

mod stage;
mod tour;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;

use crate::cell::Cell;
use crate::leakcheck::checked as leakcheck_around;
use crate::{build, sh};

/// The picture.
const PICTURE: &str = "web.svg";

/// Builds, then runs the other half in new namespaces, by sudo when this user is not root: what cargo
/// makes stays the user's. The picture goes to `out`.
pub(crate) fn outside(release: bool, out: Option<PathBuf>, built: Option<PathBuf>) -> Result<()> {
    let programs = built.map_or_else(|| build::build(release), Ok)?;
    let own = std::env::current_exe().context("find this program")?;
    let out = out.unwrap_or_else(|| sh::target_dir().join("demo"));
    let out = std::path::absolute(&out).with_context(|| out.display().to_string())?;
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    if !sh::is_root()? {
        sh::run(&mut as_root(&own, &programs, &out))?;
        return make_own(&out.join(PICTURE));
    }
    let cell = Cell::new()?;
    let mut command = leakcheck_around(&cell)?;
    command.arg(own).args(["demo-inside", "--out"]).arg(&out).env(place::BIN_DIR, programs);
    let ran = sh::run(&mut command);
    let closed = cell.close();
    ran.and(closed)?;
    println!("\nthe waterfall as a picture: {}", out.join(PICTURE).display());
    Ok(())
}

/// The same again by sudo, which takes PATH and most other variables away.
fn as_root(own: &Path, programs: &Path, out: &Path) -> Command {
    let mut command = Command::new("sudo");
    command.args(["--", "env"]);
    for name in ["PATH", "CARGO_MANIFEST_DIR", "CARGO_TARGET_DIR"] {
        if let Some(value) = std::env::var_os(name) {
            let mut pair = OsString::from(format!("{name}="));
            pair.push(value);
            command.arg(pair);
        }
    }
    command.arg(own).arg("demo").arg("--built").arg(programs).arg("--out").arg(out);
    command
}

/// Root's file in a folder of ours becomes our file.
fn make_own(path: &Path) -> Result<()> {
    let fresh = path.with_extension("new");
    std::fs::copy(path, &fresh)
        .and_then(|_| std::fs::rename(&fresh, path))
        .with_context(|| format!("take over {}", path.display()))
}

/// The demo itself.
pub(crate) fn inside(out: &Path) -> Result<()> {
    place::require_own_namespaces()?;
    let start = Instant::now();
    let roots = Roots::new()?;
    // Nothing but Gantry is installed here: the built-in network has to do.
    std::fs::remove_file(roots.path("net.d/10-test.conflist")).context("remove the tests' network")?;
    let scope = Scope {
        folders: ["netns", "cache"].map(|name| roots.path(name)).to_vec(),
        bridges: Vec::new(),
        ..roots.scope()
    };
    let before = Snapshot::take(&scope)?;
    let roots = tour::show(roots, out)?;
    stage::title("is anything left?", "processes, mounts, links, nftables rules, cgroups, leases: compared");
    before.await_clean(&scope)?;
    drop(roots);
    println!("nothing; all of it took {} s", start.elapsed().as_secs());
    Ok(())
}

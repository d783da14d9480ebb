//! Monitors of earlier protocols: built from the commits that had them last, kept in the cache, and put
//! beside today's programs for the tier `monitor-compat`. Owns the list; a new protocol version adds a line, a line
//! never goes while such a monitor may live. Called by `tiers`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use gantry_tests::place;

use crate::{build, sh};

/// The protocol, and the last commit that spoke it.
const MONITORS: [(u32, &str); 2] =
    [(1, "4d778f17c1229bfd5295ab81c3ede938a3bdddc0"), (2, "2453f9c94e36f3a655169c52c4112774f728ebb1")];

const MONITOR: &str = "gantry-monitor";

/// Builds today's programs, and puts `monitor-compat/vN` beside them: today's, but for an old monitor.
pub(crate) fn programs() -> Result<PathBuf> {
    let today = build::build(false)?;
    for (version, commit) in MONITORS {
        let monitor = kept(version, commit)?;
        let folder = today.join(place::MONITOR_COMPAT).join(format!("v{version}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        for program in build::BESIDE.into_iter().filter(|program| *program != MONITOR) {
            build::install(&today.join(program), &folder.join(program))?;
        }
        build::install(&monitor, &folder.join(MONITOR))?;
    }
    Ok(today)
}

/// The monitor of one commit, out of the cache or built for it.
fn kept(version: u32, commit: &str) -> Result<PathBuf> {
    let folder = sh::cache_dir().join("older");
    let monitor = folder.join(format!("{MONITOR}-v{version}-{}", &commit[..12]));
    if monitor.is_file() {
        return Ok(monitor);
    }
    let known = Command::new("git")
        .args(["cat-file", "-e", &format!("{commit}^{{commit}}")])
        .current_dir(sh::root())
        .stderr(Stdio::null())
        .status()
        .context("start git")?;
    ensure!(
        known.success(),
        "the history here lacks {commit}, whose monitor speaks protocol {version}: git fetch --unshallow, or \
         put that monitor to {}",
        monitor.display()
    );
    // Of its own: cargo would take one commit's crates for the other's.
    let source = folder.join(format!("source-v{version}"));
    unpack(commit, &source)?;
    let target = source.join("target");
    let built = build::static_program(&source, &target, MONITOR)?;
    build::install(&built, &monitor)?;
    std::fs::remove_dir_all(&source).with_context(|| format!("remove {}", source.display()))?;
    Ok(monitor)
}

fn unpack(commit: &str, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("remove {}", to.display()))?;
    }
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    let archive = to.with_extension("tar");
    let output = format!("--output={}", archive.display());
    sh::run(Command::new("git").args(["archive", &output, commit]).current_dir(sh::root()))?;
    sh::run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(to))?;
    std::fs::remove_file(&archive).with_context(|| archive.display().to_string())
}

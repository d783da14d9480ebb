//! `cargo xtask build`: gantry itself, and the static programs beside it. The static ones need
//! other code generation flags, hence cargo calls of their own with an explicit target, so that
//! the flags do not reach build scripts. Called by every task that runs something.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use gantry_tests::place;

use crate::sh;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// No relocations at run time: the monitor's memory stays private only where it is written.
const STATIC_FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// The programs beside gantry.
pub(crate) const BESIDE: [&str; 4] = ["gantry-monitor", "gantry-pause", "gantry-unpack", "gantry-workload"];

/// Builds everything and returns the folder it lies in.
pub(crate) fn build(release: bool) -> Result<PathBuf> {
    let folder = compile(release, &[], "programs")?;
    install_all(&folder)?;
    println!("built {} and {} beside it", folder.join("gantry").display(), BESIDE.join(", "));
    Ok(folder)
}

/// As `build`, and once more with failpoints into the folder `failpoints` beside it all.
pub(crate) fn with_failpoints() -> Result<PathBuf> {
    let folder = compile(false, &["--features", "gantry/failpoints"], "programs,failpoints")?;
    let wired = folder.join(place::FAILPOINTS);
    std::fs::create_dir_all(&wired).with_context(|| format!("make {}", wired.display()))?;
    install(&folder.join("gantry"), &wired.join("gantry"))?;
    install_all(&wired)?;
    // Last: what cargo leaves in its own place must be what is shipped.
    build(false)
}

fn install_all(folder: &Path) -> Result<()> {
    for program in BESIDE {
        install(&sh::target_dir().join(TARGET).join("tiny").join(program), &folder.join(program))?;
    }
    Ok(())
}

/// Builds one static program of another checkout; its own lock file and toolchain count.
pub(crate) fn static_program(checkout: &Path, target: &Path, name: &str) -> Result<PathBuf> {
    let args = ["build", "--locked", "--profile", "tiny", "--target", TARGET, "--package", "gantry-shim"];
    let mut command = sh::cargo(&args);
    command.args(["--no-default-features", "--features", "programs", "--bin", name]).current_dir(checkout);
    sh::run(command.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", STATIC_FLAGS))?;
    Ok(target.join(TARGET).join("tiny").join(name))
}

/// Leaves the static programs where cargo puts them, and returns the folder of gantry.
fn compile(release: bool, more: &[&str], programs: &str) -> Result<PathBuf> {
    let mut args = vec!["build", "--package", "gantry"];
    args.extend(more);
    if release {
        args.push("--release");
    }
    sh::run(&mut sh::cargo(&args))?;
    for package in [
        &["gantry-shim", "--no-default-features", "--features", programs, "--bin", "gantry-monitor"][..],
        &["gantry-workload"][..],
    ] {
        let mut args = vec!["build", "--profile", "tiny", "--target", TARGET, "--package"];
        args.extend(package);
        if package.len() > 1 {
            args.extend(["--bin", "gantry-pause", "--bin", "gantry-unpack"]);
        }
        sh::run(sh::cargo(&args).env("RUSTFLAGS", STATIC_FLAGS))?;
    }
    Ok(sh::target_dir().join(if release { "release" } else { "debug" }))
}

/// Test programs in Go: the other implementations that ours are held against.
pub(crate) const IN_GO: [&str; 2] = ["stream-client", "runc"];

/// Builds the Go programs into `folder`, static, so that the VM can run them, too.
pub(crate) fn in_go(folder: &Path) -> Result<()> {
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-o"])
        .arg(folder.join("stream-client"))
        .arg(".")
        .current_dir(sh::root().join("tests/go/stream"))
        .env("CGO_ENABLED", "0");
    sh::run(&mut command)?;
    // Its first steps are C, and its filters libseccomp's.
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-tags", "seccomp,netgo,osusergo"])
        .args(["-ldflags", "-s -w -linkmode external -extldflags \"-static\"", "-o"])
        .arg(folder.join("runc"))
        .arg("github.com/opencontainers/runc")
        .current_dir(sh::root().join("tests/go/peers"))
        .env("CGO_ENABLED", "1");
    sh::run(&mut command)
}

/// Copies by rename: a monitor that runs from the old file goes on undisturbed.
pub(crate) fn install(from: &Path, to: &Path) -> Result<()> {
    let at = || format!("copy {} to {}", from.display(), to.display());
    let fresh = to.with_extension("new");
    std::fs::copy(from, &fresh).with_context(at)?;
    std::fs::rename(&fresh, to).with_context(at)
}

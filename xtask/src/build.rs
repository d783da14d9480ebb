//! `cargo xtask build`: gantry itself, and the static programs beside it. The static ones need
//! other code generation flags, hence cargo calls of their own with an explicit target, so that
//! the flags do not reach build scripts. Called by every task that runs something.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use gantry_tests::place;

use crate::sh;

pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// No relocations at run time: the monitor's memory stays private only where it is written.
const STATIC_FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Functions of the same code are one: generic code is compiled for each of its types, and often comes out alike.
const FOLD: &str = "-Clink-arg=-Wl,--icf=all";

/// The programs beside gantry.
pub(crate) const BESIDE: [&str; 4] = ["gantry-monitor", "gantry-pause", "gantry-unpack", "gantry-workload"];

/// What users get.
pub(crate) const SHIPPED: [&str; 4] = ["gantry", "gantry-monitor", "gantry-pause", "gantry-unpack"];

/// Builds what is shipped, for the commit of that time, and gantry-workload, which tests want beside it.
///
/// No path of this machine is in the programs, so that another one makes the same. The static programs are
/// in a folder of their own: with other flags in the usual one, each kind of build would undo the other's.
pub(crate) fn dist(epoch: &str) -> Result<PathBuf> {
    let maps = maps()?;
    let rust: Vec<_> = maps.iter().map(|map| format!("--remap-path-prefix={map}")).collect();
    let c: Vec<_> = maps.iter().map(|map| format!("-ffile-prefix-map={map}")).collect();
    let (c, target) = (c.join(" "), sh::target_dir());
    let build = |command: &mut Command, flags: &[String]| {
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")).env("CFLAGS", &c);
        sh::run(command.env("SOURCE_DATE_EPOCH", epoch))
    };
    let args = [
        "rustc",
        "--locked",
        "--profile",
        "dist",
        "--target",
        TARGET,
        "--package",
        "gantry",
        "--bin",
        "gantry",
    ];
    build(sh::cargo(&args).args(["--", FOLD]), &rust)?;
    let folder = target.join(TARGET).join("dist");
    let of_static = target.join("dist-static");
    let static_flags: Vec<_> = STATIC_FLAGS.split(' ').map(str::to_owned).chain(rust).collect();
    for package in STATIC {
        let mut command = sh::cargo(&["build", "--locked", "--profile", "tiny", "--target", TARGET]);
        build(command.args(package).env("CARGO_TARGET_DIR", &of_static), &static_flags)?;
    }
    for program in BESIDE {
        install(&of_static.join(TARGET).join("tiny").join(program), &folder.join(program))?;
    }
    Ok(folder)
}

/// Folders of this machine, and what stands for them; of two that hold a path, the later one counts.
fn maps() -> Result<Vec<String>> {
    let mut maps = vec![(sh::root(), "/gantry"), (sh::target_dir(), "/target")];
    let sources = cargo_home()?.join("registry/src");
    for entry in std::fs::read_dir(&sources).with_context(|| sources.display().to_string())? {
        maps.push((entry?.path(), "/crates"));
    }
    maps.push((toolchain()?, "/rust"));
    Ok(maps.into_iter().map(|(from, to)| format!("{}={to}", from.display())).collect())
}

/// Cargo's own folder.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("CARGO_HOME") {
        return Ok(folder.into());
    }
    Ok(PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"))
}

/// The folder of Rust's toolchain.
pub(crate) fn toolchain() -> Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = sh::output(Command::new(rustc).args(["--print", "sysroot"]).current_dir(sh::root()))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&sysroot).trim()))
}

/// Builds everything and returns the folder it lies in.
pub(crate) fn build(release: bool) -> Result<PathBuf> {
    let folder = compile(release, &[], &[])?;
    install_all(&folder)?;
    println!("built {} and {} beside it", folder.join("gantry").display(), BESIDE.join(", "));
    Ok(folder)
}

/// As `build`, and once more with failpoints into the folder `failpoints` beside it all.
pub(crate) fn with_failpoints() -> Result<PathBuf> {
    let folder =
        compile(false, &["--features", "gantry/failpoints"], &["--features", "gantry-monitor/failpoints"])?;
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
fn compile(release: bool, more: &[&str], of_monitor: &[&str]) -> Result<PathBuf> {
    let mut args = vec!["build", "--package", "gantry"];
    args.extend(more);
    if release {
        args.push("--release");
    }
    sh::run(&mut sh::cargo(&args))?;
    for package in STATIC {
        let mut command = sh::cargo(&["build", "--profile", "tiny", "--target", TARGET]);
        let features = if package.contains(&"gantry-monitor") { of_monitor } else { &[] };
        sh::run(command.args(package).args(features).env("RUSTFLAGS", STATIC_FLAGS))?;
    }
    Ok(sh::target_dir().join(if release { "release" } else { "debug" }))
}

/// What cargo is to build for the programs beside gantry, a call each: packages of one call share their features.
const STATIC: [&[&str]; 3] = [
    &["--package", "gantry-monitor", "--bins"],
    &["--package", "gantry-unpack", "--bins"],
    &["--package", "gantry-workload"],
];

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

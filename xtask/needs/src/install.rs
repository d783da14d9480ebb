//! Installs Debian packages with apt, and cargo-deny with cargo. Owns the calls; what is missing is
//! said by the caller. Never installs what is there. Called by `main`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gantry_needs::{CARGO_DENY, Need, exists, packages as packages_of, path};

/// Whether this process is root's.
pub(crate) fn is_root() -> Result<bool, String> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("read /proc/self/status: {error}"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(ids.split_whitespace().nth(1) == Some("0"))
}

/// Installs the packages of these needs, or only names them.
pub(crate) fn packages(needs: &[Need], no_install: bool) -> Result<(), String> {
    let packages = packages_of(needs);
    let missing: Vec<_> = needs.iter().map(|need| need.what).collect();
    let line = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if no_install {
        return Err(format!("missing {}: {line}", missing.join(", ")));
    }
    if !exists("apt-get") {
        return Err(format!(
            "missing {}: this is no Debian system; install what Debian has in {}",
            missing.join(", "),
            packages.join(" ")
        ));
    }
    let by = if is_root()? { "" } else { "sudo " };
    println!("missing {}: {by}{line}", missing.join(", "));
    apt(&["update", "-qq"])?;
    let mut args = vec!["install", "--yes", "-qq", "--no-install-recommends"];
    args.extend(&packages);
    apt(&args)?;
    if packages.contains(&"docker-registry") {
        stop_registry()?;
    }
    Ok(())
}

/// The package starts a registry on port 5000 of the host, which nobody asked for: the tests have
/// their own.
fn stop_registry() -> Result<(), String> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    println!("systemctl disable --now docker-registry");
    run(Path::new("systemctl"), &["disable", "--now", "docker-registry"])
}

/// What the test tiers download: apt's lists where a first run will ask for packages, and cargo-deny.
pub(crate) fn caches(tiers: &[String]) -> Result<(), String> {
    let cache = std::env::var_os("GANTRY_CACHE").map_or_else(|| "/var/cache/gantry".into(), PathBuf::from);
    let fetched =
        ["vm/kernel-backports/boot", "debs/nginx.list"].iter().all(|path| cache.join(path).exists());
    if !fetched && is_root()? {
        apt(&["update", "-qq"])?;
    }
    let lints = tiers.is_empty() || tiers.iter().any(|tier| tier == "static");
    let tools = cache.join("tools");
    if !lints || tools.join("bin/cargo-deny").is_file() || exists("cargo-deny") {
        return Ok(());
    }
    println!("installing cargo-deny {CARGO_DENY}, some minutes the first time");
    let root = tools.to_string_lossy().into_owned();
    let package = format!("cargo-deny@{CARGO_DENY}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(Path::new(&cargo), &["install", "--quiet", "--locked", &package, "--root", &root])
}

fn apt(args: &[&str]) -> Result<(), String> {
    if is_root()? {
        return run(Path::new("apt-get"), args);
    }
    let mut words = vec!["--", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
    words.extend(args);
    run(Path::new("sudo"), &words)
}

fn run(program: &Path, args: &[&str]) -> Result<(), String> {
    let shown = format!("{} {}", program.display(), args.join(" "));
    let status = Command::new(program)
        .args(args)
        .env("PATH", path())
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // What they say is not the tests' output.
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("start {shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

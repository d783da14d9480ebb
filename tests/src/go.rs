//! Go programs that tests need: upstream's plugins, peers, and small programs on upstream's libraries. Owns where they
//! are built to; never downloads in a test's own network (`cargo xtask test` builds them before it goes there: see
//! [`build`]). Called by the tests that compare with upstream, and by xtask beforehand.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Where what is built lies, outside of every checkout: `$GANTRY_CACHE/go`.
pub(crate) fn cache() -> PathBuf {
    let cache = std::env::var_os("GANTRY_CACHE").map_or_else(|| "/var/cache/gantry".into(), PathBuf::from);
    cache.join("go")
}

/// `$GANTRY_CACHE/go/MODULE/NAME`.
fn place_of(module: &str, package: &str) -> PathBuf {
    let name = package.rsplit('/').next().unwrap_or(package);
    cache().join(module).join(name)
}

/// The folder of a module, `tests/go/MODULE` of this checkout: asked at run time, since checkouts may share binaries.
///
/// # Errors
/// When neither cargo nor the current folder tells where the checkout is.
pub(crate) fn folder_of(module: &str) -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let current = std::env::current_dir().context("the current folder")?;
    let below = |folder: &Path| folder.join("tests/go").join(module);
    manifest
        .iter()
        .chain([&current])
        .flat_map(|start| start.ancestors())
        .map(below)
        .find(|folder| folder.join("go.mod").is_file())
        .with_context(|| format!("no tests/go/{module} above {}", current.display()))
}

/// Builds a package of the module `tests/go/MODULE`, static, and returns the program. Go itself sees when nothing has
/// changed. `package` may be one of the module's own (`./drive`) or of a module that it requires.
///
/// # Errors
/// When Go is not installed, or does not build it: without network, when its modules were never downloaded.
pub fn build(module: &str, package: &str) -> Result<PathBuf> {
    let (folder, program) = (folder_of(module)?, place_of(module, package));
    if let Some(parent) = program.parent() {
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    let output = Command::new("go")
        .args(["build", "-trimpath", "-o"])
        .args([program.as_os_str(), package.as_ref()])
        .current_dir(&folder)
        .env("CGO_ENABLED", "0")
        .output()
        .context("start go: Go 1.26 or newer, from https://go.dev/dl, its bin in PATH")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go build {package} in {}: {}\n{said}", folder.display(), output.status);
    Ok(program)
}

/// A module's folder in Go's cache, of the version that `tests/go/MODULE` requires.
///
/// # Errors
/// As [`build`].
pub fn module(of: &str, name: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", name])
        .current_dir(folder_of(of)?)
        .output()
        .context("start go: Go 1.26 or newer, from https://go.dev/dl, its bin in PATH")?;
    ensure!(output.status.success(), "go mod download: {}", String::from_utf8_lossy(&output.stderr).trim());
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("Go's JSON")?;
    Ok(PathBuf::from(told["Dir"].as_str().context("a module without a folder")?))
}

/// The upstream plugins that tests compare with, in one folder of their own.
pub const UPSTREAM_PLUGINS: [&str; 5] = [
    "github.com/containernetworking/plugins/plugins/main/bridge",
    "github.com/containernetworking/plugins/plugins/main/ptp",
    "github.com/containernetworking/plugins/plugins/main/loopback",
    "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "github.com/containernetworking/plugins/plugins/meta/portmap",
];

/// Builds [`UPSTREAM_PLUGINS`] and returns their folder.
///
/// # Errors
/// As [`build`].
pub fn upstream_plugins() -> Result<PathBuf> {
    for package in UPSTREAM_PLUGINS {
        build("cni", package)?;
    }
    let folder = place_of("cni", "x");
    folder.parent().map(Path::to_owned).context("a folder of plugins")
}

/// Builds upstream's libcni as a program: `tests/go/cni/drive`.
///
/// # Errors
/// As [`build`].
pub fn libcni() -> Result<PathBuf> {
    build("cni", "./drive")
}

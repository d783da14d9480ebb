//! The programs that Gantry is measured against and checked with: containerd, runc and the upstream
//! CNI plugins, built from their Go modules, and the CRI suite of `tests/go/cri` and the tour of `tests/go/tour`. Owns their
//! building and where they lie; never runs one (that is `containerd` and `suite`). Called by xtask
//! before it enters the tests' namespaces, which have no way out to a module proxy, and by those two.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::go;

/// How one module's commands are built.
struct BuildSpec {
    /// Folder below `tests/go`.
    module: &'static str,
    cgo: bool,
    tags: &'static str,
    /// Folder below the programs' own.
    to: &'static str,
    packages: &'static [&'static str],
}

const CONTAINERD: &str = "github.com/containerd/containerd/v2/cmd/containerd";
const SHIM: &str = "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2";
const CTR: &str = "github.com/containerd/containerd/v2/cmd/ctr";

const RECIPES: [BuildSpec; 5] = [
    BuildSpec {
        module: "peers",
        cgo: false,
        tags: "no_btrfs,no_devmapper,no_zfs",
        to: "",
        packages: &[CONTAINERD, SHIM, CTR],
    },
    // nsenter is C, and the seccomp filter libseccomp's.
    BuildSpec {
        module: "peers",
        cgo: true,
        tags: "seccomp",
        to: "",
        packages: &["github.com/opencontainers/runc"],
    },
    BuildSpec {
        module: "peers",
        cgo: false,
        tags: "",
        to: "cni",
        packages: &[
            "github.com/containernetworking/plugins/plugins/ipam/host-local",
            "github.com/containernetworking/plugins/plugins/main/bridge",
            "github.com/containernetworking/plugins/plugins/main/loopback",
            "github.com/containernetworking/plugins/plugins/main/ptp",
            "github.com/containernetworking/plugins/plugins/meta/portmap",
        ],
    },
    BuildSpec { module: "cri", cgo: false, tags: "", to: "", packages: &["."] },
    BuildSpec { module: "tour", cgo: false, tags: "", to: "", packages: &["."] },
];

/// What `kind load` does on a node, and the crictl that it does it with.
const KIND: BuildSpec = BuildSpec {
    module: "kind",
    cgo: false,
    tags: "",
    to: "kind",
    packages: &[".", "sigs.k8s.io/cri-tools/cmd/crictl"],
};

/// kind itself; its name is the other one's.
const KIND_CLI: BuildSpec =
    BuildSpec { module: "kind", cgo: false, tags: "", to: "kind-cli", packages: &["sigs.k8s.io/kind"] };

/// Built programs.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Builds what is not up to date: minutes the first time, seconds later.
    ///
    /// # Errors
    /// When Go or libseccomp's headers are missing, or a module cannot be fetched.
    pub fn build() -> Result<Self> {
        Self::build_these(&RECIPES.each_ref())?;
        Self::built()
    }

    /// Builds the CRI suite and the tour alone, which needs no C compiler and a fraction of the time.
    ///
    /// # Errors
    /// As [`Programs::build`].
    pub fn build_suite() -> Result<()> {
        let [.., suite, tour] = &RECIPES;
        Self::build_these(&[suite, tour])
    }

    /// Builds kind itself, and crictl.
    ///
    /// # Errors
    /// As [`Programs::build`].
    pub fn build_kind_cli() -> Result<()> {
        Self::build_these(&[&KIND, &KIND_CLI])
    }

    /// kind itself, built before.
    ///
    /// # Errors
    /// As [`Programs::suite`].
    pub fn kind_cli() -> Result<PathBuf> {
        Self::there("kind-cli/kind")
    }

    /// Builds kind's own code and crictl alone.
    ///
    /// # Errors
    /// As [`Programs::build`].
    pub fn build_kind() -> Result<()> {
        Self::build_these(&[&KIND])
    }

    /// `kind`, which is what `kind load` does on a node, or `crictl`; built before.
    ///
    /// # Errors
    /// As [`Programs::suite`].
    pub fn kind(name: &str) -> Result<PathBuf> {
        Self::there(&format!("kind/{name}"))
    }

    /// The CRI suite, built before.
    ///
    /// # Errors
    /// When it is missing; names the command that builds it.
    pub fn suite() -> Result<PathBuf> {
        Self::there("cri")
    }

    /// The tour, built before.
    ///
    /// # Errors
    /// As [`Programs::suite`].
    pub fn tour() -> Result<PathBuf> {
        Self::there("tour")
    }

    fn there(name: &str) -> Result<PathBuf> {
        let path = Self::place().path(name);
        if !path.is_file() {
            bail!("{} is not there: cargo xtask peers", path.display());
        }
        Ok(path)
    }

    fn build_these(recipes: &[&BuildSpec]) -> Result<()> {
        let programs = Self::place();
        for recipe in recipes {
            let to = programs.folder.join(recipe.to);
            std::fs::create_dir_all(&to).with_context(|| format!("make {}", to.display()))?;
            // The slash makes it a folder to go, also for a single package.
            let output = format!("{}/", to.display());
            let mut command = Command::new("go");
            command
                .current_dir(go::folder_of(recipe.module)?)
                .env("CGO_ENABLED", if recipe.cgo { "1" } else { "0" })
                .args(["build", "-trimpath", "-tags", recipe.tags, "-o", &output])
                .args(recipe.packages)
                .stdin(Stdio::null());
            let status = command.status().context("start go: Go 1.26 is needed for the peers")?;
            ensure!(
                status.success(),
                "go build of {} in tests/go/{}: {status}",
                recipe.packages.join(" "),
                recipe.module
            );
        }
        Ok(())
    }

    /// What was built before.
    ///
    /// # Errors
    /// Names what is missing, and the command that builds it.
    pub fn built() -> Result<Self> {
        let programs = Self::place();
        for name in [
            "containerd",
            "containerd-shim-runc-v2",
            "ctr",
            "runc",
            "cri",
            "tour",
            "cni/bridge",
            "cni/portmap",
        ] {
            let path = programs.path(name);
            if !path.is_file() {
                bail!("{} is not there: cargo xtask peers", path.display());
            }
        }
        Ok(programs)
    }

    fn place() -> Self {
        Programs { folder: go::cache().join("bin") }
    }

    /// One of them.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of containerd, its shim and runc.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_peers_is_kept_by_its_module() {
        let kept = std::fs::read_to_string(go::folder_of("peers").unwrap().join("commands.go")).unwrap();
        for recipe in RECIPES.iter().filter(|recipe| recipe.module == "peers") {
            for package in recipe.packages {
                assert!(kept.contains(&format!("_ \"{package}\"")), "{package} is not in commands.go");
            }
        }
    }
}

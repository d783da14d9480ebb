//! The programs of a cluster: etcd, the control plane, kubectl, the upstream kubelet, what runs in its pods, and
//! upstream's suites. Owns how each is built from its Go module and where it lies; never runs one. Called by xtask before
//! it enters the tests' namespaces, which have no way out to a module proxy, and by those who start them.
//!
//! A build is known by a stamp beside its programs: recipe, go.mod and go.sum. Where it stands Go is not even asked,
//! since it takes seconds to find out that nothing has changed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{go, image};

/// The release that everything here is of.
pub const KUBERNETES: &str = "v1.36.3";

/// What is built together, since it is needed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// etcd, API server, controller manager, scheduler, kubectl
    ControlPlane,
    /// kubelet and kube-proxy
    Node,
    /// What runs in test images: agnhost and small ones
    Images,
    /// CoreDNS
    Dns,
    /// metrics-server
    Metrics,
    /// The tests' CSI driver, stand-ins for its sidecars, and upstream's sanity suite
    Csi,
    /// kubeadm, which joins a node as a user would
    Kubeadm,
    /// e2e.test and ginkgo
    E2e,
    /// e2e_node.test and ginkgo
    E2eNode,
}

/// One call of Go.
#[derive(Debug, Clone, Copy)]
struct Recipe {
    /// Folder below `tests/go`, and below the cache.
    module: &'static str,
    packages: &'static [&'static str],
    output: GoOutput,
}

/// Where Go puts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoOutput {
    /// Each under its package's last word
    Folder,
    /// One, under this name
    Program(&'static str),
    /// One package's tests, under this name
    Test(&'static str),
}

const ETCD: Recipe =
    Recipe { module: "etcd", packages: &["go.etcd.io/etcd/server/v3"], output: GoOutput::Program("etcd") };

const CSI: Recipe = Recipe {
    module: "csi",
    packages: &[
        "./hostpathplugin",
        "./csi-node-driver-registrar",
        "./csi-provisioner",
        "./csi-attacher",
        "./csi-resizer",
        "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
    ],
    output: GoOutput::Folder,
};

const GINKGO: Recipe = Recipe {
    module: "kubernetes",
    packages: &["github.com/onsi/ginkgo/v2/ginkgo"],
    output: GoOutput::Folder,
};

const ALL: [Set; 9] = [
    Set::ControlPlane,
    Set::Node,
    Set::Images,
    Set::Dns,
    Set::Metrics,
    Set::Csi,
    Set::Kubeadm,
    Set::E2e,
    Set::E2eNode,
];

impl Set {
    fn recipes(self) -> Vec<Recipe> {
        let kubernetes = |packages, output| Recipe { module: "kubernetes", packages, output };
        match self {
            Set::ControlPlane => vec![
                ETCD,
                kubernetes(
                    &[
                        "k8s.io/kubernetes/cmd/kube-apiserver",
                        "k8s.io/kubernetes/cmd/kube-controller-manager",
                        "k8s.io/kubernetes/cmd/kube-scheduler",
                        "k8s.io/kubernetes/cmd/kubectl",
                    ],
                    GoOutput::Folder,
                ),
            ],
            Set::Node => vec![kubernetes(
                &["k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy"],
                GoOutput::Folder,
            )],
            Set::Images => vec![kubernetes(
                &[
                    "k8s.io/kubernetes/test/images/agnhost",
                    "k8s.io/kubernetes/test/images/nonewprivs",
                    "k8s.io/kubernetes/test/images/sample-device-plugin",
                    "k8s.io/sample-apiserver",
                ],
                GoOutput::Folder,
            )],
            Set::Dns => {
                vec![Recipe { module: "dns", packages: &["."], output: GoOutput::Program("coredns") }]
            }
            Set::Metrics => vec![Recipe {
                module: "metrics",
                packages: &["sigs.k8s.io/metrics-server/cmd/metrics-server"],
                output: GoOutput::Folder,
            }],
            Set::Csi => vec![CSI],
            Set::Kubeadm => vec![kubernetes(&["k8s.io/kubernetes/cmd/kubeadm"], GoOutput::Folder)],
            Set::E2e => {
                vec![kubernetes(&["k8s.io/kubernetes/test/e2e"], GoOutput::Test("e2e.test")), GINKGO]
            }
            Set::E2eNode => {
                vec![
                    kubernetes(&["k8s.io/kubernetes/test/e2e_node"], GoOutput::Test("e2e_node.test")),
                    GINKGO,
                ]
            }
        }
    }
}

impl Recipe {
    fn names(&self) -> Vec<&'static str> {
        match self.output {
            GoOutput::Program(name) | GoOutput::Test(name) => vec![name],
            GoOutput::Folder => {
                self.packages.iter().map(|package| package.rsplit('/').next().unwrap_or(package)).collect()
            }
        }
    }

    /// What the build depends on, hashed.
    fn stamp(&self, source: &Path) -> Result<String> {
        let mut bytes = format!("{self:?}\n{KUBERNETES}\n").into_bytes();
        let mut files = vec![source.join("go.mod"), source.join("go.sum")];
        if self.packages.iter().any(|package| package.starts_with('.')) {
            files.extend(sources(source)?);
        }
        for file in files {
            bytes.extend(std::fs::read(&file).with_context(|| file.display().to_string())?);
        }
        Ok(image::sha256(&bytes))
    }

    fn build(&self) -> Result<()> {
        let source = go::folder_of(self.module)?;
        let folder = go::cache().join(self.module);
        let [first, ..] = self.names()[..] else { bail!("a recipe without a package") };
        let (stamp, at) = (self.stamp(&source)?, folder.join(format!(".{first}.stamp")));
        let built = self.names().iter().all(|name| folder.join(name).is_file());
        if built && std::fs::read_to_string(&at).is_ok_and(|known| known == stamp) {
            return Ok(());
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let target = match self.output {
            // The slash makes it a folder to go, also for a single package.
            GoOutput::Folder => format!("{}/", folder.display()),
            GoOutput::Program(name) | GoOutput::Test(name) => folder.join(name).display().to_string(),
        };
        let words: &[&str] =
            if matches!(self.output, GoOutput::Test(_)) { &["test", "-c"] } else { &["build"] };
        let mut command = Command::new("go");
        command
            .args(words)
            .args(["-trimpath", "-ldflags", &linked_in(), "-o", &target])
            .args(self.packages)
            .current_dir(&source)
            .env("CGO_ENABLED", "0")
            .stdin(Stdio::null());
        let status = command
            .status()
            .context("start go: Go 1.26 or newer, from https://go.dev/dl, its bin in PATH")?;
        ensure!(
            status.success(),
            "go {} of {} in tests/go/{}: {status}",
            words[0],
            self.packages.join(" "),
            self.module
        );
        std::fs::write(&at, stamp).with_context(|| at.display().to_string())
    }
}

/// A module's own Go files, in order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path.is_dir() {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "go") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The API server refuses to start without a version; no symbols, since nobody debugs these and they are large.
fn linked_in() -> String {
    let base = "k8s.io/component-base/version";
    format!(
        "-s -w -X {base}.gitVersion={KUBERNETES} -X {base}.gitMajor=1 -X {base}.gitMinor=36 \
         -X {base}.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}"
    )
}

/// Builds what is not up to date: minutes the first time.
///
/// # Errors
/// When Go is missing, or a module can neither be found nor fetched.
pub fn build(sets: &[Set]) -> Result<()> {
    for set in sets {
        for recipe in set.recipes() {
            recipe.build()?;
        }
    }
    Ok(())
}

/// A program built before.
///
/// # Errors
/// When no set has it, or it was not built; names the command that does.
pub fn path(name: &str) -> Result<PathBuf> {
    let recipes = ALL.into_iter().flat_map(Set::recipes);
    let recipe = recipes.into_iter().find(|recipe| recipe.names().contains(&name));
    let recipe = recipe.with_context(|| format!("{name} is not among the programs of a cluster"))?;
    let path = go::cache().join(recipe.module).join(name);
    ensure!(path.is_file(), "{} is not there: cargo xtask cluster build", path.display());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_kept_by_its_module() {
        for recipe in ALL.into_iter().flat_map(Set::recipes) {
            let folder = go::folder_of(recipe.module).unwrap();
            let Ok(kept) = std::fs::read_to_string(folder.join("commands.go")) else {
                assert_eq!(recipe.packages, ["."], "{} has no commands.go", recipe.module);
                continue;
            };
            for package in recipe.packages.iter().filter(|package| !package.starts_with('.')) {
                assert!(kept.contains(&format!("_ \"{package}\"")), "{package} is not in commands.go");
            }
        }
    }

    #[test]
    fn each_program_has_one_recipe_and_one_name() {
        let mut names: Vec<_> =
            ALL.into_iter().flat_map(Set::recipes).flat_map(|recipe| recipe.names()).collect();
        names.retain(|name| *name != "ginkgo");
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn every_staging_module_is_replaced_by_this_release() {
        let text = std::fs::read_to_string(go::folder_of("kubernetes").unwrap().join("go.mod")).unwrap();
        let own = text.lines().filter(|line| line.contains(" => k8s.io/"));
        let versions: Vec<_> = own.filter_map(|line| line.rsplit(' ').next()).collect();
        assert!(versions.len() > 30, "{versions:?}");
        assert!(
            versions.iter().all(|version| *version == KUBERNETES.replacen("v1.", "v0.", 1)),
            "{versions:?}"
        );
        assert!(text.contains(&format!("k8s.io/kubernetes {KUBERNETES}")));
    }
}

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
    /// One package's tests, built without a line of theirs
    TestWithout(Without),
}

/// What stands in the way of a suite here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Without {
    /// The name of the program.
    program: &'static str,
    /// Below the folder of the module `k8s.io/kubernetes`.
    file: &'static str,
    /// The one line that has this is left out.
    line: &'static str,
}

/// The image garbage collector's specs first pull every image that a node suite may want. All come from the tests' own
/// registry by their tags, but for one that is named by its digest, which nothing built here can have.
const E2E_NODE: Without = Without {
    program: "e2e_node.test",
    file: "test/e2e_node/image_list.go",
    line: "e2e-test-images/busybox@sha256:",
};

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
                    kubernetes(&["k8s.io/kubernetes/test/e2e_node"], GoOutput::TestWithout(E2E_NODE)),
                    GINKGO,
                ]
            }
        }
    }
}

impl Recipe {
    fn names(&self) -> Vec<&'static str> {
        match self.output {
            GoOutput::Program(name)
            | GoOutput::Test(name)
            | GoOutput::TestWithout(Without { program: name, .. }) => vec![name],
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
        let mut command = self.command(&source, &folder)?;
        let status = command
            .status()
            .context("start go: Go 1.26 or newer, from https://go.dev/dl, its bin in PATH")?;
        ensure!(
            status.success(),
            "go build of {} in tests/go/{}: {status}",
            self.packages.join(" "),
            self.module
        );
        std::fs::write(&at, stamp).with_context(|| at.display().to_string())
    }

    /// Go's call for it.
    fn command(&self, source: &Path, folder: &Path) -> Result<Command> {
        let target = match self.output {
            // The slash makes it a folder to go, also for a single package.
            GoOutput::Folder => format!("{}/", folder.display()),
            GoOutput::Program(name)
            | GoOutput::Test(name)
            | GoOutput::TestWithout(Without { program: name, .. }) => folder.join(name).display().to_string(),
        };
        let words: &[&str] = match self.output {
            GoOutput::Test(_) | GoOutput::TestWithout(_) => &["test", "-c"],
            GoOutput::Folder | GoOutput::Program(_) => &["build"],
        };
        let mut command = Command::new("go");
        command.args(words);
        if let GoOutput::TestWithout(without) = self.output {
            command.arg("-modfile").arg(without.modfile(source, folder)?);
        }
        command
            .args(["-trimpath", "-ldflags", &linked_in(), "-o", &target])
            .args(self.packages)
            .current_dir(source)
            .env("CGO_ENABLED", "0")
            .stdin(Stdio::null());
        Ok(command)
    }
}

impl Without {
    /// Copies the module without the line to that folder, and what tells Go to take the copy, as `go help build` has it of
    /// `-modfile`. Go replaces no single file of its own cache.
    fn modfile(self, source: &Path, folder: &Path) -> Result<PathBuf> {
        let (copy, modfile) = (folder.join("without"), folder.join("without.mod"));
        if copy.exists() {
            std::fs::remove_dir_all(&copy).with_context(|| format!("clear {}", copy.display()))?;
        }
        // What is in the cache may not be written.
        let mut command = Command::new("cp");
        command
            .args(["-r", "--no-preserve=mode"])
            .arg(go::module("kubernetes", "k8s.io/kubernetes")?)
            .arg(&copy);
        let status = command.status().context("start cp")?;
        ensure!(status.success(), "copy the module to {}: {status}", copy.display());
        let file = copy.join(self.file);
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        std::fs::write(&file, self.leave_out(&text)?).with_context(|| file.display().to_string())?;
        let required = std::fs::read_to_string(source.join("go.mod")).context("go.mod")?;
        let replaced = format!("{required}\nreplace k8s.io/kubernetes => {}\n", copy.display());
        std::fs::write(&modfile, replaced).with_context(|| modfile.display().to_string())?;
        let sums = modfile.with_extension("sum");
        std::fs::copy(source.join("go.sum"), &sums).with_context(|| sums.display().to_string())?;
        Ok(modfile)
    }

    fn leave_out(self, text: &str) -> Result<String> {
        let (without, of) = (self.line, self.file);
        let count = text.lines().filter(|line| line.contains(without)).count();
        ensure!(
            count == 1,
            "{of} of {KUBERNETES} has {count} lines with {without:?}, and one was to be left out"
        );
        let rest = text.split_inclusive('\n').filter(|line| !line.contains(without));
        Ok(rest.collect())
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
    fn one_line_is_left_out_and_never_another_number_of_them() {
        let text = "a\n\te2e-test-images/busybox@sha256:1\nb\n";
        assert_eq!(E2E_NODE.leave_out(text).unwrap(), "a\nb\n");
        for wrong in ["a\nb\n".to_owned(), text.repeat(2)] {
            E2E_NODE.leave_out(&wrong).unwrap_err();
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

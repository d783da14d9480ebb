//! `cargo xtask kind image`: a kind node image with Gantry in place of kubelet and containerd, or with these two, as an
//! archive for `docker load`. Owns the steps and what they are cached by; what is in it is in the scripts and in
//! `images`. Never talks to docker. Called by `kind`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::programs::{self, KUBERNETES, Set};
use gantry_tests::image::sha256;
use gantry_tests::peers::Programs;
use gantry_tests::{go, place};
use serde_json::json;

use super::images;
use crate::cell::Cell;
use crate::{build, debian_repository, sh};

const BASE: &str = include_str!("base.sh");
const NODE: &str = include_str!("node.sh");
const CNI: &str = include_str!("cni.yaml");
const STORAGE: &str = include_str!("storage.yaml");

/// What stands in a node as kubelet and container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    Gantry,
    /// Upstream's kubelet, containerd and runc
    Upstream,
}

impl NodeKind {
    /// Puts them into the tree.
    fn script(self) -> &'static str {
        match self {
            Self::Gantry => include_str!("gantry.sh"),
            Self::Upstream => include_str!("upstream.sh"),
        }
    }

    /// Of the archive and what stands beside it.
    fn file(self) -> &'static str {
        match self {
            Self::Gantry => "node",
            Self::Upstream => "upstream",
        }
    }

    fn image(self) -> String {
        match self {
            Self::Gantry => format!("gantry/kind-node:{KUBERNETES}"),
            Self::Upstream => format!("gantry/kind-node-upstream:{KUBERNETES}"),
        }
    }
}

/// A made image.
#[derive(Debug)]
pub(crate) struct Made {
    pub(super) archive: PathBuf,
    pub(super) name: String,
    /// What docker calls it once it is loaded.
    pub(super) id: String,
}

/// The network add-on of a kind cluster, for pods in that range.
pub(crate) fn network_manifest(pods: &str) -> String {
    let manifest = CNI.replace("{{.PodSubnet}}", pods);
    manifest
        .lines()
        .filter(|line| !line.starts_with("# would you kindly"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Makes it anew where a program or a script has changed.
///
/// # Errors
/// When a program is missing, or Debian's packages or Go's modules are out of reach.
pub(super) fn make(release: bool) -> Result<Made> {
    of(&programs_of(release)?)
}

/// The folder of Gantry's own programs: those that were built before, or new ones.
pub(crate) fn programs_of(release: bool) -> Result<PathBuf> {
    match std::env::var_os(place::BIN_DIR) {
        Some(_) => place::bin_dir(),
        None => build::build(release),
    }
}

/// The same of programs that are built already: a folder with all that is shipped.
///
/// # Errors
/// As [`make`].
pub(crate) fn of(own: &Path) -> Result<Made> {
    node(NodeKind::Gantry, own)
}

/// With upstream's kubelet, containerd and runc, and the same images. Of Gantry's programs only pause is in it.
///
/// # Errors
/// As [`make`].
pub(crate) fn of_upstream(own: &Path) -> Result<Made> {
    Programs::build()?;
    node(NodeKind::Upstream, own)
}

fn node(kind: NodeKind, own: &Path) -> Result<Made> {
    sh::require_root("a node image")?;
    programs::build(&[Set::ControlPlane, Set::Node, Set::Dns, Set::Kubeadm])?;
    Programs::build_kind_cli()?;
    let folder = sh::cache_dir().join("kind");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let at = |end: &str| folder.join(format!("{}.{end}", kind.file()));
    let (archive, stamp, name) = (at("tar"), at("stamp"), kind.image());
    let wanted = recipe(kind, own)?;
    let known = fs::read_to_string(&stamp).unwrap_or_default();
    if let Some((_, id)) = known.split_once(' ').filter(|(made, _)| *made == wanted)
        && archive.is_file()
    {
        return Ok(Made { archive, name, id: id.to_owned() });
    }
    let base = base(&folder)?;
    let work = tempfile::Builder::new().prefix("node-").tempdir_in(&folder)?;
    tree(kind, work.path(), &base, own)?;
    let id = pack(work.path(), &name, &archive)?;
    fs::write(&stamp, format!("{wanted} {id}")).with_context(|| stamp.display().to_string())?;
    Ok(Made { archive, name, id })
}

/// Changes when the image would.
fn recipe(kind: NodeKind, own: &Path) -> Result<String> {
    let scripts = [BASE, NODE, kind.script(), CNI, STORAGE, images::SCRIPT, KUBERNETES].join("\n");
    let mut text = format!("{scripts}\n");
    let go = ["kubeadm", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let go = go.into_iter().chain(["kube-proxy", "etcd", "coredns"]).map(programs::path);
    let runtime: Vec<Result<PathBuf>> = match kind {
        NodeKind::Gantry => build::SHIPPED.into_iter().map(|name| Ok(own.join(name))).collect(),
        NodeKind::Upstream => {
            let peers = Programs::built()?;
            let of_peers = ["containerd", "runc"].map(|name| Ok(peers.path(name)));
            of_peers.into_iter().chain([programs::path("kubelet")]).collect()
        }
    };
    for path in go.chain(runtime).chain([Programs::kind("crictl")]) {
        let path = path?;
        text.push_str(&sha256(&fs::read(&path).with_context(|| path.display().to_string())?));
    }
    Ok(sha256(text.as_bytes()))
}

/// Debian and kind's files, made once.
fn base(folder: &Path) -> Result<PathBuf> {
    let (base, stamp) = (folder.join("base"), folder.join("base.stamp"));
    let repository = debian_repository::find()?;
    let files = go::module("kind", "sigs.k8s.io/kind")?.join("images/base/files");
    let wanted = sha256(format!("{BASE}\n{repository:?}\n{}", files.display()).as_bytes());
    if base.is_dir() && fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(base);
    }
    for old in [&base, &folder.join("base-new")].into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
    }
    println!("making a Debian {} system in {}", repository.suite, base.display());
    let fresh = folder.join("base-new");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--", "sh", "-c", BASE, "sh"]).arg(&fresh).arg(debian_repository::KEYRING);
    sh::run(unshare.args([&repository.suite, &repository.uri]).arg(files))?;
    fs::rename(&fresh, &base).with_context(|| format!("move to {}", base.display()))?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(base)
}

/// The layer, as `layer.tar` in the folder of work.
fn tree(kind: NodeKind, work: &Path, base: &Path, own: &Path) -> Result<()> {
    let images = work.join("images");
    fs::create_dir(&images).with_context(|| format!("make {}", images.display()))?;
    images::write(&images, own)?;
    fs::write(work.join("cni.yaml"), CNI)?;
    fs::write(work.join("storage.yaml"), STORAGE)?;
    fs::write(work.join("runtime.sh"), format!("pause={}\n{}", images::pause()?, kind.script()))?;
    let peers = match kind {
        NodeKind::Gantry => PathBuf::new(),
        NodeKind::Upstream => Programs::built()?.folder().to_owned(),
    };
    let parent = |path: PathBuf| path.parent().map(Path::to_owned).context("a program without a folder");
    let cell = Cell::new()?;
    let mut made = cell.command(Path::new("sh"))?;
    made.args(["-c", NODE, "sh"]).arg(work).arg(base).arg(own);
    made.arg(parent(programs::path("kubeadm")?)?).arg(parent(Programs::kind("crictl")?)?).arg(KUBERNETES);
    made.arg(peers);
    let status = made.stdin(std::process::Stdio::null()).status().context("start sh")?;
    ensure!(status.success(), "the node's tree: {status}; what it said stands above");
    cell.close()
}

/// As `docker save` would write it: Debian's docker refuses this stop signal on `docker import`.
fn pack(work: &Path, name: &str, archive: &Path) -> Result<String> {
    let layer = work.join("layer.tar");
    let summed = sh::output(Command::new("sha256sum").arg(&layer))?;
    let digest = String::from_utf8_lossy(&summed).split(' ').next().unwrap_or_default().to_owned();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "2023-11-14T22:13:20Z",
        "config": {
            "Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "container=docker"],
            // systemd takes SIGTERM for a wish to be executed anew.
            "StopSignal": "SIGRTMIN+3",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
        "history": [{ "created": "2023-11-14T22:13:20Z", "created_by": "cargo xtask kind image" }],
    });
    let config = serde_json::to_vec(&config)?;
    let id = sha256(&config);
    let file = format!("{}.json", id.trim_start_matches("sha256:"));
    fs::write(work.join(&file), config)?;
    let list = json!([{ "Config": file, "RepoTags": [name], "Layers": ["layer.tar"] }]);
    fs::write(work.join("manifest.json"), list.to_string())?;
    let fresh = work.join("node.tar");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&fresh).arg("--directory").arg(work);
    sh::run(tar.args(["manifest.json", &file, "layer.tar"]))?;
    fs::rename(&fresh, archive).with_context(|| format!("move to {}", archive.display()))?;
    Ok(id)
}

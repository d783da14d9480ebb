//! The images that kubeadm and `cni.yaml` name, as archives that `ctr images import` takes: from the programs of a
//! cluster, Debian packages and this checkout's pause. Owns what is in them; which names there are kubeadm says. Called
//! by `image`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::programs::{self, KUBERNETES};
use gantry_tests::image::{Built, Image, Layer};
use gantry_tests::{debian, saved};

use crate::sh;

/// The one image that is this project's own; its script is `router.sh`.
const ROUTER: &str = "localhost/gantry/kind-router:v1";
pub(super) const SCRIPT: &str = include_str!("router.sh");

/// What kube-proxy runs, in either of its modes; the router takes `nft` from it.
const FILTERS: (&str, &[&str]) = ("kind-filters", &["iptables", "nftables", "libc6"]);

/// metrics-server, as the harness's own cluster names it.
pub(super) const METRICS: &str = "registry.k8s.io/metrics-server/metrics-server:v0.9.0";

/// Writes an archive for each image, with Gantry's own programs in `own`.
pub(super) fn write(folder: &Path, own: &Path) -> Result<()> {
    each(own, |_| true, |name, built| archive(folder, name, built))
}

/// The same of the images that run on every node.
pub(crate) fn of_a_worker(folder: &Path, own: &Path) -> Result<()> {
    each_of_a_worker(own, |name, built| archive(folder, name, built))
}

/// Shows each image that runs on every node, with its name.
pub(super) fn each_of_a_worker(own: &Path, show: impl FnMut(&str, &Built) -> Result<()>) -> Result<()> {
    each(own, |name| name == ROUTER || name.contains("/kube-proxy:"), show)
}

/// The same of those that kubeadm names for a control plane.
pub(super) fn each_of_a_control_plane(
    own: &Path,
    show: impl FnMut(&str, &Built) -> Result<()>,
) -> Result<()> {
    each(own, |name| name != ROUTER && !name.contains("/kube-proxy:"), show)
}

fn each(
    own: &Path,
    wanted: impl Fn(&str) -> bool,
    mut show: impl FnMut(&str, &Built) -> Result<()>,
) -> Result<()> {
    debian::fetch_closure(FILTERS.0, FILTERS.1)?;
    let listed = listed()?;
    for name in listed.lines().chain([ROUTER]).filter(|name| wanted(name)) {
        let built = image(name, own).and_then(|image| image.build()).with_context(|| name.to_owned())?;
        show(name, &built)?;
    }
    Ok(())
}

/// The images that kubeadm names, a line each.
fn listed() -> Result<String> {
    let mut list = Command::new(programs::path("kubeadm")?);
    list.args(["config", "images", "list", "--kubernetes-version", KUBERNETES]);
    String::from_utf8(sh::output(&mut list)?).context("kubeadm's list of images")
}

/// Of these the one of sandboxes.
pub(super) fn pause() -> Result<String> {
    let listed = listed()?;
    let name = listed.lines().find(|name| name.contains("/pause:"));
    name.map(str::to_owned).with_context(|| format!("kubeadm names no pause image: {listed}"))
}

fn archive(folder: &Path, name: &str, built: &Built) -> Result<()> {
    let file = folder.join(format!("{}.tar", name.replace(['/', ':'], "_")));
    fs::write(&file, saved::classic(built, &[name])?).with_context(|| file.display().to_string())
}

/// That of [`METRICS`]; its program must have been built.
pub(super) fn metrics_server() -> Result<Built> {
    let mut image = alone("metrics-server")?;
    image.user = "65534".to_owned();
    image.build()
}

fn image(name: &str, own: &Path) -> Result<Image> {
    let short = name.rsplit('/').next().unwrap_or(name);
    match short.split(':').next().unwrap_or(short) {
        "pause" => {
            let layer = Layer::default().file("pause", 0o755, read(&own.join("gantry-pause"))?);
            let (entrypoint, user) = (vec!["/pause".to_owned()], "65535:65535".to_owned());
            Ok(Image { layers: vec![layer], entrypoint, user, env: path(), ..Image::default() })
        }
        "kube-proxy" => {
            let mut image = alone("kube-proxy")?;
            image.layers.insert(0, filters()?);
            Ok(image)
        }
        "kind-router" => {
            let kubectl = read(&programs::path("kubectl")?)?;
            let layer = Layer::default().file("usr/local/bin/kubectl", 0o755, kubectl).file(
                "usr/local/bin/router",
                0o755,
                SCRIPT,
            );
            let layers = vec![Layer::busybox()?, filters()?, layer];
            Ok(Image { layers, entrypoint: vec!["router".into()], env: path(), ..Image::default() })
        }
        program @ ("kube-apiserver" | "kube-controller-manager" | "kube-scheduler" | "coredns" | "etcd") => {
            alone(program)
        }
        other => bail!("kubeadm {KUBERNETES} names an image {other} that nothing here makes"),
    }
}

/// A static program, in PATH, since kubeadm's manifests name it without a folder.
fn alone(program: &str) -> Result<Image> {
    let bytes = read(&programs::path(program)?)?;
    // A program that writes wants a folder for it.
    let layer = Layer::default().dir("tmp", 0o1777).file(&format!("usr/local/bin/{program}"), 0o755, bytes);
    let entrypoint = vec![format!("/usr/local/bin/{program}")];
    Ok(Image { layers: vec![layer], entrypoint, env: path(), ..Image::default() })
}

/// Debian makes these links when it configures the package.
fn filters() -> Result<Layer> {
    let mut layer = debian::closure_layer(FILTERS.0)?;
    for name in ["iptables", "ip6tables"]
        .iter()
        .flat_map(|name| ["", "-save", "-restore"].map(|end| format!("{name}{end}")))
    {
        layer = layer.symlink(&format!("usr/sbin/{name}"), "xtables-nft-multi");
    }
    Ok(layer)
}

fn path() -> Vec<String> {
    vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()]
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

//! `cargo xtask kind image|up|run|down`: a kind cluster whose nodes are Gantry's. Owns the order and what a person reads;
//! the node image is `image`'s, and where docker runs is `engine`'s. Called by `main`.

mod bed;
mod checks;
mod engine;
mod image;
mod images;
mod oci;
pub(crate) mod pods;
pub(crate) mod registry;
mod tier;
pub(crate) mod web;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use gantry_tests::cluster::programs;
use gantry_tests::peers::Programs;

use self::engine::Docker;
use crate::sh;

pub(crate) use self::bed::Bed;
pub(crate) use self::checks::{all_gantry, mixed};
pub(crate) use self::engine::keep;
pub(crate) use self::image::{
    network_manifest, of as node_image, of_upstream as upstream_image, programs_of,
};
pub(crate) use self::images::of_a_worker as worker_images;
pub(crate) use self::oci::run as oci_runtime;
pub(crate) use self::tier::{on_cluster, timed};

#[derive(Debug, Subcommand)]
pub(crate) enum KindTask {
    /// Makes the node image, as an archive for `docker load` (as root)
    Image {
        /// Gantry with optimisation
        #[arg(long)]
        release: bool,
        #[command(flatten)]
        look: crate::Look,
    },
    /// Makes a cluster, with what it needs, and prints how to talk to it (as root)
    Up(Up),
    /// Runs a command where docker, kind and the cluster are within reach
    Run {
        #[command(flatten)]
        at: At,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Removes a cluster, and the engine that was started for it
    Down {
        #[command(flatten)]
        at: At,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct At {
    /// The cluster's name
    #[arg(long, default_value = "kind")]
    name: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    at: At,
    /// How many nodes: the first one has the control plane
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    nodes: u8,
    /// Gantry with optimisation
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    look: crate::Look,
}

pub(crate) fn run(task: &KindTask) -> Result<ExitCode> {
    match task {
        KindTask::Image { release, look: _ } => {
            let made = image::make(*release)?;
            println!("{}\n`docker load` takes it, as {}", made.archive.display(), made.name);
        }
        KindTask::Up(options) => up(options)?,
        KindTask::Run { at, command } => return within(at, command),
        KindTask::Down { at } => down(at)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(options: &Up) -> Result<()> {
    sh::require_root("a kind cluster")?;
    let made = image::make(options.release)?;
    let docker = Docker::find_or_start()?;
    create(&docker, &vec![&made; usize::from(options.nodes)], &options.at)?;
    tell(&docker, &options.at)
}

/// A node of each image; the first one has the control plane.
fn create(docker: &Docker, nodes: &[&image::Made], at: &At) -> Result<()> {
    for (index, made) in nodes.iter().enumerate() {
        if nodes[..index].iter().all(|known| known.name != made.name) {
            load(docker, made)?;
        }
    }
    let config = sh::cache_dir().join("kind").join(format!("{}.yaml", at.name));
    let cgroup_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let images: Vec<&str> = nodes.iter().map(|made| made.name.as_str()).collect();
    fs::write(&config, document(&images, cgroup_v2)).with_context(|| config.display().to_string())?;
    let mut create = kind(docker, at)?;
    create.args(["create", "cluster", "--wait", "5m", "--config"]).arg(&config);
    sh::run(create.args(["--name", &at.name]))?;
    // kind waits for the control plane alone.
    let mut wait = beside(docker, at)?;
    wait.args(["kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s"]);
    sh::run(&mut wait)
}

/// Unless it is there already.
fn load(docker: &Docker, made: &image::Made) -> Result<()> {
    let mut inspect = docker.command(Path::new("docker"));
    inspect.args(["image", "inspect", "--format", "{{.Id}}", &made.name]);
    let known = inspect.output().with_context(|| sh::missing(&inspect))?;
    if String::from_utf8_lossy(&known.stdout).trim() == made.id {
        return Ok(());
    }
    let mut load = docker.command(Path::new("docker"));
    sh::run(load.args(["load", "--quiet", "--input"]).arg(&made.archive))
}

/// What kind is told: the image of each node.
fn document(images: &[&str], cgroup_v2: bool) -> String {
    let mut text = String::from("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n");
    if !cgroup_v2 {
        // Kubelets refuse cgroup v1 from 1.35 on, unless told.
        text.push_str("kubeadmConfigPatches:\n- |\n  kind: KubeletConfiguration\n  failCgroupV1: false\n");
    }
    text.push_str("nodes:\n");
    for (index, image) in images.iter().enumerate() {
        let role = if index == 0 { "control-plane" } else { "worker" };
        text.push_str(&format!("- role: {role}\n  image: {image}\n"));
    }
    text
}

/// kind's own command line, with the cluster's kubeconfig where kubectl will look for it.
fn kind(docker: &Docker, at: &At) -> Result<Command> {
    let mut command = docker.command(&Programs::kind_cli()?);
    if let Some(kubeconfig) = kubeconfig(docker, at) {
        command.env("KUBECONFIG", kubeconfig);
    }
    Ok(command)
}

/// A cluster of the own engine is out of reach of who is not in there: its kubeconfig lies beside it. That of any other
/// is where kind puts it by itself.
fn kubeconfig(docker: &Docker, at: &At) -> Option<PathBuf> {
    match docker {
        Docker::Host => None,
        Docker::Own { folder, .. } => Some(folder.join(format!("{}.kubeconfig", at.name))),
    }
}

fn tell(docker: &Docker, at: &At) -> Result<()> {
    let (way, name) = (docker.way_in(), &at.name);
    let way = if way.is_empty() || name == "kind" {
        way.to_owned()
    } else {
        format!("cargo xtask kind run --name {name} -- ")
    };
    println!("\nthe cluster is up, on Gantry; what to type next:\n");
    println!("  {way}kubectl get nodes --output wide");
    println!("  {way}kind load docker-image IMAGE --name {name}");
    println!("  {way}docker exec -it {name}-control-plane gantry ps");
    println!("  cargo xtask kind down --name {name}\n");
    if let Docker::Own { folder, .. } = docker {
        println!("docker runs in namespaces of its own, with its files in {}", folder.display());
    }
    println!(
        "kind and kubectl are also {} and {}",
        Programs::kind_cli()?.display(),
        programs::path("kubectl")?.display()
    );
    Ok(())
}

fn within(at: &At, words: &[OsString]) -> Result<ExitCode> {
    let Some(docker) = Docker::find()? else { bail!("no docker answers: cargo xtask kind up") };
    let mut command = beside(&docker, at)?;
    let status = command.args(words).status().with_context(|| sh::missing(&command))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// `env` where docker answers, with kind, kubectl and the cluster's kubeconfig: a command follows as its arguments.
fn beside(docker: &Docker, at: &At) -> Result<Command> {
    let mut folders = vec![];
    for program in [Programs::kind_cli()?, programs::path("kubectl")?] {
        folders.extend(program.parent().map(Path::to_owned));
    }
    folders.extend(std::env::split_paths(&gantry_needs::path()));
    let mut command = docker.command(Path::new("env"));
    command.env("PATH", std::env::join_paths(folders)?);
    if let Some(kubeconfig) = kubeconfig(docker, at) {
        command.env("KUBECONFIG", kubeconfig);
    }
    Ok(command)
}

fn down(at: &At) -> Result<()> {
    sh::require_root("a kind cluster")?;
    let Some(docker) = Docker::find()? else { bail!("no docker answers: there is no cluster") };
    sh::run(kind(&docker, at)?.args(["delete", "cluster", "--name", &at.name]))?;
    let Docker::Own { folder, .. } = &docker else { return Ok(()) };
    let left = sh::output(kind(&docker, at)?.args(["get", "clusters", "--quiet"]))?;
    if !left.is_empty() {
        return Ok(());
    }
    engine::end(folder)?;
    println!("the cluster and its docker are gone, and nothing was left behind");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_cgroup_v1_tells_the_kubelets() {
        let text = document(&["a:1", "b:1"], false);
        assert!(text.contains("  kind: KubeletConfiguration\n  failCgroupV1: false\n"), "{text}");
        let nodes = "nodes:\n- role: control-plane\n  image: a:1\n- role: worker\n  image: b:1\n";
        assert!(text.ends_with(nodes), "{text}");
        assert!(!document(&["a:1"], true).contains("kubeadmConfigPatches"));
    }
}

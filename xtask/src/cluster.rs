//! `cargo xtask cluster build|up|swap|down`: a real control plane with one node, for a person to play with. Owns the place
//! it lives in and the ways in; what a cluster is, is in the harness. Called by `main`.
//!
//! ```text
//! up ── starts ──► keep (this host: the place, the leak check around it)
//!                    └── inside (the place's pid 1's child: the cluster; listens on DIR/control)
//! swap, down ──────────────────────────────────────────────────────────► a line each
//! ```
//! `up` returns when the node is ready; the others go on without it. A veth pair leads from this host to the node, so that
//! kubectl and curl reach it as they are.

mod control;
mod keep;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use gantry_tests::cluster::{images, kubelet, programs, runtime};
use gantry_tests::peers::Programs;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::proc;

pub(crate) use self::keep::{Inside, Kept, inside, keep};
use crate::{build, sh};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeName {
    Containerd,
    Gantry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KubeletName {
    Gantry,
    Upstream,
    /// The control plane and the runtime alone
    None,
}

impl From<RuntimeName> for runtime::RuntimeKind {
    fn from(name: RuntimeName) -> Self {
        match name {
            RuntimeName::Containerd => Self::Containerd,
            RuntimeName::Gantry => Self::Gantry,
        }
    }
}

impl KubeletName {
    pub(crate) fn kind(self) -> Option<kubelet::KubeletKind> {
        match self {
            KubeletName::Gantry => Some(kubelet::KubeletKind::Gantry),
            KubeletName::Upstream => Some(kubelet::KubeletKind::Upstream),
            KubeletName::None => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            KubeletName::Gantry => "gantry",
            KubeletName::Upstream => "upstream",
            KubeletName::None => "none",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterTask {
    /// Builds the programs and images of a cluster, unless they are up to date: minutes the first time
    Build {
        /// What only upstream's suites need, too: e2e.test, e2e_node.test, ginkgo, more images
        #[arg(long)]
        suites: bool,
    },
    /// Starts a cluster and prints how to talk to it
    Up(Up),
    /// Stops the cluster's kubelet and starts the other one under its running pods
    Swap {
        /// The next one
        #[arg(long, value_enum)]
        kubelet: KubeletName,
        #[command(flatten)]
        at: At,
    },
    /// Ends a cluster, and fails when it left anything
    Down {
        #[command(flatten)]
        at: At,
    },
}

/// Where a cluster is.
#[derive(Debug, Clone, Args)]
pub(crate) struct At {
    /// Folder of everything it has; `cluster` in the cache when not given
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl At {
    fn folder(&self) -> Result<PathBuf> {
        let folder = self.dir.clone().unwrap_or_else(|| sh::cache_dir().join("cluster"));
        std::path::absolute(&folder).with_context(|| folder.display().to_string())
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    /// What runs the containers
    #[arg(long, value_enum, default_value = "containerd")]
    runtime: RuntimeName,
    /// What makes the node
    #[arg(long, value_enum, default_value = "gantry")]
    kubelet: KubeletName,
    /// Without kube-proxy, CoreDNS and metrics-server
    #[arg(long)]
    bare: bool,
    #[command(flatten)]
    at: At,
}

pub(crate) fn run(task: &ClusterTask) -> Result<()> {
    match task {
        ClusterTask::Build { suites } => prepare(*suites).map(drop),
        ClusterTask::Up(options) => up(options),
        ClusterTask::Swap { kubelet, at } => control::ask(&at.folder()?, &format!("swap {}", kubelet.word())),
        ClusterTask::Down { at } => down(&at.folder()?),
    }
}

/// Everything a cluster is made of; returns the folder of Gantry's own programs, which may have been built before.
pub(crate) fn prepare(suites: bool) -> Result<PathBuf> {
    let own = match std::env::var_os(place::BIN_DIR) {
        Some(_) => place::bin_dir()?,
        None => build::build(false)?,
    };
    prepare_beside(&own, suites)?;
    Ok(own)
}

/// Everything else, for Gantry's own programs in that folder.
pub(crate) fn prepare_beside(own: &Path, suites: bool) -> Result<()> {
    use programs::Set;
    Programs::build()?;
    programs::build(&[Set::ControlPlane, Set::Node, Set::Images, Set::Dns, Set::Metrics, Set::Csi])?;
    build_images(own, &[images::Set::Cluster])?;
    if suites {
        programs::build(&[Set::Kubeadm, Set::E2e, Set::E2eNode])?;
        build_images(own, &[images::Set::Suites])?;
    }
    Ok(())
}

/// Gantry's own programs are in images, too, and the harness finds them by a variable: so this is another process.
pub(crate) fn build_images(own: &Path, sets: &[images::Set]) -> Result<()> {
    // Its own path names another file once cargo has built it anew.
    let mut command = Command::new("/proc/self/exe");
    command.arg("images-inside").env(place::BIN_DIR, own);
    if sets.contains(&images::Set::Suites) {
        command.arg("--suites");
    }
    sh::run(&mut command)
}

/// The other half of [`build_images`].
pub(crate) fn images(suites: bool) -> Result<()> {
    images::build(&[if suites { images::Set::Suites } else { images::Set::Cluster }])
}

fn up(options: &Up) -> Result<()> {
    sh::require_root("a cluster")?;
    let folder = options.at.folder()?;
    if control::runs(&folder) {
        bail!("a cluster runs in {}: cargo xtask cluster down, or choose another --dir", folder.display());
    }
    let programs = prepare(false)?;
    fresh(&folder)?;
    let own = std::env::current_exe().context("find this program")?;
    let log = std::fs::File::create(folder.join("keep.log"))?;
    let mut keeper = Command::new("setsid");
    keeper.arg(own).arg("cluster-keep").arg("--dir").arg(&folder).args(["--kubelet", options.kubelet.word()]);
    if options.runtime == RuntimeName::Gantry {
        keeper.args(["--runtime", "gantry"]);
    }
    if options.bare {
        keeper.arg("--bare");
    }
    keeper.env(place::BIN_DIR, programs).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut keeper = keeper.spawn().context("start the cluster's keeper")?;
    poll("the cluster to be ready: see keep.log", Duration::from_secs(600), || {
        if let Ok(Some(status)) = keeper.try_wait() {
            let said = std::fs::read_to_string(folder.join("keep.log")).unwrap_or_default();
            return Ok(Err(anyhow::anyhow!("the cluster ended with {status}\n{said}")));
        }
        if folder.join("ready").exists() { Ok(Ok(())) } else { Err("it still starts".to_owned()) }
    })??;
    tell(&folder)
}

fn tell(folder: &Path) -> Result<()> {
    let pid = std::fs::read_to_string(folder.join("ready"))?;
    let at = folder.display();
    println!("\nthe cluster is up; everything of it is in {at}\n");
    println!("  {} --kubeconfig {at}/kubeconfig/admin.conf get nodes", programs::path("kubectl")?.display());
    println!("  nsenter --target {} --mount --net --pid --cgroup    a shell on the node", pid.trim());
    println!("  cargo xtask cluster down --dir {at}\n");
    Ok(())
}

/// Logs and disks of an earlier cluster make room. What is not a cluster's folder is left alone.
fn fresh(folder: &Path) -> Result<()> {
    let known = folder.join("keep.log").is_file();
    let empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !known && !empty {
        bail!("{} is neither empty nor an earlier cluster's: choose another --dir", folder.display());
    }
    if known {
        std::fs::remove_dir_all(folder).with_context(|| format!("clear {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))
}

fn down(folder: &Path) -> Result<()> {
    let keeper = control::keeper(folder)?;
    control::ask(folder, "down")?;
    poll("the cluster's keeper to end", Duration::from_secs(120), || match proc::one(keeper) {
        Some(process) if process.state != 'Z' => Err(format!("{process:?}")),
        _ => Ok(()),
    })?;
    let said = std::fs::read_to_string(folder.join("keep.log")).unwrap_or_default();
    let Ok(outcome) = std::fs::read_to_string(folder.join("outcome")) else {
        bail!("the cluster ended without a word\n{said}");
    };
    if outcome.trim() != "clean" {
        bail!("{}\n{said}", outcome.trim());
    }
    println!("the cluster is down, and nothing was left behind; its logs are in {}/log", folder.display());
    Ok(())
}

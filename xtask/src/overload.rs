//! `cargo xtask overload`: thirty pods of all three classes on a node of 2 GiB in the small VM, most of them hogs of memory,
//! disk, inodes, pids and logs, for minutes; Gantry's kubelet and runtime, and upstream's kubelet with containerd, in one
//! table. Owns the order and what is demanded of a node; never how a pod behaves (`gantry-workload` does). Called by `main`.
//!
//! ```text
//! outside ── a place for each node ──► inside: control plane and registry
//!                                        └── qemu: the node, which reaches both through its card
//! ```

pub(crate) mod disk;
pub(crate) mod guest;
mod judge;
mod load;
mod seen;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, programs, runtime};
use gantry_tests::peers::Programs;
use gantry_tests::registry::{Registry, free_port};

use self::guest::{Guest, GuestTask};
use self::seen::Overload;
use crate::{build, cell, sh};

/// Between two looks at the API server.
const RHYTHM: Duration = Duration::from_secs(5);
/// An emulated machine is slow at its first pods.
const START: Duration = Duration::from_secs(600);

/// A node under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverloadNode {
    /// Gantry's kubelet and runtime
    Gantry,
    /// Upstream's kubelet, containerd and runc
    Upstream,
}

impl OverloadNode {
    fn word(self) -> &'static str {
        match self {
            OverloadNode::Gantry => "gantry",
            OverloadNode::Upstream => "upstream",
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OverloadArgs {
    /// Which node; may be given again. Both when not given
    #[arg(long, value_enum)]
    node: Vec<OverloadNode>,
    /// How long the load lasts, in minutes
    #[arg(long, default_value_t = 15)]
    minutes: u64,
    /// Both nodes side by side instead of one after the other
    #[arg(long)]
    at_once: bool,
    /// Where logs, tables and what was seen go; `overload` in the target folder when not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Programs that are built already
    #[arg(long, hide = true)]
    built: Option<PathBuf>,
}

impl OverloadArgs {
    fn nodes(&self) -> Vec<OverloadNode> {
        if self.node.is_empty() { OverloadNode::value_variants().to_vec() } else { self.node.clone() }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OverloadInsideArgs {
    #[arg(long, value_enum)]
    node: OverloadNode,
    #[arg(long)]
    minutes: u64,
    #[arg(long)]
    out: PathBuf,
}

/// Builds everything, runs each node in a place of its own, shows the table. Only what is Gantry's must hold.
pub(crate) fn outside(asked: &OverloadArgs) -> Result<()> {
    sh::require_root("a node under load")?;
    let built = match &asked.built {
        Some(programs) => std::path::absolute(programs)?,
        None => build::build(true)?,
    };
    Programs::build()?;
    programs::build(&[programs::Set::ControlPlane, programs::Set::Node])?;
    let out = asked.out.clone().unwrap_or_else(|| sh::target_dir().join("overload"));
    let out = std::path::absolute(&out)?;
    let nodes = asked.nodes();
    let run = |node| one(asked, node, &built, &out);
    let ran: Vec<Result<()>> = if asked.at_once {
        std::thread::scope(|scope| {
            let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| run(*node))).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|ended| ended.unwrap_or_else(|_| bail!("a node's thread panicked"))).collect()
        })
    } else {
        nodes.iter().map(|node| run(*node)).collect()
    };
    let mut columns = Vec::new();
    let mut failed = Vec::new();
    for (node, ran) in nodes.iter().zip(ran) {
        match ran.and_then(|()| Overload::read(&folder_of(&out, *node))) {
            Ok(seen) => columns.push((node.word(), seen)),
            // The other one's column is worth a quarter of an hour.
            Err(error) => failed.push(format!("the node {}: {error:#}", node.word())),
        }
    }
    let text = table::markdown(asked.minutes, &columns);
    std::fs::write(out.join("table.md"), &text).context("write the table")?;
    println!("{text}\n{}", out.join("table.md").display());
    let own = columns.iter().find(|(name, _)| *name == OverloadNode::Gantry.word());
    let faults = own.map(|(_, seen)| judge::faults(seen)).unwrap_or_default();
    failed.extend(faults.iter().map(|fault| format!("the node gantry: {fault}")));
    if failed.is_empty() { Ok(()) } else { bail!(failed.join("; ")) }
}

fn folder_of(out: &Path, node: OverloadNode) -> PathBuf {
    out.join(node.word())
}

fn one(asked: &OverloadArgs, node: OverloadNode, built: &Path, out: &Path) -> Result<()> {
    let out = folder_of(out, node);
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("clear {}", out.display()))?;
    }
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let minutes = format!("--minutes={}", asked.minutes);
    let words = ["overload-inside", "--node", node.word(), &minutes, "--out"].map(OsString::from);
    cell::run_again(words.into_iter().chain([out.into()]), built)
}

/// The control plane, the node and its load; what was seen is in the folder.
pub(crate) fn inside(asked: &OverloadInsideArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("go-").tempdir()?;
    // The runtime that it starts here has no pods: the node is elsewhere.
    let mut cluster = Cluster::start(ClusterOptions {
        folder: folder.path().to_owned(),
        runtime: runtime::RuntimeKind::Gantry,
        kubelet: None,
        addons: false,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: Default::default(),
    })?;
    let registry = Registry::start_at(free_port()?)?;
    let ran = under_load(asked, folder.path(), &mut cluster, &registry);
    ran.and(cluster.end())
}

fn under_load(
    asked: &OverloadInsideArgs,
    folder: &Path,
    cluster: &mut Cluster,
    registry: &Registry,
) -> Result<()> {
    load::push(registry)?;
    let task = GuestTask { script: guest::UNDER_LOAD, minutes: asked.minutes };
    let mut guest = Guest::boot(asked.node, task, folder, registry, &asked.out)?;
    let watched = watch(asked, cluster, &mut guest);
    let ended = guest.end(&asked.out);
    let mut seen = watched?;
    seen.guest = ended?;
    seen.write(&asked.out)
}

/// From the node's first Ready to the end of the load.
fn watch(asked: &OverloadInsideArgs, cluster: &mut Cluster, guest: &mut Guest) -> Result<Overload> {
    let kubectl = cluster.kubectl().clone();
    let ready = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
    let node = ["get", "node", gantry_tests::cluster::NODE, "--ignore-not-found"];
    kubectl.await_value(&node, ready, START, |value| value == "True").with_context(|| guest.tail())?;
    kubectl.await_value(&["get", "serviceaccount", "default"], "{.metadata.name}", START, |name| {
        !name.is_empty()
    })?;
    kubectl.apply(&load::keepers())?;
    kubectl
        .run(&["wait", "pods", "--all", "--for=condition=Ready", &format!("--timeout={}s", START.as_secs())])
        .with_context(|| guest.tail())?;
    println!("{}: the keepers are ready; the hogs come", asked.node.word());
    kubectl.apply(&load::hogs())?;
    let mut seen = Overload::default();
    let begin = Instant::now();
    let end = begin + Duration::from_secs(asked.minutes * 60);
    let mut last = begin;
    loop {
        guest.check()?;
        cluster.check()?;
        let pods = kubectl.json(&["get", "pods"])?;
        let node = kubectl.json(&["get", "node", gantry_tests::cluster::NODE])?;
        let now = Instant::now();
        seen.look(&pods, &node, now - last);
        println!("{} {:>4} s: {}", asked.node.word(), (now - begin).as_secs(), seen.line());
        last = now;
        if now >= end {
            break;
        }
        std::thread::sleep(RHYTHM.min(end - now));
    }
    for what in ["pods", "events", "nodes"] {
        let kept = kubectl.run(&["get", what, "--all-namespaces", "-o", "json"])?;
        std::fs::write(asked.out.join(format!("{what}.json")), kept)
            .context("keep what the API server has")?;
    }
    Ok(seen)
}

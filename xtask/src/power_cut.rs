//! `cargo xtask power-cut`: three pods of a StatefulSet write to volumes of a CSI driver, and the power of their node is cut
//! under them: an emulated machine that is killed and boots again from the same disk. No record that was acknowledged may be
//! lost, each volume is mounted once, and nothing is left at last. What the machine has not written to its disk is lost; a
//! disk's own cache is not. Owns the order and what is demanded; the machine is `overload`'s, the records are
//! `gantry_tests::cluster::records`'. Called by `main`.
//!
//! ```text
//! a pod ── record, synced ──► the volume, on the machine's disk
//!   └───── acknowledged ────► the serial line, which outlives the machine
//! ```

mod store;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use gantry_tests::cluster::kubectl::Kubectl;
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, NODE, runtime};
use gantry_tests::poll::poll_every;
use gantry_tests::registry::{Registry, free_port};

use self::store::{PODS, RecordSet};
use crate::overload::OverloadNode;
use crate::overload::guest::{Guest, GuestTask};
use crate::{build, cell, sh};

/// An emulated machine is slow at its first pods, and at each boot.
const PATIENCE: Duration = Duration::from_secs(900);
const RHYTHM: Duration = Duration::from_secs(1);
/// So many records each pod writes between two cuts.
const MORE: usize = 20;

/// Tells mounts of volumes when asked, and ends when asked for anything else.
const SCRIPT: &str = r#"while read asked </dev/ttyS0; do
  [ "$asked" = mounts ] || break
  grep -E '/kubernetes.io(~|/)csi/' /proc/self/mountinfo | cut -d ' ' -f 5 | sed 's/^/volumes: mounted /'
  echo "volumes: told"
done
sync
"#;

#[derive(Debug, Clone, Args)]
pub(crate) struct PowerCutArgs {
    /// Where logs and what was on the disk go; `power-cut` in the target folder when not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Programs that are built already
    #[arg(long, hide = true)]
    built: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PowerCutInsideArgs {
    #[arg(long)]
    out: PathBuf,
}

/// Builds everything, then runs the other half in a place of its own.
pub(crate) fn outside(asked: &PowerCutArgs) -> Result<()> {
    sh::require_root("a node whose power is cut")?;
    let built = match &asked.built {
        Some(programs) => std::path::absolute(programs)?,
        None => build::build(true)?,
    };
    crate::cluster::prepare_beside(&built, false)?;
    let out = asked.out.clone().unwrap_or_else(|| sh::target_dir().join("power-cut"));
    let out = std::path::absolute(&out)?;
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("clear {}", out.display()))?;
    }
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    cell::run_again(["power-cut-inside".into(), "--out".into(), out.into()], &built)
}

/// The control plane, the node, the cuts.
pub(crate) fn inside(asked: &PowerCutInsideArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("gp-").tempdir()?;
    // The runtime that it starts here has no pods: the node is elsewhere.
    let cluster = Cluster::start(ClusterOptions {
        folder: folder.path().to_owned(),
        runtime: runtime::RuntimeKind::Gantry,
        kubelet: None,
        addons: false,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: Default::default(),
    })?;
    let ran = run(asked, folder.path(), &cluster);
    ran.and(cluster.end())
}

fn run(asked: &PowerCutInsideArgs, folder: &Path, cluster: &Cluster) -> Result<()> {
    let registry = Registry::start_at(free_port()?)?;
    let task = GuestTask { script: SCRIPT, minutes: 60 };
    let guest = Guest::boot(OverloadNode::Gantry, task, folder, &registry, &asked.out)?;
    let mut node = PoweredNode { kubectl: cluster.kubectl().clone(), guest };
    let store = RecordSet::new(cluster.server());
    let tried = cut_under(&mut node, &store).with_context(|| node.guest.tail());
    let (lines, var) = (node.guest.lines(), node.guest.var());
    let ended = node.guest.end(&asked.out);
    tried?;
    ended?;
    let acknowledged = store.check_disk(&var, &asked.out, &lines)?;
    println!("{acknowledged:?} records were acknowledged, and none of them is lost");
    Ok(())
}

fn cut_under(node: &mut PoweredNode, store: &RecordSet) -> Result<()> {
    node.await_boot("")?;
    store.install(&node.kubectl, PATIENCE)?;
    node.grow()?;
    node.check_mounts(PODS.len())?;
    let boot = node.boot_id()?;
    node.cut("while pods write", &boot, |_| Ok(()))?;
    let boot = node.boot_id()?;
    // Its successor is being made when the power goes.
    node.cut("while a pod goes and comes", &boot, |node| {
        let uid = ["get", "pod", PODS[0], "--ignore-not-found"];
        let before = node.kubectl.value(&uid, "{.metadata.uid}")?;
        node.kubectl.run(&["delete", "pod", PODS[0], "--wait=false"])?;
        node.kubectl
            .await_value(&uid, "{.metadata.uid}", PATIENCE, |now| !now.is_empty() && now != before)
            .map(drop)
    })?;
    store.remove(&node.kubectl, PATIENCE)?;
    node.check_mounts(0)
}

/// The machine, and what the API server says of it.
struct PoweredNode {
    kubectl: Kubectl,
    guest: Guest,
}

impl PoweredNode {
    fn boot_id(&self) -> Result<String> {
        self.kubectl.value(&["get", "node", NODE], "{.status.nodeInfo.bootID}")
    }

    /// Until the node is ready in another boot than that.
    fn await_boot(&mut self, before: &str) -> Result<()> {
        let path = r#"{.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")].status}"#;
        poll_every(RHYTHM, "the node to be ready in another boot", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            self.guest.check().map_err(text)?;
            let told =
                self.kubectl.value(&["get", "node", NODE, "--ignore-not-found"], path).map_err(text)?;
            match told.split_once(' ') {
                Some((boot, "True")) if boot != before => Ok(()),
                _ => Err(told),
            }
        })
    }

    /// The power goes while something is under way; then all is as before, in containers of the next boot.
    fn cut(&mut self, what: &str, boot: &str, begin: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (start, before) = (Instant::now(), self.containers()?);
        begin(self).with_context(|| what.to_owned())?;
        self.guest.cut_power()?;
        self.await_boot(boot).with_context(|| format!("after a cut {what}"))?;
        poll_every(RHYTHM, "all pods ready, in other containers", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let now = self.containers().map_err(text)?;
            let ready = self
                .kubectl
                .value(&["get", "statefulset", "store"], "{.status.readyReplicas}")
                .map_err(text)?;
            let are_other = now.len() == before.len() && now.iter().all(|one| !before.contains(one));
            if are_other && ready == PODS.len().to_string() {
                Ok(())
            } else {
                Err(format!("{ready} ready: {now:?}"))
            }
        })?;
        self.grow()?;
        self.check_mounts(PODS.len())?;
        println!("the power was cut {what}: all is as before ({} s)", start.elapsed().as_secs());
        Ok(())
    }

    fn containers(&self) -> Result<Vec<String>> {
        let ids = self.kubectl.value(
            &["get", "pods", "-l", "app=store"],
            "{.items[*].status.containerStatuses[*].containerID}",
        )?;
        Ok(ids.split_whitespace().map(str::to_owned).collect())
    }

    /// Waits until each pod has acknowledged more.
    fn grow(&mut self) -> Result<()> {
        let from = store::count(&self.guest.lines());
        poll_every(RHYTHM, "each pod to write more", PATIENCE, || {
            self.guest.check().map_err(|error| format!("{error:#}"))?;
            let now = store::count(&self.guest.lines());
            let grew = now.iter().zip(&from).all(|(now, from)| *now >= from + MORE);
            if grew { Ok(()) } else { Err(format!("{from:?} were, {now:?} are")) }
        })
    }

    /// That so many volumes are mounted: each staged once and published once.
    fn check_mounts(&mut self, volumes: usize) -> Result<()> {
        let heard = self.guest.lines().len();
        self.guest.ask("mounts")?;
        poll_every(RHYTHM, "the machine to tell its mounts", PATIENCE, || {
            let lines = self.guest.lines();
            let told = lines.iter().skip(heard).any(|line| line == "volumes: told");
            if told { Ok(()) } else { Err("it does not".to_owned()) }
        })?;
        let lines = self.guest.lines();
        let mut found: Vec<&str> =
            lines.iter().skip(heard).filter_map(|line| line.strip_prefix("volumes: mounted ")).collect();
        let all = found.len();
        let staged = found.iter().filter(|point| point.contains("/plugins/")).count();
        found.sort_unstable();
        found.dedup();
        ensure!(
            found.len() == all && all == 2 * volumes && staged == volumes,
            "not one mount for each volume and pod: {found:#?}"
        );
        Ok(())
    }
}

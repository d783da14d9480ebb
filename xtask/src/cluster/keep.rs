//! The two processes that stay when `cluster up` returns: the keeper, which owns the place, and the cluster inside. Owns
//! the way between; never answers a person. Called by `main`'s hidden commands.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use gantry_tests::cluster::network::{self, Outside};
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, isolation};
use gantry_tests::leakcheck;
use gantry_tests::proc;

use super::{KubeletName, RuntimeName, control};
use crate::cell::Cell;
use crate::leakcheck::checked;
use crate::sh;

#[derive(Debug, Clone, Args)]
pub(crate) struct Kept {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, value_enum, default_value = "containerd")]
    runtime: RuntimeName,
    #[arg(long, value_enum)]
    kubelet: KubeletName,
    #[arg(long)]
    bare: bool,
}

impl Kept {
    fn words(&self) -> Vec<std::ffi::OsString> {
        let mut words: Vec<std::ffi::OsString> = vec!["--dir".into(), self.dir.clone().into()];
        words.extend(["--kubelet".into(), self.kubelet.word().into()]);
        if self.runtime == RuntimeName::Gantry {
            words.extend(["--runtime".into(), "gantry".into()]);
        }
        if self.bare {
            words.push("--bare".into());
        }
        words
    }
}

/// The keeper: makes the place, runs the cluster in it, and says how it was left.
pub(crate) fn keep(kept: &Kept) -> Result<()> {
    control::write_keeper(&kept.dir)?;
    let outcome = kept_until_down(kept);
    let said = match &outcome {
        Ok(()) => "clean\n".to_owned(),
        Err(error) => format!("{error:#}\n"),
    };
    std::fs::write(kept.dir.join("outcome"), said)?;
    outcome
}

fn kept_until_down(kept: &Kept) -> Result<()> {
    let number = free_number()?;
    // The cluster puts the far end of its link here: it gets this namespace as a descriptor that outlives exec.
    let namespace = std::fs::File::open("/proc/self/ns/net").context("open /proc/self/ns/net")?;
    let inherited = rustix::io::dup(&namespace).context("duplicate a descriptor")?;
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())
        .context("let a descriptor be inherited")?;
    let cell = Cell::new()?;
    let mut command = checked(&cell)?;
    command.args(isolation::INIT).arg(std::env::current_exe().context("find this program")?);
    command.arg("cluster-inside").args(kept.words());
    command.args(["--number", &number.to_string(), "--outer", &inherited.as_raw_fd().to_string()]);
    let mut child = command.spawn().with_context(|| format!("start {}", sh::show(&command)))?;
    drop(inherited);
    let dressed = dress(&kept.dir, number, &mut child);
    let status = child.wait().context("wait for the cluster")?;
    let closed = cell.close();
    dressed?;
    if !status.success() {
        bail!("the cluster ended with {status}");
    }
    closed
}

/// Waits for the far end of the link to appear here, and for the cluster to be ready; then tells `up`.
fn dress(folder: &Path, number: u8, child: &mut std::process::Child) -> Result<()> {
    let link = link_of(number);
    let patience = std::time::Duration::from_secs(600);
    gantry_tests::poll::poll("the cluster to be ready", patience, || {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(Err(anyhow::anyhow!("the cluster ended with {status}")));
        }
        if folder.join("inside").exists() { Ok(Ok(())) } else { Err("it still starts".to_owned()) }
    })??;
    network::dress_far_end(&link, number)?;
    let inside = innermost(i32::try_from(child.id()).context("a pid")?)?;
    let ready = folder.join("ready.new");
    std::fs::write(&ready, format!("{inside}\n"))?;
    Ok(std::fs::rename(ready, folder.join("ready"))?)
}

/// The last of a line of only children: sh, unshare, sh, leak check, the cluster, whose own children are many.
fn innermost(mut pid: i32) -> Result<i32> {
    loop {
        if proc::command_line(pid).contains("cluster-inside")
            && !proc::command_line(pid).contains("leakcheck")
        {
            return Ok(pid);
        }
        pid = match proc::children(pid)?.first() {
            Some(child) => child.pid,
            None => bail!("the cluster is not below its keeper"),
        };
    }
}

fn link_of(number: u8) -> String {
    format!("gantry-c{number}")
}

/// Of the clusters on this host.
fn free_number() -> Result<u8> {
    let links = leakcheck::links()?;
    let free = (0..=u8::MAX).find(|number| !links.contains(&link_of(*number)));
    free.context("256 clusters run already")
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Inside {
    #[command(flatten)]
    kept: Kept,
    #[arg(long)]
    number: u8,
    /// Descriptor of the namespace that the far end of the node's link goes to
    #[arg(long)]
    outer: i32,
}

/// The cluster itself, until it is told to end.
pub(crate) fn inside(asked: &Inside) -> Result<()> {
    let kept = &asked.kept;
    let options = ClusterOptions {
        folder: kept.dir.clone(),
        runtime: kept.runtime.into(),
        kubelet: kept.kubelet.kind(),
        addons: !kept.bare && kept.kubelet != KubeletName::None,
        number: asked.number,
        outside: Outside::Open {
            namespace: format!("/proc/self/fd/{}", asked.outer),
            link: link_of(asked.number),
        },
        join: Join::Given,
        settings: Default::default(),
    };
    let mut cluster = Cluster::start(options)?;
    std::fs::write(kept.dir.join("inside"), "")?;
    let listening = control::listen(&kept.dir, &mut |asked| match asked.split_once(' ') {
        None if asked == "down" => Ok(true),
        Some(("swap", name)) => {
            cluster.stop_kubelet()?;
            let kind =
                <KubeletName as clap::ValueEnum>::from_str(name, false).map_err(anyhow::Error::msg)?.kind();
            let Some(kind) = kind else { return Ok(false) };
            cluster.start_kubelet(kind)?;
            cluster.await_ready()?;
            Ok(false)
        }
        _ => bail!("{asked:?} is neither down nor swap NAME"),
    });
    let ended = cluster.end();
    listening.and(ended)
}

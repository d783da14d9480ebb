//! Where docker answers: this host's own, or a dockerd in a place of its own, for a host whose runc may not give the
//! capabilities that kind's `--privileged` asks for, or that has no dockerd. Owns that place, its way in and its end;
//! never knows a cluster. Called by `kind`.
//!
//! ```text
//! up ── starts ──► keep (this host: the cell)
//!                    └── engine.sh (inside: dockerd; ends when a line comes through FOLDER/end)
//! up, run, down ── nsenter ──► docker, kind, kubectl beside it
//! ```

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gantry_tests::poll::poll;
use gantry_tests::proc;

use super::oci;
use crate::cell::Cell;
use crate::sh;

const SCRIPT: &str = include_str!("engine.sh");
/// What the engine's shell is called.
const NAME: &str = "kind-engine";
const PATIENCE: Duration = Duration::from_secs(180);

/// Where docker answers.
#[derive(Debug)]
pub(super) enum Docker {
    /// Here, for everybody
    Host,
    /// In the namespaces of this process, with that folder
    Own { pid: i32, folder: PathBuf },
}

/// The folder of a person's own engine.
pub(super) fn folder() -> PathBuf {
    sh::cache_dir().join("kind/engine")
}

impl Docker {
    /// The one that runs.
    pub(super) fn find() -> Result<Option<Self>> {
        let folder = folder();
        if let Some(pid) = running(&folder)? {
            return Ok(Some(Docker::Own { pid, folder }));
        }
        Ok(answers().then_some(Docker::Host))
    }

    /// The one that runs and may do what kind asks, or a new one.
    pub(super) fn find_or_start() -> Result<Self> {
        match Docker::find()? {
            Some(Docker::Host) if !oci::is_whole()? => start(&folder()),
            Some(docker) => Ok(docker),
            None => start(&folder()),
        }
    }

    /// A command where docker answers.
    pub(super) fn command(&self, program: &Path) -> Command {
        match self {
            Docker::Host => Command::new(program),
            Docker::Own { pid, .. } => {
                let mut command = Command::new("nsenter");
                command.args(["--target", &pid.to_string(), "--mount", "--net", "--pid", "--cgroup", "--"]);
                command.arg(program);
                // There is no way out to a proxy, and kind would hand it to the nodes.
                for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "DOCKER_HOST"] {
                    command.env_remove(name);
                }
                command
            }
        }
    }

    /// The way in, as one types it.
    pub(super) fn way_in(&self) -> &'static str {
        match self {
            Docker::Host => "",
            Docker::Own { .. } => "cargo xtask kind run -- ",
        }
    }
}

/// Whether this host has a docker that answers.
fn answers() -> bool {
    let mut info = Command::new("docker");
    info.args(["info", "--format", "{{.ServerVersion}}"]).stdin(Stdio::null());
    info.output().is_ok_and(|output| output.status.success())
}

/// The first process of the own engine's namespaces.
fn running(folder: &Path) -> Result<Option<i32>> {
    let Ok(text) = fs::read_to_string(folder.join("ready")) else { return Ok(None) };
    let pid: i32 = text.trim().parse().context("the engine's file `ready`")?;
    Ok(proc::command_line(pid).contains(NAME).then_some(pid))
}

/// A new one, with everything of it in that folder.
pub(super) fn start(folder: &Path) -> Result<Docker> {
    // Images that an earlier engine had loaded are loaded again: seconds, and no state that may be stale.
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("clear {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let own = folder.join("oci-runtime");
    // A copy: the next build takes this program's file away.
    fs::copy("/proc/self/exe", &own).with_context(|| format!("copy this program to {}", own.display()))?;
    let log = fs::File::create(folder.join("keep.log"))?;
    let mut keeper = Command::new("setsid");
    keeper.arg(&own).arg("kind-keep").arg(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut keeper = keeper.spawn().context("start the engine's keeper")?;
    poll("docker to answer: see keep.log and dockerd.log", PATIENCE, || {
        if let Ok(Some(status)) = keeper.try_wait() {
            let said = fs::read_to_string(folder.join("keep.log")).unwrap_or_default();
            return Ok(Err(anyhow::anyhow!("the engine ended with {status}\n{said}")));
        }
        if folder.join("ready").exists() { Ok(Ok(())) } else { Err("it still starts".to_owned()) }
    })??;
    let pid = running(folder)?.context("the engine is gone")?;
    Ok(Docker::Own { pid, folder: folder.to_owned() })
}

/// What stays of an engine on this host: makes the place, and says how it was left.
pub(crate) fn keep(folder: &Path) -> Result<()> {
    let outcome = kept(folder);
    let said = outcome.as_ref().map_or_else(|error| format!("{error:#}\n"), |()| "clean\n".to_owned());
    fs::write(folder.join("outcome"), said)?;
    outcome
}

fn kept(folder: &Path) -> Result<()> {
    sh::run(Command::new("mkfifo").arg(folder.join("end")))?;
    let cell = Cell::new()?;
    let mut command = cell.command(Path::new("sh"))?;
    command.args(["-c", SCRIPT, NAME]).arg(folder).arg(folder.join("oci-runtime")).stdin(Stdio::null());
    let mut child = command.spawn().context("start the engine")?;
    let answered = await_answer(folder, &mut child);
    let status = child.wait().context("wait for the engine")?;
    let closed = cell.close();
    answered?;
    if !status.success() {
        bail!("the engine ended with {status}");
    }
    closed
}

fn await_answer(folder: &Path, child: &mut std::process::Child) -> Result<()> {
    poll("dockerd to answer", PATIENCE, || {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(Err(anyhow::anyhow!("the engine ended with {status}")));
        }
        if folder.join("answers").exists() { Ok(Ok(())) } else { Err("it still starts".to_owned()) }
    })??;
    // unshare, which the child has become, has one child: the namespaces' first process.
    let outer = i32::try_from(child.id()).context("a pid")?;
    let first = proc::children(outer)?.first().map(|child| child.pid).context("unshare has no child")?;
    let ready = folder.join("ready.new");
    fs::write(&ready, format!("{first}\n"))?;
    Ok(fs::rename(ready, folder.join("ready"))?)
}

/// Ends the own engine, and fails when it left anything.
pub(super) fn end(folder: &Path) -> Result<()> {
    // Without this flag it would wait for a reader, and a dead engine is none.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).context("a flag of open")?;
    let opened = fs::OpenOptions::new().write(true).custom_flags(flags).open(folder.join("end"));
    let mut end = opened.context("the engine's pipe: is it gone already?")?;
    end.write_all(b"\n").context("tell the engine to end")?;
    drop(end);
    poll("the engine's keeper to end", PATIENCE, || {
        if folder.join("outcome").exists() { Ok(()) } else { Err("it still ends".to_owned()) }
    })?;
    let outcome = fs::read_to_string(folder.join("outcome"))?;
    if outcome.trim() != "clean" {
        let said = fs::read_to_string(folder.join("keep.log")).unwrap_or_default();
        bail!("{}\n{said}", outcome.trim());
    }
    fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))
}

//! `gantry run` and the commands beside it, as a user types them, on roots of their own. Owns the
//! foreground process; never reads the agent's insides. Called by the kernel tier.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::node::{self, Roots};
use crate::place;
use crate::poll::poll;

/// A `gantry run` in the background; killed when dropped.
#[derive(Debug)]
pub struct Standalone {
    child: Child,
    // Last: its drop sweeps what the process leaves.
    roots: Roots,
}

/// A command line of `gantry run FILE` on these roots.
///
/// # Errors
/// When the programs are not built.
pub fn run_command(roots: &Roots, file: &Path) -> Result<Command> {
    let mut command = run_flags(roots)?;
    command.arg(file);
    Ok(command)
}

/// The same without a file.
fn run_flags(roots: &Roots) -> Result<Command> {
    let mut command = Command::new(place::bin_dir()?.join("gantry"));
    command
        .arg("run")
        .args(roots.flags()?)
        .arg(format!("--agent-socket={}", roots.path("agent.sock").display()))
        .arg(format!("--pod-logs-dir={}", roots.path("logs").display()))
        .stdin(Stdio::null());
    Ok(command)
}

impl Standalone {
    /// Starts `gantry run` on a manifest.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn start(roots: Roots, manifest: &str) -> Result<Self> {
        Self::start_with(roots, Some(manifest), &[])
    }

    /// Starts it with more flags, and with a manifest or without.
    ///
    /// # Errors
    /// As [`Standalone::start`].
    pub fn start_with(roots: Roots, manifest: Option<&str>, flags: &[String]) -> Result<Self> {
        let mut command = run_flags(&roots)?;
        if let Some(manifest) = manifest {
            let file = roots.path("pod.yaml");
            std::fs::write(&file, manifest)?;
            command.arg(file);
        }
        let child = command
            .args(flags)
            .stdout(File::create(roots.path("run.out"))?)
            .stderr(File::create(roots.path("run.err"))?)
            .spawn()
            .context("start gantry run")?;
        Ok(Standalone { child, roots })
    }

    /// Its folders.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// A command line `gantry WORDS…` with this agent's socket, not started.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        let socket = format!("--agent-socket={}", self.roots.path("agent.sock").display());
        let mut command = Command::new(place::bin_dir()?.join("gantry"));
        // Before a `--`.
        let (name, rest) = words.split_first().context("no command")?;
        command.arg(name).arg(socket).args(rest).stdin(Stdio::null());
        Ok(command)
    }

    /// `gantry COMMAND ARGS… --agent-socket …`, to its end.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn gantry(&self, command: &str, args: &[&str]) -> Result<Output> {
        Command::new(place::bin_dir()?.join("gantry"))
            .arg(command)
            .args(args)
            .arg(format!("--agent-socket={}", self.roots.path("agent.sock").display()))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run gantry {command}"))
    }

    /// As [`Standalone::gantry`], its output as text.
    ///
    /// # Errors
    /// When it fails; shows what it said.
    pub fn gantry_ok(&self, command: &str, args: &[&str]) -> Result<String> {
        let output = self.gantry(command, args)?;
        ensure!(
            output.status.success(),
            "gantry {command} ended with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.said()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Asks it to end, as Ctrl-C does.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn interrupt(&self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no pid")?;
        rustix::process::kill_process(pid, Signal::INT).context("interrupt gantry run")
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it has not after a minute.
    pub fn await_end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let ended = poll("gantry run to end", Duration::from_secs(60), || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still there".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        ended.with_context(|| self.said())
    }

    /// What it has printed on stdout.
    #[must_use]
    pub fn stdout(&self) -> String {
        read(&self.roots.path("run.out"))
    }

    /// What it has printed on stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        read(&self.roots.path("run.err"))
    }

    fn said(&self) -> String {
        node::tail(&self.roots.path("run.err"))
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

//! mount(8) and umount(8) of this machine, which know the helpers of network file systems. Owns the processes and how long
//! each may take; what they are told and what is said of them is [`super::nfs`]'s. Called by [`super::host`].

#![expect(
    clippy::disallowed_methods,
    reason = "mount and umount, which run mount.nfs: ARCHITECTURE.md, invariant 11"
)]

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::time::timeout;

use super::{mounts, nfs};

/// mount.nfs gives up by itself after about two minutes. Upstream waits without end.
const MOUNT: Duration = Duration::from_secs(300);
/// `unMountTimeout`: then it is forced.
const UNMOUNT: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct MountProgram {
    pub(super) mount: HostProgram,
    pub(super) umount: HostProgram,
    pub(super) force: HostProgram,
    /// Every mount point at or below a folder, the deepest first; asks no file system.
    pub(super) table: fn(&Path) -> io::Result<Vec<PathBuf>>,
}

impl Default for MountProgram {
    fn default() -> Self {
        let program = |words: &[&str], patience| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            HostProgram { words, patience }
        };
        Self {
            mount: program(&["mount"], MOUNT),
            umount: program(&["umount"], UNMOUNT),
            force: program(&["umount", "-f"], UNMOUNT),
            table: mounts::below,
        }
    }
}

/// A program of the machine.
#[derive(Debug, Clone)]
pub(super) struct HostProgram {
    /// Its path or its name, and what is always said to it.
    pub(super) words: Vec<String>,
    /// How long it may take.
    pub(super) patience: Duration,
}

/// How a program ended.
enum ProgramEnd {
    Done,
    /// Why, in Go's words, and what it said.
    Failed(String, String),
    /// Not in time: it was killed.
    Late,
}

impl MountProgram {
    /// What is mounted at or below the folder, the deepest first.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(super) fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        (self.table)(folder).map_err(|error| format!("read the mount table: {error}"))
    }

    /// Whether something is mounted exactly there.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(super) fn is_mounted(&self, target: &Path) -> Result<bool, String> {
        Ok(self.below(target)?.iter().any(|point| point == target))
    }

    /// Runs mount(8).
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) async fn mount(&self, arguments: &[String]) -> Result<(), String> {
        let program = &self.mount;
        let (why, output) = match program.run("mount", arguments).await {
            ProgramEnd::Done => return Ok(()),
            ProgramEnd::Failed(why, output) => (why, output),
            ProgramEnd::Late => {
                let seconds = program.patience.as_secs();
                let output = format!("it did not end within {seconds} s: its server does not answer");
                ("signal: killed".to_owned(), output)
            }
        };
        Err(nfs::mount_failed(&why, arguments, &output))
    }

    /// Takes a mount off; by force when its server keeps that waiting.
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) async fn unmount(&self, point: &Path) -> Result<(), String> {
        let shown = [point.to_string_lossy().into_owned()];
        let mut end = self.umount.run("umount", &shown).await;
        if matches!(end, ProgramEnd::Late) {
            tracing::warn!(point = %point.display(), "umount did not end in time: it is forced");
            end = self.force.run("umount", &shown).await;
        }
        let (why, output) = match end {
            ProgramEnd::Done => return Ok(()),
            ProgramEnd::Failed(why, output) => (why, output),
            ProgramEnd::Late => {
                let seconds = self.force.patience.as_secs();
                ("signal: killed".to_owned(), format!("umount -f did not end within {seconds} s either"))
            }
        };
        // Somebody else was faster.
        if !self.is_mounted(point)? {
            return Ok(());
        }
        Err(nfs::unmount_failed(&why, point, &output))
    }
}

/// Kills a program and what it has started: mount(8) waits for mount.nfs.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let Some(group) = self.0 else { return };
        if let Err(error) = kill_process_group(group, Signal::KILL) {
            tracing::debug!(%error, "a program ended before it was killed");
        }
    }
}

impl HostProgram {
    async fn run(&self, name: &str, arguments: &[String]) -> ProgramEnd {
        match timeout(self.patience, self.collect(arguments)).await {
            Err(_) => ProgramEnd::Late,
            Ok(Ok((status, _))) if status.success() => ProgramEnd::Done,
            Ok(Ok((status, output))) => ProgramEnd::Failed(describe_exit(status), output),
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
                let why = format!("exec: {name:?}: executable file not found in $PATH");
                ProgramEnd::Failed(why, String::new())
            }
            Ok(Err(error)) => ProgramEnd::Failed(error.to_string(), String::new()),
        }
    }

    /// How it ended, and what it said on both streams. Dropped, it kills the program and does not wait: one that the kernel
    /// holds in a call to a dead server ends when that call does.
    async fn collect(&self, arguments: &[String]) -> io::Result<(ExitStatus, String)> {
        let (program, always) = self.words.split_first().ok_or(ErrorKind::InvalidInput)?;
        let (reads, writes) = io::pipe()?;
        let mut command = Command::new(program);
        command.args(always).args(arguments).stdin(Stdio::null());
        command.stdout(writes.try_clone()?).stderr(writes).process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        // With it this end of the pipe.
        drop(command);
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let mut group = ProcessGroup(id);
        let mut output = Vec::new();
        Receiver::from_owned_fd(reads.into())?.read_to_end(&mut output).await?;
        let status = child.wait().await?;
        group.0 = None;
        Ok((status, String::from_utf8_lossy(&output).into_owned()))
    }
}

/// As Go prints it.
fn describe_exit(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => status.to_string(),
    }
}

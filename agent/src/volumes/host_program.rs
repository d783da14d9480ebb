//! Programs of this machine that volumes need: `mount`, `umount`, `iscsiadm` and the like. Owns the processes and their
//! ends; what they are told, and what is said of them, is their callers'. Called by [`super::mount_program`],
//! [`super::disk`] and [`super::iscsi`].

#![expect(
    clippy::disallowed_methods,
    reason = "mount and umount, iscsiadm, and those of file systems: ARCHITECTURE.md, invariant 11"
)]

use std::io::{self, ErrorKind};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::time::timeout;

/// As Go says it of a program that is nowhere.
pub(super) const NOT_FOUND: &str = "executable file not found in $PATH";

/// A program of the machine.
#[derive(Debug, Clone)]
pub(super) struct HostProgram {
    /// Its path or its name, and what is always said to it.
    pub(super) words: Vec<String>,
    /// How long it may take.
    pub(super) patience: Duration,
}

/// Why a program did not do what it was to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProgramFailure {
    /// None where a signal ended it, or where it never ran.
    pub(super) code: Option<i32>,
    /// It did not end in time, and was killed.
    pub(super) late: bool,
    /// In Go's words.
    pub(super) why: String,
    /// On both streams.
    pub(super) output: String,
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
    pub(super) fn new(words: &[&str], patience: Duration) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), patience }
    }

    /// Runs it to its end; what it said on both streams. `name` is what it is called where it is not there.
    ///
    /// # Errors
    /// It was not found, has failed, or took too long.
    pub(super) async fn run(&self, name: &str, arguments: &[String]) -> Result<String, ProgramFailure> {
        let failed = |why: String, output: String| ProgramFailure { code: None, late: false, why, output };
        match timeout(self.patience, self.collect(arguments)).await {
            Ok(Ok((status, output))) if status.success() => Ok(output),
            Ok(Ok((status, output))) => {
                Err(ProgramFailure { code: status.code(), ..failed(describe_exit(status), output) })
            }
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
                Err(failed(format!("exec: {name:?}: {NOT_FOUND}"), String::new()))
            }
            Ok(Err(error)) => Err(failed(error.to_string(), String::new())),
            Err(_) => {
                let output = format!("it did not end within {} s", self.patience.as_secs());
                Err(ProgramFailure { late: true, ..failed("signal: killed".to_owned(), output) })
            }
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

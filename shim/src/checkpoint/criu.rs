//! The node's criu, and a dump by it or by an OCI runtime that runs it. Owns where criu is looked for, how a dump is
//! run and how it is ended. Called by `checkpoint`.

#![expect(clippy::disallowed_methods, reason = "runs criu, without which there are no checkpoints")]

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use super::plan;
use crate::error::checkpoint::Unfit;

/// The oldest that containerd takes: it knows a pod's namespaces as external ones.
const OLDEST: u64 = 31_600;

/// How long it may take to say its version.
const ANSWER: Duration = Duration::from_secs(10);

/// Where programs are when nobody says so.
const STANDARD: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A criu that is new enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Criu {
    pub program: PathBuf,
    /// By which whoever looks for criu finds this one.
    path: OsString,
}

/// Finds it in the PATH of the runtime, and asks for its version.
///
/// # Errors
/// What is wrong with it.
pub(super) async fn find() -> Result<Criu, Unfit> {
    let path = std::env::var_os("PATH").filter(|path| !path.is_empty()).unwrap_or_else(|| STANDARD.into());
    let criu = look(&path).ok_or_else(|| Unfit::Missing { path: path.to_string_lossy().into_owned() })?;
    let mut command = criu.command(&criu.program);
    command.arg("--version");
    let mute = |said: String| Unfit::Mute { program: criu.program.clone(), said };
    let output = match run(command, ANSWER).await {
        Ok(output) => output,
        Err(CriuFailure::Start(error)) => return Err(mute(error.to_string())),
        Err(CriuFailure::Slow) => return Err(mute(format!("it does not end within {} s", ANSWER.as_secs()))),
    };
    match plan::version(&String::from_utf8_lossy(&output.stdout)) {
        Some(found) if found >= OLDEST => Ok(criu),
        Some(found) => Err(Unfit::Old { program: criu.program, found }),
        None => Err(mute(last_error(&output))),
    }
}

fn look(path: &OsStr) -> Option<Criu> {
    let runs = |program: &PathBuf| {
        std::fs::metadata(program)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let program = std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("criu"))
        .find(runs)?;
    Some(Criu { program, path: path.to_owned() })
}

impl Criu {
    /// `program` with nothing of the runtime's variables but the PATH in which this criu is the first.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", &self.path);
        command
    }
}

/// Why there is no output.
#[derive(Debug)]
pub(super) enum CriuFailure {
    Start(std::io::Error),
    /// It was ended.
    Slow,
}

/// Runs a program to its end, or to that of the time; then it and its children are killed. criu's part in a process
/// undoes itself when criu is gone, and so does what stops a traced process; a frozen cgroup does not.
///
/// # Errors
/// When it can't be started or takes too long.
pub(super) async fn run(mut command: Command, time: Duration) -> Result<Output, CriuFailure> {
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // To be ended as one: an OCI runtime has criu as its child. Not killed with the runtime: a dump that goes on to
    // its end lets go of the container by itself.
    command.process_group(0);
    let child = command.spawn().map_err(CriuFailure::Start)?;
    let group = ProcessGroup::of(&child);
    match tokio::time::timeout(time, child.wait_with_output()).await {
        Ok(output) => output.map_err(CriuFailure::Start),
        Err(_) => {
            group.end().await;
            Err(CriuFailure::Slow)
        }
    }
}

struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Kills all of it, and waits until the kernel has let go of them: until then a process may be held.
    async fn end(&self) {
        let Some(group) = self.0 else { return };
        let deadline = tokio::time::Instant::now() + ANSWER;
        // Nobody is left in it: what was wanted. What is dead and not yet waited for counts as left.
        while rustix::process::kill_process_group(group, Signal::KILL).is_ok()
            && tokio::time::Instant::now() < deadline
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What it said last, or how it ended.
pub(super) fn last_error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim().lines().last() {
        Some(line) => {
            format!("{} ({})", line.chars().take(1024).collect::<String>(), exit_text(output.status))
        }
        None => exit_text(output.status),
    }
}

fn exit_text(status: ExitStatus) -> String {
    status.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criu_is_looked_for_in_order_and_in_absolute_folders_only() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for place in [&first, &second] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("criu"), "").unwrap();
        }
        let path = std::env::join_paths([Path::new("."), &first, &second]).unwrap();
        assert_eq!(look(&path), None, "nobody may run them");
        std::fs::set_permissions(second.join("criu"), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(look(&path).unwrap().program, second.join("criu"));
        std::fs::set_permissions(first.join("criu"), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(look(&path).unwrap().program, first.join("criu"));
    }

    #[tokio::test]
    async fn one_that_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("child");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg("sleep 1000 & echo $! > \"$0\"; wait").arg(&mark);
        let ran = run(command, Duration::from_millis(500)).await;
        assert!(matches!(ran, Err(CriuFailure::Slow)), "{ran:?}");
        let child: i32 = std::fs::read_to_string(mark).unwrap().trim().parse().unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let is_over = |stat: &str| stat.is_empty() || stat.contains(") Z ");
        for _ in 0..500 {
            if is_over(&state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it runs on: {}", state());
    }
}

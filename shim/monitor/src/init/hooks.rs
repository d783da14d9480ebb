//! Hooks of the OCI runtime specification (runtime.md "Lifecycle", config.md "POSIX-platform Hooks"): each
//! reads the container's state on stdin, has its time, and ends well or stops the start. Owns how they are
//! run, and in runc's words why one failed; which there are is the CDI files' to say. Called by
//! `monitor::spawn` (prestart, createRuntime), by the container's first process (createContainer,
//! startContainer) and by the runtime (poststart, poststop). Blocks.

#![expect(clippy::disallowed_methods, reason = "runs the hooks that a CDI file names")]

use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use gantry_proto::monitor::{Hook, HookStage, Hooks, StartContainer};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{StepContext, StepError, refuse};

/// Of the specification that the state follows.
const OCI_VERSION: &str = "1.3.0";

/// Of a hook that brings no variables.
const DEFAULT_PATH: &[u8] = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is kept of each stream of a hook: an error must fit into a child's report.
const MAX_OUTPUT: usize = 1024;

const OK: u8 = 0;
const FAILED: u8 = 1;

/// A hook that could not be run, or that says no.
#[derive(Debug, thiserror::Error)]
#[error("error running {stage} hook #{index}: {why}")]
pub struct Error {
    stage: &'static str,
    index: usize,
    why: String,
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self { what: error.to_string(), source: std::io::Error::other("a hook failed") }
    }
}

/// What hooks are told of the container.
#[derive(Debug, Clone, Copy)]
pub struct HookState<'a> {
    /// The container's.
    pub id: &'a str,
    /// As the specification words it.
    pub status: &'static str,
    /// As the hook's pid namespace sees it; 0 when there is none.
    pub pid: i32,
}

impl HookState<'_> {
    fn json(&self, hooks: &Hooks) -> Vec<u8> {
        let mut state = serde_json::json!({
            "ociVersion": OCI_VERSION,
            "id": self.id,
            "status": self.status,
            "bundle": hooks.bundle,
            "annotations": hooks.annotations,
        });
        if let Some(fields) = state.as_object_mut().filter(|_| self.pid > 0) {
            fields.insert("pid".to_owned(), self.pid.into());
        }
        state.to_string().into_bytes()
    }
}

fn name(stage: HookStage) -> &'static str {
    match stage {
        HookStage::HookPrestart => "prestart",
        HookStage::HookCreateRuntime => "createRuntime",
        HookStage::HookCreateContainer => "createContainer",
        HookStage::HookStartContainer => "startContainer",
        HookStage::HookPoststart => "poststart",
        HookStage::HookPoststop => "poststop",
    }
}

/// Whether there is anything to run.
#[must_use]
pub fn any(hooks: Option<&Hooks>, stages: &[HookStage]) -> bool {
    hooks.is_some_and(|hooks| hooks.hooks.iter().any(|hook| stages.contains(&hook.stage())))
}

/// Runs the hooks of a stage, in their order; the first that fails ends it. `env` is that of hooks which
/// bring none. Whatever hangs on the other end of `cancel` may call it off by closing.
///
/// # Errors
/// Which one failed, and what it said.
pub fn run(
    hooks: &Hooks,
    stage: HookStage,
    state: HookState<'_>,
    env: &[Vec<u8>],
    cancel: Option<BorrowedFd<'_>>,
) -> Result<(), Error> {
    let json = state.json(hooks);
    let of_stage = hooks.hooks.iter().filter(|hook| hook.stage() == stage);
    for (index, hook) in of_stage.enumerate() {
        one(hook, &json, env, cancel).map_err(|why| Error { stage: name(stage), index, why })?;
    }
    Ok(())
}

fn one(hook: &Hook, state: &[u8], env: &[Vec<u8>], cancel: Option<BorrowedFd<'_>>) -> Result<(), String> {
    let named = |error: std::io::Error| format!("fork/exec {}: {}", hook.path, plain(&error));
    let (mut stdout, their_stdout) = std::io::pipe().map_err(named)?;
    let (mut stderr, their_stderr) = std::io::pipe().map_err(named)?;
    let mut command = Command::new(&hook.path);
    // A group of its own, so that what it started can be ended with it.
    command.stdin(stdin(state).map_err(named)?).stdout(their_stdout).stderr(their_stderr).process_group(0);
    if let Some((program, rest)) = hook.args.split_first() {
        command.arg0(program).args(rest);
    }
    let own: Vec<&[u8]> = hook.env.iter().map(String::as_bytes).collect();
    let env = if own.is_empty() { env.iter().map(Vec::as_slice).collect() } else { own };
    command.env_clear().envs(env.iter().filter_map(|pair| variable(pair)));
    let mut child = command.spawn().map_err(named)?;
    // With its ends of the pipes.
    drop(command);
    let deadline = hook.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut said = [Vec::new(), Vec::new()];
    match follow(&mut child, &mut [&mut stdout, &mut stderr], &mut said, deadline, cancel).map_err(named)? {
        HookEnd::Exited(status) if status.success() => Ok(()),
        HookEnd::Exited(status) => {
            let [stdout, stderr] = said.each_ref().map(|bytes| String::from_utf8_lossy(bytes));
            Err(format!("{}, stdout: {stdout}, stderr: {stderr}", word(status)))
        }
        HookEnd::Late => {
            Err(format!("hook ran past specified timeout of {}.0s", hook.timeout.unwrap_or_default()))
        }
        HookEnd::Cancelled => Err("the start was called off".to_owned()),
    }
}

/// std's text without its number, which Go's has not.
fn plain(error: &std::io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// In Go's words.
fn word(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(9)) => "signal: killed".to_owned(),
        (None, signal) => format!("signal: {}", signal.unwrap_or_default()),
    }
}

fn variable(pair: &[u8]) -> Option<(&OsStr, &OsStr)> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(pair.get(..at)?), OsStr::from_bytes(pair.get(at + 1..)?)))
}

/// All at once, so that nobody waits for a hook that does not read.
fn stdin(state: &[u8]) -> std::io::Result<std::fs::File> {
    let mut file = std::fs::File::from(rustix::fs::memfd_create("state", MemfdFlags::CLOEXEC)?);
    file.write_all(state)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

enum HookEnd {
    Exited(ExitStatus),
    Late,
    Cancelled,
}

/// Reads what the hook says until it has ended; who else holds its output is not waited for.
fn follow(
    child: &mut Child,
    streams: &mut [&mut std::io::PipeReader; 2],
    said: &mut [Vec<u8>; 2],
    deadline: Option<Instant>,
    cancel: Option<BorrowedFd<'_>>,
) -> std::io::Result<HookEnd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let mut open = [true; 2];
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = poll_hook(&ended, streams.each_ref().map(|stream| stream.as_fd()), open, cancel, left)?;
        for index in 0..2 {
            if ready.streams[index] {
                open[index] = read_output(streams[index], &mut said[index])?;
            }
        }
        if ready.streams.contains(&true) {
            // Until there is nothing more to read, the end has time.
            continue;
        }
        let end = match ready {
            HookEvents { ended: true, .. } => return Ok(HookEnd::Exited(child.wait()?)),
            HookEvents { cancelled: true, .. } => HookEnd::Cancelled,
            _ if left.is_some_and(|left| left.is_zero()) => HookEnd::Late,
            _ => continue,
        };
        // Not reaped yet, so the group's number is its own.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        child.wait()?;
        return Ok(end);
    }
}

struct HookEvents {
    ended: bool,
    cancelled: bool,
    streams: [bool; 2],
}

fn poll_hook(
    ended: &OwnedFd,
    streams: [BorrowedFd<'_>; 2],
    open: [bool; 2],
    cancel: Option<BorrowedFd<'_>>,
    left: Option<Duration>,
) -> std::io::Result<HookEvents> {
    let flags = |wanted| if wanted { PollFlags::IN } else { PollFlags::empty() };
    let mut fds = vec![PollFd::new(ended, PollFlags::IN)];
    // One that has ended would be ready for ever.
    let at: Vec<usize> = (0..2).filter(|index| open[*index]).collect();
    fds.extend(at.iter().map(|index| PollFd::from_borrowed_fd(streams[*index], flags(true))));
    fds.extend(cancel.map(|fd| PollFd::from_borrowed_fd(fd, flags(false))));
    let wait = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    match rustix::event::poll(&mut fds, wait.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let hit = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
    let mut found =
        HookEvents { ended: hit(0), cancelled: cancel.is_some() && hit(at.len() + 1), streams: [false; 2] };
    for (position, index) in at.iter().enumerate() {
        found.streams[*index] = hit(position + 1);
    }
    Ok(found)
}

/// Reads once; false at the end.
fn read_output(stream: &mut std::io::PipeReader, said: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut chunk = [0u8; 4096];
    let count = stream.read(&mut chunk)?;
    let room = MAX_OUTPUT.saturating_sub(said.len());
    said.extend(chunk.iter().take(count.min(room)));
    Ok(count > 0)
}

/// The container's first process, once its root is complete and before it enters it: waits for the hooks that
/// run in the runtime's namespaces, then runs those of its own.
pub(super) fn before_root(
    start: &StartContainer,
    runtimes: Option<&OwnedFd>,
    root: BorrowedFd<'_>,
) -> Result<(), StepError> {
    let Some(hooks) = &start.hooks else { return Ok(()) };
    if let Some(socket) = runtimes {
        await_runtimes(socket)?;
    }
    if !any(Some(hooks), &[HookStage::HookCreateContainer]) {
        return Ok(());
    }
    rustix::process::fchdir(root).step(|| "enter the root file system".into())?;
    as_own(hooks, HookStage::HookCreateContainer, start, "creating", &[DEFAULT_PATH.to_vec()])
}

/// As what the container's program will be, right before it.
pub(super) fn before_program(start: &StartContainer) -> Result<(), StepError> {
    match &start.hooks {
        Some(hooks) => as_own(hooks, HookStage::HookStartContainer, start, "created", &start.env),
        None => Ok(()),
    }
}

fn as_own(
    hooks: &Hooks,
    stage: HookStage,
    start: &StartContainer,
    status: &'static str,
    env: &[Vec<u8>],
) -> Result<(), StepError> {
    if !any(Some(hooks), &[stage]) {
        return Ok(());
    }
    gantry_sys::signal::reset_all();
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let ran = run(hooks, stage, HookState { id: &start.id, status, pid }, env, None);
    rustix::process::umask(umask);
    Ok(ran?)
}

fn await_runtimes(socket: &OwnedFd) -> Result<(), StepError> {
    let answer = ask(socket).unwrap_or_default();
    match answer.split_first() {
        Some((&OK, _)) => Ok(()),
        Some((_, text)) => refuse(0, String::from_utf8_lossy(text).into_owned()),
        None => refuse(0, "the process that runs the createRuntime hooks was killed"),
    }
}

/// An error is the end of the other side, too.
fn ask(socket: &OwnedFd) -> Result<Vec<u8>, rustix::io::Errno> {
    rustix::io::write(socket, &[OK])?;
    let mut answer = Vec::new();
    let mut chunk = [0u8; 4096];
    loop {
        match rustix::io::read(socket, &mut chunk[..])? {
            0 => return Ok(answer),
            count => answer.extend(chunk.iter().take(count)),
        }
    }
}

/// A process of the monitor's, in the runtime's namespaces: runs what is due there once the container, whose
/// first process is `pid`, asks for it over `socket`, and answers.
pub fn serve_hooks(start: &StartContainer, pid: i32, socket: &OwnedFd) {
    let mut asked = [0u8; 1];
    let Some(hooks) = &start.hooks else { return };
    // An end without a question: the set-up has failed before.
    if !matches!(rustix::io::read(socket, &mut asked[..]), Ok(1)) {
        return;
    }
    gantry_sys::signal::reset_all();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let state = HookState { id: &start.id, status: "creating", pid };
    let ran = [HookStage::HookPrestart, HookStage::HookCreateRuntime]
        .into_iter()
        .try_for_each(|stage| run(hooks, stage, state, &[DEFAULT_PATH.to_vec()], Some(socket.as_fd())));
    let answer = match ran {
        Ok(()) => vec![OK],
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    };
    // The container's process may be gone meanwhile: nobody else waits for it.
    let _ = rustix::io::write(socket, &answer);
}

/// For the runtime's own: what hooks without variables get.
#[must_use]
pub fn default_env() -> Vec<Vec<u8>> {
    vec![DEFAULT_PATH.to_vec()]
}

#[cfg(test)]
mod tests;

//! One confined process with a pipe to it and a pipe back. Owns its life: one that is dropped is killed
//! and waited for. Called by `flow`.

#![expect(clippy::disallowed_methods, reason = "runs our own unpacker")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};

use super::LayerError;
use super::disk_guard::worker;
use crate::image::switches::{Optimisation, Switches};
use gantry_unpack::{ProgramError, UnpackCommand};

/// The most that a pipe may hold without asking for more (fs.pipe-max-size).
const PIPE: usize = 1 << 20;
/// For a process that has said all to be gone.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Who unpacks layers.
#[derive(Debug, Clone)]
pub enum Unpacker {
    /// The program `gantry-unpack`.
    Program(PathBuf),
    /// The same code on a thread, for tests of all but the confinement.
    #[cfg(test)]
    Thread,
}

/// How layers are unpacked.
#[derive(Debug)]
pub(crate) struct UnpackOptions {
    unpacker: Unpacker,
    large_pipes: bool,
    pub(super) batches: bool,
}

impl UnpackOptions {
    pub(crate) fn new(unpacker: Unpacker, switches: &Switches) -> Self {
        Self {
            unpacker,
            large_pipes: switches.has(Optimisation::LargePipes),
            batches: switches.has(Optimisation::Batches),
        }
    }
}

/// A process at work.
pub(super) struct UnpackWorker {
    process: WorkerProcess,
    /// What it reads; writing never blocks. Dropped: the end.
    pub(super) input: Option<File>,
    /// What it writes.
    pub(super) output: Option<File>,
}

enum WorkerProcess {
    Child(Child),
    #[cfg(test)]
    Thread(Option<std::thread::JoinHandle<Result<(), ProgramError>>>),
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    Done,
    Code(i32),
    Signal(i32),
}

impl UnpackWorker {
    /// Starts a process for `command`.
    ///
    /// # Errors
    /// [`LayerError::Worker`].
    pub(super) fn start(options: &UnpackOptions, command: &UnpackCommand) -> Result<Self, LayerError> {
        let (theirs_in, input) = pipe(options.large_pipes)?;
        let (output, theirs_out) = pipe(options.large_pipes)?;
        let flags = rustix::fs::fcntl_getfl(&input).map_err(worker("prepare pipes for"))?;
        rustix::fs::fcntl_setfl(&input, flags | OFlags::NONBLOCK).map_err(worker("prepare pipes for"))?;
        let process = match &options.unpacker {
            Unpacker::Program(path) => {
                let mut program = std::process::Command::new(path);
                program.arg0("gantry-unpack").args(command.args()).env_clear().current_dir("/");
                program.stdin(Stdio::from(theirs_in)).stdout(Stdio::from(theirs_out)).stderr(Stdio::null());
                let child = program
                    .spawn()
                    .map_err(|source| LayerError::Worker { operation: "start", source: Arc::new(source) })?;
                WorkerProcess::Child(child)
            }
            #[cfg(test)]
            Unpacker::Thread => WorkerProcess::Thread(Some(std::thread::spawn({
                let args = command.args();
                move || {
                    let command = UnpackCommand::parse(args.into_iter())?;
                    let root = match &command {
                        UnpackCommand::Unpack { folder, .. } => folder.clone(),
                        UnpackCommand::Inflate { .. } => PathBuf::new(),
                    };
                    command.execute(&root, theirs_in.into(), theirs_out.into())
                }
            }))),
        };
        Ok(Self { process, input: Some(input.into()), output: Some(output.into()) })
    }

    /// Ends it, whatever it does.
    pub(super) fn kill(&mut self) {
        match &mut self.process {
            // Fails only when it has ended.
            WorkerProcess::Child(child) => drop(child.kill()),
            #[cfg(test)]
            WorkerProcess::Thread(_) => {}
        }
    }

    /// Waits for its end, which has nothing more to wait for: one that does not come is made.
    ///
    /// # Errors
    /// [`LayerError::Worker`].
    pub(super) fn end(&mut self) -> Result<ProcessEnd, LayerError> {
        self.end_within(PATIENCE)
    }

    fn end_within(&mut self, patience: Timespec) -> Result<ProcessEnd, LayerError> {
        self.input = None;
        match &mut self.process {
            WorkerProcess::Child(child) => {
                let process = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty());
                let process = process.map_err(worker("wait for"))?;
                let ended = rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience));
                if ended == Ok(0) {
                    // Bytes of a stranger may have taken it over: it has said all, and stays.
                    let _ = child.kill();
                }
                let status = child.wait().map_err(|source| LayerError::Worker {
                    operation: "wait for",
                    source: Arc::new(source),
                })?;
                Ok(match (status.code(), status.signal()) {
                    (Some(0), _) => ProcessEnd::Done,
                    (Some(code), _) => ProcessEnd::Code(code),
                    (None, signal) => ProcessEnd::Signal(signal.unwrap_or_default()),
                })
            }
            #[cfg(test)]
            WorkerProcess::Thread(thread) => match thread.take().map(std::thread::JoinHandle::join) {
                Some(Ok(Err(error))) => Ok(ProcessEnd::Code(error.exit_code().into())),
                Some(Err(_)) => Ok(ProcessEnd::Signal(libc::SIGABRT)),
                Some(Ok(Ok(()))) | None => Ok(ProcessEnd::Done),
            },
        }
    }
}

impl Drop for UnpackWorker {
    fn drop(&mut self) {
        (self.input, self.output) = (None, None);
        match &mut self.process {
            WorkerProcess::Child(child) => {
                // Both fail only when it has ended and been waited for.
                let _ = child.kill();
                let _ = child.wait();
            }
            #[cfg(test)]
            WorkerProcess::Thread(_) => {}
        }
    }
}

impl ProcessEnd {
    /// For the error, when it should have ended otherwise.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Done => "without a word".to_owned(),
            Self::Code(code) => match ProgramError::of_exit_code(*code) {
                Some(words) => words.to_owned(),
                None => format!("with code {code}"),
            },
            Self::Signal(libc::SIGSYS) => {
                "it made a system call that it may not make: the layer may be an attack".to_owned()
            }
            Self::Signal(libc::SIGXCPU) => "it used up its processor time".to_owned(),
            Self::Signal(signal) => format!("by signal {signal}"),
        }
    }
}

/// Read end, write end.
fn pipe(large: bool) -> Result<(OwnedFd, OwnedFd), LayerError> {
    let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(worker("make pipes for"))?;
    if large {
        // A smaller pipe is slower, and all that a busy node may have left.
        let _ = rustix::pipe::fcntl_setpipe_size(&ends.1, PIPE);
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use gantry_unpack::Packing;

    #[test]
    fn one_that_has_said_all_and_stays_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stays");
        std::fs::write(&path, "#!/bin/sh\necho all\nexec >&- sleep 600\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let options = UnpackOptions::new(Unpacker::Program(path), &Switches::default());
        let command = UnpackCommand::Inflate { packing: Packing::Gzip, seconds: 1 };
        let mut worker = loop {
            match UnpackWorker::start(&options, &command) {
                // A child of another test has the file open for writing for a moment, as its copy of ours.
                Err(LayerError::Worker { source, .. })
                    if source.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                started => break started.unwrap(),
            }
        };
        let mut said = String::new();
        worker.output.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "all\n");
        let end = worker.end_within(Timespec { tv_sec: 0, tv_nsec: 1_000_000 }).unwrap();
        assert_eq!(end, ProcessEnd::Signal(libc::SIGKILL));
    }
}

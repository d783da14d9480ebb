//! One child process with its three pipes, watched by one `poll(2)` loop.
//!
//! Owns the process from fork to reaping: whatever happens, it is waited for, and after its deadline its whole process
//! group is killed. Never knows what is said. A loop instead of threads, because a grandchild that keeps a pipe open
//! must not keep a thread. Called by `exec`.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// A result of a plugin is a few hundred bytes; more than this is not one.
pub(super) const ANSWER_LIMIT: usize = 1 << 20;
/// What is kept of the words on stderr, for the error.
const WORDS_LIMIT: usize = 4 << 10;
/// How long a grandchild may keep the pipes open once the plugin itself has ended.
const AFTERMATH: Duration = Duration::from_secs(2);
/// A program that is just being installed cannot be run (`ETXTBSY`): so often, and so long between, it is tried.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Error {
    Start(io::Error),
    Talk(io::Error),
    Late { stderr: Vec<u8> },
    TooMuch,
}

#[derive(Debug)]
pub(super) struct PluginOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Runs a command on this input until it ends.
pub(super) fn run(mut command: Command, input: &[u8], limit: Duration) -> Result<PluginOutput, Error> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let deadline = Instant::now() + limit;
    let mut child = spawn(&mut command).map_err(Error::Start)?;
    let talked = Conversation::new(&mut child, input).and_then(|mut talk| {
        let end = talk.run(deadline)?;
        Ok((talk, end))
    });
    if !matches!(talked, Ok((_, ConversationEnd::Over))) {
        kill_group(&child);
    }
    // After its end, or after the kill.
    let status = child.wait().map_err(Error::Talk)?;
    let (talk, end) = talked.map_err(Error::Talk)?;
    match end {
        ConversationEnd::Late => Err(Error::Late { stderr: talk.words }),
        ConversationEnd::TooMuch => Err(Error::TooMuch),
        ConversationEnd::Over | ConversationEnd::PipeHeld => {
            Ok(PluginOutput { status, stdout: talk.answer, stderr: talk.words })
        }
    }
}

fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 1..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
    command.spawn()
}

fn kill_group(child: &Child) {
    // The child is not reaped yet, so the number is still its own. ESRCH: everybody in the group has ended.
    match rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => tracing::warn!(pid = child.id(), %error, "cannot kill a plugin's process group"),
    }
}

/// How a conversation ends: Over ─ the program and its pipes; PipeHeld ─ the program, but somebody holds a pipe; Late
/// and TooMuch ─ it runs still.
enum ConversationEnd {
    Over,
    PipeHeld,
    Late,
    TooMuch,
}

struct Conversation<'a> {
    pidfd: Option<OwnedFd>,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    input: &'a [u8],
    answer: Vec<u8>,
    words: Vec<u8>,
}

impl<'a> Conversation<'a> {
    fn new(child: &mut Child, input: &'a [u8]) -> io::Result<Conversation<'a>> {
        let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        for fd in [
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ]
        .into_iter()
        .flatten()
        {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(Conversation {
            pidfd: Some(pidfd),
            stdin,
            stdout,
            stderr,
            input,
            answer: Vec::new(),
            words: Vec::new(),
        })
    }

    fn run(&mut self, mut deadline: Instant) -> io::Result<ConversationEnd> {
        loop {
            if self.pidfd.is_none() && self.stdout.is_none() && self.stderr.is_none() {
                return Ok(ConversationEnd::Over);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(if self.pidfd.is_none() {
                    ConversationEnd::PipeHeld
                } else {
                    ConversationEnd::Late
                });
            }
            let ended = self.wait(left)?;
            self.speak()?;
            if self.listen()? {
                return Ok(ConversationEnd::TooMuch);
            }
            if ended && self.pidfd.take().is_some() {
                // Nobody is left to read it.
                self.stdin = None;
                deadline = deadline.min(Instant::now() + AFTERMATH);
            }
        }
    }

    /// Waits for anything to happen; true when the program has ended.
    fn wait(&self, left: Duration) -> io::Result<bool> {
        let mut fds = Vec::with_capacity(4);
        fds.extend(self.pidfd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        fds.extend(self.stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.stderr.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.pidfd.is_some() && fds.first().is_some_and(|fd| fd.revents().contains(PollFlags::IN)))
    }

    fn speak(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        while !self.input.is_empty() {
            match stdin.write(self.input) {
                Ok(written) => self.input = self.input.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // It does not want to hear more; its answer tells whether that was right.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error),
            }
        }
        self.stdin = None;
        Ok(())
    }

    /// Takes what was said; true when it is too much.
    fn listen(&mut self) -> io::Result<bool> {
        if let Some(stdout) = &mut self.stdout
            && drain(stdout, &mut self.answer, ANSWER_LIMIT + 1)?
        {
            self.stdout = None;
        }
        if let Some(stderr) = &mut self.stderr
            && drain(stderr, &mut self.words, WORDS_LIMIT)?
        {
            self.stderr = None;
        }
        Ok(self.answer.len() > ANSWER_LIMIT)
    }
}

/// Reads all there is, keeps up to `limit` bytes; true at the end of file.
fn drain(from: &mut impl Read, into: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(length) => {
                let kept = length.min(limit.saturating_sub(into.len()));
                into.extend_from_slice(&buffer[..kept]);
                if into.len() >= limit {
                    // A program that never stops talking must not keep this loop from its deadline.
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

//! A connection to systemd: authentication, calls and their answers, signals in between. Owns the socket, which
//! waits for nothing past its deadline; never knows what a unit is. Blocks. Called by `units`.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::wire::{self, HEAD, MAX_MESSAGE, Message, MethodCall};

/// A line of the authentication.
const MAX_LINE: usize = 1024;

/// systemd could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine has another init.
    #[error(
        "reach systemd at {path}: the cgroup driver systemd needs it as init of this machine; use the driver cgroupfs without",
        path = path.display()
    )]
    Absent {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It does not take the connection, or says nothing on it.
    #[error("reach systemd at {path}", path = path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or nothing came in time.
    #[error("talk to systemd about {unit}")]
    Broken {
        /// What it was about.
        unit: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not D-Bus, or more than it ever says.
    #[error("systemd answered what is no D-Bus message")]
    Damaged,
    /// A text that D-Bus cannot carry.
    #[error("systemd cannot be told of {unit}: a text has a zero byte")]
    ZeroByte {
        /// What it was about.
        unit: String,
    },
    /// It lets only root in.
    #[error("systemd refused this user: {0}")]
    Denied(String),
    /// It was asked, and said no.
    #[error("systemd refused to {doing} {unit}: {message} ({name})")]
    Refused {
        /// What was asked for.
        doing: &'static str,
        /// Of which unit.
        unit: String,
        /// The error's name on the bus.
        name: String,
        /// What it said.
        message: String,
    },
    /// It began, and the job ended otherwise than done.
    #[error("systemd could not {doing} {unit}: the job is {result}")]
    Job {
        /// What was asked for.
        doing: &'static str,
        /// Of which unit.
        unit: String,
        /// `failed`, `timeout`, `canceled`, `dependency` …
        result: String,
    },
}

impl Error {
    /// Whether a systemd that is executed anew says so: it closes what it had and listens again a little later.
    pub(crate) fn is_of_a_restart(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        match self {
            Self::Connect { source, .. } | Self::Broken { source, .. } => matches!(
                source.kind(),
                BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof
            ),
            _ => false,
        }
    }
}

/// A connection, for one question.
#[derive(Debug)]
pub(crate) struct Bus {
    stream: UnixStream,
    /// Of the whole question: connection, calls and the job's end.
    deadline: Instant,
    serial: u32,
    /// What came while an answer was awaited: path of a job and its result.
    ended: Vec<(String, String)>,
}

fn io(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

/// What is left of the time.
fn remaining_time(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io(io::ErrorKind::TimedOut)) } else { Ok(left) }
}

/// A systemd that hangs takes no connection once its backlog is full: connect(2) would wait for ever.
fn open(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(remaining_time(deadline)?))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

impl Bus {
    /// Connects and says who we are. Nothing that is asked takes longer than the deadline.
    pub(crate) fn connect(path: &Path, deadline: Instant) -> Result<Self, Error> {
        let wrap = |source| Error::Connect { path: path.to_owned(), source };
        let stream = open(path, deadline).map_err(wrap)?;
        let mut bus = Self { stream, deadline, serial: 0, ended: Vec::new() };
        let said = bus.authenticate().map_err(wrap)?;
        if said.starts_with("OK ") { Ok(bus) } else { Err(Error::Denied(said)) }
    }

    /// EXTERNAL: the kernel tells who we are, we only name it. BEGIN goes with it, as sd-bus has it: what came behind BEGIN
    /// in one read, systemd would look at when more comes, and not before. Returns the answer.
    fn authenticate(&mut self) -> io::Result<String> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.write(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.read(&mut byte)?;
            line.extend(byte);
            if line.len() > MAX_LINE {
                return Err(io(io::ErrorKind::InvalidData));
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(remaining_time(self.deadline)?))?;
        self.stream.write_all(bytes)
    }

    /// Whole, or an error.
    fn read(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            self.stream.set_read_timeout(Some(remaining_time(self.deadline)?))?;
            match self.stream.read(into) {
                Ok(0) => return Err(io(io::ErrorKind::UnexpectedEof)),
                Ok(count) => into = into.split_at_mut(count).1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn next(&mut self, unit: &str) -> Result<Message, Error> {
        let wrap = |source| Error::Broken { unit: unit.to_owned(), source };
        let mut head = [0; HEAD];
        self.read(&mut head).map_err(wrap)?;
        let size = wire::size_of(&head).filter(|size| *size <= MAX_MESSAGE).ok_or(Error::Damaged)?;
        let mut bytes = vec![0; size];
        let (front, rest) = bytes.split_at_mut(HEAD);
        front.copy_from_slice(&head);
        self.read(rest).map_err(wrap)?;
        Message::read(&bytes).ok_or(Error::Damaged)
    }

    /// Asks, and waits for the answer's body. Doing and unit are for the error.
    pub(crate) fn call(
        &mut self,
        call: &MethodCall<'_>,
        (doing, unit): (&'static str, &str),
    ) -> Result<Vec<String>, Error> {
        self.serial += 1;
        let serial = self.serial;
        let bytes = wire::call(serial, call).ok_or_else(|| Error::ZeroByte { unit: unit.to_owned() })?;
        self.write(&bytes).map_err(|source| Error::Broken { unit: unit.to_owned(), source })?;
        loop {
            let message = self.next(unit)?;
            if message.reply_to != Some(serial) {
                self.note(&message);
                continue;
            }
            return match message.kind {
                wire::METHOD_RETURN => Ok(message.body),
                wire::ERROR => Err(Error::Refused {
                    doing,
                    unit: unit.to_owned(),
                    name: message.error,
                    message: message.body.into_iter().next().unwrap_or_default(),
                }),
                _ => Err(Error::Damaged),
            };
        }
    }

    fn note(&mut self, message: &Message) {
        if message.kind == wire::SIGNAL && message.member == "JobRemoved" {
            // Number, path, unit, result.
            if let [_, job, _, result] = message.body.as_slice() {
                self.ended.push((job.clone(), result.clone()));
            }
        }
    }

    /// Waits for the end of a job: its result.
    pub(crate) fn await_job(&mut self, job: &str, unit: &str) -> Result<String, Error> {
        loop {
            if let Some((_, result)) = self.ended.iter().find(|(path, _)| path == job) {
                return Ok(result.clone());
            }
            let message = self.next(unit)?;
            self.note(&message);
        }
    }
}

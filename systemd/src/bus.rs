//! A connection to systemd: authentication, calls and their answers, signals in between. Owns the socket and
//! its deadlines; never knows what a unit is. Blocks. Called by `units`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::wire::{self, Call, HEAD, MAX_MESSAGE, Message};

/// systemd answers late when hundreds of units begin at once; past this it does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A line of the authentication.
const MAX_LINE: usize = 1024;

/// systemd could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody serves the socket.
    #[error(
        "reach systemd at {path}: the cgroup driver systemd needs it as init of this machine; use the driver cgroupfs without",
        path = path.display()
    )]
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

/// A connection.
#[derive(Debug)]
pub(crate) struct Bus {
    stream: UnixStream,
    serial: u32,
    /// What came while an answer was awaited: path of a job and its result.
    ended: Vec<(String, String)>,
}

fn io(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl Bus {
    /// Connects and says who we are.
    pub(crate) fn connect(path: &Path) -> Result<Self, Error> {
        let wrap = |source| Error::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(wrap)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(wrap)?;
        let mut bus = Self { stream, serial: 0, ended: Vec::new() };
        let said = bus.authenticate().map_err(wrap)?;
        if said.starts_with("OK ") { Ok(bus) } else { Err(Error::Denied(said)) }
    }

    /// EXTERNAL: the kernel tells who we are, we only name it. BEGIN goes with it, as sd-bus has it: what came behind BEGIN
    /// in one read, systemd would look at when more comes, and not before. Returns the answer.
    fn authenticate(&mut self) -> io::Result<String> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes())?;
        let deadline = Instant::now() + PATIENCE;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.read(&mut byte, deadline)?;
            line.extend(byte);
            if line.len() > MAX_LINE {
                return Err(io(io::ErrorKind::InvalidData));
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Whole, or an error.
    fn read(&mut self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io(io::ErrorKind::TimedOut));
            }
            self.stream.set_read_timeout(Some(left))?;
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

    fn next(&mut self, unit: &str, deadline: Instant) -> Result<Message, Error> {
        let wrap = |source| Error::Broken { unit: unit.to_owned(), source };
        let mut head = [0; HEAD];
        self.read(&mut head, deadline).map_err(wrap)?;
        let size = wire::size_of(&head).filter(|size| *size <= MAX_MESSAGE).ok_or(Error::Damaged)?;
        let mut bytes = vec![0; size];
        let (front, rest) = bytes.split_at_mut(HEAD);
        front.copy_from_slice(&head);
        self.read(rest, deadline).map_err(wrap)?;
        Message::read(&bytes).ok_or(Error::Damaged)
    }

    /// Asks, and waits for the answer's body. Doing and unit are for the error.
    pub(crate) fn call(
        &mut self,
        call: &Call<'_>,
        (doing, unit): (&'static str, &str),
    ) -> Result<Vec<String>, Error> {
        self.serial += 1;
        let serial = self.serial;
        let sent = self.stream.write_all(&wire::call(serial, call));
        sent.map_err(|source| Error::Broken { unit: unit.to_owned(), source })?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.next(unit, deadline)?;
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
    pub(crate) fn ended(&mut self, job: &str, unit: &str) -> Result<String, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((_, result)) = self.ended.iter().find(|(path, _)| path == job) {
                return Ok(result.clone());
            }
            let message = self.next(unit, deadline)?;
            self.note(&message);
        }
    }
}

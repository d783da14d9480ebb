//! Programs of plugins that are not built in: found, run, and their answers read.
//!
//! Owns the exec protocol from the runtime's side (specification §2): environment, standard input, a deadline, a limit
//! on the answer, the error object. A program runs in a process group of its own, and the group is killed when it takes
//! too long. Never decides whether a program is run: the chain does, and the delegation of addresses (`ipam`).

#![expect(clippy::disallowed_methods, reason = "runs the plugins that a CNI configuration names")]

mod child;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::request::{self, AttachmentTarget};
use crate::result::CniResult;

/// How long a program may take. The kubelet waits four minutes for a sandbox at most.
const DEADLINE: Duration = Duration::from_secs(120);

/// The specification's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Status => "STATUS",
            Verb::Gc => "GC",
            Verb::Version => "VERSION",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Verb> {
        [Verb::Add, Verb::Del, Verb::Check, Verb::Status, Verb::Gc, Verb::Version]
            .into_iter()
            .find(|verb| verb.name() == name)
    }
}

/// Why a program brought no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no program {kind:?} in {}; install it there", join_paths(.dirs))]
    Missing { kind: String, dirs: Vec<PathBuf> },
    #[error("cannot start {program}")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot talk to {program}")]
    Talk {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{program} took more than {} s and was killed{}", DEADLINE.as_secs(), stderr_suffix(.stderr))]
    Late { program: PathBuf, stderr: String },
    #[error("{program} answered more than {} KiB and was killed", child::ANSWER_LIMIT / 1024)]
    TooMuch { program: PathBuf },
    #[error("{program}: {msg}{} (code {code}){}", details_suffix(.details), stderr_suffix(.stderr))]
    Answered { program: PathBuf, code: u32, msg: String, details: String, stderr: String },
    #[error("{program} ended with {status} and no error that can be read{}", stderr_suffix(.stderr))]
    Failed { program: PathBuf, status: ExitStatus, stderr: String },
    #[error("{program} answered something that cannot be read{}", stderr_suffix(.stderr))]
    Decode {
        program: PathBuf,
        stderr: String,
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Whether there is no such program at all.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::Missing { .. })
    }

    /// The code of the program's own error, to be passed on.
    pub(crate) fn code(&self) -> Option<u32> {
        match self {
            Error::Answered { code, .. } => Some(*code),
            _ => None,
        }
    }
}

fn join_paths(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn details_suffix(details: &str) -> String {
    if details.is_empty() { String::new() } else { format!("; {details}") }
}

fn stderr_suffix(stderr: &str) -> String {
    let stderr = stderr.trim();
    if stderr.is_empty() { String::new() } else { format!("; on stderr: {stderr}") }
}

/// An error as a plugin prints it.
#[derive(Debug, Deserialize)]
struct ErrorAnswer {
    code: u32,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// A plugin's program and the configuration that it is called with.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    kind: String,
    /// As it was found; `None` when it is not there.
    path: Option<PathBuf>,
    dirs: Vec<PathBuf>,
    conf: Value,
}

impl Program {
    /// Looks for the program of a plugin's type, in order of the folders.
    pub(crate) fn find(kind: &str, dirs: &[PathBuf], conf: Value) -> Program {
        // A type is a file's name, never a way to another folder.
        let is_name = !kind.contains(['/', '\0']) && kind != "." && kind != "..";
        let path = dirs
            .iter()
            .filter(|_| is_name)
            .map(|dir| dir.join(kind))
            .find(|path| path.metadata().is_ok_and(|found| found.is_file()));
        Program { kind: kind.into(), path, dirs: dirs.into(), conf }
    }

    /// The plugin's type.
    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    /// Where it was found.
    pub(crate) fn path(&self) -> Result<&PathBuf, Error> {
        self.path.as_ref().ok_or_else(|| Error::Missing { kind: self.kind.clone(), dirs: self.dirs.clone() })
    }

    /// ADD, with the result of the plugins before it.
    pub(crate) fn add(
        &self,
        target: AttachmentTarget<'_>,
        previous: Option<&CniResult>,
    ) -> Result<CniResult, Error> {
        let (bytes, stderr) = self.run(Verb::Add, Some(target), &self.config_with_prev_result(previous))?;
        self.decode(&bytes, stderr)
    }

    /// DEL, CHECK: calls about an attachment that answer nothing.
    pub(crate) fn call(
        &self,
        verb: Verb,
        target: AttachmentTarget<'_>,
        previous: Option<&CniResult>,
    ) -> Result<(), Error> {
        self.run(verb, Some(target), &self.config_with_prev_result(previous)).map(drop)
    }

    /// STATUS.
    pub(crate) fn status(&self) -> Result<(), Error> {
        self.run(Verb::Status, None, &self.conf).map(drop)
    }

    /// GC.
    pub(crate) fn gc(&self, valid: &[request::ValidAttachment]) -> Result<(), Error> {
        let conf = request::with_fields(&self.conf, request::valid_attachments(valid));
        self.run(Verb::Gc, None, &conf).map(drop)
    }

    fn config_with_prev_result(&self, previous: Option<&CniResult>) -> Value {
        let version = self.conf.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
        let previous = previous.map(|result| ("prevResult", result.clone().in_version(version).to_value()));
        request::with_fields(&self.conf, previous)
    }

    fn decode<T: for<'de> Deserialize<'de>>(&self, bytes: &[u8], stderr: String) -> Result<T, Error> {
        let program = self.path()?.clone();
        serde_json::from_slice(bytes).map_err(|source| Error::Decode { program, stderr, source })
    }

    fn run(
        &self,
        verb: Verb,
        target: Option<AttachmentTarget<'_>>,
        conf: &Value,
    ) -> Result<(Vec<u8>, String), Error> {
        let program = self.path()?.clone();
        let mut command = Command::new(&program);
        command.env("CNI_COMMAND", verb.name()).env("CNI_PATH", paths(&self.dirs));
        // Unset, not empty, where they do not belong: some plugins look whether they are there.
        for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", "CNI_NETNS_OVERRIDE"] {
            command.env_remove(name);
        }
        if let Some(target) = target {
            command
                .env("CNI_CONTAINERID", target.container_id)
                .env("CNI_IFNAME", target.ifname)
                .env("CNI_NETNS", target.netns)
                .env("CNI_ARGS", arguments(target.args));
        }
        let outcome =
            child::run(command, conf.to_string().as_bytes(), DEADLINE).map_err(|error| match error {
                child::Error::Start(source) => Error::Start { program: program.clone(), source },
                child::Error::Talk(source) => Error::Talk { program: program.clone(), source },
                child::Error::Late { stderr } => {
                    Error::Late { program: program.clone(), stderr: text(&stderr) }
                }
                child::Error::TooMuch => Error::TooMuch { program: program.clone() },
            })?;
        let stderr = text(&outcome.stderr);
        if outcome.status.success() {
            return Ok((outcome.stdout, stderr));
        }
        Err(match serde_json::from_slice::<ErrorAnswer>(&outcome.stdout) {
            Ok(ErrorAnswer { code, msg, details }) => Error::Answered { program, code, msg, details, stderr },
            Err(_) => Error::Failed { program, status: outcome.status, stderr },
        })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn paths(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.to_string_lossy()).collect::<Vec<_>>().join(":")
}

/// `CNI_ARGS` as libcni writes it.
fn arguments(args: &[(String, String)]) -> String {
    args.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests;

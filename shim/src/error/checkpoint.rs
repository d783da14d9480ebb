//! Why a container could not be checkpointed: the words, and the gRPC code. Owns nothing else. Returned by
//! `checkpoint`; told at the RPC edge.

use std::io;
use std::path::PathBuf;

use tonic::Code;

/// A checkpoint that was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Upstream's suite knows a node without criu by these words, and by the code.
    #[error("CRIU binary not found or too old (<31600). Failed to checkpoint container {id:?}")]
    Criu {
        id: String,
        #[source]
        source: Unfit,
    },
    /// As containerd words it.
    #[error("container {id:?} is in {state} state. only CONTAINER_RUNNING containers can be checkpointed")]
    NotRunning { id: String, state: &'static str },
    /// criu takes a terminal whose other end is elsewhere by its RPC alone.
    #[error(
        "container {0:?} has a terminal, which criu's command line can't checkpoint: have its pod's containers made by \
         runc, by a runtime handler of type oci"
    )]
    Terminal(String),
    #[error("location {0:?} must be an absolute path of a file")]
    Location(String),
    #[error("timeout {0} must not be negative")]
    Timeout(i64),
    /// The dump was refused, by criu or by the OCI runtime.
    #[error("checkpointing container {id:?} failed: {program}: {said}; path= {}", log.display())]
    Dump { id: String, program: String, said: String, log: PathBuf },
    #[error(
        "checkpointing container {id:?} takes more than {seconds} s: {program} was ended, and the container goes on; \
         ask with a longer timeout; path= {}", log.display()
    )]
    Slow { id: String, program: String, seconds: u64, log: PathBuf },
    #[error("{what} {}", path.display())]
    Files {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A container may nest what no archive can hold, and claim what no disk can.
    #[error("pack the writable layer of the container: {} {problem}", path.display())]
    Writable { path: PathBuf, problem: String },
}

/// What is wrong with the node's criu.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The first words are containerd's.
    #[error(
        "criu binary not found in the PATH of the runtime ({path}): install criu 3.16 or later on this node"
    )]
    Missing { path: String },
    #[error("failed to retrieve criu version: {} --version: {said}", program.display())]
    Mute { program: PathBuf, said: String },
    /// The first words are containerd's.
    #[error(
        "checkpoint/restore requires at least CRIU 31600, current version is {found}: replace {} by a newer one",
        program.display()
    )]
    Old { program: PathBuf, found: u64 },
}

impl Error {
    /// As containerd where it has the case.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Location(_) | Self::Timeout(_) => Code::InvalidArgument,
            Self::Terminal(_) => Code::FailedPrecondition,
            Self::Slow { .. } => Code::DeadlineExceeded,
            _ => Code::Unknown,
        }
    }
}

/// For `map_err`.
pub(crate) fn file<'a>(
    what: &'static str,
    path: &'a std::path::Path,
) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::Files { what, path: path.to_owned(), source }
}

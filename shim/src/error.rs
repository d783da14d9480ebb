//! Why an operation on a sandbox or container failed, and the gRPC code that says so. Owns the union
//! of what the modules report; printed once, at the RPC edge, with its chain of causes.

pub(crate) mod cgroup_placement;
pub(crate) mod checkpoint;
pub(crate) mod image_mounts;
pub(crate) mod target;
pub(crate) mod token;

use std::error::Error as _;
use std::io;
use std::path::PathBuf;

use gantry_base::error::chain;
use tonic::{Code, Status};

use crate::store::LookupError;
use crate::store::names::NameTaken;
use crate::store::record;
use crate::{cdi, cgroup, monitor_client, seccomp, spec};
use gantry_image as image;
use gantry_monitor::exit;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Name(#[from] NameTaken),
    #[error(transparent)]
    Spec(#[from] spec::Error),
    #[error(transparent)]
    Image(#[from] image::Error),
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    #[error(transparent)]
    Place(#[from] cgroup_placement::Error),
    #[error(transparent)]
    Systemd(#[from] gantry_systemd::Error),
    #[error("there is a unit {0} already, and not of this pod: systemctl stop {0}")]
    ScopeTaken(String),
    #[error("start the process that opens the scope of sandbox {id}")]
    Seed {
        id: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Record(#[from] record::Error),
    #[error(transparent)]
    Seccomp(#[from] seccomp::Error),
    #[error(transparent)]
    AppArmor(#[from] crate::apparmor::Error),
    #[error(transparent)]
    Selinux(#[from] crate::selinux::Error),
    #[error(transparent)]
    Cdi(#[from] cdi::Error),
    #[error(transparent)]
    Hook(#[from] gantry_monitor::init::hooks::Error),
    /// Nobody knows what they have done.
    #[error("the poststart hooks were interrupted by an end of the runtime")]
    HooksInterrupted,
    #[error(transparent)]
    Exit(#[from] exit::Error),
    #[error(transparent)]
    Monitor(#[from] monitor_client::Error),
    #[error("make the network namespace of the sandbox")]
    Netns(#[source] gantry_cni::netns::Error),
    #[error("set up the pod network")]
    Network(#[source] gantry_cni::Error),
    #[error("read the CNI network configuration")]
    Conflist(#[source] gantry_cni::chain::ConflistError),
    #[error(transparent)]
    Token(#[from] token::Error),
    #[error(transparent)]
    Reference(#[from] image::ReferenceError),
    #[error(transparent)]
    Auth(#[from] image::AuthError),
    /// No conflist and no built-in network asked for.
    #[error("no CNI network configuration in {folder}: put a .conflist there", folder = .0.display())]
    NoNetwork(PathBuf),
    /// Containerd's words, which clients know.
    #[error("failed to find network info for sandbox {0:?}: the network gave eth0 no address")]
    NoAddress(String),
    /// What was tried at the start and failed.
    #[error("pods can't have a user namespace of their own on this node: {0}")]
    NoUserNamespaces(String),
    /// The program of a handler of type oci.
    #[error("runtime handler {name:?}: its program {path} can't be run: install it, or mend the handler's path", path = .path.display())]
    Handler {
        name: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "runtime handler {0:?} has no user namespaces: leave hostUsers unset, or use another runtime class"
    )]
    HandlerUsers(String),
    #[error(
        "variable {0:?} is not UTF-8, which an OCI runtime can't be told: use the default runtime handler"
    )]
    HandlerEnv(String),
    #[error("image {0:?} is not on this node: pull it first")]
    NoImage(String),
    #[error("{0:?} is no name that an image can be given: leave the digest away, and write a tag")]
    DigestTag(String),
    #[error("sandbox {0} is not ready")]
    SandboxNotReady(String),
    #[error("no stats of sandbox {0}: it is not ready")]
    NoPodStats(String),
    #[error("container {id} is {state}, not {wanted}")]
    WrongState { id: String, state: &'static str, wanted: &'static str },
    /// As the kubelet looks for it, and counts it.
    #[error("ImageVolumeMountFailed")]
    ImageMount(#[source] image_mounts::Error),
    #[error("invalid target container")]
    Target(#[source] target::Error),
    /// As containerd words it: clients look for it.
    #[error("container is in {0} state")]
    NotRunning(&'static str),
    #[error("failed to exec in container")]
    Exec(#[source] Box<Error>),
    /// As containerd words it; Go's own text for a deadline.
    #[error("timeout {0} exceeded: context deadline exceeded")]
    ExecTimeout(String),
    #[error("the caller has gone: context canceled")]
    CallerGone,
    #[error("container {0} writes faster than this client reads, and does not wait for it: attach again")]
    AttachTooSlow(String),
    #[error("{0}")]
    BadStreams(&'static str),
    #[error("{0}")]
    Streams(&'static str, #[source] io::Error),
    /// The start failed in the container; the container is EXITED, 128, StartError.
    #[error("failed to start container {id}: {message}")]
    Start { id: String, message: String },
    #[error("the monitor of sandbox {id} does not answer within {seconds} s: it may hang on a disk")]
    MonitorStuck { id: String, seconds: u64 },
    #[error("setting up container {id} takes more than {seconds} s: a mount source may hang")]
    StartStuck { id: String, seconds: u64 },
    #[error("mount source {path} does not answer within {seconds} s: its disk may hang", path = path.display())]
    SourceStuck { path: PathBuf, seconds: u64 },
    #[error("start a thread")]
    Thread(#[source] std::io::Error),
    #[error("container {id} still runs {seconds} s after SIGKILL: a process of it may hang in the kernel")]
    Unkillable { id: String, seconds: u64 },
    #[error("{what} {path}", path = .path.display())]
    Files {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("start the monitor program {path}", path = .path.display())]
    Launch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("open process {pid} of {id}")]
    Process {
        id: String,
        pid: i32,
        #[source]
        source: io::Error,
    },
    /// A task of ours ended by panic.
    #[error("a task of the runtime ended early")]
    Task(#[from] tokio::task::JoinError),
    #[cfg(feature = "failpoints")]
    #[error(transparent)]
    Injected(#[from] gantry_failpoint::Injected),
    /// The operation failed, and so did part of undoing it.
    #[error("{failure}; cleaning up failed too: {cleanup}")]
    Undo { failure: Box<Error>, cleanup: String },
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Self::Lookup(LookupError::NotFound { .. })
            | Self::Target(target::Error::Missing { .. })
            | Self::ImageMount(image_mounts::Error::Absent(_))
            | Self::NoImage(_) => Code::NotFound,
            Self::Lookup(LookupError::Ambiguous { .. })
            | Self::Spec(_)
            | Self::AppArmor(crate::apparmor::Error::Spec(_))
            | Self::Place(_)
            | Self::Seccomp(_)
            | Self::Reference(_)
            | Self::DigestTag(_)
            | Self::BadStreams(_)
            | Self::ImageMount(_)
            | Self::HandlerEnv(_)
            | Self::Auth(_) => Code::InvalidArgument,
            Self::Name(_) => Code::AlreadyExists,
            Self::SandboxNotReady(_)
            | Self::WrongState { .. }
            | Self::Target(_)
            | Self::Handler { .. }
            | Self::HandlerUsers(_)
            | Self::NoUserNamespaces(_) => Code::FailedPrecondition,
            Self::Monitor(monitor_client::Error::Gone { .. }) => Code::Unavailable,
            Self::Monitor(monitor_client::Error::Stuck { .. }) => Code::DeadlineExceeded,
            Self::NoPodStats(_) => Code::Unavailable,
            Self::Unkillable { .. }
            | Self::MonitorStuck { .. }
            | Self::StartStuck { .. }
            | Self::SourceStuck { .. } => Code::DeadlineExceeded,
            Self::Image(error) => match error.class() {
                image::Class::NotFound => Code::NotFound,
                image::Class::Unauthorized => Code::PermissionDenied,
                image::Class::Unavailable => Code::Unavailable,
                image::Class::Invalid => Code::InvalidArgument,
                image::Class::Corrupt => Code::DataLoss,
                image::Class::Io => Code::Unknown,
            },
            Self::Token(token::Error::TooMany) => Code::ResourceExhausted,
            Self::Checkpoint(error) => error.code(),
            Self::ExecTimeout(_) => Code::DeadlineExceeded,
            Self::CallerGone => Code::Cancelled,
            Self::Undo { failure, .. } | Self::Exec(failure) => failure.code(),
            _ => Code::Unknown,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        // `transparent` variants hand their cause's causes on: the chain names each once.
        debug_assert!(error.source().is_none_or(|cause| cause.to_string() != error.to_string()));
        Status::new(error.code(), chain(&error))
    }
}

//! The runtime's end of a monitor's socket. Owns the connection, its protocol version and the requests
//! under way; never decides anything. Called by the sandbox and container operations and by exec and
//! attach; exits and the loss of the monitor go to the event task.

#![expect(clippy::disallowed_methods, reason = "the driver ends with the connection")]

mod drive;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_proto::monitor::{
    Exited, Failure, Hello, Mount, NamespaceMode, PROTOCOL_VERSION, Request, SignalExec, StartContainer,
    Started, Welcome, reply, request,
};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use drive::drive;
use gantry_monitor::wire;

/// How long a monitor may take to answer what it does at once. It has one thread, which hangs with the disk
/// of a log; a caller that waits for it would hang as well, a kubelet's worker for logs, say.
const ANSWER: Duration = Duration::from_secs(20);

/// The same of what starts a process. Longer than a monitor lets a child take to its program, so that it
/// may name the step that hangs, and than `container::start` waits, which has words of its own.
const START: Duration = Duration::from_secs(110);

/// What a monitor tells unasked.
#[derive(Debug)]
pub(crate) enum Event {
    /// Pause or a container has ended.
    Exited {
        /// Its sandbox.
        sandbox: String,
        /// What the monitor saw.
        exited: Exited,
    },
    /// The connection is gone; most likely the monitor too.
    Gone {
        /// Its sandbox.
        sandbox: String,
    },
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The monitor is not there.
    #[error("the monitor of sandbox {sandbox} is gone")]
    Gone {
        /// The sandbox.
        sandbox: String,
    },
    /// It hangs.
    #[error(
        "the monitor of sandbox {sandbox} does not answer within {seconds} s: the disk of the pod's logs may \
         hang or be overloaded; mend it, or remove the pod"
    )]
    Stuck {
        /// The sandbox.
        sandbox: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The monitor, or the child it cloned, says why not.
    #[error("{}", describe(.0))]
    Refused(Failure),
    /// A request that does not fit into a frame.
    #[error("the container's configuration takes {bytes} bytes, the limit is {}", wire::MAX_FRAME)]
    TooLong {
        /// Its size.
        bytes: usize,
    },
    /// An answer of another kind than the question.
    #[error("the monitor of sandbox {sandbox} answered something else")]
    Confused {
        /// The sandbox.
        sandbox: String,
    },
    /// A protocol of the future.
    #[error(
        "the monitor of sandbox {sandbox} speaks protocol {theirs}, this gantry up to {PROTOCOL_VERSION}: \
         run the version that started the pod, or remove the pod"
    )]
    Version {
        /// The sandbox.
        sandbox: String,
        /// Its version.
        theirs: u32,
    },
    /// A protocol of the past, which lacks what is asked.
    #[error(
        "the monitor of sandbox {sandbox} speaks protocol {theirs}, and {what} needs {needed}: the pod was \
         started by an older gantry; recreate it"
    )]
    TooOld {
        /// The sandbox.
        sandbox: String,
        /// Its version.
        theirs: u32,
        /// The request.
        what: &'static str,
        /// The first version that knows it.
        needed: u32,
    },
}

fn describe(failure: &Failure) -> String {
    if failure.errno == 0 {
        return failure.step.clone();
    }
    let cause = io::Error::from_raw_os_error(failure.errno).to_string();
    // std's text ends in " (os error N)", which says nothing to a user of the container.
    let cause = cause.split(" (os error").next().unwrap_or_default().to_lowercase();
    format!("{}: {cause}", failure.step)
}

/// What a monitor tells of an exec or attach, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MonitorNotice {
    /// The exec has ended with this code, or 128 + signal.
    Ended(i32),
    /// The attach was dropped: its reader fell behind.
    Detached,
}

/// A request on its way.
#[derive(Debug)]
struct PendingCall {
    op: request::Op,
    /// Sent along.
    descriptors: Vec<OwnedFd>,
    answer: oneshot::Sender<reply::Result>,
    /// Who wants to hear of the exec or attach with this id.
    notice: Option<(String, oneshot::Sender<MonitorNotice>)>,
}

/// A handle; clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct MonitorClient {
    sandbox: String,
    version: u32,
    requests: mpsc::Sender<PendingCall>,
}

/// What an operation is called, and the first protocol version that knows it. A field that an old
/// monitor would pass over in silence counts like a request it does not know.
fn required_protocol(op: &request::Op) -> (&'static str, u32) {
    match op {
        request::Op::Hello(_) | request::Op::StartSandbox(_) | request::Op::Shutdown(_) => ("the request", 1),
        request::Op::MakeUsers(_) => ("a user namespace", 3),
        request::Op::StartContainer(start) if start.external.is_some() => ("an OCI runtime", 3),
        request::Op::Exec(exec) if exec.process.as_ref().is_some_and(|own| own.external.is_some()) => {
            ("an OCI runtime", 3)
        }
        request::Op::StartContainer(start) if start.users.is_some() => ("a user namespace", 3),
        request::Op::StartContainer(start) if start.mounts.iter().any(|mount| mount.users.is_some()) => {
            ("a mount with mapped owners", 3)
        }
        request::Op::StartContainer(start) if start.pid() == NamespaceMode::Target => {
            ("the pid namespace of another container", 3)
        }
        request::Op::StartContainer(start) if start.mounts.iter().any(|mount| mount.image.is_some()) => {
            ("the mount of an image", 3)
        }
        request::Op::StartContainer(start) if has_cdi(start) => ("a CDI device", 3),
        request::Op::StartContainer(start) if is_labelled(start) => ("a label of AppArmor or SELinux", 3),
        request::Op::Exec(exec) if exec.process.as_ref().is_some_and(is_labelled) => {
            ("a label of AppArmor or SELinux", 3)
        }
        request::Op::StartContainer(start) if start.tty || start.stdin => ("a terminal or stdin", 2),
        request::Op::StartContainer(start) if !start.seccomp_filter.is_empty() => ("a seccomp filter", 2),
        request::Op::StartContainer(start) if start.mounts.iter().any(|mount| mount.recursive_readonly) => {
            ("a recursive read-only mount", 2)
        }
        request::Op::StartContainer(_) => ("a container", 1),
        request::Op::Exec(_) | request::Op::SignalExec(_) => ("exec", 2),
        request::Op::Attach(_) => ("attach", 2),
        request::Op::ReopenLog(_) => ("a new log file", 2),
    }
}

fn has_cdi(start: &StartContainer) -> bool {
    let edited = |mount: &Mount| {
        mount.attributes != 0 || mount.recursive_attributes != 0 || mount.single || mount.tmpfs.is_some()
    };
    start.hooks.is_some()
        || start.mounts.iter().any(edited)
        || start.devices.iter().any(|device| device.node.is_some())
}

fn is_labelled(start: &StartContainer) -> bool {
    [&start.apparmor_profile, &start.process_label, &start.mount_label].iter().any(|label| !label.is_empty())
}

/// How long the answer to an operation may take.
fn response_timeout(op: &request::Op) -> Duration {
    match op {
        request::Op::MakeUsers(_)
        | request::Op::StartSandbox(_)
        | request::Op::StartContainer(_)
        | request::Op::Exec(_) => START,
        request::Op::Hello(_)
        | request::Op::Shutdown(_)
        | request::Op::SignalExec(_)
        | request::Op::Attach(_)
        | request::Op::ReopenLog(_) => ANSWER,
    }
}

impl MonitorClient {
    /// Takes over a connected socket and says hello.
    ///
    /// # Errors
    /// When the monitor does not answer, or speaks another protocol.
    pub(crate) async fn connect(
        stream: UnixStream,
        sandbox: &str,
        events: mpsc::UnboundedSender<Event>,
    ) -> Result<(Self, Welcome), Error> {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = Self { sandbox: sandbox.to_owned(), version: 1, requests };
        tokio::spawn(drive(stream, receiver, sandbox.to_owned(), events));
        let hello = request::Op::Hello(Hello { protocol_version: PROTOCOL_VERSION });
        match client.call(hello).await? {
            // Every version this project ever had: monitors live for months (docs/adr/0012).
            reply::Result::Welcome(welcome) if (1..=PROTOCOL_VERSION).contains(&welcome.protocol_version) => {
                client.version = welcome.protocol_version;
                Ok((client, welcome))
            }
            reply::Result::Welcome(welcome) => {
                Err(Error::Version { sandbox: client.sandbox, theirs: welcome.protocol_version })
            }
            _ => Err(Error::Confused { sandbox: client.sandbox }),
        }
    }

    async fn call(&self, op: request::Op) -> Result<reply::Result, Error> {
        self.call_with(op, Vec::new(), None).await
    }

    async fn call_with(
        &self,
        op: request::Op,
        descriptors: Vec<OwnedFd>,
        told: Option<(String, oneshot::Sender<MonitorNotice>)>,
    ) -> Result<reply::Result, Error> {
        let gone = || Error::Gone { sandbox: self.sandbox.clone() };
        let (what, needed) = required_protocol(&op);
        if self.version < needed {
            return Err(Error::TooOld { sandbox: self.sandbox.clone(), theirs: self.version, what, needed });
        }
        // The monitor would have to drop a connection that sends more.
        let request = Request { id: 0, op: Some(op) };
        let bytes = prost::Message::encoded_len(&request);
        let Some(op) = request.op.filter(|_| bytes < wire::MAX_FRAME) else {
            return Err(Error::TooLong { bytes });
        };
        let patience = response_timeout(&op);
        let (answer, answered) = oneshot::channel();
        let answered = async {
            self.requests
                .send(PendingCall { op, descriptors, answer, notice: told })
                .await
                .map_err(|_| gone())?;
            answered.await.map_err(|_| gone())
        };
        match tokio::time::timeout(patience, answered).await {
            Ok(Ok(reply::Result::Failure(failure))) => Err(Error::Refused(failure)),
            Ok(result) => result,
            Err(_) => Err(Error::Stuck { sandbox: self.sandbox.clone(), seconds: patience.as_secs() }),
        }
    }

    /// Starts an exec or an attach named `id`; what is told of it later comes by the receiver, which
    /// ends without a word when the monitor is gone.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) async fn open(
        &self,
        op: request::Op,
        id: &str,
        descriptors: Vec<OwnedFd>,
    ) -> Result<oneshot::Receiver<MonitorNotice>, Error> {
        let (sender, receiver) = oneshot::channel();
        let is_exec = matches!(op, request::Op::Exec(_));
        let opened = self.call_with(op, descriptors, Some((id.to_owned(), sender))).await;
        if let Err(Error::Stuck { .. }) = opened
            && is_exec
        {
            self.end_later(id);
        }
        opened.map(|_| receiver)
    }

    /// Ends an exec that nobody waits for any more as soon as the monitor goes on: requests are taken in
    /// turn. Where not even that can be said there are others before it.
    fn end_later(&self, id: &str) {
        let op = request::Op::SignalExec(SignalExec { id: id.to_owned(), signal: libc::SIGKILL });
        let (answer, _) = oneshot::channel();
        if self.requests.try_send(PendingCall { op, descriptors: Vec::new(), answer, notice: None }).is_err()
        {
            tracing::warn!(sandbox = self.sandbox, exec = id, "an exec may begin after its time");
        }
    }

    /// A request whose answer is that it is done.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) async fn send_request(&self, op: request::Op) -> Result<(), Error> {
        self.call(op).await.map(drop)
    }

    /// Starts pause or a container; returns once its program runs.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) async fn start(&self, op: request::Op) -> Result<Started, Error> {
        match self.call(op).await? {
            reply::Result::Started(started) => Ok(started),
            _ => Err(Error::Confused { sandbox: self.sandbox.clone() }),
        }
    }

    /// Asks the monitor to end; it refuses while it holds a process.
    ///
    /// # Errors
    /// When it refuses. A monitor that is gone has done what was asked.
    pub(crate) async fn shut_down(&self) -> Result<(), Error> {
        match self.call(request::Op::Shutdown(gantry_proto::monitor::Shutdown {})).await {
            Ok(_) | Err(Error::Gone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;

//! Attaches to a running container: a copy of its output, and its input. Owns the pipes in between; the
//! monitor fills them, and drops a reader that falls behind (runtime-traps 2.13). Called by the
//! streaming server.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use gantry_proto::cri;
use gantry_proto::monitor::{self, ReopenLog, request};
use rustix::pipe::PipeFlags;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::container;
use crate::error::Error;
use crate::exec::monitor_of;
use crate::exec::terminal::Terminal;
use crate::monitor_client::MonitorNotice;
use crate::node::Node;
use crate::node::new_id;
use crate::store::Container;
use gantry_monitor::descriptors;

/// The way to a container's stdin.
#[derive(Debug)]
pub(crate) enum Input {
    /// Also its window's size.
    Terminal(Terminal),
    Pipe(pipe::Sender),
}

/// The runtime's ends of an attach.
#[derive(Debug)]
pub(crate) struct AttachStreams {
    pub stdout: Option<pipe::Receiver>,
    pub stderr: Option<pipe::Receiver>,
    pub input: Option<Input>,
    notice: oneshot::Receiver<MonitorNotice>,
}

impl AttachStreams {
    /// Whether the monitor ended it because its reader fell behind. The monitor says so before the
    /// pipes end, and not always before this runtime has read it.
    pub(crate) async fn was_dropped(&mut self) -> bool {
        let patience = std::time::Duration::from_millis(100);
        matches!(tokio::time::timeout(patience, &mut self.notice).await, Ok(Ok(MonitorNotice::Detached)))
    }
}

/// Attaches to a container.
///
/// # Errors
/// When it does not run, or its monitor does not answer.
pub(crate) async fn attach(
    node: &Node,
    container: &Arc<Container>,
    request: &cri::AttachRequest,
) -> Result<AttachStreams, Error> {
    let client = monitor_of(node, container)?;
    let owned = container.clone();
    let start = tokio::task::spawn_blocking(move || container::read_planned_start(&owned)).await??;
    // As containerd: input that a container does not have is nobody's error.
    let input = start.tty || (request.stdin && start.stdin);
    let wrap = |source| Error::Streams("make the streams of the attach", source);
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    let mut output = |wanted: bool| -> Result<Option<pipe::Receiver>, Error> {
        if !wanted {
            return Ok(None);
        }
        let (ours, theirs) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| wrap(error.into()))?;
        descriptors.push(theirs);
        pipe::Receiver::from_owned_fd(ours).map(Some).map_err(wrap)
    };
    let (stdout, stderr) = (output(request.stdout)?, output(request.stderr)?);
    let mut socket = None;
    if input {
        let (ours, theirs) = UnixStream::pair().map_err(wrap)?;
        descriptors.push(theirs.into());
        socket = Some(OwnedFd::from(ours));
    }
    let id = new_id()?;
    let op = request::Op::Attach(monitor::Attach {
        id: id.clone(),
        container_id: container.id.clone(),
        stdout: stdout.is_some(),
        stderr: stderr.is_some(),
        input,
    });
    let notice = client.open(op, &id, descriptors).await?;
    let input = match socket {
        // It was sent before the monitor said that it is done.
        Some(socket) => match descriptors::receive_one(&socket) {
            Ok(end) if start.tty => Some(Input::Terminal(Terminal::new(end).map_err(wrap)?)),
            Ok(end) => Some(Input::Pipe(pipe::Sender::from_owned_fd(end).map_err(wrap)?)),
            // An earlier attach has ended it (stdin_once), or the container has closed its terminal.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(wrap(error)),
        },
        None => None,
    };
    Ok(AttachStreams { stdout, stderr, input, notice })
}

/// ReopenContainerLog: the kubelet has renamed the file.
///
/// # Errors
/// When the container does not run, or the file can't be made.
pub(crate) async fn reopen_log(node: Arc<Node>, container: Arc<Container>) -> Result<(), Error> {
    let client = monitor_of(&node, &container)?;
    Ok(client.send_request(request::Op::ReopenLog(ReopenLog { container_id: container.id.clone() })).await?)
}

//! The runtime's end of a monitor's socket. Owns the connection and the requests under way; never
//! decides anything. Called by the sandbox and container operations; exits and the loss of the
//! monitor go to the event task.

use std::collections::BTreeMap;
use std::io;

use gantry_proto::monitor::{
    Exited, Failure, Frame, Hello, PROTOCOL_VERSION, Request, Started, Welcome, frame, reply, request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::wire;

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
    /// Another protocol.
    #[error("the monitor of sandbox {sandbox} speaks protocol {theirs}, this gantry {PROTOCOL_VERSION}")]
    Version {
        /// The sandbox.
        sandbox: String,
        /// Its version.
        theirs: u32,
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

type Answer = oneshot::Sender<reply::Result>;

/// A handle; clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct MonitorClient {
    sandbox: String,
    requests: mpsc::Sender<(request::Op, Answer)>,
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
        let client = Self { sandbox: sandbox.to_owned(), requests };
        tokio::spawn(drive(stream, receiver, sandbox.to_owned(), events));
        let hello = request::Op::Hello(Hello { protocol_version: PROTOCOL_VERSION });
        match client.call(hello).await? {
            reply::Result::Welcome(welcome) if welcome.protocol_version == PROTOCOL_VERSION => {
                Ok((client, welcome))
            }
            reply::Result::Welcome(welcome) => {
                Err(Error::Version { sandbox: client.sandbox, theirs: welcome.protocol_version })
            }
            _ => Err(Error::Confused { sandbox: client.sandbox }),
        }
    }

    async fn call(&self, op: request::Op) -> Result<reply::Result, Error> {
        let gone = || Error::Gone { sandbox: self.sandbox.clone() };
        // The monitor would have to drop a connection that sends more.
        let request = Request { id: 0, op: Some(op) };
        let bytes = prost::Message::encoded_len(&request);
        let Some(op) = request.op.filter(|_| bytes < wire::MAX_FRAME) else {
            return Err(Error::TooLong { bytes });
        };
        let (answer, answered) = oneshot::channel();
        self.requests.send((op, answer)).await.map_err(|_| gone())?;
        match answered.await.map_err(|_| gone())? {
            reply::Result::Failure(failure) => Err(Error::Refused(failure)),
            result => Ok(result),
        }
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

/// Owns the socket until either side closes it. Answers that will not come are dropped, which their
/// callers see as `Gone`.
async fn drive(
    mut stream: UnixStream,
    mut requests: mpsc::Receiver<(request::Op, Answer)>,
    sandbox: String,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut pending: BTreeMap<u64, Answer> = BTreeMap::new();
    let (mut buffer, mut next) = (Vec::new(), 1u64);
    loop {
        tokio::select! {
            // Cancel-safe: read_buf appends what it has read, or nothing.
            read = stream.read_buf(&mut buffer) => {
                if !matches!(read, Ok(count) if count > 0) || deliver(&mut buffer, &mut pending, &sandbox, &events).is_err() {
                    break;
                }
            }
            // Cancel-safe per the documentation of recv.
            asked = requests.recv() => {
                let Some((op, answer)) = asked else { return };
                pending.insert(next, answer);
                let bytes = wire::encode(&Request { id: next, op: Some(op) });
                next += 1;
                if stream.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        }
    }
    drop(pending);
    // The event task ends only with the runtime.
    let _ = events.send(Event::Gone { sandbox });
}

fn deliver(
    buffer: &mut Vec<u8>,
    pending: &mut BTreeMap<u64, Answer>,
    sandbox: &str,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(), wire::Error> {
    while let Some(Frame { frame }) = wire::take(buffer)? {
        match frame {
            Some(frame::Frame::Reply(reply)) => {
                if let (Some(answer), Some(result)) = (pending.remove(&reply.id), reply.result) {
                    // The asker may have given up; the result stands all the same.
                    let _ = answer.send(result);
                }
            }
            Some(frame::Frame::Exited(exited)) => {
                let _ = events.send(Event::Exited { sandbox: sandbox.to_owned(), exited });
            }
            None => {}
        }
    }
    Ok(())
}

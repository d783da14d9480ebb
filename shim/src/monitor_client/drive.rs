//! The task behind a `MonitorClient`: sends requests with their descriptors, and gives answers and news
//! to who waits for them. Owns the socket until either side closes it; answers that will not come are
//! dropped, which their callers see as `Gone`. Started by `MonitorClient::connect`.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use gantry_failpoint::failpoint;
use gantry_proto::monitor::{Frame, Request, frame, reply};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::{Event, MonitorNotice, PendingCall};
use gantry_monitor::wire;

/// Descriptors that fit into one message; no request has more.
const MAX_DESCRIPTORS: usize = 4;

/// What is being waited for.
#[derive(Default)]
struct PendingReply {
    answers: BTreeMap<u64, oneshot::Sender<reply::Result>>,
    notices: BTreeMap<String, oneshot::Sender<MonitorNotice>>,
}

pub(super) async fn drive(
    mut stream: UnixStream,
    mut requests: mpsc::Receiver<PendingCall>,
    sandbox: String,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut pending = PendingReply::default();
    let (mut buffer, mut next) = (Vec::new(), 1u64);
    loop {
        failpoint!("task.monitor");
        tokio::select! {
            // Cancel-safe: read_buf appends what it has read, or nothing.
            read = stream.read_buf(&mut buffer) => {
                if !matches!(read, Ok(count) if count > 0) || deliver(&mut buffer, &mut pending, &sandbox, &events).is_err() {
                    break;
                }
            }
            // Cancel-safe per the documentation of recv.
            asked = requests.recv() => {
                let Some(call) = asked else { return };
                pending.answers.insert(next, call.answer);
                if let Some((id, notice)) = call.notice {
                    // Attaches that ended otherwise are never told of.
                    pending.notices.retain(|_, waiting| !waiting.is_closed());
                    pending.notices.insert(id, notice);
                }
                let bytes = wire::encode(&Request { id: next, op: Some(call.op) });
                next += 1;
                if send(&mut stream, &bytes, &call.descriptors).await.is_err() {
                    break;
                }
            }
        }
    }
    drop(pending);
    // The event task ends only with the runtime.
    let _ = events.send(Event::Gone { sandbox });
}

/// Sends a frame, its descriptors beside the first byte: the monitor has them when the frame is whole.
async fn send(stream: &mut UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    if descriptors.is_empty() {
        return stream.write_all(bytes).await;
    }
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let chunks = [IoSlice::new(bytes)];
            Ok(rustix::net::sendmsg(
                &*stream,
                &chunks,
                &mut ancillary,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            )?)
        })
        .await?;
    stream.write_all(bytes.get(sent..).unwrap_or_default()).await
}

fn deliver(
    buffer: &mut Vec<u8>,
    pending: &mut PendingReply,
    sandbox: &str,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(), wire::Error> {
    while let Some(Frame { frame }) = wire::take(buffer)? {
        // Whoever waited may have given up; what has happened stands all the same.
        match frame {
            Some(frame::Frame::Reply(reply)) => {
                if let (Some(answer), Some(result)) = (pending.answers.remove(&reply.id), reply.result) {
                    let _ = answer.send(result);
                }
            }
            Some(frame::Frame::Exited(exited)) => {
                let _ = events.send(Event::Exited { sandbox: sandbox.to_owned(), exited });
            }
            Some(frame::Frame::ExecEnded(ended)) => {
                if let Some(told) = pending.notices.remove(&ended.id) {
                    let _ = told.send(MonitorNotice::Ended(ended.exit_code));
                }
            }
            Some(frame::Frame::Detached(detached)) => {
                if let Some(told) = pending.notices.remove(&detached.id) {
                    let _ = told.send(MonitorNotice::Detached);
                }
            }
            None => {}
        }
    }
    Ok(())
}

//! Attaches: copies of a container's output to whoever wants them. Owns the queues; a reader that falls
//! behind is dropped, because neither the container nor its log may ever wait for one (runtime-traps
//! 2.13). Input does not pass here: the runtime gets the container's own descriptor. Called by
//! `monitor::event_loop`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{Attach, Detached, frame};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::child::{Child, Input, Phase};
use super::event_loop::{Monitor, WatchTarget};
use super::log::LogStream;
use crate::descriptors;
use crate::init::{StepContext, StepError, refuse};

/// How far a reader may fall behind, beyond what its pipe holds.
const MAX_QUEUE: usize = 1 << 20;

/// One stream of one attach.
#[derive(Debug)]
pub(super) struct Sink {
    attach: String,
    container: String,
    source: LogStream,
    /// Who asked.
    connection: u64,
    pipe: OwnedFd,
    queue: VecDeque<u8>,
    /// The container has ended: what is queued still goes out.
    closing: bool,
}

impl Sink {
    /// Writes what goes; false when the reader is gone.
    fn flush(&mut self) -> bool {
        while !self.queue.is_empty() {
            match rustix::io::write(&self.pipe, self.queue.as_slices().0) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => drop(self.queue.drain(..count)),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

impl Monitor {
    pub(super) fn attach(
        &mut self,
        request: &Attach,
        connection: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepError> {
        let id = &request.container_id;
        let running = |child: &&mut Child| matches!(child.phase, Phase::Running);
        let Some(child) = self.children.get_mut(id).filter(running) else {
            return refuse(libc::ESRCH, format!("container {id} is not running"));
        };
        let mut descriptors = descriptors.into_iter();
        let mut next = |wanted: bool| if wanted { descriptors.next() } else { None };
        let (stdout, stderr, input) = (next(request.stdout), next(request.stderr), next(request.input));
        if let Some(socket) = input {
            give_input(child, &socket)?;
        }
        for (pipe, source) in [(stdout, LogStream::Stdout), (stderr, LogStream::Stderr)] {
            let Some(pipe) = pipe else { continue };
            rustix::io::ioctl_fionbio(&pipe, true).step(|| "make the attach's pipe non-blocking".into())?;
            let token = self.watch(pipe.as_fd(), WatchTarget::Sink)?;
            // Only that its reader is gone, until something is queued.
            self.wait_for(token, pipe.as_fd(), EventFlags::empty())?;
            let sink = Sink {
                attach: request.id.clone(),
                container: id.clone(),
                source,
                connection,
                pipe,
                queue: VecDeque::new(),
                closing: false,
            };
            self.sinks.insert(token, sink);
        }
        Ok(())
    }

    /// Copies what a container wrote to its attaches.
    pub(super) fn tee(&mut self, container: &str, source: LogStream, bytes: &[u8]) {
        let tokens: Vec<u64> = self
            .sinks
            .iter()
            .filter(|(_, sink)| sink.container == container && sink.source == source)
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            let Some(sink) = self.sinks.get_mut(&token) else { continue };
            sink.queue.extend(bytes);
            self.feed_sink(token);
        }
    }

    /// Sends what goes of one attach's queue, and drops it when it is too far behind, gone or done.
    pub(super) fn feed_sink(&mut self, token: u64) {
        let Some(sink) = self.sinks.get_mut(&token) else { return };
        // Room or the reader's end: either way a write tells.
        let alive = if sink.queue.is_empty() { sink.closing || reader_is_there(sink) } else { sink.flush() };
        if !alive || (sink.closing && sink.queue.is_empty()) {
            self.drop_sink(token);
            return;
        }
        if sink.queue.len() > MAX_QUEUE {
            let attach = sink.attach.clone();
            self.drop_attach(&attach);
            return;
        }
        let flags = if sink.queue.is_empty() { EventFlags::empty() } else { EventFlags::OUT };
        let Some(sink) = self.sinks.get(&token) else { return };
        if self.wait_for(token, sink.pipe.as_fd(), flags).is_err() {
            self.drop_sink(token);
        }
    }

    fn drop_sink(&mut self, token: u64) {
        if let Some(sink) = self.sinks.remove(&token) {
            self.unwatch(token, sink.pipe.as_fd());
        }
    }

    fn drop_attach(&mut self, attach: &str) {
        let sinks = self.sinks.iter().filter(|(_, sink)| sink.attach == attach);
        let found: Vec<(u64, u64)> = sinks.map(|(token, sink)| (*token, sink.connection)).collect();
        if let Some((_, connection)) = found.first() {
            self.send(*connection, frame::Frame::Detached(Detached { id: attach.to_owned() }));
        }
        for (token, _) in found {
            self.drop_sink(token);
        }
    }

    /// The container has ended: its attaches end once they have everything.
    pub(super) fn close_sinks(&mut self, container: &str) {
        let sinks = self.sinks.iter().filter(|(_, sink)| sink.container == container);
        let tokens: Vec<u64> = sinks.map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(sink) = self.sinks.get_mut(&token) {
                sink.closing = true;
            }
            self.feed_sink(token);
        }
    }
}

/// An event without anything queued means that the read end was closed.
fn reader_is_there(sink: &Sink) -> bool {
    let mut polled = [rustix::event::PollFd::new(&sink.pipe, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec::default();
    matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(0))
}

fn give_input(child: &mut Child, socket: &OwnedFd) -> Result<(), StepError> {
    let send = |end: &OwnedFd| {
        descriptors::send(socket.as_fd(), end.as_fd()).step(|| "send the container's input".into())
    };
    match &child.input {
        // The socket closes without a word: none, or not any more.
        Input::None => Ok(()),
        Input::Terminal => child.outputs.first().map_or(Ok(()), |output| send(&output.pipe)),
        Input::Pipe { end, once } => {
            send(end)?;
            if *once {
                child.input = Input::None;
            }
            Ok(())
        }
    }
}

//! A logind whose word is the test's. Its locks are pipes, as the real one's: a lock is held until its end is closed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::mpsc;

use crate::shutdown::logind::{DelayLock, Error, Logind, LogindReply, Session};

#[derive(Debug, Default, Clone)]
pub(super) struct FakeLogind(Arc<Mutex<FakeLogindState>>);

#[derive(Debug)]
struct FakeLogindState {
    max: Duration,
    /// After so many reads it gives what it was asked for; never without.
    gives_after: Option<u32>,
    asked: Vec<Duration>,
    /// What it was asked for and how often it was read since.
    pending: Option<(Duration, u32)>,
    down: bool,
    goes_down: bool,
    connections: usize,
    readers: Vec<OwnedFd>,
    sender: Option<mpsc::UnboundedSender<bool>>,
}

impl Default for FakeLogindState {
    fn default() -> Self {
        Self {
            max: Duration::from_secs(60),
            gives_after: Some(0),
            asked: Vec::new(),
            pending: None,
            down: false,
            goes_down: false,
            connections: 0,
            readers: Vec::new(),
            sender: None,
        }
    }
}

impl FakeLogind {
    fn state(&self) -> MutexGuard<'_, FakeLogindState> {
        self.0.lock().unwrap()
    }

    /// How long it delays a shutdown at first, and after how many reads it takes in another time.
    pub(super) fn grants(&self, max: Duration, gives_after: Option<u32>) {
        let mut state = self.state();
        (state.max, state.gives_after) = (max, gives_after);
    }

    pub(super) fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// A shutdown that nobody was told of.
    pub(super) fn begin_unheard(&self) {
        self.state().goes_down = true;
    }

    pub(super) fn announce(&self, begins: bool) {
        let mut state = self.state();
        state.goes_down = begins;
        state.sender.as_ref().unwrap().send(begins).unwrap();
    }

    /// The connection ends.
    pub(super) fn hang_up(&self) {
        self.state().sender = None;
    }

    pub(super) fn asked(&self) -> Vec<Duration> {
        self.state().asked.clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.state().connections
    }

    /// How many are held.
    pub(super) fn locks(&self) -> usize {
        let held = |reader: &&OwnedFd| rustix::io::read(reader, &mut [0; 1]).is_err();
        self.state().readers.iter().filter(held).count()
    }

    pub(super) fn holds(&self) -> bool {
        self.locks() > 0
    }

    pub(super) async fn until_held(&self) {
        while !self.holds() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn refused() -> Error {
    Error::Bus { what: "connect to the system bus", source: "no such file".into() }
}

impl Logind for FakeLogind {
    fn connect(&self) -> LogindReply<'_, Box<dyn Session>> {
        let mut state = self.state();
        if state.down {
            return ready(Err(refused())).boxed();
        }
        state.connections += 1;
        let (sender, heard) = mpsc::unbounded_channel();
        state.sender = Some(sender);
        let session: Box<dyn Session> = Box::new(FakeSession { logind: self.clone(), heard });
        ready(Ok(session)).boxed()
    }

    fn overruling(&self) -> Option<PathBuf> {
        Some(PathBuf::from("/usr/lib/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf"))
    }
}

#[derive(Debug)]
struct FakeSession {
    logind: FakeLogind,
    heard: mpsc::UnboundedReceiver<bool>,
}

impl Session for FakeSession {
    fn max_delay(&self) -> LogindReply<'_, Duration> {
        let mut state = self.logind.state();
        if let Some((wanted, reads)) = state.pending {
            if state.gives_after.is_some_and(|after| reads >= after) {
                state.max = wanted;
            }
            state.pending = Some((wanted, reads + 1));
        }
        ready(Ok(state.max)).boxed()
    }

    fn raise_max_delay(&self, to: Duration) -> LogindReply<'_, ()> {
        let mut state = self.logind.state();
        state.asked.push(to);
        state.pending = Some((to, 0));
        ready(Ok(())).boxed()
    }

    fn is_shutting_down(&self) -> LogindReply<'_, bool> {
        ready(Ok(self.logind.state().goes_down)).boxed()
    }

    fn inhibit(&self) -> LogindReply<'_, DelayLock> {
        let mut state = self.logind.state();
        if state.goes_down {
            return ready(Err(refused())).boxed();
        }
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        state.readers.push(reader);
        ready(Ok(writer)).boxed()
    }

    fn announcement(&mut self) -> BoxFuture<'_, Option<bool>> {
        self.heard.recv().boxed()
    }
}

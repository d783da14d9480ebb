//! The monitor's one thread: waits on the listener, the runtimes, SIGCHLD, the children's reports
//! and their output. Owns what is waited for, and the requests; what becomes of pause and containers is
//! in `monitor::children`, of execs in `monitor::exec`, of attaches in `monitor::attach`. Called by the
//! program `gantry-monitor`.

#![expect(clippy::disallowed_methods, reason = "files of the kernel's")]

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use gantry_failpoint::failpoint;
use gantry_proto::monitor::{
    Done, Failure, Frame, MakeUsers, PROTOCOL_VERSION, Reply, Request, StartSandbox, Started, Welcome, frame,
    reply, request,
};
use rustix::event::{Timespec, epoll};

use super::attach::Sink;
use super::child::{Child, log_stderr};
use super::connection::Connection;
use super::exec::ExecState;
use super::spawn::PodNamespaces;
use super::unclaimed_exits::UnclaimedExits;
use super::{Error, MonitorOptions};
use crate::init::users::{self, HeldUserns};
use crate::init::{StepContext, StepError, refuse};
use gantry_sys as sys;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;

/// What a token of the epoll set stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchTarget {
    Connection,
    /// Of pause or a container.
    Report(String),
    Output(String),
    ExecReport(String),
    /// An attach's pipe.
    Sink,
}

pub(super) struct Monitor {
    epoll: OwnedFd,
    signals: OwnedFd,
    listener: UnixListener,
    pub(super) null: OwnedFd,
    next_token: u64,
    watched: BTreeMap<u64, WatchTarget>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) children: BTreeMap<String, Child>,
    pub(super) execs: BTreeMap<String, ExecState>,
    pub(super) sinks: BTreeMap<u64, Sink>,
    /// Who has ended as nobody's while something was starting, and when.
    pub(super) unclaimed_exits: UnclaimedExits,
    pub(super) sandbox: Option<(StartSandbox, Option<PodNamespaces>)>,
    /// The sandbox's user namespace until pause is in it.
    pub(super) users: Option<HeldUserns>,
    /// Until when no connection is accepted, for want of memory or descriptors.
    accept_backoff_until: Option<Instant>,
    finished: bool,
}

/// How long to wait for others to give back what there was none of.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// Runs until the runtime says that nothing is left to hold.
///
/// # Errors
/// When the monitor can't set itself up, or waiting for events fails.
pub fn run(options: &MonitorOptions) -> Result<(), Error> {
    // Children inherit it, so that none of them can be looked into at any moment before its program
    // runs: an exec's is in the container's pid namespace from its first instruction (CVE-2016-9962).
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .step(|| "become undumpable".into())?;
    let (first, listener) = sys::fd::take_inherited().step(|| "take the inherited sockets".into())?;
    let mut monitor = Monitor::new(options, UnixListener::from(listener))?;
    monitor.connect(UnixStream::from(first))?;
    while !monitor.finished {
        monitor.run_once()?;
    }
    Ok(())
}

impl Monitor {
    fn new(options: &MonitorOptions, listener: UnixListener) -> Result<Self, Error> {
        // Run from a memfd, the process would be named after a descriptor's number.
        rustix::thread::set_name(c"gantry-monitor").step(|| "set the process name".into())?;
        for folder in &options.cgroups {
            fs::write(format!("{folder}/cgroup.procs"), "0")
                .step(|| format!("enter the monitor's cgroup {folder}"))?;
        }
        // Without CAP_SYS_RESOURCE this is refused, and the monitor is as easy a victim as its runtime.
        let _ = fs::write("/proc/self/oom_score_adj", options.oom_score_adj.to_string());
        // A runtime that starts monitors from a terminal must not take them along on Ctrl-C.
        let _ = rustix::process::setsid();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .step(|| "become a subreaper".into())?;
        sys::signal::ignore(libc::SIGPIPE);
        sys::signal::ignore(libc::SIGHUP);
        sys::signal::block(&[libc::SIGCHLD]).step(|| "block SIGCHLD".into())?;
        let signals = sys::signal::signalfd(&[libc::SIGCHLD]).step(|| "make a signalfd".into())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).step(|| "make an epoll set".into())?;
        listener.set_nonblocking(true).step(|| "make the listener non-blocking".into())?;
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .step(|| "open /dev/null".into())?;
        // The sockets were taken as copies; the numbers they came by must not keep them open.
        rustix::stdio::dup2_stdin(&null).step(|| "let go of descriptor 0".into())?;
        rustix::stdio::dup2_stdout(&null).step(|| "let go of descriptor 1".into())?;
        let monitor = Self {
            epoll,
            signals,
            listener,
            null,
            next_token: 2,
            watched: BTreeMap::new(),
            connections: BTreeMap::new(),
            children: BTreeMap::new(),
            execs: BTreeMap::new(),
            sinks: BTreeMap::new(),
            unclaimed_exits: UnclaimedExits::default(),
            sandbox: None,
            users: None,
            accept_backoff_until: None,
            finished: false,
        };
        monitor.add(monitor.listener.as_fd(), LISTENER)?;
        monitor.add(monitor.signals.as_fd(), SIGNALS)?;
        Ok(monitor)
    }

    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), StepError> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
            .step(|| "watch a descriptor".into())
    }

    pub(super) fn watch(&mut self, fd: BorrowedFd<'_>, what: WatchTarget) -> Result<u64, StepError> {
        let token = self.next_token;
        self.next_token += 1;
        self.add(fd, token)?;
        self.watched.insert(token, what);
        Ok(token)
    }

    /// To be called before `fd` is closed: the set knows the open file, and a copy of it in a child
    /// whose set-up hangs would go on waking the monitor.
    pub(super) fn unwatch(&mut self, token: u64, fd: BorrowedFd<'_>) {
        self.watched.remove(&token);
        // Not there is as good.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Changes what `fd` is waited for; its end and its errors are always told.
    pub(super) fn wait_for(
        &self,
        token: u64,
        fd: BorrowedFd<'_>,
        flags: epoll::EventFlags,
    ) -> Result<(), StepError> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
            .step(|| "watch a descriptor".into())
    }

    fn connect(&mut self, stream: UnixStream) -> Result<(), StepError> {
        let connection = Connection::new(stream).step(|| "make a connection non-blocking".into())?;
        // By this very descriptor: epoll knows a file by its number, too.
        let token = self.watch(connection.stream.as_fd(), WatchTarget::Connection)?;
        self.connections.insert(token, connection);
        Ok(())
    }

    /// One wake-up: whatever is ready, then whatever is due.
    fn run_once(&mut self) -> Result<(), Error> {
        let mut events = Vec::with_capacity(32);
        let wait = self.next_deadline().map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            result => result.step(|| "wait for events".into())?,
        };
        for event in events {
            let token = event.data.u64();
            match token {
                LISTENER => self.accept(),
                SIGNALS => self.reap(),
                _ => match self.watched.get(&token).cloned() {
                    Some(WatchTarget::Connection) => self.serve(token, event.flags),
                    Some(WatchTarget::Report(id)) => self.read_report(&id),
                    Some(WatchTarget::Output(id)) => self.read_output(token, &id),
                    Some(WatchTarget::ExecReport(id)) => self.read_exec_report(&id),
                    Some(WatchTarget::Sink) => self.feed_sink(token),
                    None => {}
                },
            }
        }
        self.finish_due();
        self.end_stuck_execs();
        self.resume_accepting();
        Ok(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        let children = self.children.values().filter_map(Child::deadline);
        let execs = self.execs.values().filter_map(ExecState::deadline);
        let due = children.chain(execs).chain(self.accept_backoff_until).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// A node that is short of something for a moment is no reason to end a pod, and neither is a
    /// connection that ended meanwhile.
    fn accept(&mut self) {
        let accepted = match self.listener.accept() {
            Ok((stream, _)) => self.connect(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error).step(|| "accept a runtime".into()),
        };
        if let Err(error) = accepted {
            log_stderr(format_args!("{}: {}; trying again", error.what, error.source));
            // The listener stays ready: waiting for it would not wait.
            let _ = epoll::delete(&self.epoll, self.listener.as_fd());
            self.accept_backoff_until = Some(Instant::now() + ACCEPT_BACKOFF);
        }
    }

    fn resume_accepting(&mut self) {
        let now = Instant::now();
        if self.accept_backoff_until.is_none_or(|until| until > now) {
            return;
        }
        self.accept_backoff_until = match self.add(self.listener.as_fd(), LISTENER) {
            Ok(()) => None,
            Err(_) => Some(now + ACCEPT_BACKOFF),
        };
    }

    fn serve(&mut self, token: u64, flags: epoll::EventFlags) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let mut requests = Ok(Vec::new());
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            requests = connection.receive();
        }
        if connection.flush().is_err() {
            requests = Err(ErrorKind::BrokenPipe.into());
        }
        match requests {
            Ok(requests) => requests.into_iter().for_each(|request| self.handle(token, request)),
            Err(_) => self.disconnect(token),
        }
        self.rearm(token);
    }

    fn disconnect(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            self.unwatch(token, connection.stream.as_fd());
        }
    }

    /// Waits for room in the socket only while something is queued.
    fn rearm(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        let mut flags = epoll::EventFlags::IN;
        if connection.wants_to_write() {
            flags |= epoll::EventFlags::OUT;
        }
        if self.wait_for(token, connection.stream.as_fd(), flags).is_err() {
            self.disconnect(token);
        }
    }

    pub(super) fn send(&mut self, token: u64, frame: frame::Frame) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.send(&Frame { frame: Some(frame) }).is_err() {
            self.disconnect(token);
        } else {
            self.rearm(token);
        }
    }

    pub(super) fn reply(&mut self, token: u64, id: u64, result: reply::Result) {
        self.send(token, frame::Frame::Reply(Reply { id, result: Some(result) }));
    }

    fn handle(&mut self, token: u64, request: Request) {
        let id = request.id;
        let descriptors = match self.connections.get_mut(&token) {
            Some(connection) => connection.take_descriptors(&request),
            None => Ok(Vec::new()),
        };
        let result = descriptors.and_then(|descriptors| self.answer(token, request, descriptors));
        match result {
            Ok(None) => {}
            Ok(Some(result)) => self.reply(token, id, result),
            Err(error) => self.reply(token, id, reply::Result::Failure(failure(&error))),
        }
    }

    /// The answer, or None when it comes later.
    fn answer(
        &mut self,
        token: u64,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<reply::Result>, StepError> {
        let id = request.id;
        let done = |()| Some(reply::Result::Done(Done {}));
        match request.op {
            Some(request::Op::Hello(_)) => Ok(Some(reply::Result::Welcome(self.welcome()))),
            Some(request::Op::StartSandbox(start)) => self.start_sandbox(start, (token, id)).map(|()| None),
            Some(request::Op::StartContainer(start)) => {
                self.start_container(&start, (token, id)).map(|()| None)
            }
            Some(request::Op::Exec(exec)) => self.start_exec(&exec, (token, id), descriptors).map(|()| None),
            Some(request::Op::SignalExec(signal)) => self.signal_exec(&signal).map(done),
            Some(request::Op::Attach(attach)) => self.attach(&attach, token, descriptors).map(done),
            Some(request::Op::ReopenLog(reopen)) => self.reopen_log(&reopen).map(done),
            Some(request::Op::MakeUsers(wanted)) => {
                self.make_users(&wanted).map(|held| Some(reply::Result::Started(held)))
            }
            Some(request::Op::Shutdown(_)) => self.shut_down().map(done),
            None => {
                refuse(libc::EINVAL, "the monitor does not know this request: it is older than the runtime")
            }
        }
    }

    fn make_users(&mut self, wanted: &MakeUsers) -> Result<Started, StepError> {
        if self.sandbox.is_some() || self.users.is_some() {
            return refuse(libc::EEXIST, "this monitor has its sandbox's users already");
        }
        let mapping = wanted.users.unwrap_or_default();
        let held = users::create_userns(&mapping, wanted.network)?;
        failpoint!("monitor.users-made");
        let start_time_ticks = super::spawn::start_time_ticks(held.pid)?;
        let started =
            Started { id: String::new(), pid: held.pid, start_time_ticks, started_at_unix_nanos: 0 };
        self.users = Some(held);
        Ok(started)
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            protocol_version: PROTOCOL_VERSION,
            monitor_pid: rustix::process::getpid().as_raw_nonzero().get(),
            // Those that set themselves up, too: the runtime that asked for them never heard of it.
            running: self.children.values().map(Child::to_started).collect(),
        }
    }

    pub(super) fn clear_signals(&self) {
        let mut buffer = [0u8; 1024];
        while matches!(rustix::io::read(&self.signals, &mut buffer[..]), Ok(count) if count > 0) {}
    }

    fn shut_down(&mut self) -> Result<(), StepError> {
        if let Some(id) = self.children.keys().next() {
            return refuse(libc::EBUSY, format!("{id} still runs"));
        }
        self.finished = true;
        Ok(())
    }
}

pub(super) fn failure(error: &StepError) -> Failure {
    Failure { step: error.what.clone(), errno: error.source.raw_os_error().unwrap_or(0) }
}

//! The monitor's one thread: waits on the listener, the runtimes, SIGCHLD, the children's reports
//! and their output. Owns every child. Called by the program `gantry-monitor`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use gantry_proto::monitor::{
    Done, Exited, Failure, Frame, PROTOCOL_VERSION, Reply, Request, StartContainer, StartSandbox, Started,
    Welcome, frame, reply, request,
};
use rustix::event::{Timespec, epoll};

use super::connection::Connection;
use super::log::{Lines, LogFile, Source};
use super::spawn::{self, Namespaces, Spawned};
use super::{Error, Options, child};
use crate::init::{Step, StepError, refuse};
use crate::sys;

use child::{Child, Output, Phase};

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;

/// How long after a container's end its output may still come from processes that are not dying.
const DRAIN: Duration = Duration::from_secs(2);

/// What a token of the epoll set stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Watched {
    Connection,
    Report(String),
    Output(String),
}

struct Monitor {
    epoll: OwnedFd,
    signals: OwnedFd,
    listener: UnixListener,
    null: OwnedFd,
    next_token: u64,
    watched: BTreeMap<u64, Watched>,
    connections: BTreeMap<u64, Connection>,
    children: BTreeMap<String, Child>,
    sandbox: Option<(StartSandbox, Option<Namespaces>)>,
    finished: bool,
}

/// Runs until the runtime says that nothing is left to hold.
///
/// # Errors
/// When the monitor can't set itself up, or waiting for events fails.
pub fn run(options: &Options) -> Result<(), Error> {
    let (first, listener) = sys::fd::take_inherited().step(|| "take the inherited sockets".into())?;
    let mut monitor = Monitor::new(options, UnixListener::from(listener))?;
    monitor.connect(UnixStream::from(first))?;
    while !monitor.finished {
        monitor.turn()?;
    }
    Ok(())
}

impl Monitor {
    fn new(options: &Options, listener: UnixListener) -> Result<Self, Error> {
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
            sandbox: None,
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

    fn watch(&mut self, fd: BorrowedFd<'_>, what: Watched) -> Result<u64, StepError> {
        let token = self.next_token;
        self.next_token += 1;
        self.add(fd, token)?;
        self.watched.insert(token, what);
        Ok(token)
    }

    fn connect(&mut self, stream: UnixStream) -> Result<(), StepError> {
        let connection = Connection::new(stream).step(|| "make a connection non-blocking".into())?;
        // By this very descriptor: epoll knows a file by its number, too.
        let token = self.watch(connection.stream.as_fd(), Watched::Connection)?;
        self.connections.insert(token, connection);
        Ok(())
    }

    /// One wake-up: whatever is ready, then whatever is due.
    fn turn(&mut self) -> Result<(), Error> {
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
                LISTENER => self.accept()?,
                SIGNALS => self.reap(),
                _ => match self.watched.get(&token).cloned() {
                    Some(Watched::Connection) => self.serve(token, event.flags),
                    Some(Watched::Report(id)) => self.read_report(token, &id),
                    Some(Watched::Output(id)) => self.read_output(token, &id),
                    None => {}
                },
            }
        }
        self.finish_due();
        Ok(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        let due = self.children.values().filter_map(Child::deadline).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self) -> Result<(), StepError> {
        match self.listener.accept() {
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
        }
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
        self.connections.remove(&token);
        self.watched.remove(&token);
    }

    /// Waits for room in the socket only while something is queued.
    fn rearm(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        let mut flags = epoll::EventFlags::IN;
        if connection.wants_to_write() {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(token);
        if epoll::modify(&self.epoll, connection.stream.as_fd(), data, flags).is_err() {
            self.disconnect(token);
        }
    }

    fn send(&mut self, token: u64, frame: frame::Frame) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.send(&Frame { frame: Some(frame) }).is_err() {
            self.disconnect(token);
        } else {
            self.rearm(token);
        }
    }

    fn reply(&mut self, token: u64, id: u64, result: reply::Result) {
        self.send(token, frame::Frame::Reply(Reply { id, result: Some(result) }));
    }

    fn handle(&mut self, token: u64, request: Request) {
        let id = request.id;
        let result = match request.op {
            Some(request::Op::Hello(_)) => Ok(Some(reply::Result::Welcome(self.welcome()))),
            Some(request::Op::StartSandbox(start)) => self.start_sandbox(start, (token, id)).map(|()| None),
            Some(request::Op::StartContainer(start)) => {
                self.start_container(&start, (token, id)).map(|()| None)
            }
            Some(request::Op::Shutdown(_)) => self.shut_down().map(|()| Some(reply::Result::Done(Done {}))),
            None => {
                refuse(libc::EINVAL, "the monitor does not know this request: it is older than the runtime")
            }
        };
        match result {
            Ok(None) => {}
            Ok(Some(result)) => self.reply(token, id, result),
            Err(error) => self.reply(token, id, reply::Result::Failure(failure(&error))),
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            protocol_version: PROTOCOL_VERSION,
            monitor_pid: rustix::process::getpid().as_raw_nonzero().get(),
            running: self.children.values().filter(|child| child.has_started()).map(Child::started).collect(),
        }
    }

    fn start_sandbox(&mut self, start: StartSandbox, reply_to: (u64, u64)) -> Result<(), StepError> {
        if self.sandbox.is_some() {
            return refuse(libc::EEXIST, "this monitor has its sandbox already");
        }
        let spawned = spawn::pause(&start, &self.null)?;
        let child = Child::new(
            &start.id,
            &start.record_dir,
            start.cgroup.clone(),
            LogFile::open("").step(String::new)?,
        );
        self.sandbox = Some((start, None));
        self.follow(child, spawned, reply_to)
    }

    fn start_container(&mut self, start: &StartContainer, reply_to: (u64, u64)) -> Result<(), StepError> {
        let Some((_, Some(namespaces))) = &self.sandbox else {
            return refuse(libc::ESRCH, "the sandbox is not running");
        };
        if self.children.contains_key(&start.id) {
            return refuse(libc::EEXIST, "this container runs already");
        }
        let log = LogFile::open(&start.log_path).step(|| format!("open the log {}", start.log_path))?;
        let child = Child::new(&start.id, &start.record_dir, start.cgroup.clone(), log);
        let spawned = spawn::container(start, namespaces, &self.null)?;
        self.follow(child, spawned, reply_to)
    }

    /// Takes a fresh clone into the loop: its report first, then its output.
    fn follow(&mut self, mut child: Child, spawned: Spawned, reply_to: (u64, u64)) -> Result<(), StepError> {
        child.pid = spawned.pid;
        child.start_time_ticks = spawned.start_time_ticks;
        let id = child.id.clone();
        if let Some((stdout, stderr)) = spawned.output {
            for (pipe, source) in [(stdout, Source::Stdout), (stderr, Source::Stderr)] {
                let token = self.watch(pipe.as_fd(), Watched::Output(id.clone()))?;
                child.outputs.push(Output { token, pipe, lines: Lines::new(source) });
            }
        }
        self.watch(spawned.report.as_fd(), Watched::Report(id.clone()))?;
        child.phase = Phase::Starting { report: spawned.report, bytes: Vec::new(), reply_to, ended: None };
        self.children.insert(id, child);
        Ok(())
    }

    fn read_report(&mut self, token: u64, id: &str) {
        let Some(Phase::Starting { report, bytes, .. }) =
            self.children.get_mut(id).map(|child| &mut child.phase)
        else {
            return;
        };
        let mut chunk = [0u8; 4096];
        match rustix::io::read(&*report, &mut chunk[..]) {
            Ok(0) => {
                self.watched.remove(&token);
                self.started_or_not(id);
            }
            Ok(count) => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(_) => {}
        }
    }

    fn started_or_not(&mut self, id: &str) {
        let Some(child) = self.children.get_mut(id) else { return };
        let Phase::Starting { bytes, reply_to, ended, .. } =
            std::mem::replace(&mut child.phase, Phase::Running)
        else {
            return;
        };
        let result = spawn::verdict(&bytes).and_then(|()| match &mut self.sandbox {
            Some((start, namespaces)) if start.id == id => Namespaces::of(child.pid, start)
                .map(|held| *namespaces = Some(held))
                .map_err(|error| failure(&error)),
            _ => Ok(()),
        });
        match result {
            Ok(()) => {
                let started = child.started();
                if !self.connections.contains_key(&reply_to.0) {
                    // Whoever asked for it is gone and will never learn that it runs.
                    child.kill_stragglers();
                }
                self.reply(reply_to.0, reply_to.1, reply::Result::Started(started));
                if let Some((exit_code, at)) = ended {
                    self.ended(id, exit_code, at);
                }
            }
            Err(why) => {
                self.forget(id);
                if self.sandbox.as_ref().is_some_and(|(start, _)| start.id == id) {
                    self.sandbox = None;
                }
                self.reply(reply_to.0, reply_to.1, reply::Result::Failure(why));
            }
        }
    }

    fn read_output(&mut self, token: u64, id: &str) {
        let Some(child) = self.children.get_mut(id) else { return };
        if !child.read(token) {
            self.watched.remove(&token);
        }
        self.finish_due();
    }

    /// Collects every process that has ended: ours, and strays that came to us as subreaper.
    fn reap(&mut self) {
        let mut buffer = [0u8; 1024];
        while matches!(rustix::io::read(&self.signals, &mut buffer[..]), Ok(count) if count > 0) {}
        while let Some(status) = child::reap_one() {
            let id =
                self.children.values().find(|child| child.pid == status.pid).map(|child| child.id.clone());
            if let Some(id) = id {
                self.ended(&id, status.code, child::unix_nanos());
            }
        }
    }

    fn ended(&mut self, id: &str, exit_code: i32, at: i64) {
        let Some(child) = self.children.get_mut(id) else { return };
        if let Phase::Starting { ended, .. } = &mut child.phase {
            *ended = Some((exit_code, at));
            return;
        }
        child.drain();
        if !child.outputs.is_empty() {
            // The first program is gone, somebody still holds its output: a container ends as a whole.
            child.kill_stragglers();
        }
        let oom_kills = child.oom_kills();
        child.phase =
            Phase::Draining { exit_code, finished_at: at, oom_kills, deadline: Instant::now() + DRAIN };
        self.finish_due();
    }

    /// Records and announces the children whose output has ended, or has had its time.
    fn finish_due(&mut self) {
        let now = Instant::now();
        let due: Vec<String> =
            self.children.values().filter(|child| child.is_due(now)).map(|child| child.id.clone()).collect();
        for id in due {
            let Some(mut child) = self.forget(&id) else { continue };
            let Some(exited) = child.record() else { continue };
            self.announce(&exited);
        }
    }

    fn forget(&mut self, id: &str) -> Option<Child> {
        let child = self.children.remove(id)?;
        for output in &child.outputs {
            self.watched.remove(&output.token);
        }
        Some(child)
    }

    fn announce(&mut self, exited: &Exited) {
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            self.send(token, frame::Frame::Exited(exited.clone()));
        }
    }

    fn shut_down(&mut self) -> Result<(), StepError> {
        if let Some(id) = self.children.keys().next() {
            return refuse(libc::EBUSY, format!("{id} still runs"));
        }
        self.finished = true;
        Ok(())
    }
}

fn failure(error: &StepError) -> Failure {
    Failure { step: error.what.clone(), errno: error.source.raw_os_error().unwrap_or(0) }
}

impl Child {
    fn started(&self) -> Started {
        Started { id: self.id.clone(), pid: self.pid, start_time_ticks: self.start_time_ticks }
    }
}

//! Pause and the containers: from the request to the exit record. Owns their phases; the clone is
//! `monitor::spawn`'s, one child's output and record `monitor::child`'s. Called by
//! `monitor::event_loop`.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_failpoint::failpoint;
use gantry_proto::monitor::{
    Exited, Failure, NamespaceMode, ReopenLog, StartContainer, StartSandbox, Started, frame, reply,
};

use super::child::{self, Child, ContainerOutput, Input, Phase};
use super::event_loop::{Monitor, WatchTarget, failure};
use super::exec::ExecState;
use super::log::{Lines, LogFile, LogStream};
use super::report::ChildReport;
use super::spawn::{self, ParentStreams, PodNamespaces, SpawnedChild};
use crate::descriptors;
use crate::init::{StepContext, StepError, console, refuse};

/// How long after a container's end its output may still come from processes that are not dying.
const DRAIN: Duration = Duration::from_secs(2);

/// How long a child may take to its program: a mount source on a dead network disk never answers.
/// Shorter than the runtime waits, so that the step is named.
pub(super) const SET_UP: Duration = Duration::from_secs(90);

/// The exit code of a container whose program never began, as the runtime tells it.
const NOT_STARTED: i32 = 128;

impl Monitor {
    pub(super) fn start_sandbox(
        &mut self,
        start: StartSandbox,
        reply_to: (u64, u64),
    ) -> Result<(), StepError> {
        if self.sandbox.is_some() {
            return refuse(libc::EEXIST, "this monitor has its sandbox already");
        }
        let users = self.users.as_ref().map(|held| &held.namespace);
        let spawned = spawn::pause(&start, users, &self.null)?;
        let child = Child::new(
            &start.id,
            &start.record_dir,
            start.cgroup.clone(),
            LogFile::open("").step(String::new)?,
        );
        self.sandbox = Some((start, None));
        self.follow(child, spawned, false, reply_to)
    }

    pub(super) fn start_container(
        &mut self,
        start: &StartContainer,
        reply_to: (u64, u64),
    ) -> Result<(), StepError> {
        if self.adopt_start(&start.id, reply_to)? {
            return Ok(());
        }
        let Some((_, Some(namespaces))) = &self.sandbox else {
            return refuse(libc::ESRCH, "the sandbox is not running");
        };
        let log = LogFile::open(&start.log_path).step(|| format!("open the log {}", start.log_path))?;
        let mut child = Child::new(&start.id, &start.record_dir, start.cgroup.clone(), log);
        let target = self.target_of(start)?;
        let spawned = spawn::container(start, namespaces, target, &self.null)?;
        failpoint!("monitor.cloned");
        child.helper = start.external.is_some().then_some(spawned.pid);
        self.follow(child, spawned, start.stdin_once, reply_to)
    }

    /// The first process of the container whose pid namespace is to be joined. It holds that namespace
    /// while it runs: the kernel ends everyone in it with its init, which the target is or shares.
    fn target_of(&self, start: &StartContainer) -> Result<Option<&OwnedFd>, StepError> {
        if start.pid() != NamespaceMode::Target {
            return Ok(None);
        }
        let id = &start.pid_target;
        let running = self.children.get(id).filter(|child| matches!(child.phase, Phase::Running));
        match running.and_then(|child| child.pidfd.as_ref()) {
            Some(process) => Ok(Some(process)),
            None => refuse(libc::ESRCH, format!("the target container {id} is not running")),
        }
    }

    /// Whether this start was under way or done already: asked for by a runtime that died before it
    /// heard the answer, and now once more by the next.
    fn adopt_start(&mut self, id: &str, asks: (u64, u64)) -> Result<bool, StepError> {
        let Some(child) = self.children.get_mut(id) else { return Ok(false) };
        match &mut child.phase {
            Phase::Starting { reply_to, .. } => *reply_to = asks,
            Phase::Running => {
                let started = child.to_started();
                self.reply(asks.0, asks.1, reply::Result::Started(started));
            }
            Phase::Draining { .. } => return refuse(libc::EEXIST, "this container is just ending"),
        }
        Ok(true)
    }

    fn is_pause(&self, id: &str) -> bool {
        self.sandbox.as_ref().is_some_and(|(start, _)| start.id == id)
    }

    /// Takes a fresh clone into the loop: its report first, then its output.
    fn follow(
        &mut self,
        mut child: Child,
        spawned: SpawnedChild,
        stdin_once: bool,
        reply_to: (u64, u64),
    ) -> Result<(), StepError> {
        child.pid = spawned.pid;
        child.pidfd = Some(spawned.pidfd);
        child.start_time_ticks = spawned.start_time_ticks;
        let id = child.id.clone();
        let mut terminal = None;
        match spawned.ends {
            ParentStreams::None => {}
            ParentStreams::Pipes { stdin, stdout, stderr } => {
                child.input = stdin.map_or(Input::None, |end| Input::Pipe { end, once: stdin_once });
                for (pipe, source) in [(stdout, LogStream::Stdout), (stderr, LogStream::Stderr)] {
                    self.read_from(&mut child, pipe, source)?;
                }
            }
            ParentStreams::Terminal(socket) => terminal = Some(socket),
        }
        let token = self.watch(spawned.report.as_fd(), WatchTarget::Report(id.clone()))?;
        let report = ChildReport::new(spawned.report, token);
        let deadline = Instant::now() + SET_UP;
        child.phase = Phase::Starting { report, terminal, reply_to, ended: None, deadline };
        self.children.insert(id, child);
        Ok(())
    }

    fn read_from(&mut self, child: &mut Child, pipe: OwnedFd, source: LogStream) -> Result<(), StepError> {
        let token = self.watch(pipe.as_fd(), WatchTarget::Output(child.id.clone()))?;
        child.outputs.push(ContainerOutput { token, pipe, lines: Lines::new(source) });
        Ok(())
    }

    pub(super) fn read_report(&mut self, id: &str) {
        let Some(Phase::Starting { report, .. }) = self.children.get_mut(id).map(|child| &mut child.phase)
        else {
            return;
        };
        let more = report.read();
        if let Some(child) = self.children.get_mut(id) {
            child.follow_move(&mut self.unclaimed_exits);
        }
        if !more {
            self.answer_start(id);
        }
    }

    /// Before a process that has ended is looked for: what went on in another's place was told of before
    /// either could end.
    fn follow_moves(&mut self) {
        for child in self.children.values_mut() {
            if let Phase::Starting { report, .. } = &mut child.phase {
                report.read_pending();
                child.follow_move(&mut self.unclaimed_exits);
            }
        }
    }

    fn is_starting(&self) -> bool {
        let starting = |child: &Child| matches!(child.phase, Phase::Starting { .. });
        self.children.values().any(starting) || self.execs.values().any(ExecState::is_starting)
    }

    fn answer_start(&mut self, id: &str) {
        let Some(child) = self.children.get_mut(id) else { return };
        let Phase::Starting { report, terminal, reply_to, ended, .. } =
            std::mem::replace(&mut child.phase, Phase::Running)
        else {
            return;
        };
        self.unwatch(report.token, report.pipe.as_fd());
        failpoint!("monitor.ready");
        let result =
            report.verdict().and_then(|()| self.set_up_parent(id, terminal).map_err(|error| failure(&error)));
        let nobodys = self.is_pause(id) && !self.connections.contains_key(&reply_to.0);
        match result {
            Ok(()) => {
                let Some(child) = self.children.get_mut(id) else { return };
                // It may have ended before its report was read.
                child.started_at = ended.map_or(i64::MAX, |(_, at)| at).min(child::unix_nanos());
                let started = child.to_started();
                if nobodys {
                    // The record of its sandbox is not complete: the next runtime would undo it. A
                    // container goes on, and the next runtime hears of it in its welcome.
                    child.kill_stragglers();
                }
                self.reply(reply_to.0, reply_to.1, reply::Result::Started(started));
                if let Some((exit_code, at)) = ended {
                    self.handle_exit(id, exit_code, at);
                }
            }
            Err(why) => self.give_up(id, reply_to, why),
        }
    }

    /// What the monitor needs of a child once it is set up: pause's namespaces, a terminal's master.
    fn set_up_parent(&mut self, id: &str, terminal: Option<OwnedFd>) -> Result<(), StepError> {
        let Some(mut child) = self.children.remove(id) else { return Ok(()) };
        let taken = self.set_up_parent_of(&mut child, terminal);
        self.children.insert(id.to_owned(), child);
        taken
    }

    fn set_up_parent_of(&mut self, child: &mut Child, terminal: Option<OwnedFd>) -> Result<(), StepError> {
        if let Some((start, namespaces)) = &mut self.sandbox
            && start.id == child.id
        {
            *namespaces = Some(PodNamespaces::of(child.pid, start)?);
            // Pause holds it from now on.
            self.users = None;
        }
        if let Some(socket) = terminal {
            let master = descriptors::receive_one(&socket).step(|| "receive the terminal's master".into())?;
            rustix::io::ioctl_fionbio(&master, true).step(|| "make the terminal non-blocking".into())?;
            child.terminal =
                console::ignore_hung_up(console::slave_of(&master)).step(|| "hold the terminal".into())?;
            child.input = Input::Terminal;
            self.read_from(child, master, LogStream::Stdout)?;
        }
        Ok(())
    }

    fn give_up(&mut self, id: &str, reply_to: (u64, u64), why: Failure) {
        if let Some(mut child) = self.forget(id) {
            child.kill();
            if !self.connections.contains_key(&reply_to.0) && !self.is_pause(id) {
                // The next runtime took it for running, or will look for how it ended.
                child::log_stderr(format_args!("{id} did not start: {}", why.step));
                let finished_at = child::unix_nanos();
                let (exit_code, deadline) = (NOT_STARTED, Instant::now());
                child.phase = Phase::Draining { exit_code, finished_at, oom_kills: 0, deadline };
                if let Some(exited) = child.record() {
                    self.announce(&exited);
                }
            }
        }
        if self.is_pause(id) {
            self.sandbox = None;
            self.users = None;
        }
        self.reply(reply_to.0, reply_to.1, reply::Result::Failure(why));
    }

    pub(super) fn read_output(&mut self, token: u64, id: &str) {
        let Some(mut child) = self.children.remove(id) else { return };
        let ended = child.read(token, &mut |source, bytes| self.tee(id, source, bytes));
        if let Some(output) = ended {
            self.unwatch(token, output.pipe.as_fd());
        }
        self.children.insert(id.to_owned(), child);
        self.finish_due();
    }

    /// Collects every process that has ended: ours, and orphans that came to us as subreaper.
    pub(super) fn reap(&mut self) {
        self.clear_signals();
        while let Some(status) = child::reap_one() {
            if status.code != 0 && self.children.values().any(|child| child.helper == Some(status.pid)) {
                // It goes before its start is given up, and what its program has begun would stay.
                child::end_group(status.pid);
            }
            self.follow_moves();
            let id =
                self.children.values().find(|child| child.pid == status.pid).map(|child| child.id.clone());
            match id {
                Some(id) => self.handle_exit(&id, status.code, child::unix_nanos()),
                None if self.handle_exec_exit(&status) => {}
                None => self.unclaimed_exits.add(status, child::unix_nanos()),
            }
        }
        if !self.is_starting() {
            self.unclaimed_exits.clear();
        }
    }

    fn handle_exit(&mut self, id: &str, exit_code: i32, at: i64) {
        let Some(child) = self.children.get_mut(id) else { return };
        if let Phase::Starting { ended, .. } = &mut child.phase {
            *ended = Some((exit_code, at));
            return;
        }
        let Some(mut child) = self.children.remove(id) else { return };
        child.terminal = None;
        for output in child.drain(&mut |source, bytes| self.tee(id, source, bytes)) {
            self.unwatch(output.token, output.pipe.as_fd());
        }
        // The first program is gone, and a container ends as a whole: in a pid namespace that others share
        // the kernel does not see to it.
        child.kill_stragglers();
        let oom_kills = child.oom_kills();
        child.phase =
            Phase::Draining { exit_code, finished_at: at, oom_kills, deadline: Instant::now() + DRAIN };
        self.children.insert(id.to_owned(), child);
        self.finish_due();
    }

    /// Records and announces the children whose output has ended, or has had its time; gives up those
    /// whose set-up hangs.
    pub(super) fn finish_due(&mut self) {
        let now = Instant::now();
        let due: Vec<String> =
            self.children.values().filter(|child| child.is_due(now)).map(|child| child.id.clone()).collect();
        for id in due {
            if let Some(Phase::Starting { report, reply_to, .. }) =
                self.children.get(&id).map(|child| &child.phase)
            {
                let (why, reply_to) = (report.hangs_at(), *reply_to);
                self.give_up(&id, reply_to, why);
                continue;
            }
            let Some(mut child) = self.forget(&id) else { continue };
            let Some(exited) = child.record() else { continue };
            failpoint!("monitor.recorded");
            self.announce(&exited);
        }
    }

    fn forget(&mut self, id: &str) -> Option<Child> {
        let child = self.children.remove(id)?;
        for output in &child.outputs {
            self.unwatch(output.token, output.pipe.as_fd());
        }
        if let Phase::Starting { report, .. } = &child.phase {
            self.unwatch(report.token, report.pipe.as_fd());
        }
        self.close_sinks(id);
        Some(child)
    }

    fn announce(&mut self, exited: &Exited) {
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            self.send(token, frame::Frame::Exited(exited.clone()));
        }
    }

    /// Lines that are not whole yet stay in memory, and go to the new file.
    pub(super) fn reopen_log(&mut self, reopen: &ReopenLog) -> Result<(), StepError> {
        let id = &reopen.container_id;
        match self.children.get_mut(id) {
            Some(child) => child.log.reopen().step(|| format!("open the log of {id} again")),
            None => refuse(libc::ESRCH, format!("container {id} is not running")),
        }
    }
}

impl Child {
    pub(super) fn to_started(&self) -> Started {
        Started {
            id: self.id.clone(),
            pid: self.pid,
            start_time_ticks: self.start_time_ticks,
            started_at_unix_nanos: self.started_at,
        }
    }
}

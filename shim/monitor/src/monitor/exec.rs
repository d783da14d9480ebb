//! Execs: further processes in a container, whose streams are the runtime's own. Owns them from clone to
//! their end, which is told to the runtime that asked and to nobody else. Called by
//! `monitor::event_loop`.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gantry_proto::monitor::{Exec as Request, ExecEnded, Failure, SignalExec, Started, frame, reply};
use rustix::process::{Pid, Signal};

use super::child::{self, Phase, ReapedProcess};
use super::children::SET_UP;
use super::event_loop::{Monitor, WatchTarget};
use super::external;
use super::report::ChildReport;
use super::spawn;
use super::unclaimed_exits::UnclaimedExits;
use crate::init::{StepContext, StepError, refuse};

/// How long an OCI runtime may still take to say which process is the exec's, once that is to be signalled.
const MOVE: Duration = Duration::from_secs(5);

/// ```text
/// Starting ──report says ready──▶ Running ──process ended──▶ (told, gone)
///     └──report says failed, or nothing, or deadline──▶ (gone: the runtime has the answer)
/// ```
#[derive(Debug)]
enum ExecPhase {
    /// Setting itself up; an end before the report is read waits in `ended`.
    Starting {
        report: ChildReport,
        request: u64,
        ended: Option<i32>,
        deadline: Instant,
    },
    Running,
}

#[derive(Debug)]
pub(super) struct ExecState {
    pid: i32,
    start_time_ticks: u64,
    /// Who asked.
    connection: u64,
    /// Begun by an OCI runtime: another process goes on in its place, and the report is the monitor's own kind's.
    external: Option<ExternalExec>,
    state: ExecPhase,
}

/// What is known of an exec that an OCI runtime begins.
#[derive(Debug)]
struct ExternalExec {
    /// Its files, without what kind each is.
    files: PathBuf,
    /// `pid` is the exec's own process, not who waits for the program any more.
    moved: bool,
    /// A signal that came before anybody knew whom it is for.
    due: Option<Signal>,
}

impl ExternalExec {
    /// The process that the program has left behind, where it came to write that down: a child of the
    /// monitor's by now, or still the program's, whom `helper` waits for.
    fn left_behind_pid(&self, helper: i32) -> Option<i32> {
        let pid = fs::read_to_string(self.files.with_extension("pid")).ok()?.trim().parse().ok()?;
        let mut parents = std::iter::successors(spawn::parent(pid), |pid| spawn::parent(*pid)).take(3);
        (!self.moved && (child::is_ours(pid) || parents.any(|parent| parent == helper))).then_some(pid)
    }

    /// Variables are in them, and they are in the way of nobody else's.
    fn remove_files(&self) {
        for kind in ["json", "pid", "log", "sock"] {
            // What is not there is as good.
            let _ = fs::remove_file(self.files.with_extension(kind));
        }
    }
}

impl ExecState {
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.state, ExecPhase::Starting { .. })
    }

    /// Takes the process that an OCI runtime has left for the exec.
    fn follow_move(&mut self, unclaimed_exits: &mut UnclaimedExits) {
        let ExecPhase::Starting { report, ended, .. } = &mut self.state else { return };
        let Some(external) = self.external.as_mut().filter(|external| !external.moved) else { return };
        let Some(pid) = report.moved_to() else { return };
        (self.pid, external.moved) = (pid, true);
        let due = external.due.take();
        let lives = child::is_ours(pid);
        let told = unclaimed_exits.claim(pid, lives);
        if lives {
            self.start_time_ticks = spawn::start_time_ticks(pid).unwrap_or(0);
        } else {
            // Of one forgotten among too many nobody knows more; one that is being told of is told right after.
            *ended = ended.or(told.map(|(code, _)| code)).or(Some(child::UNKNOWN));
            self.start_time_ticks = 0;
        }
        if let Some(signal) = due {
            self.signal(signal);
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            ExecPhase::Starting { deadline, .. } => Some(deadline),
            ExecPhase::Running => None,
        }
    }

    /// To the process and its group. An OCI runtime that is just beginning it may have let go of it already: who
    /// ended that one would leave the process to itself, so it is told as soon as it is known.
    fn signal(&mut self, signal: Signal) {
        if let ExecPhase::Starting { ended, deadline, .. } = &mut self.state {
            if ended.is_some() {
                return;
            }
            if let Some(external) = self.external.as_mut().filter(|external| !external.moved) {
                external.due = external.due.filter(|due| *due == Signal::KILL).or(Some(signal));
                *deadline = (*deadline).min(Instant::now() + MOVE);
                return;
            }
        }
        send(self.pid, signal);
    }

    /// Ends it, with the program that begins it and what that has left behind.
    fn give_up(&self) {
        let begun = self.external.as_ref().and_then(|external| external.left_behind_pid(self.pid));
        // One that has been reaped has ended, and its number may be another's.
        if child::is_ours(self.pid) {
            send(self.pid, Signal::KILL);
        }
        if let Some(pid) = begun {
            send(pid, Signal::KILL);
        }
        if let Some(external) = &self.external {
            external.remove_files();
        }
    }
}

/// To a process that is not reaped yet, and its group.
fn send(pid: i32, signal: Signal) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    // Until it has its own session there is no such group; when it has ended, no such process.
    let _ = rustix::process::kill_process_group(pid, signal);
    let _ = rustix::process::kill_process(pid, signal);
}

impl Monitor {
    pub(super) fn start_exec(
        &mut self,
        request: &Request,
        reply_to: (u64, u64),
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepError> {
        if self.execs.contains_key(&request.id) {
            return refuse(libc::EEXIST, "this exec runs already");
        }
        let Some(process) = &request.process else {
            return refuse(libc::EINVAL, "the request has no process");
        };
        let container =
            self.children.get(&request.container_id).filter(|child| matches!(child.phase, Phase::Running));
        let Some((pid, pidfd)) = container.and_then(|child| Some((child.pid, child.pidfd.as_ref()?))) else {
            return refuse(libc::ESRCH, format!("container {} is not running", request.container_id));
        };
        let spawned = spawn::exec(request, process, (pid, pidfd), descriptors, &self.null)?;
        let token = self.watch(spawned.report.as_fd(), WatchTarget::ExecReport(request.id.clone()))?;
        let report = ChildReport::new(spawned.report, token);
        let deadline = Instant::now() + SET_UP;
        let external = process.external.as_ref().map(|external| ExternalExec {
            files: PathBuf::from(&external.bundle).join(external::file_name(request)),
            moved: false,
            due: None,
        });
        let exec = ExecState {
            pid: spawned.pid,
            start_time_ticks: spawned.start_time_ticks,
            connection: reply_to.0,
            external,
            state: ExecPhase::Starting { report, request: reply_to.1, ended: None, deadline },
        };
        self.execs.insert(request.id.clone(), exec);
        Ok(())
    }

    pub(super) fn read_exec_report(&mut self, id: &str) {
        let Some(exec) = self.execs.get_mut(id) else { return };
        let ExecPhase::Starting { report, .. } = &mut exec.state else { return };
        let more = report.read();
        exec.follow_move(&mut self.unclaimed_exits);
        if more {
            return;
        }
        let ExecPhase::Starting { report, request, ended, .. } =
            std::mem::replace(&mut exec.state, ExecPhase::Running)
        else {
            return;
        };
        let (connection, pid, start_time_ticks) = (exec.connection, exec.pid, exec.start_time_ticks);
        self.unwatch(report.token, report.pipe.as_fd());
        match report.verdict() {
            Ok(()) => {
                let started = Started {
                    id: id.to_owned(),
                    pid,
                    start_time_ticks,
                    started_at_unix_nanos: child::unix_nanos(),
                };
                self.reply(connection, request, reply::Result::Started(started));
                if let Some(code) = ended {
                    self.report_exec_end(id, code);
                }
            }
            Err(why) => self.report_exec_failure(id, connection, request, why),
        }
    }

    fn report_exec_failure(&mut self, id: &str, connection: u64, request: u64, why: Failure) {
        if let Some(exec) = self.execs.remove(id) {
            exec.give_up();
        }
        self.reply(connection, request, reply::Result::Failure(why));
    }

    /// Whether a process that was reaped, and is no container's, was an exec's: it may be an orphan.
    pub(super) fn handle_exec_exit(&mut self, process: &ReapedProcess) -> bool {
        for exec in self.execs.values_mut().filter(|exec| exec.external.is_some()) {
            if let ExecPhase::Starting { report, .. } = &mut exec.state {
                report.read_pending();
            }
            exec.follow_move(&mut self.unclaimed_exits);
        }
        let found = self.execs.iter_mut().find(|(_, exec)| exec.pid == process.pid);
        let Some((id, exec)) = found else { return false };
        let id = id.clone();
        match &mut exec.state {
            ExecPhase::Starting { ended, .. } => *ended = Some(process.code),
            ExecPhase::Running => self.report_exec_end(&id, process.code),
        }
        true
    }

    fn report_exec_end(&mut self, id: &str, exit_code: i32) {
        if let Some(exec) = self.execs.remove(id) {
            let ended = ExecEnded { id: id.to_owned(), exit_code };
            self.send(exec.connection, frame::Frame::ExecEnded(ended));
        }
    }

    /// Gives up the execs whose set-up hangs.
    pub(super) fn end_stuck_execs(&mut self) {
        let now = Instant::now();
        let stuck = |exec: &ExecState| exec.deadline().is_some_and(|deadline| deadline <= now);
        let ids: Vec<String> =
            self.execs.iter().filter(|(_, exec)| stuck(exec)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let Some(exec) = self.execs.remove(&id) else { continue };
            exec.give_up();
            if let ExecPhase::Starting { report, request, .. } = exec.state {
                self.unwatch(report.token, report.pipe.as_fd());
                self.reply(exec.connection, request, reply::Result::Failure(report.hangs_at()));
            }
        }
    }

    pub(super) fn signal_exec(&mut self, request: &SignalExec) -> Result<(), StepError> {
        let signal = Signal::from_named_raw(request.signal)
            .ok_or(rustix::io::Errno::INVAL)
            .step(|| format!("send signal {}", request.signal))?;
        if let Some(exec) = self.execs.get_mut(&request.id) {
            exec.signal(signal);
        }
        Ok(())
    }
}

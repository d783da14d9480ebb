//! One process the monitor answers for: pause or a container. Owns its phase, its output and the
//! record of its end. Called by `monitor::event_loop`.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use gantry_proto::monitor::{CgroupTarget, Exited};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};

use super::log::{Lines, LogFile, LogStream};
use super::report::ChildReport;
use super::unclaimed_exits::UnclaimedExits;
use crate::exit::ExitRecord;

/// ```text
/// Starting ──report says ready──▶ Running ──process ended──▶ Draining ──output ended or deadline──▶ (recorded, gone)
///     └──report says failed, or nothing, or deadline──▶ (gone, no record: the runtime has the answer)
/// ```
#[derive(Debug)]
pub(super) enum Phase {
    /// Cloned, setting itself up; an end before the report is read waits in `ended`.
    /// A terminal's master waits in the socket `terminal`.
    Starting {
        report: ChildReport,
        terminal: Option<OwnedFd>,
        reply_to: (u64, u64),
        ended: Option<(i32, i64)>,
        deadline: Instant,
    },
    /// Its program runs.
    Running,
    /// It has ended; what it wrote is still being read.
    Draining { exit_code: i32, finished_at: i64, oom_kills: u64, deadline: Instant },
}

/// The way to a child's stdin, kept for attaches.
#[derive(Debug)]
pub(super) enum Input {
    /// The null device, or given away already.
    None,
    /// Write end of a pipe; with `once` the first attach takes it along.
    Pipe { end: OwnedFd, once: bool },
    /// The terminal, which is also the only output.
    Terminal,
}

/// One output: a pipe, or a terminal's master.
#[derive(Debug)]
pub(super) struct ContainerOutput {
    pub(super) token: u64,
    pub(super) pipe: OwnedFd,
    pub(super) lines: Lines,
}

#[derive(Debug)]
pub(super) struct Child {
    pub(super) id: String,
    pub(super) pid: i32,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) start_time_ticks: u64,
    /// Who waits for the OCI runtime that makes it: leads the group of that one and its hooks.
    pub(super) helper: Option<i32>,
    /// When its program ran, unix nanoseconds; 0 before.
    pub(super) started_at: i64,
    pub(super) input: Input,
    pub(super) outputs: Vec<ContainerOutput>,
    /// A slave of the terminal, until the first process has ended: its master gives EIO whenever nobody has
    /// one open, and that is no end while the container runs.
    pub(super) terminal: Option<OwnedFd>,
    pub(super) phase: Phase,
    pub(super) log: LogFile,
    record_dir: PathBuf,
    cgroup: CgroupTarget,
    oom_kills_before: u64,
}

/// Of an end that nobody saw.
pub(super) const UNKNOWN: i32 = 255;

/// A reaped process.
#[derive(Debug)]
pub(super) struct ReapedProcess {
    pub(super) pid: i32,
    /// Exit code, or 128 + signal.
    pub(super) code: i32,
}

/// Reaps any one child; None when nothing has ended.
pub(super) fn reap_one() -> Option<ReapedProcess> {
    let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
    let code = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => UNKNOWN,
    };
    Some(ReapedProcess { pid: pid.as_raw_nonzero().get(), code })
}

/// Kills who is left of the group of a process that was reaped just now: the number is the group's for as long as
/// anybody is in it, and nobody else's within this moment.
pub(super) fn end_group(leader: i32) {
    if let Some(leader) = Pid::from_raw(leader) {
        // Nobody is left: what was wanted.
        let _ = rustix::process::kill_process_group(leader, Signal::KILL);
    }
}

/// Whether the process is a child that has not been reaped: its number is still its own.
pub(super) fn is_ours(pid: i32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::waitid(WaitId::Pid(pid), options).is_ok())
}

pub(super) fn unix_nanos() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
}

impl Child {
    pub(super) fn new(id: &str, record_dir: &str, cgroup: Option<CgroupTarget>, log: LogFile) -> Self {
        let cgroup = cgroup.unwrap_or_default();
        Self {
            id: id.to_owned(),
            pid: 0,
            pidfd: None,
            start_time_ticks: 0,
            helper: None,
            started_at: 0,
            input: Input::None,
            outputs: Vec::new(),
            terminal: None,
            phase: Phase::Running,
            record_dir: record_dir.into(),
            oom_kills_before: oom_counter(&cgroup),
            cgroup,
            log,
        }
    }

    /// Takes the process that went on with the set-up for the child.
    pub(super) fn follow_move(&mut self, unclaimed_exits: &mut UnclaimedExits) {
        let Phase::Starting { report, ended, .. } = &mut self.phase else { return };
        let moved = report.moved_to().filter(|pid| *pid != self.pid).and_then(Pid::from_raw);
        let Some(pid) = moved else { return };
        self.pid = pid.as_raw_nonzero().get();
        let lives = is_ours(self.pid);
        let told = unclaimed_exits.claim(self.pid, lives);
        if lives {
            self.pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
            self.start_time_ticks = super::spawn::start_time_ticks(self.pid).unwrap_or(0);
        } else {
            // Its number may be anybody's by now. An end that is being told at this moment is believed before this
            // one, which is of a process forgotten among too many.
            *ended = ended.or(told).or_else(|| Some((UNKNOWN, unix_nanos())));
            (self.pidfd, self.start_time_ticks) = (None, 0);
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Draining { deadline, .. } | Phase::Starting { deadline, .. } => Some(deadline),
            Phase::Running => None,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let drained = matches!(self.phase, Phase::Draining { .. }) && self.outputs.is_empty();
        drained || self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Reads one output once, for fairness among many, and shows `tee` what came; returns the output
    /// when it has ended.
    pub(super) fn read(
        &mut self,
        token: u64,
        tee: &mut dyn FnMut(LogStream, &[u8]),
    ) -> Option<ContainerOutput> {
        self.read_once(token, tee).1
    }

    /// As `read`; the first value says whether there was anything.
    fn read_once(
        &mut self,
        token: u64,
        tee: &mut dyn FnMut(LogStream, &[u8]),
    ) -> (bool, Option<ContainerOutput>) {
        let Some(index) = self.outputs.iter().position(|output| output.token == token) else {
            return (false, None);
        };
        let Some(output) = self.outputs.get_mut(index) else { return (false, None) };
        let mut chunk = [0u8; 64 * 1024];
        let source = output.lines.source();
        let (bytes, read, ended) = match rustix::io::read(&output.pipe, &mut chunk[..]) {
            Ok(0) => (output.lines.finish(unix_nanos()), false, true),
            Ok(count) => {
                let bytes = chunk.get(..count).unwrap_or_default();
                tee(source, bytes);
                (output.lines.feed(bytes, unix_nanos()), true, false)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => (Vec::new(), false, false),
            // A terminal's master gives EIO once nobody has the terminal open, the monitor neither.
            Err(_) => (output.lines.finish(unix_nanos()), false, true),
        };
        self.write(source, &bytes);
        (read, ended.then(|| self.outputs.remove(index)))
    }

    /// Reads what is there already; bounded, because a straggler may write for ever. Returns the
    /// outputs that have ended.
    pub(super) fn drain(&mut self, tee: &mut dyn FnMut(LogStream, &[u8])) -> Vec<ContainerOutput> {
        let mut over = Vec::new();
        for _ in 0..64 {
            let tokens: Vec<u64> = self.outputs.iter().map(|output| output.token).collect();
            let mut more = false;
            for token in tokens {
                let (read, ended) = self.read_once(token, tee);
                more |= read;
                over.extend(ended);
            }
            if !more {
                break;
            }
        }
        over
    }

    fn write(&mut self, source: LogStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(error) = self.log.append(source, bytes) {
            log_stderr(format_args!("{}: lines of the log are lost: {error}", self.id));
        }
    }

    /// Kills the first process, and whatever an OCI runtime has begun for it. Those that have been reaped have
    /// ended: their numbers may be others' by now.
    pub(super) fn kill(&self) {
        let own = |pid: i32| Pid::from_raw(pid).filter(|_| is_ours(pid));
        // A failure is that it has just ended: what was wanted.
        if let Some(helper) = self.helper.and_then(own) {
            let _ = rustix::process::kill_process_group(helper, Signal::KILL);
        }
        if let Some(pid) = own(self.pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Kills whatever is left in the cgroup.
    pub(super) fn kill_stragglers(&self) {
        if self.cgroup.unified {
            if let Some(folder) = self.cgroup.folders.first() {
                let _ = fs::write(format!("{folder}/cgroup.kill"), "1");
            }
            return;
        }
        // v1 has no cgroup.kill; one hierarchy lists all members. One pass: what forks away meanwhile the runtime freezes
        // and ends (`container::end::free_cgroup`).
        let Some(folder) = self.cgroup.folders.first() else { return };
        let members = fs::read_to_string(format!("{folder}/cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Rise of the cgroup's oom_kill counter over this life.
    pub(super) fn oom_kills(&self) -> u64 {
        oom_counter(&self.cgroup).saturating_sub(self.oom_kills_before)
    }

    /// Writes the exit record and returns the event that tells of it.
    pub(super) fn record(&mut self) -> Option<Exited> {
        let Phase::Draining { exit_code, finished_at, oom_kills, .. } = self.phase else { return None };
        for index in 0..self.outputs.len() {
            let Some(ContainerOutput { lines, .. }) = self.outputs.get_mut(index) else { continue };
            let (source, rest) = (lines.source(), lines.finish(finished_at));
            self.write(source, &rest);
        }
        let record =
            ExitRecord::with_exit_code(exit_code, finished_at, oom_kills).with_started_at(self.started_at);
        if let Err(error) = record.write(&self.record_dir) {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            log_stderr(format_args!("{}: {error}: {cause}", self.id));
        }
        Some(Exited {
            id: self.id.clone(),
            exit_code,
            finished_at_unix_nanos: finished_at,
            oom_kills,
            started_at_unix_nanos: self.started_at,
        })
    }
}

/// Descriptor 2 is the monitor's own log, maybe on the disk that is full: a line lost there must not
/// end the pod, as the panic of `eprintln!` would.
pub(super) fn log_stderr(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// `oom_kill N` in memory.events (v2) and memory.oom_control (v1, runtime-traps P18).
fn oom_counter(cgroup: &CgroupTarget) -> u64 {
    fs::read_to_string(&cgroup.oom_counter)
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child whose set-up has told that `pid` goes on with it.
    fn moved_to(pid: i32) -> Child {
        let (pipe, told) = super::super::spawn::pipe().unwrap();
        super::super::report::write_progress(&told)(crate::init::Progress::Moved(pid)).unwrap();
        let mut report = ChildReport::new(pipe, 0);
        assert!(report.read());
        let mut child = Child::new("c", "", None, LogFile::open("").unwrap());
        let deadline = Instant::now();
        child.phase = Phase::Starting { report, terminal: None, reply_to: (0, 0), ended: None, deadline };
        child
    }

    fn end_of(child: &Child) -> Option<i32> {
        let Phase::Starting { ended, .. } = child.phase else { return None };
        ended.map(|(code, _)| code)
    }

    #[test]
    fn an_end_of_the_past_is_not_that_of_a_process_that_lives_under_its_number() {
        let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(process.id()).unwrap();
        let mut unclaimed_exits = UnclaimedExits::default();
        unclaimed_exits.add(ReapedProcess { pid, code: 3 }, 1);
        let mut child = moved_to(pid);
        child.follow_move(&mut unclaimed_exits);
        assert_eq!((child.pid, end_of(&child), child.pidfd.is_some()), (pid, None, true));
        process.kill().unwrap();
        process.wait().unwrap();
        // Reaped, and noted; or forgotten.
        let mut child = moved_to(pid);
        unclaimed_exits.add(ReapedProcess { pid, code: 137 }, 2);
        child.follow_move(&mut unclaimed_exits);
        assert_eq!((end_of(&child), child.pidfd.is_some()), (Some(137), false));
        let mut child = moved_to(pid);
        child.follow_move(&mut unclaimed_exits);
        assert_eq!(end_of(&child), Some(UNKNOWN));
    }
}

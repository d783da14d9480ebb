//! Clones pause and containers, and reads the child's report of its own set-up. Owns the report's
//! format: `BEFORE_EXEC` when all is ready, else an errno and the step in words; the end of the pipe
//! without either means that the child was killed. Called by `monitor::event_loop`.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{Failure, NamespaceMode, StartContainer, StartSandbox};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::thread::LinkNameSpaceType;

use crate::init::container::{Joined, Streams};
use crate::init::{self, Step, StepError, refuse};
use crate::sys::clone::{CloneArgs, Cloned, clone3};
use crate::sys::exec::exit_now;

const CLONE_NEWNS: u64 = 0x0002_0000;
const CLONE_NEWCGROUP: u64 = 0x0200_0000;
const CLONE_NEWUTS: u64 = 0x0400_0000;
const CLONE_NEWIPC: u64 = 0x0800_0000;
const CLONE_NEWPID: u64 = 0x2000_0000;

const BEFORE_EXEC: u8 = 1;
const FAILED: u8 = 2;

/// A child that sets itself up.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) pid: i32,
    pub(super) start_time_ticks: u64,
    /// Ends at exec, or with the child.
    pub(super) report: OwnedFd,
    /// Read ends; none for pause.
    pub(super) output: Option<(OwnedFd, OwnedFd)>,
}

/// The pod's namespaces, held open: they outlive pause.
#[derive(Debug)]
pub(super) struct Namespaces {
    net: Option<OwnedFd>,
    ipc: Option<OwnedFd>,
    uts: Option<OwnedFd>,
    mnt: OwnedFd,
    /// Shared by the containers, or None when each has its own.
    pid: Option<OwnedFd>,
}

impl Namespaces {
    /// Those of pause, once it runs.
    pub(super) fn of(pid: i32, start: &StartSandbox) -> Result<Self, StepError> {
        let open = |kind: &str| {
            let path = format!("/proc/{pid}/ns/{kind}");
            rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .step(|| format!("open pause's {kind} namespace"))
        };
        Ok(Self {
            net: (!start.host_network).then(|| open("net")).transpose()?,
            ipc: (start.ipc() != NamespaceMode::Host).then(|| open("ipc")).transpose()?,
            uts: (!start.host_network).then(|| open("uts")).transpose()?,
            mnt: open("mnt")?,
            pid: (start.pid() == NamespaceMode::Sandbox).then(|| open("pid")).transpose()?,
        })
    }
}

/// Clones pause. `program` is its binary.
pub(super) fn pause(start: &StartSandbox, null: &OwnedFd) -> Result<Spawned, StepError> {
    let program = rustix::fs::open(start.pause_path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("open the pause program {}", start.pause_path))?;
    let mut namespaces = CLONE_NEWNS;
    if start.pid() != NamespaceMode::Host {
        namespaces |= CLONE_NEWPID;
    }
    if start.ipc() != NamespaceMode::Host {
        namespaces |= CLONE_NEWIPC;
    }
    if !start.host_network {
        namespaces |= CLONE_NEWUTS;
    }
    let cgroup = v2_folder(start.cgroup.as_ref())?;
    if cgroup.is_some() {
        namespaces |= CLONE_NEWCGROUP;
    }
    let (report, child_end) = pipe()?;
    match clone3(&CloneArgs { namespaces, cgroup: cgroup.as_ref().map(AsFd::as_fd) })
        .step(|| "clone pause".into())?
    {
        Cloned::Parent { pid, pidfd: _ } => {
            drop(child_end);
            Ok(Spawned { pid, start_time_ticks: start_time_ticks(pid)?, report, output: None })
        }
        Cloned::Child => {
            end_with(&child_end, || init::pause::run(start, null, &program, &mut || ready(&child_end)))
        }
    }
}

/// Clones a container of the sandbox whose namespaces are given.
pub(super) fn container(
    start: &StartContainer,
    held: &Namespaces,
    null: &OwnedFd,
) -> Result<Spawned, StepError> {
    let mut namespaces = CLONE_NEWNS;
    if start.pid() == NamespaceMode::Private {
        namespaces |= CLONE_NEWPID;
    }
    let cgroup = v2_folder(start.cgroup.as_ref())?;
    if cgroup.is_some() {
        namespaces |= CLONE_NEWCGROUP;
    }
    let joined = Joined {
        net: held.net.as_ref().filter(|_| start.net() != NamespaceMode::Host),
        ipc: held.ipc.as_ref().filter(|_| start.ipc() != NamespaceMode::Host),
        uts: held.uts.as_ref(),
        mnt: &held.mnt,
    };
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe()?;
    for end in [&stdout, &stderr] {
        rustix::io::ioctl_fionbio(end, true).step(|| "make the output pipes non-blocking".into())?;
    }
    let (report, child_end) = pipe()?;
    let shared = (start.pid() == NamespaceMode::Sandbox).then_some(&held.pid);
    let args = CloneArgs { namespaces, cgroup: cgroup.as_ref().map(AsFd::as_fd) };
    match clone_into_pid_namespace(&args, shared)? {
        Cloned::Parent { pid, pidfd: _ } => {
            drop((child_end, child_stdout, child_stderr));
            let start_time_ticks = start_time_ticks(pid)?;
            Ok(Spawned { pid, start_time_ticks, report, output: Some((stdout, stderr)) })
        }
        Cloned::Child => {
            let streams = Streams { stdin: null, stdout: &child_stdout, stderr: &child_stderr };
            end_with(&child_end, || init::container::run(start, &joined, &streams, &mut || ready(&child_end)))
        }
    }
}

/// setns(2) for a pid namespace changes where children are born, not the caller: go there, clone,
/// come back. The child's exit still arrives here (runtime-traps P9).
fn clone_into_pid_namespace(
    args: &CloneArgs<'_>,
    shared: Option<&Option<OwnedFd>>,
) -> Result<Cloned, StepError> {
    let target = match shared {
        None => return clone3(args).step(|| "clone the container".into()),
        Some(Some(namespace)) => namespace,
        Some(None) => return refuse(libc::EINVAL, "the sandbox has no pid namespace to share"),
    };
    let own = rustix::fs::open("/proc/self/ns/pid", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the monitor's pid namespace".into())?;
    let kind = Some(LinkNameSpaceType::ProcessID);
    rustix::thread::move_into_link_name_space(target.as_fd(), kind)
        .step(|| "enter the sandbox's pid namespace".into())?;
    let cloned = match clone3(args) {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            refuse(libc::ESRCH, "the sandbox's init is gone, so its pid namespace takes no new process")
        }
        result => result.step(|| "clone the container".into()),
    };
    if !matches!(cloned, Ok(Cloned::Child)) {
        rustix::thread::move_into_link_name_space(own.as_fd(), kind)
            .step(|| "return to the monitor's pid namespace".into())?;
    }
    cloned
}

fn v2_folder(cgroup: Option<&gantry_proto::monitor::CgroupTarget>) -> Result<Option<OwnedFd>, StepError> {
    let Some(folder) = cgroup.filter(|target| target.unified).and_then(|target| target.folders.first())
    else {
        return Ok(None);
    };
    rustix::fs::open(folder.as_str(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map(Some)
        .step(|| format!("open the cgroup {folder}"))
}

fn pipe() -> Result<(OwnedFd, OwnedFd), StepError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe".into())
}

fn ready(report: &OwnedFd) -> Result<(), StepError> {
    rustix::io::write(report, &[BEFORE_EXEC]).map(drop).step(|| "report to the monitor".into())
}

/// The child's last act when exec did not happen: say which step, then be gone.
fn end_with(report: &OwnedFd, setup: impl FnOnce() -> Result<Infallible, StepError>) -> ! {
    let Err(error) = setup();
    let errno = error.source.raw_os_error().unwrap_or(0);
    let mut bytes = vec![FAILED];
    bytes.extend(errno.to_le_bytes());
    bytes.extend(error.what.as_bytes());
    // Under PIPE_BUF, so it arrives whole or, with the monitor gone, not at all.
    bytes.truncate(4096);
    let _ = rustix::io::write(report, &bytes);
    exit_now(1)
}

/// What the report says once the pipe has ended.
pub(super) fn verdict(report: &[u8]) -> Result<(), Failure> {
    let mut rest = report;
    if let [BEFORE_EXEC, after @ ..] = rest {
        if after.is_empty() {
            return Ok(());
        }
        rest = after;
    }
    match rest {
        [FAILED, a, b, c, d, step @ ..] => Err(Failure {
            errno: i32::from_le_bytes([*a, *b, *c, *d]),
            step: String::from_utf8_lossy(step).into_owned(),
        }),
        _ => Err(Failure { errno: 0, step: "the container was killed before its program ran".into() }),
    }
}

/// Field 22 of /proc/PID/stat (proc_pid_stat(5)): with the pid it names a process for good.
///
/// # Errors
/// When the process is gone.
pub fn start_time_ticks(pid: i32) -> Result<u64, StepError> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .step(|| format!("read the state of process {pid}"))?;
    // The name in brackets may hold anything: the fields begin after the last bracket.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(19)?.parse().ok())
        .ok_or(Errno::INVAL)
        .step(|| format!("read the start time of process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_started_failed_and_killed_apart() {
        assert!(verdict(&[BEFORE_EXEC]).is_ok());
        let failed = [&[BEFORE_EXEC, FAILED][..], &2i32.to_le_bytes(), b"exec \"/x\""].concat();
        assert_eq!(verdict(&failed).unwrap_err(), Failure { errno: 2, step: "exec \"/x\"".into() });
        assert_eq!(verdict(&[]).unwrap_err().errno, 0);
    }

    #[test]
    fn the_start_time_of_a_process_is_read_past_its_name() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(start_time_ticks(own).unwrap() > 0);
        assert!(start_time_ticks(i32::MAX).is_err());
    }
}

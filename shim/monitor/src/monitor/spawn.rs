//! Clones pause, containers and execs. Owns what each is born into; the child's own work is `init`'s,
//! what it tells of it `monitor::report`'s. Called by `monitor::event_loop` and `monitor::exec`.

use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{
    CgroupTarget, Exec, HookStage, NamespaceMode, StartContainer, StartSandbox, UserMapping,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::thread::LinkNameSpaceType;

use super::external;
use super::report::{report_and_exit, write_progress};
use crate::init::cgroups::View;
use crate::init::console::Terminal;
use crate::init::container::JoinedNamespaces;
use crate::init::pid::{self, PidNamespace};
use crate::init::program::Streams;
use crate::init::users::UsernsEntry;
use crate::init::{self, StepContext, StepError, refuse};
use gantry_sys as sys;
use gantry_sys::clone::{CloneArgs, Cloned};

const CLONE_NEWNS: u64 = 0x0002_0000;
const CLONE_NEWCGROUP: u64 = 0x0200_0000;
const CLONE_NEWUTS: u64 = 0x0400_0000;
const CLONE_NEWIPC: u64 = 0x0800_0000;
const CLONE_NEWPID: u64 = 0x2000_0000;

/// A child that sets itself up.
#[derive(Debug)]
pub(super) struct SpawnedChild {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) start_time_ticks: u64,
    /// Ends at exec, or with the child.
    pub(super) report: OwnedFd,
    pub(super) ends: ParentStreams,
}

/// The monitor's ends of a child's streams.
#[derive(Debug)]
pub(super) enum ParentStreams {
    /// Pause has none, an exec's are the runtime's.
    None,
    /// Write end of stdin where it is wanted, read ends of the others.
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    /// The terminal's master comes out here before the report ends.
    Terminal(OwnedFd),
}

/// The pod's namespaces, held open: they outlive pause.
#[derive(Debug)]
pub(super) struct PodNamespaces {
    net: Option<OwnedFd>,
    ipc: Option<OwnedFd>,
    uts: Option<OwnedFd>,
    pub(super) mnt: OwnedFd,
    /// Pause's, for the containers that share it; None on the host's.
    pid: Option<OwnedFd>,
    /// None: the node's.
    pub(super) users: Option<OwnedFd>,
}

impl PodNamespaces {
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
            pid: (start.pid() != NamespaceMode::Host).then(|| open("pid")).transpose()?,
            users: start.users.is_some().then(|| open("user")).transpose()?,
        })
    }
}

/// Clones pause. `users` is the namespace that was made for it.
pub(super) fn pause(
    start: &StartSandbox,
    users: Option<&OwnedFd>,
    null: &OwnedFd,
) -> Result<SpawnedChild, StepError> {
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
    let entry = userns_entry(start.users.as_ref(), users, namespaces, PidNamespace::Inherited)?;
    if entry.is_some() {
        namespaces = CLONE_NEWNS;
    }
    let (report, child_end) = pipe()?;
    let args = CloneArgs { namespaces, cgroup: cgroup.as_ref().map(AsFd::as_fd), sibling: false };
    match pid::clone(&args, "pause")? {
        Cloned::Parent { pid, pidfd } => {
            drop(child_end);
            Ok(SpawnedChild {
                pid,
                pidfd,
                start_time_ticks: start_time_ticks(pid)?,
                report,
                ends: ParentStreams::None,
            })
        }
        Cloned::Child => report_and_exit(&child_end, || {
            let mut kept = vec![&child_end, null, &program];
            kept.extend(entry.as_ref().map(|entry| entry.users));
            keep_only(&kept)?;
            init::pause::run(start, entry.as_ref(), null, &program, &mut write_progress(&child_end))
        }),
    }
}

/// Clones a container of the sandbox whose namespaces are given. `target` is the first process of the
/// container whose pid namespace it joins, where it joins one.
pub(super) fn container(
    start: &StartContainer,
    held: &PodNamespaces,
    target: Option<&OwnedFd>,
    null: &OwnedFd,
) -> Result<SpawnedChild, StepError> {
    if start.external.is_some() {
        return external::container(start, held, null);
    }
    let mut namespaces = CLONE_NEWNS;
    if start.pid() == NamespaceMode::Private {
        namespaces |= CLONE_NEWPID;
    }
    let cgroup = v2_folder(start.cgroup.as_ref())?;
    if View::of(start) == View::Own {
        namespaces |= CLONE_NEWCGROUP;
    }
    let (hooks, asks) = hooks_of(start)?;
    let joined = JoinedNamespaces {
        hooks: asks.as_ref(),
        net: held.net.as_ref().filter(|_| start.net() != NamespaceMode::Host),
        ipc: held.ipc.as_ref().filter(|_| start.ipc() != NamespaceMode::Host),
        uts: held.uts.as_ref(),
        mnt: &held.mnt,
    };
    let (ends, theirs) = streams_of(start)?;
    let (report, child_end) = pipe()?;
    let pid_namespace = match (start.pid(), &held.pid, target) {
        (NamespaceMode::Private | NamespaceMode::Host, ..) => PidNamespace::Inherited,
        (NamespaceMode::Sandbox, Some(namespace), _) => PidNamespace::Fd(namespace),
        (NamespaceMode::Sandbox, None, _) => {
            return refuse(libc::EINVAL, "the sandbox has no pid namespace to share");
        }
        (NamespaceMode::Target, _, Some(process)) => PidNamespace::OfProcess(process),
        (NamespaceMode::Target, _, None) => return refuse(libc::EINVAL, "no target container is named"),
    };
    let entry = userns_entry(start.users.as_ref(), held.users.as_ref(), namespaces, pid_namespace)?;
    let (born, namespaces) =
        if entry.is_some() { (PidNamespace::Inherited, CLONE_NEWNS) } else { (pid_namespace, namespaces) };
    let args = CloneArgs { namespaces, cgroup: cgroup.as_ref().map(AsFd::as_fd), sibling: false };
    match clone_in(&born, &args)? {
        Cloned::Parent { pid, pidfd } => {
            drop((child_end, theirs, asks));
            // When it fails, the child finds nobody to ask, and ends.
            hooks.map_or(Ok(()), |socket| spawn_hook_runner(start, pid, &socket))?;
            Ok(SpawnedChild { pid, pidfd, start_time_ticks: start_time_ticks(pid)?, report, ends })
        }
        Cloned::Child => report_and_exit(&child_end, || {
            let streams = theirs.streams(null);
            let mut kept = streams.descriptors();
            kept.extend([joined.net, joined.ipc, joined.uts, joined.hooks].into_iter().flatten());
            kept.extend([&child_end, joined.mnt]);
            if let Some(entry) = &entry {
                kept.push(entry.users);
                kept.extend(entry.pid.descriptor());
            }
            keep_only(&kept)?;
            let note = &mut write_progress(&child_end);
            init::container::run(start, &joined, entry.as_ref(), &streams, note)
        }),
    }
}

/// The two ends between a container and the process that runs hooks beside it, where there are any.
fn hooks_of(start: &StartContainer) -> Result<(Option<OwnedFd>, Option<OwnedFd>), StepError> {
    let stages = [HookStage::HookPrestart, HookStage::HookCreateRuntime];
    if !init::hooks::any(start.hooks.as_ref(), &stages) {
        return Ok((None, None));
    }
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map(|(ours, theirs)| (Some(ours), Some(theirs)))
        .step(|| "make a socket pair".into())
}

/// Clones the process that runs hooks in the monitor's own namespaces: the monitor waits for nobody. It is
/// reaped like any orphan.
fn spawn_hook_runner(start: &StartContainer, pid: i32, socket: &OwnedFd) -> Result<(), StepError> {
    let args = CloneArgs { namespaces: 0, cgroup: None, sibling: false };
    match pid::clone(&args, "a process for hooks")? {
        Cloned::Parent { .. } => Ok(()),
        Cloned::Child => {
            if keep_only(&[socket]).is_ok() {
                init::hooks::serve_hooks(start, pid, socket);
            }
            sys::exec::exit_now(0)
        }
    }
}

/// With a user namespace the child takes a step: it is born into the node's namespaces, and the process that
/// goes on into `namespaces` and `pid`, which then belong to the pod's users.
fn userns_entry<'a>(
    mapping: Option<&'a UserMapping>,
    users: Option<&'a OwnedFd>,
    namespaces: u64,
    pid: PidNamespace<'a>,
) -> Result<Option<UsernsEntry<'a>>, StepError> {
    match (mapping, users) {
        (None, None) => Ok(None),
        (Some(mapping), Some(users)) => {
            Ok(Some(UsernsEntry { users, mapping, namespaces: namespaces | CLONE_NEWCGROUP, pid }))
        }
        (Some(_), None) => refuse(libc::EINVAL, "the sandbox has no user namespace"),
        (None, Some(_)) => refuse(libc::EINVAL, "the sandbox has a user namespace, the request names none"),
    }
}

/// The child's ends of its streams; the null device where there is none.
pub(super) enum ChildStreams {
    Pipes([Option<OwnedFd>; 3]),
    Terminal(OwnedFd),
}

impl ChildStreams {
    pub(super) fn streams<'a>(&'a self, null: &'a OwnedFd) -> Streams<'a> {
        match self {
            Self::Pipes(ends) => {
                let [stdin, stdout, stderr] = ends.each_ref().map(|end| end.as_ref().unwrap_or(null));
                Streams::Pipes { stdin, stdout, stderr }
            }
            Self::Terminal(socket) => Streams::Terminal(Terminal::new(socket)),
        }
    }
}

pub(super) fn streams_of(start: &StartContainer) -> Result<(ParentStreams, ChildStreams), StepError> {
    if start.tty {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .step(|| "make a socket pair".into())?;
        return Ok((ParentStreams::Terminal(ours), ChildStreams::Terminal(theirs)));
    }
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe()?;
    for end in [&stdout, &stderr] {
        rustix::io::ioctl_fionbio(end, true).step(|| "make the output pipes non-blocking".into())?;
    }
    let (child_stdin, stdin) = start.stdin.then(pipe).transpose()?.unzip();
    Ok((
        ParentStreams::Pipes { stdin, stdout, stderr },
        ChildStreams::Pipes([child_stdin, Some(child_stdout), Some(child_stderr)]),
    ))
}

/// Clones an exec into the container whose first process `container` is. The descriptors are those that
/// came with the request.
pub(super) fn exec(
    request: &Exec,
    process: &StartContainer,
    container: (i32, &OwnedFd),
    descriptors: Vec<OwnedFd>,
    null: &OwnedFd,
) -> Result<SpawnedChild, StepError> {
    let mut descriptors = descriptors.into_iter();
    let mut next = |wanted: bool| if wanted { descriptors.next() } else { None };
    let theirs = match next(request.tty) {
        Some(socket) => ChildStreams::Terminal(socket),
        None => ChildStreams::Pipes([next(request.stdin), next(request.stdout), next(request.stderr)]),
    };
    if process.external.is_some() {
        return external::exec(request, process, &theirs, null);
    }
    let (pid, pidfd) = container;
    let (report, child_end) = pipe()?;
    let cloned = match clone_exec(process.cgroup.as_ref(), pidfd) {
        // A cgroup with controllers enabled below it takes no process; its first one moved on into a
        // child of it (runc#2416).
        Err(error) if error.source.raw_os_error() == Some(libc::EBUSY) => {
            clone_exec(cgroup_of(pid, process.cgroup.as_ref())?.as_ref(), pidfd)?
        }
        result => result?,
    };
    match cloned {
        Cloned::Parent { pid, pidfd } => {
            drop(child_end);
            Ok(SpawnedChild {
                pid,
                pidfd,
                start_time_ticks: start_time_ticks(pid)?,
                report,
                ends: ParentStreams::None,
            })
        }
        Cloned::Child => report_and_exit(&child_end, || {
            let streams = theirs.streams(null);
            let mut kept = streams.descriptors();
            kept.extend([&child_end, container.1]);
            keep_only(&kept)?;
            init::exec::run(process, container.1, &streams, &mut write_progress(&child_end))
        }),
    }
}

fn clone_exec(cgroup: Option<&CgroupTarget>, container: &OwnedFd) -> Result<Cloned, StepError> {
    let cgroup = v2_folder(cgroup)?;
    let args = CloneArgs { namespaces: 0, cgroup: cgroup.as_ref().map(AsFd::as_fd), sibling: false };
    clone_in(&PidNamespace::OfProcess(container), &args)
}

/// The cgroup that a container's first process stands in now, at or below the container's own.
fn cgroup_of(pid: i32, own: Option<&CgroupTarget>) -> Result<Option<CgroupTarget>, StepError> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .step(|| format!("read the cgroup of process {pid}"))?;
    Ok(own.map(|own| {
        let folder = own.folders.first().cloned().unwrap_or_default();
        let below =
            text.lines().find_map(|line| line.strip_prefix("0::")).map_or("", |path| below(path, &folder));
        CgroupTarget { folders: vec![format!("{folder}{below}")], ..own.clone() }
    }))
}

/// What follows, in a path of /proc/PID/cgroup, the last part of `folder`: the two have different roots.
fn below<'a>(path: &'a str, folder: &str) -> &'a str {
    let Some((_, name)) = folder.rsplit_once('/') else { return "" };
    match path.split_once(name).map(|(_, rest)| rest) {
        Some(rest) if rest.starts_with('/') && !rest.split('/').any(|part| part == "..") => rest,
        _ => "",
    }
}

/// The child's first act: it has copies of every pipe, socket and log of the pod.
pub(super) fn keep_only(descriptors: &[&OwnedFd]) -> Result<(), StepError> {
    sys::fd::close_all_but(descriptors).step(|| "close the monitor's descriptors".into())
}

/// setns(2) for a pid namespace changes where children are born, not the caller: go there, clone,
/// come back. The child's exit still arrives here (runtime-traps P9).
fn clone_in(pid_namespace: &PidNamespace<'_>, args: &CloneArgs<'_>) -> Result<Cloned, StepError> {
    if let PidNamespace::Inherited = pid_namespace {
        return pid::clone(args, "the container");
    }
    let own = rustix::fs::open("/proc/self/ns/pid", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the monitor's pid namespace".into())?;
    pid::enter(pid_namespace)?;
    let cloned = pid::clone(args, "the process");
    if !matches!(cloned, Ok(Cloned::Child)) {
        rustix::thread::move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .step(|| "return to the monitor's pid namespace".into())?;
    }
    cloned
}

fn v2_folder(cgroup: Option<&CgroupTarget>) -> Result<Option<OwnedFd>, StepError> {
    let Some(folder) = cgroup.filter(|target| target.unified).and_then(|target| target.folders.first())
    else {
        return Ok(None);
    };
    rustix::fs::open(folder.as_str(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map(Some)
        .step(|| format!("open the cgroup {folder}"))
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), StepError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe".into())
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

/// Field 4 of /proc/PID/stat.
pub(super) fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt_2_11_the_part_below_a_containers_cgroup_is_found_whatever_the_roots_are() {
        for (path, expected) in [
            ("/gantry/pod/abc", ""),
            ("/gantry/pod/abc/init.scope", "/init.scope"),
            ("/../pod/abc/a/b", "/a/b"),
            ("/somewhere/else", ""),
            ("/abc/../../x", ""),
        ] {
            assert_eq!(below(path, "/sys/fs/cgroup/gantry/pod/abc"), expected, "{path}");
        }
    }

    #[test]
    fn the_start_time_of_a_process_is_read_past_its_name() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(start_time_ticks(own).unwrap() > 0);
        assert!(start_time_ticks(i32::MAX).is_err());
        assert_eq!(
            (parent(own), parent(i32::MAX)),
            (Some(rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get())), None)
        );
    }
}

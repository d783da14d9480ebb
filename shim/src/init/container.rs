//! From clone to the container's first instruction, in order. The order is the contract: each step
//! uses a privilege that a later one gives up. Called in the cloned child by `monitor::spawn`.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{NamespaceMode, StartContainer};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::LinkNameSpaceType;

use super::{Step, StepError, dev, identity, mounts, refuse, reset, rootfs};
use crate::sys;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Namespaces of the sandbox that the container joins; None is the host's.
#[derive(Debug)]
pub struct Joined<'a> {
    /// Network.
    pub net: Option<&'a OwnedFd>,
    /// SysV IPC and POSIX queues.
    pub ipc: Option<&'a OwnedFd>,
    /// Host name.
    pub uts: Option<&'a OwnedFd>,
    /// Pause's mount namespace, where the pod's /dev/shm is.
    pub mnt: &'a OwnedFd,
}

/// The container's standard streams; stdin is the null device.
#[derive(Debug)]
pub struct Streams<'a> {
    /// Descriptor 0.
    pub stdin: &'a OwnedFd,
    /// Descriptor 1.
    pub stdout: &'a OwnedFd,
    /// Descriptor 2.
    pub stderr: &'a OwnedFd,
}

/// Turns the child into the container's program; `ready` is called right before exec. Returns only
/// on failure.
///
/// # Errors
/// The step that failed; the caller reports it and ends the process.
pub fn run(
    start: &StartContainer,
    joined: &Joined<'_>,
    streams: &Streams<'_>,
    ready: &mut dyn FnMut() -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    // No other process of the pod may look into this one before exec, even in a shared pid namespace.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become undumpable".into())?;
    // Folders and files made as mount targets get the modes asked for; `reset` sets the final mask.
    rustix::process::umask(Mode::empty());
    enter_cgroup(start)?;
    identity::oom_score(start.oom_score_adj)?;
    rustix::process::setsid().step(|| "start a session".into())?;
    build_root(start, joined)?;
    for path in &start.masked_paths {
        mounts::mask(path)?;
    }
    for path in &start.readonly_paths {
        mounts::protect(path)?;
    }
    if start.rootfs.as_ref().is_some_and(|root| root.readonly) {
        rootfs::seal_root()?;
    }
    connect(streams, start.uid)?;
    reset::keyring(&start.id)?;
    reset::all()?;
    reset::open_files()?;
    identity::limits(&start.rlimits)?;
    make_cwd(&start.cwd)?;
    if !start.no_new_privs {
        identity::filter(&start.seccomp_filter, start.seccomp_flags)?;
    }
    identity::assume(start)?;
    enter_cwd(&start.cwd)?;
    // Last, because a change of user clears it; a hint only (runtime-traps 2.3).
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "set the death signal".into())?;
    if start.no_new_privs {
        identity::filter(&start.seccomp_filter, start.seccomp_flags)?;
    }
    ready()?;
    exec(start)
}

/// v2 put the child there at clone; v1 has one folder for each hierarchy. The cgroup namespace comes
/// after the last attach, so that it is rooted at the container's own folders.
pub(super) fn enter_v1(folders: &[String]) -> Result<(), StepError> {
    for folder in folders {
        fs::write(format!("{folder}/cgroup.procs"), "0").step(|| format!("enter the cgroup {folder}"))?;
    }
    sys::task::new_cgroup_namespace().step(|| "make a cgroup namespace".into())
}

fn enter_cgroup(start: &StartContainer) -> Result<(), StepError> {
    match &start.cgroup {
        Some(target) if !target.unified => enter_v1(&target.folders),
        _ => Ok(()),
    }
}

fn build_root(start: &StartContainer, joined: &Joined<'_>) -> Result<(), StepError> {
    let (Some(root), Some(cgroup)) = (&start.rootfs, &start.cgroup) else {
        return refuse(libc::EINVAL, "the request has no root file system or no cgroup");
    };
    let sources = mounts::sources(&start.mounts)?;
    rootfs::detach_from_host()?;
    let shm = shared_memory(start, joined)?;
    // The network namespace first: a sysfs shows the one its mounter is in.
    for (namespace, kind, name) in [
        (joined.net, LinkNameSpaceType::Network, "network"),
        (joined.ipc, LinkNameSpaceType::InterProcessCommunication, "IPC"),
        (joined.uts, LinkNameSpaceType::HostNameAndNISDomainName, "UTS"),
    ] {
        if let Some(namespace) = namespace {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))
                .step(|| format!("join the sandbox's {name} namespace"))?;
        }
    }
    let top = rootfs::mount(root)?;
    mounts::kernel_filesystems(top.as_fd(), cgroup, start.privileged)?;
    dev::build(top.as_fd(), &shm, &start.devices)?;
    for (mount, source) in start.mounts.iter().zip(&sources) {
        mounts::bind(top.as_fd(), mount, source)?;
    }
    rootfs::pivot(&top)
}

/// The pod's /dev/shm lives in pause's mount namespace only. A mount can be copied from inside its
/// own namespace alone, so the child goes there and comes back.
fn shared_memory(start: &StartContainer, joined: &Joined<'_>) -> Result<OwnedFd, StepError> {
    if start.ipc() == NamespaceMode::Host {
        return mounts::copy_tree("/dev/shm", false);
    }
    let own = rustix::fs::open("/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the own mount namespace".into())?;
    let enter = |namespace: &OwnedFd, whose: &str| {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
            .step(|| format!("enter {whose} mount namespace"))
    };
    enter(joined.mnt, "the sandbox's")?;
    let shm = mounts::copy_tree("/dev/shm", false);
    enter(&own, "the own")?;
    shm
}

fn connect(streams: &Streams<'_>, uid: u32) -> Result<(), StepError> {
    // A program may reopen /dev/stdout as the container's user: the pipes must be that user's.
    for pipe in [streams.stdout, streams.stderr] {
        rustix::fs::fchown(pipe, Some(rustix::fs::Uid::from_raw(uid)), None)
            .step(|| format!("give the output to user {uid}"))?;
    }
    rustix::stdio::dup2_stdin(streams.stdin).step(|| "connect stdin".into())?;
    rustix::stdio::dup2_stdout(streams.stdout).step(|| "connect stdout".into())?;
    rustix::stdio::dup2_stderr(streams.stderr).step(|| "connect stderr".into())
}

fn make_cwd(cwd: &str) -> Result<(), StepError> {
    match fs::create_dir_all(cwd) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EEXIST)) => Ok(()),
        result => result.step(|| format!("make the working folder {cwd}")),
    }
}

/// Checks that the kernel, too, sees the working folder inside the root: a descriptor of the host's
/// that slipped through would show as "(unreachable)" (CVE-2024-21626).
fn enter_cwd(cwd: &str) -> Result<(), StepError> {
    rustix::process::chdir(cwd).step(|| format!("enter the working folder {cwd}"))?;
    let seen = rustix::process::getcwd(Vec::new()).step(|| format!("read back the working folder {cwd}"))?;
    if seen.as_bytes().first() == Some(&b'/') {
        Ok(())
    } else {
        refuse(libc::EPERM, format!("the working folder {cwd} is outside the container"))
    }
}

fn exec(start: &StartContainer) -> Result<Infallible, StepError> {
    let string = |bytes: &[u8]| {
        CString::new(bytes).step(|| format!("{:?} holds a NUL", String::from_utf8_lossy(bytes)))
    };
    let args: Vec<CString> = start.args.iter().map(|arg| string(arg.as_bytes())).collect::<Result<_, _>>()?;
    let env: Vec<CString> = start.env.iter().map(|pair| string(pair)).collect::<Result<_, _>>()?;
    let Some(program) = start.args.first() else {
        return refuse(libc::EINVAL, "no command: neither the request nor the image names one");
    };
    let attempt = |path: &str| -> Result<Infallible, std::io::Error> {
        sys::exec::exec_path(&CString::new(path)?, &args, &env)
    };
    if program.contains('/') {
        return attempt(program).step(|| format!("exec {program:?}"));
    }
    let path = start.env.iter().rev().find_map(|pair| pair.strip_prefix(b"PATH="));
    let path = path.and_then(|path| std::str::from_utf8(path).ok()).unwrap_or(DEFAULT_PATH);
    let mut last = Errno::NOENT.into();
    for folder in path.split(':') {
        let Err(error) = attempt(&format!("{}/{program}", if folder.is_empty() { "." } else { folder }));
        // Only what says "not this one" goes on to the next folder, as execvp(3) does.
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => last = error,
            _ => return Err(error).step(|| format!("exec {program:?}")),
        }
    }
    Err(last).step(|| format!("exec {program:?}: executable file not found in $PATH"))
}

/// Attributes of mounts nobody may run programs or make devices on.
pub(super) const INERT: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

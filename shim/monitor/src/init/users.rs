//! A pod's user namespace: made by a process that holds it, and the step over into it. What takes the
//! node's own rights (sources of mounts, the overlay, device nodes, OOM score) is done before that step, by a
//! process that then clones the one that goes on: with the pod's rights only, in namespaces that belong
//! to the pod's users (runtime-traps 2.9, 2.10). Called by the monitor and, in the cloned child, by
//! `init::container`, `init::pause` and `init::exec`.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gantry_failpoint::failpoint;
use gantry_proto::monitor::UserMapping;
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::DumpableBehavior;
use rustix::thread::LinkNameSpaceType;

use super::pid::{self, PidNamespace};
use super::program::Streams;
use super::{Progress, StepContext, StepError, refuse, reset};
use crate::user_mapping;
use gantry_sys as sys;
use gantry_sys::clone::{CloneArgs, Cloned, clone3};

const CLONE_NEWUSER: u64 = 0x1000_0000;
const CLONE_NEWNET: u64 = 0x4000_0000;

/// A user namespace while a process of no use is in it, which ends with this value.
#[derive(Debug)]
pub struct HeldUserns {
    /// The process.
    pub pid: i32,
    /// Of the user namespace.
    pub namespace: OwnedFd,
    /// The process waits for the end of this.
    _release: OwnedFd,
}

/// Makes a user namespace with these maps and, if asked, a network namespace that belongs to it.
///
/// # Errors
/// The step that failed; the process is gone then.
pub fn create_userns(mapping: &UserMapping, network: bool) -> Result<HeldUserns, StepError> {
    let (Some(uids), Some(gids)) = (&mapping.uids, &mapping.gids) else {
        return refuse(libc::EINVAL, "a user namespace needs a map of users and one of groups");
    };
    let (gate, release) = pipe()?;
    let namespaces = if network { CLONE_NEWUSER | CLONE_NEWNET } else { CLONE_NEWUSER };
    let args = CloneArgs { namespaces, cgroup: None, sibling: false };
    let pid = match clone3(&args).step(|| "make a user namespace".into())? {
        Cloned::Parent { pidfd, .. } => host_pid(&pidfd)?,
        Cloned::Child => {
            // Nothing but the gate: a copy of `release` would keep this process for ever.
            if sys::fd::close_all_but(&[&gate]).is_ok() {
                let _ = rustix::io::read(&gate, &mut [0u8; 1][..]);
            }
            sys::exec::exit_now(0)
        }
    };
    drop(gate);
    for (file, line) in [("uid_map", uids), ("gid_map", gids)] {
        let line = user_mapping::line(line);
        fs::write(format!("/proc/{pid}/{file}"), &line)
            .step(|| format!("map {line:?} in {file} of the user namespace"))?;
    }
    let path = format!("/proc/{pid}/ns/user");
    let namespace = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the user namespace".into())?;
    Ok(HeldUserns { pid, namespace, _release: release })
}

/// The pid that /proc knows a process by: that of a caller in a pid namespace of its own is another.
fn host_pid(process: &OwnedFd) -> Result<i32, StepError> {
    let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let text = fs::read_to_string(&path).step(|| format!("read {path}"))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.filter(|pid| *pid > 0).ok_or(Errno::SRCH).step(|| "find the process of the user namespace".into())
}

/// Has the owners of a mount's files appear as `wanted` says. `pod` is the container's own namespace.
pub(super) fn map_owners(
    tree: &OwnedFd,
    wanted: &UserMapping,
    pod: Option<(&UserMapping, &OwnedFd)>,
) -> Result<(), StepError> {
    let map = |namespace: &OwnedFd| {
        sys::mount::map_owners(tree.as_fd(), namespace.as_fd()).step(|| {
            "map the owners of its files: the file system or this kernel may lack idmapped mounts".into()
        })
    };
    match pod.filter(|(own, _)| *own == wanted) {
        Some((_, namespace)) => map(namespace),
        None => map(&create_userns(wanted, false)?.namespace),
    }
}

/// The entry into the pod's user namespace, prepared by the monitor.
#[derive(Debug)]
pub struct UsernsEntry<'a> {
    /// The pod's user namespace.
    pub users: &'a OwnedFd,
    /// Its maps.
    pub mapping: &'a UserMapping,
    /// `CLONE_NEW*` of those that the next process is born into; they belong to the pod's users.
    pub namespaces: u64,
    /// Its pid namespace.
    pub pid: PidNamespace<'a>,
}

impl UsernsEntry<'_> {
    /// The node's ids of the pod's root.
    pub(super) fn root(&self) -> Result<(Uid, Gid), StepError> {
        match user_mapping::owner(self.mapping, 0, 0) {
            Some((uid, gid)) => Ok((Uid::from_raw(uid), Gid::from_raw(gid))),
            None => refuse(libc::EINVAL, "the user namespace maps no root"),
        }
    }
}

/// Goes on as another process, the monitor's child as this one is, with the rights of the pod's user
/// namespace only. Returns in that process alone, which is still the node's root by number. Where it
/// stands is the same folder as before, in its own mount namespace.
pub(super) fn enter_userns(
    entry: &UsernsEntry<'_>,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    // What may only be raised by the node's root.
    reset::scheduling()?;
    let (gate, open) = pipe()?;
    pid::enter(&entry.pid)?;
    rustix::thread::move_into_link_name_space(entry.users.as_fd(), Some(LinkNameSpaceType::User))
        .step(|| "join the pod's user namespace".into())?;
    let args = CloneArgs { namespaces: entry.namespaces, cgroup: None, sibling: true };
    match pid::clone(&args, "the process in the pod's user namespace")? {
        Cloned::Parent { pid, .. } => {
            failpoint!("child.users-move");
            // Before the other goes on, so that the monitor has read it when the other ends.
            note(Progress::Moved(pid))?;
            let _ = rustix::io::write(&open, &[1]);
            sys::exec::exit_now(0)
        }
        Cloned::Child => {
            drop(open);
            match rustix::io::read(&gate, &mut [0u8; 1][..]) {
                Ok(1) => Ok(()),
                // The other one has told why, or was killed.
                _ => sys::exec::exit_now(1),
            }
        }
    }
}

/// From the node's root without its rights to the pod's: what is made from here on is the pod's.
pub(super) fn become_root() -> Result<(), StepError> {
    rustix::thread::set_thread_groups(&[]).step(|| "leave the node's groups".into())?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(|| "become the pod's group 0".into())?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(|| "become the pod's user 0".into())?;
    // A change of user may have undone it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "become undumpable".into())
}

/// Pipes were made by the node's root, and the pod's root can't take them over: they are given to the
/// container's user before the step.
pub(super) fn give_to_user(
    streams: &Streams<'_>,
    mapping: &UserMapping,
    uid: u32,
    gid: u32,
) -> Result<(), StepError> {
    let Streams::Pipes { stdin, stdout, stderr } = streams else { return Ok(()) };
    let Some((uid, gid)) = user_mapping::owner(mapping, uid, gid) else {
        return refuse(libc::EINVAL, format!("user {uid} or group {gid} is not one of the pod's"));
    };
    for stream in [stdin, stdout, stderr] {
        let found = rustix::fs::fstat(stream).step(|| "look at a stream".into())?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Fifo {
            rustix::fs::fchown(stream, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .step(|| format!("give a stream to user {uid} of the node"))?;
        }
    }
    Ok(())
}

fn pipe() -> Result<(OwnedFd, OwnedFd), StepError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe".into())
}

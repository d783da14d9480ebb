//! From clone to an exec's program: into the cgroup and the namespaces of a container that runs, then
//! as any program of it. Owns the order. Called in the cloned child by `monitor::spawn`.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::StartContainer;
use rustix::fs::Mode;
use rustix::process::DumpableBehavior;
use rustix::thread::ThreadNameSpaceType;

use super::program::{self, Streams};
use super::{Progress, StepContext, StepError, identity, reset, users};

/// All but the pid namespace, which the child was born into, and the user namespace, which may be the
/// node's.
const NAMESPACES: ThreadNameSpaceType = ThreadNameSpaceType::MOUNT
    .union(ThreadNameSpaceType::NETWORK)
    .union(ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION)
    .union(ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME)
    .union(ThreadNameSpaceType::CONTROL_GROUP);

/// Turns the child into the program of `process` inside the container whose first process `container`
/// is. Returns only on failure.
///
/// # Errors
/// The step that failed; the caller reports it and ends the process.
pub fn run(
    process: &StartContainer,
    container: &OwnedFd,
    streams: &Streams<'_>,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    // The container's processes see this one at once: none of them may look into it before exec
    // (CVE-2016-9962).
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become undumpable".into())?;
    rustix::process::umask(Mode::empty());
    if let Some(target) = process.cgroup.as_ref().filter(|target| !target.unified) {
        for folder in &target.folders {
            fs::write(format!("{folder}/cgroup.procs"), "0").step(|| format!("enter the cgroup {folder}"))?;
        }
    }
    identity::oom_score(process.oom_score_adj)?;
    rustix::process::setsid().step(|| "start a session".into())?;
    let mut namespaces = NAMESPACES;
    if let Some(mapping) = &process.users {
        reset::scheduling()?;
        users::give_to_user(streams, mapping, process.uid, process.gid)?;
        // The kernel joins it first, and the others with the rights it gives.
        namespaces |= ThreadNameSpaceType::USER;
    }
    // Root and working folder become those of the container's mount namespace (setns(2)).
    rustix::thread::move_into_thread_name_spaces(container.as_fd(), namespaces)
        .step(|| "join the container's namespaces".into())?;
    if process.users.is_some() {
        users::become_root()?;
    }
    program::become_program(process, streams, note)
}

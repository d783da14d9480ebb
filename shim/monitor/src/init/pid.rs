//! The pid namespace a child is born into. Owns the way in and back. Called by `monitor::spawn` and
//! `init::users`, right before a clone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use super::{StepContext, StepError, refuse};
use gantry_sys::clone::{CloneArgs, Cloned, clone3};

/// The pid namespace that a child is cloned into.
#[derive(Debug, Clone, Copy)]
pub enum PidNamespace<'a> {
    /// In the caller's, or with `CLONE_NEWPID` in a new one.
    Inherited,
    /// In this one.
    Fd(&'a OwnedFd),
    /// In that of the process behind this pidfd.
    OfProcess(&'a OwnedFd),
}

impl<'a> PidNamespace<'a> {
    /// What must stay open until the clone.
    pub fn descriptor(&self) -> Option<&'a OwnedFd> {
        match self {
            Self::Inherited => None,
            Self::Fd(fd) | Self::OfProcess(fd) => Some(fd),
        }
    }
}

/// Has the caller's next children be born there.
///
/// # Errors
/// When the namespace can't be entered.
pub fn enter(pid_namespace: &PidNamespace<'_>) -> Result<(), StepError> {
    match pid_namespace {
        PidNamespace::Inherited => Ok(()),
        PidNamespace::Fd(namespace) => {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ProcessID))
                .step(|| "enter the sandbox's pid namespace".into())
        }
        PidNamespace::OfProcess(process) => {
            rustix::thread::move_into_thread_name_spaces(process.as_fd(), ThreadNameSpaceType::PROCESS_ID)
                .step(|| "enter the container's pid namespace".into())
        }
    }
}

/// Clones, in words that say what a dead namespace means.
///
/// # Errors
/// Those of clone3(2).
pub fn clone(args: &CloneArgs<'_>, what: &str) -> Result<Cloned, StepError> {
    match clone3(args) {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            refuse(libc::ESRCH, "the pid namespace's init is gone, so it takes no new process")
        }
        result => result.step(|| format!("clone {what}")),
    }
}

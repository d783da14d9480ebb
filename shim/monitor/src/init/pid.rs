//! The pid namespace a child is born into. Owns the way in and back. Called by `monitor::spawn` and
//! `init::users`, right before a clone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use super::{Step, StepError, refuse};
use gantry_sys::clone::{CloneArgs, Cloned, clone3};

/// Where a child is born.
#[derive(Debug, Clone, Copy)]
pub enum Birthplace<'a> {
    /// In the caller's, or with `CLONE_NEWPID` in a new one.
    Here,
    /// In this one.
    Namespace(&'a OwnedFd),
    /// In that of the process behind this pidfd.
    Of(&'a OwnedFd),
}

impl<'a> Birthplace<'a> {
    /// What must stay open until the clone.
    pub fn descriptor(&self) -> Option<&'a OwnedFd> {
        match self {
            Self::Here => None,
            Self::Namespace(fd) | Self::Of(fd) => Some(fd),
        }
    }
}

/// Has the caller's next children be born there.
///
/// # Errors
/// When the namespace can't be entered.
pub fn enter(birthplace: &Birthplace<'_>) -> Result<(), StepError> {
    match birthplace {
        Birthplace::Here => Ok(()),
        Birthplace::Namespace(namespace) => {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ProcessID))
                .step(|| "enter the sandbox's pid namespace".into())
        }
        Birthplace::Of(process) => {
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

//! Safe wrappers of the system calls that rustix lacks. Owns all `unsafe` of the project;
//! never decides anything. Called by the monitor, the child it clones, pause, the unpacker and the runtime.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]
#![allow(unsafe_code, reason = "the one place for it; every block has its SAFETY")]

pub mod allow;
pub mod bpf;
pub mod clone;
pub mod cpu;
pub mod exec;
pub mod fd;
pub mod heap;
pub mod mount;
pub mod pidfd;
pub mod seccomp;
pub mod signal;
pub mod task;

use std::io;

/// Turns the -1 of a libc call into the errno it left.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

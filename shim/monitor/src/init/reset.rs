//! Undoes what the monitor's life left on the child (runtime-traps 2.8): a raw clone skips what
//! std's process spawning does. Called by `init::container` and `init::pause` right before exec.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit};

use super::{StepContext, StepError};
use gantry_sys as sys;

/// Every descriptor from 3 on closes at exec; signals, scheduling, masks and limits are a fresh process's.
pub(super) fn all() -> Result<(), StepError> {
    sys::fd::cloexec_from(3).step(|| "mark descriptors close-on-exec".into())?;
    sys::signal::reset_all();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // The kernel keeps the parent's mask through fork and cgroup moves (runc#4858); the cpuset still bounds it.
    sys::task::any_cpu().step(|| "reset the CPU affinity".into())?;
    scheduling()?;
    rustix::thread::set_current_timer_slack(None).step(|| "reset the timer slack".into())
}

/// Also before the step into a user namespace: only the node's root may take a nice value back.
pub(super) fn scheduling() -> Result<(), StepError> {
    sys::task::reset_scheduling().step(|| "reset scheduling".into())?;
    rustix::process::setpriority_process(None, 0).step(|| "reset the nice value".into())
}

/// The soft limit systemd gives services, and its hard limit as far as this node has it
/// (containerd#8924 tells what an inherited, endless limit does).
pub(super) fn open_files() -> Result<(), StepError> {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(524_288);
    let limit = Rlimit { current: Some(hard.min(1024)), maximum: Some(hard) };
    rustix::process::setrlimit(Resource::Nofile, limit).step(|| "set the limit of open files".into())
}

/// A session keyring of the container's own. Kernels without keyrings have none to share.
pub(super) fn keyring(name: &str) -> Result<(), StepError> {
    let name = std::ffi::CString::new(name).step(|| "name of the keyring".into())?;
    match sys::task::new_session_keyring(&name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result.step(|| "make a session keyring".into()),
    }
}

//! The processes that records name. Owns the check that a pid is still the process that was meant (runtime-traps 7.4).

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags};

use crate::store::record::Process;

/// A pidfd of exactly this process: the pid may have been given to another since.
///
/// # Errors
/// `ESRCH` when the process is gone.
pub(crate) fn open(process: Process) -> std::io::Result<OwnedFd> {
    let pid = Pid::from_raw(process.pid).ok_or(rustix::io::Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let ticks = gantry_monitor::monitor::start_time_ticks(process.pid).map_err(|error| error.source)?;
    if ticks == process.start_time_ticks { Ok(pidfd) } else { Err(rustix::io::Errno::SRCH.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt_7_4_a_pid_that_was_given_to_another_is_not_the_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let ticks = gantry_monitor::monitor::start_time_ticks(pid).unwrap();
        assert!(open(Process { pid, start_time_ticks: ticks }).is_ok());
        let other = open(Process { pid, start_time_ticks: ticks - 1 }).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::ESRCH));
    }
}

//! execveat(2) by path or by descriptor, and a way out of a child that never unwinds.
//! Called by the cloned child only.

use std::convert::Infallible;
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Becomes the program at `path`; returns only on failure.
///
/// # Errors
/// Those of execve(2).
pub fn exec_path(path: &CStr, args: &[CString], env: &[CString]) -> io::Result<Infallible> {
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both arrays are null-terminated lists of null-terminated strings that outlive the call.
    unsafe { libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// Becomes the program behind `program`; returns only on failure.
///
/// # Errors
/// Those of execveat(2).
pub fn exec_fd(program: BorrowedFd<'_>, args: &[CString], env: &[CString]) -> io::Result<Infallible> {
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: as in `exec_path`; the empty path with AT_EMPTY_PATH names the descriptor itself.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            args.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(io::Error::last_os_error())
}

/// Ends the process at once: no destructors, no atexit handlers of the parent's memory image.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

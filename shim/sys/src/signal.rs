//! Signal masks, dispositions and signalfd(2). Called by the monitor (SIGCHLD as a descriptor),
//! by the cloned child (everything back to default before exec) and by pause.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before anything reads it; sigaddset refuses bad numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Blocks these signals for the calling thread and those it starts.
///
/// # Errors
/// None that the kernel documents for valid numbers.
pub fn block(signals: &[i32]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: both pointers are valid or null as sigprocmask(2) allows.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }.into())
        .map(|_| ())
}

/// A descriptor that is readable while one of `signals` (to be blocked first) is pending.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn signalfd(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: -1 asks for a new descriptor; the set is initialised.
    let fd =
        check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: signalfd has just made this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits for one of `signals` (blocked before) and returns its number.
///
/// # Errors
/// `EINTR`.
pub fn wait_for(signals: &[i32]) -> io::Result<i32> {
    let set = set_of(signals);
    // SAFETY: the set is initialised; a null siginfo is allowed.
    let signal = check(unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) }.into())?;
    Ok(i32::try_from(signal).unwrap_or(0))
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// `struct sigaction` as the kernel has it on 64-bit Linux; all zero is the default action.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// Gives every signal its default action and empties the mask: what Rust's start-up (SIGPIPE ignored)
/// and the monitor (SIGCHLD blocked) changed would otherwise survive exec (runtime-traps 2.8). By the
/// system call itself: libc's wrapper refuses the two signals it keeps for itself, 32 and 33, which a
/// parent may have ignored all the same.
pub fn reset_all() {
    let default = KernelAction::default();
    for signal in 1..=64 as libc::c_long {
        // SAFETY: the default action runs no code of ours; 8 is the size of the mask. KILL and STOP
        // refuse, and need no reset.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                std::ptr::null::<KernelAction>(),
                8,
            );
        }
    }
    let none = set_of(&[]);
    // SAFETY: as in `block`.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

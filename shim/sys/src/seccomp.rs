//! seccomp(2): installs a filter on the calling thread. Never decides what it says; the runtime
//! compiled it. Called by the cloned child before exec.

use std::io;

use super::check;

const SET_MODE_FILTER: libc::c_long = 1;

/// Installs a filter given as bytes of `struct sock_filter`. From then on it holds for this thread and
/// all that it becomes.
///
/// # Errors
/// `EACCES` without CAP_SYS_ADMIN and no_new_privs, `EINVAL` for a program the kernel does not take.
pub fn install(program: &[u8], flags: u32) -> io::Result<()> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (instructions, []) = program.as_chunks::<8>() else { return Err(invalid()) };
    let mut filter: Vec<libc::sock_filter> = instructions
        .iter()
        .map(|[a, b, jt, jf, e, f, g, h]| libc::sock_filter {
            code: u16::from_ne_bytes([*a, *b]),
            jt: *jt,
            jf: *jf,
            k: u32::from_ne_bytes([*e, *f, *g, *h]),
        })
        .collect();
    let len = u16::try_from(filter.len()).map_err(|_| invalid())?;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: the struct points at `len` instructions; both outlive the call, which copies them.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, libc::c_ulong::from(flags), &raw const program)
    })
    .map(|_| ())
}

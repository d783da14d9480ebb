//! seccomp(2) as an allow-list: whatever else the process calls ends it. For programs of our own that
//! know what they need; containers' profiles are another matter. Called by `unpack::confine`.

use std::io;

use super::check;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data`: number, architecture, and the low half of mmap's third argument.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const PROTECTION: u32 = 16 + 2 * 8;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// From here on this thread may make these calls alone, and map no memory that can be run. Any other
/// ends the process with SIGSYS. Needs no_new_privs.
///
/// # Errors
/// `EINVAL` in a kernel without seccomp; more calls than a jump can pass.
pub fn only(calls: &[i64]) -> io::Result<()> {
    let bad = || io::Error::from_raw_os_error(libc::E2BIG);
    let mut program = vec![
        step(LOAD, 0, 0, ARCH),
        step(EQUAL, 1, 0, AUDIT_ARCH),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, 0, 0, NUMBER),
    ];
    let plain: Vec<i64> = calls.iter().copied().filter(|call| *call != libc::SYS_mmap).collect();
    for (index, call) in plain.iter().enumerate() {
        // Over the rest of the list, mmap's three steps and the killing return.
        let over = u8::try_from(plain.len() - index - 1 + 4).map_err(|_| bad())?;
        let number = u32::try_from(*call).map_err(|_| bad())?;
        program.push(step(EQUAL, over, 0, number));
    }
    let mapping = u32::try_from(libc::SYS_mmap).map_err(|_| bad())?;
    program.extend([
        step(EQUAL, 0, 2, mapping),
        step(LOAD, 0, 0, PROTECTION),
        step(ANY_BIT, 0, 1, libc::PROT_EXEC.unsigned_abs()),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
    let length = u16::try_from(program.len()).map_err(|_| bad())?;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program before the call returns; both structs outlive it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) })
        .map(|_| ())
}

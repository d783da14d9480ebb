//! seccomp(2) as an allow-list: whatever else the process calls ends it. For programs of our own that
//! know what they need; containers' profiles are another matter. Called by `unpack::confine`.

use std::io;

use super::check;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data`: number, architecture, and the low half of the third argument, which is what
// mmap and mprotect allow on their memory.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const PROTECTION: u32 = 16 + 2 * 8;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Calls that may make memory, but none that can be run.
const OF_MEMORY: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// From here on all threads of this process may make these calls alone, and have no memory that can be run. Any
/// other ends the process with SIGSYS. Needs no_new_privs.
///
/// # Errors
/// `EINVAL` in a kernel without seccomp; `ESRCH` when a thread has another filter; more calls than a jump can pass.
pub fn only(calls: &[i64]) -> io::Result<()> {
    let bad = || io::Error::from_raw_os_error(libc::E2BIG);
    let mut program = vec![
        step(LOAD, 0, 0, ARCH),
        step(EQUAL, 1, 0, AUDIT_ARCH),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, 0, 0, NUMBER),
    ];
    let (of_memory, plain): (Vec<i64>, Vec<i64>) = calls.iter().partition(|call| OF_MEMORY.contains(call));
    for (index, call) in plain.iter().enumerate() {
        // Over the rest of the list, those of memory with the jump past their look, the look and the killing return.
        let over = plain.len() - index - 1 + of_memory.len() + 4;
        let over = u8::try_from(over).map_err(|_| bad())?;
        let number = u32::try_from(*call).map_err(|_| bad())?;
        program.push(step(EQUAL, over, 0, number));
    }
    for (index, call) in of_memory.iter().enumerate() {
        // Over the rest of them and the jump behind them.
        let over = u8::try_from(of_memory.len() - index).map_err(|_| bad())?;
        program.push(step(EQUAL, over, 0, u32::try_from(*call).map_err(|_| bad())?));
    }
    program.extend([
        step(JUMP, 0, 0, 2),
        step(LOAD, 0, 0, PROTECTION),
        step(ANY_BIT, 0, 1, libc::PROT_EXEC.unsigned_abs()),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
    let length = u16::try_from(program.len()).map_err(|_| bad())?;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the kernel copies the program before the call returns; both structs outlive it.
    match check(unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) })? {
        0 => Ok(()),
        // The thread that could not have it.
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

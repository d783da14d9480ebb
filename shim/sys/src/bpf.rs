//! bpf(2): loads a device program and attaches it to a cgroup v2 folder. Never decides which
//! devices; `cgroup/devices.rs` writes the program. Called by the runtime.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// One eBPF instruction, `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Source register in the high half, destination in the low half.
    pub registers: u8,
    /// Jump offset.
    pub offset: i16,
    /// Immediate operand.
    pub immediate: i32,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgAttach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// Loads `program` as a device filter and attaches it to `cgroup`; it lives as long as the cgroup.
///
/// # Errors
/// `EPERM` without CAP_BPF/CAP_SYS_ADMIN, `EINVAL` when the verifier refuses the program.
pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let load = ProgLoad {
        prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        insns: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        ..ProgLoad::default()
    };
    // SAFETY: the struct's size is passed; the program and licence outlive the call.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<ProgLoad>())
    })?;
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: bpf has just made this descriptor; nobody else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(fd) };
    let attach = ProgAttach {
        target_fd: cgroup.as_raw_fd().unsigned_abs(),
        attach_bpf_fd: program.as_raw_fd().unsigned_abs(),
        attach_type: BPF_CGROUP_DEVICE,
        attach_flags: BPF_F_ALLOW_MULTI,
    };
    // SAFETY: the struct's size is passed; both descriptors are open.
    check(unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw const attach, size_of::<ProgAttach>())
    })
    .map(|_| ())
}

//! The walls around `gantry-unpack`, put up by the process itself before it reads its first byte. Owns
//! their order: what needs privileges first, then the privileges go, then the system calls. Never
//! undone. Called by `program`.
//!
//! | wall | inflate | unpack |
//! |---|---|---|
//! | files | none can be opened | the layer's folder is the root; devices there can't be opened |
//! | network, IPC | none | namespaces of its own |
//! | capabilities | none | those that owners, modes, nodes and file capabilities need |
//! | system calls | read, write, memory | those and files; no exec, no process, no socket, no mount |
//! | memory, time, file size | limited | limited |

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use gantry_sys as sys;
use gantry_sys::{allow, task};

/// The process could not be confined, and did nothing.
#[derive(Debug, thiserror::Error)]
#[error("confine the unpacker: {step}")]
pub struct ConfineError {
    step: &'static str,
    #[source]
    source: io::Error,
}

/// zstd's window, and some.
const INFLATER_MEMORY: u64 = 384 << 20;
/// For its last words, should they go to a file.
const INFLATER_FILE: u64 = 64 << 10;
/// Names of two million entries.
const UNPACKER_MEMORY: u64 = 1 << 30;

/// What any Rust program needs to come to its end.
const BASIC: [i64; 17] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_gettid,
    libc::SYS_getpid,
];

/// What filling a folder takes.
const FILES: [i64; 18] = [
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_fchownat,
    libc::SYS_fchmodat,
    libc::SYS_fsetxattr,
    libc::SYS_utimensat,
    libc::SYS_lseek,
];

/// By descriptor: of files that are open already; and whose files are its own.
const DESCRIPTORS: [i64; 4] = [libc::SYS_fchown, libc::SYS_fchmod, libc::SYS_geteuid, libc::SYS_getegid];

/// For a process that only reads, computes and writes.
///
/// # Errors
/// [`ConfineError`], naming the step.
pub(super) fn to_pipes(seconds: u64) -> Result<(), ConfineError> {
    first_of_all()?;
    limits(INFLATER_MEMORY, seconds, INFLATER_FILE)?;
    privileges(CapabilitySet::empty())?;
    allow::only(&BASIC).map_err(at("allow few system calls"))
}

/// For a process that fills `folder`, and finds nothing else.
///
/// # Errors
/// [`ConfineError`], naming the step.
pub(super) fn to_folder(folder: &Path, bytes: u64, seconds: u64) -> Result<(), ConfineError> {
    // Or a file larger than promised would end the process without a word; as EFBIG it has a name.
    sys::signal::ignore(libc::SIGXFSZ);
    first_of_all()?;
    task::new_namespaces(libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)
        .map_err(at("enter namespaces of its own"))?;
    make_root(folder).map_err(|(step, errno)| ConfineError { step, source: errno.into() })?;
    // Files are made with the modes that the archive has.
    rustix::process::umask(Mode::empty());
    limits(UNPACKER_MEMORY, seconds, bytes)?;
    privileges(
        CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::FOWNER
            | CapabilitySet::FSETID
            | CapabilitySet::MKNOD
            | CapabilitySet::SETFCAP,
    )?;
    let calls = [&BASIC[..], &FILES, &DESCRIPTORS].concat();
    allow::only(&calls).map_err(at("allow few system calls"))
}

/// What is not allowed any more behind the other walls.
fn first_of_all() -> Result<(), ConfineError> {
    // Without its runtime there is nobody to unpack for, however much its pipe still holds. Its parent is the thread
    // that waits for its end.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| at("end with its runtime")(errno.into()))?;
    // A layer that eats memory goes before the runtime, which may have handed down that nobody may kill it.
    std::fs::write("/proc/self/oom_score_adj", "500").map_err(at("raise the OOM score"))
}

/// Makes `folder` all that this process sees of the file system.
fn make_root(folder: &Path) -> Result<(), (&'static str, rustix::io::Errno)> {
    let step = |step: &'static str| move |errno| (step, errno);
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(step("keep its mounts to itself"))?;
    rustix::mount::mount_bind(folder, folder).map_err(step("mount its folder"))?;
    // A device in a layer is a file to be made, not one to be opened.
    let flags = MountFlags::BIND | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount_remount(folder, flags, "").map_err(step("restrict its folder"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(folder, flags, Mode::empty()).map_err(step("open its folder"))?;
    rustix::process::fchdir(&root).map_err(step("enter its folder"))?;
    // As in init::rootfs: the old root ends up on top and is let go.
    rustix::process::pivot_root(".", ".").map_err(step("make its folder the root"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(step("let go of the old root"))?;
    rustix::process::chdir("/").map_err(step("enter the new root"))
}

fn limits(memory: u64, seconds: u64, bytes: u64) -> Result<(), ConfineError> {
    for (resource, limit) in [
        (Resource::As, memory),
        (Resource::Cpu, seconds),
        (Resource::Fsize, bytes),
        (Resource::Core, 0),
        // A level of a tree that is removed holds one.
        (Resource::Nofile, 1024),
    ] {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(resource, limit)
            .map_err(|errno| at("limit its resources")(errno.into()))?;
    }
    Ok(())
}

/// Nothing above `keep`, nor ever again: the bounding set first, while CAP_SETPCAP is there.
fn privileges(keep: CapabilitySet) -> Result<(), ConfineError> {
    let fail = |errno: rustix::io::Errno| at("give up its privileges")(errno.into());
    for number in 0..64_u32 {
        let bit = CapabilitySet::from_bits_retain(1 << number);
        // EINVAL: the kernel has no such capability, nor any above.
        let Ok(held) = rustix::thread::capability_is_in_bounding_set(bit) else { break };
        if held && !keep.contains(bit) {
            rustix::thread::remove_capability_from_bounding_set(bit).map_err(fail)?;
        }
    }
    let held = rustix::thread::capabilities(None).map_err(fail)?.permitted;
    let kept = keep & held;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(fail)?;
    rustix::thread::set_no_new_privs(true).map_err(fail)
}

fn at(step: &'static str) -> impl FnOnce(io::Error) -> ConfineError {
    move |source| ConfineError { step, source }
}

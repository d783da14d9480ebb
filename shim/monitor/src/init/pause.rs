//! From clone to pause: the process that holds the pod's namespaces. Its root is an empty tmpfs, so
//! that /proc/1/root of a shared pid namespace shows nothing of the node. Called in the cloned child
//! by `monitor::spawn`.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{Capabilities, NamespaceMode, StartContainer, StartSandbox, Sysctl};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::LinkNameSpaceType;

use super::container::INERT;
use super::users::{self, UsernsEntry};
use super::{Progress, StepContext, StepError, cgroups, identity, lsm, mounts, refuse, reset, rootfs};
use crate::user_mapping;
use gantry_sys as sys;

/// What `gantry-pause` is told when it is to keep a scope open for as long as its maker has the other end of its
/// standard input.
pub const SEED: &str = "--seed";

/// "nobody" of upstream's pause image.
const USER: u32 = 65535;

/// Turns the child into pause, telling `note` right before exec. With `entry` another process, in the
/// pod's user namespace, becomes it. Returns only on failure.
///
/// # Errors
/// The step that failed; the caller reports it and ends the process.
pub fn run(
    start: &StartSandbox,
    entry: Option<&UsernsEntry<'_>>,
    null: &OwnedFd,
    program: &OwnedFd,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become undumpable".into())?;
    rustix::process::umask(Mode::empty());
    if start.cgroup.is_none() {
        return refuse(libc::EINVAL, "the request has no cgroup");
    }
    cgroups::enter(start.cgroup.as_ref())?;
    identity::oom_score(start.oom_score_adj)?;
    rustix::process::setsid().step(|| "start a session".into())?;
    rootfs::detach_from_host()?;
    join_network(start)?;
    rustix::process::chdir(start.root_dir.as_str()).step(|| format!("enter {}", start.root_dir))?;
    if let Some(entry) = entry {
        users::enter_userns(entry, note)?;
        rustix::process::setsid().step(|| "start a session".into())?;
    }
    let place = rootfs::here()?;
    configure(start, entry)?;
    // By the node's /proc: pause's own root has none.
    let labels = lsm::prepare_label(&start.process_label)?;
    build_root(start, &place)?;
    for connect in [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr] {
        connect(null).step(|| "connect the null device".into())?;
    }
    reset::keyring(&start.id)?;
    reset::all()?;
    reset::open_files()?;
    let user = start
        .users
        .as_ref()
        .map_or(USER, |users| if user_mapping::owner(users, USER, USER).is_some() { USER } else { 0 });
    identity::assume(&StartContainer {
        uid: user,
        gid: user,
        no_new_privs: true,
        capabilities: Some(Capabilities::default()),
        ..StartContainer::default()
    })?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "set the death signal".into())?;
    labels.apply()?;
    identity::filter(&start.seccomp_filter, start.seccomp_flags)?;
    note(Progress::Ready)?;
    sys::exec::exec_fd(program.as_fd(), &[c"pause".into()], &[]).step(|| "exec pause".into())
}

fn join_network(start: &StartSandbox) -> Result<(), StepError> {
    if start.netns_path.is_empty() {
        return Ok(());
    }
    let netns = rustix::fs::open(start.netns_path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("open the network namespace {}", start.netns_path))?;
    rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .step(|| format!("join the network namespace {}", start.netns_path))
}

/// The host name and the sysctls of the pod's namespaces; with `entry` as its root from then on.
fn configure(start: &StartSandbox, entry: Option<&UsernsEntry<'_>>) -> Result<(), StepError> {
    if !start.host_network {
        rustix::system::sethostname(start.hostname.as_bytes())
            .step(|| format!("set the host name {}", start.hostname))?;
    }
    // Sysctls of a pod's IPC are the node's root's to write, by number, until Linux 6.9, and the pod's since.
    let mut refused = Vec::new();
    for sysctl in &start.sysctls {
        match set(sysctl) {
            Err(error) if entry.is_some() && is_denied(&error) => refused.push(sysctl),
            result => result?,
        }
    }
    if entry.is_some() {
        users::become_root()?;
    }
    refused.into_iter().try_for_each(set)
}

fn set(sysctl: &Sysctl) -> Result<(), StepError> {
    // A slash in a dotted name is a dot in a part of the path: `net.ipv4.conf.eth0/100.rp_filter`.
    let parts: Vec<_> = sysctl.name.split('.').map(|part| part.replace('/', ".")).collect();
    let path = format!("/proc/sys/{}", parts.join("/"));
    fs::write(&path, &sysctl.value).step(|| format!("set sysctl {}={}", sysctl.name, sysctl.value))
}

fn is_denied(error: &StepError) -> bool {
    error.source.kind() == std::io::ErrorKind::PermissionDenied
}

/// A root of its own, mounted on `place`.
fn build_root(start: &StartSandbox, place: &OwnedFd) -> Result<(), StepError> {
    let root = mounts::new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", "65536")],
        INERT ^ MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    mounts::attach(root.as_fd(), place.as_fd(), &start.root_dir)?;
    if start.ipc() != NamespaceMode::Host {
        let size = start.shm_size.to_string();
        let options =
            [&[("mode", "1777"), ("size", size.as_str())][..], &lsm::context(&start.mount_label)].concat();
        let shm = mounts::new_filesystem("tmpfs", &options, INERT)?;
        let place = mounts::target(root.as_fd(), "/dev/shm", true, rustix::fs::ResolveFlags::NO_SYMLINKS)?;
        mounts::attach(shm.as_fd(), place.as_fd(), "/dev/shm")?;
    }
    rootfs::pivot(&root)?;
    rootfs::seal_root()
}

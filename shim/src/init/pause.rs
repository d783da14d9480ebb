//! From clone to pause: the process that holds the pod's namespaces. Its root is an empty tmpfs, so
//! that /proc/1/root of a shared pid namespace shows nothing of the node. Called in the cloned child
//! by `monitor::spawn`.

use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{Capabilities, NamespaceMode, StartContainer, StartSandbox};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::LinkNameSpaceType;

use super::container::{INERT, enter_v1};
use super::{Progress, Step, StepError, identity, lsm, mounts, refuse, reset, rootfs};
use crate::sys;

/// "nobody" of upstream's pause image.
const USER: u32 = 65535;

/// Turns the child into pause, telling `note` right before exec. Returns only on failure.
///
/// # Errors
/// The step that failed; the caller reports it and ends the process.
pub fn run(
    start: &StartSandbox,
    null: &OwnedFd,
    program: &OwnedFd,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become undumpable".into())?;
    rustix::process::umask(Mode::empty());
    match &start.cgroup {
        Some(target) if !target.unified => enter_v1(&target.folders)?,
        Some(_) => {}
        None => return refuse(libc::EINVAL, "the request has no cgroup"),
    }
    identity::oom_score(start.oom_score_adj)?;
    rustix::process::setsid().step(|| "start a session".into())?;
    rootfs::detach_from_host()?;
    if !start.netns_path.is_empty() {
        let netns =
            rustix::fs::open(start.netns_path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .step(|| format!("open the network namespace {}", start.netns_path))?;
        rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .step(|| format!("join the network namespace {}", start.netns_path))?;
    }
    if !start.host_network {
        rustix::system::sethostname(start.hostname.as_bytes())
            .step(|| format!("set the host name {}", start.hostname))?;
    }
    for sysctl in &start.sysctls {
        // A slash in a dotted name is a dot in a part of the path: `net.ipv4.conf.eth0/100.rp_filter`.
        let parts: Vec<_> = sysctl.name.split('.').map(|part| part.replace('/', ".")).collect();
        let path = format!("/proc/sys/{}", parts.join("/"));
        fs::write(&path, &sysctl.value).step(|| format!("set sysctl {}={}", sysctl.name, sysctl.value))?;
    }
    // By the node's /proc: pause's own root has none.
    let labels = lsm::prepare_label(&start.process_label)?;
    build_root(start)?;
    for connect in [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr] {
        connect(null).step(|| "connect the null device".into())?;
    }
    reset::keyring(&start.id)?;
    reset::all()?;
    reset::open_files()?;
    identity::assume(&StartContainer {
        uid: USER,
        gid: USER,
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

fn build_root(start: &StartSandbox) -> Result<(), StepError> {
    let path = start.root_dir.as_str();
    let top = mounts::new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", "65536")],
        INERT ^ MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("open {path}"))?;
    mounts::attach(top.as_fd(), place.as_fd(), path)?;
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("open {path}"))?;
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

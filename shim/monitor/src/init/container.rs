//! From clone to the container's first instruction, in order. The order is the contract: each step
//! uses a privilege that a later one gives up. Called in the cloned child by `monitor::spawn`.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};

use gantry_proto::monitor::{NamespaceMode, StartContainer};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::DumpableBehavior;
use rustix::thread::LinkNameSpaceType;

use super::program::{self, Streams};
use super::users::{self, UsernsEntry};
use super::{
    Progress, StepContext, StepError, cgroups, console, dev, hooks, identity, images, mounts, refuse, rootfs,
};

/// Namespaces of the sandbox that the container joins; None is the host's.
#[derive(Debug)]
pub struct JoinedNamespaces<'a> {
    /// Network.
    pub net: Option<&'a OwnedFd>,
    /// SysV IPC and POSIX queues.
    pub ipc: Option<&'a OwnedFd>,
    /// Host name.
    pub uts: Option<&'a OwnedFd>,
    /// Pause's mount namespace, where the pod's /dev/shm is.
    pub mnt: &'a OwnedFd,
    /// Where to ask for the hooks that run beside the container.
    pub hooks: Option<&'a OwnedFd>,
}

/// Turns the child into the container's program, telling `note` how far it is. With `entry` another
/// process, in the pod's user namespace, becomes it. Returns only on failure.
///
/// # Errors
/// The step that failed; the caller reports it and ends the process.
pub fn run(
    start: &StartContainer,
    joined: &JoinedNamespaces<'_>,
    entry: Option<&UsernsEntry<'_>>,
    streams: &Streams<'_>,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    // No other process of the pod may look into this one before exec, even in a shared pid namespace.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become undumpable".into())?;
    // Folders and files made as mount targets get the modes asked for; `reset` sets the final mask.
    rustix::process::umask(Mode::empty());
    cgroups::enter(start.cgroup.as_ref())?;
    identity::oom_score(start.oom_score_adj)?;
    rustix::process::setsid().step(|| "start a session".into())?;
    let parts = gather(start, joined, entry, note)?;
    if let Some(entry) = entry {
        users::give_to_user(streams, entry.mapping, start.uid, start.gid)?;
        users::enter_userns(entry, note)?;
        rustix::process::setsid().step(|| "start a session".into())?;
        let place = rootfs::here()?;
        users::become_root()?;
        mounts::attach(parts.root.as_fd(), place.as_fd(), "/")?;
    }
    build_root(start, joined, &parts, note)?;
    if start.tty {
        console::mount_as_console(streams)?;
    }
    for path in &start.masked_paths {
        mounts::mask(path)?;
    }
    for path in &start.readonly_paths {
        mounts::protect(path)?;
    }
    if start.rootfs.as_ref().is_some_and(|root| root.readonly) {
        rootfs::seal_root()?;
    }
    note(Progress::Step("become the container's program"))?;
    program::make_cwd(&start.cwd)?;
    program::become_program(start, streams, note)
}

/// What the root is built of: all that takes the node's own rights, in no mount namespace or a private one.
struct RootParts<'a> {
    root: OwnedFd,
    sys: OwnedFd,
    shm: OwnedFd,
    sources: Vec<Option<OwnedFd>>,
    /// None: devices are made in place.
    dev: Option<dev::PreparedDev<'a>>,
}

fn gather<'a>(
    start: &'a StartContainer,
    joined: &JoinedNamespaces<'_>,
    entry: Option<&UsernsEntry<'_>>,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<RootParts<'a>, StepError> {
    let Some(root) = &start.rootfs else {
        return refuse(libc::EINVAL, "the request has no root file system");
    };
    let mut sources = mounts::sources(&start.mounts, entry.map(|entry| (entry.mapping, entry.users)))?;
    rootfs::detach_from_host()?;
    if let Some(entry) = entry {
        rootfs::map_layers(&root.layers_dir, entry.users)?;
    }
    images::fill(&mut sources, &start.mounts, root, note)?;
    let shm = shared_memory(start, joined)?;
    // The network namespace first: a sysfs shows the one its mounter is in.
    for (namespace, kind, name) in [
        (joined.net, LinkNameSpaceType::Network, "network"),
        (joined.ipc, LinkNameSpaceType::InterProcessCommunication, "IPC"),
        (joined.uts, LinkNameSpaceType::HostNameAndNISDomainName, "UTS"),
    ] {
        if let Some(namespace) = namespace {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))
                .step(|| format!("join the sandbox's {name} namespace"))?;
        }
    }
    note(Progress::Step("mount the root file system"))?;
    let dev = entry.map(|entry| dev::prepare(&start.devices, entry, &start.mount_label)).transpose()?;
    let mut top = rootfs::mount(root, &start.mount_label)?;
    if entry.is_some() {
        top = rootfs::lift(root)?;
    }
    Ok(RootParts { root: top, sys: mounts::sysfs(start.privileged)?, shm, sources, dev })
}

fn build_root(
    start: &StartContainer,
    joined: &JoinedNamespaces<'_>,
    parts: &RootParts<'_>,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let Some(cgroup) = &start.cgroup else { return refuse(libc::EINVAL, "the request has no cgroup") };
    let top = parts.root.as_fd();
    mounts::kernel_filesystems(top, &parts.sys, cgroup, start)?;
    dev::build(top, &parts.shm, start, parts.dev.as_ref())?;
    for (mount, source) in start.mounts.iter().zip(&parts.sources) {
        // The one step that waits for other machines, when the source is on their disks.
        let Some(source) = source else { continue };
        note(Progress::Step(&format!("mount {} on {}", mount.source, mount.destination)))?;
        mounts::bind(top, mount, source, parts.dev.is_some())?;
    }
    if start.hooks.is_some() {
        note(Progress::Step("run hooks"))?;
        hooks::before_root(start, joined.hooks, top)?;
    }
    note(Progress::Step("enter the root file system"))?;
    rootfs::pivot(&parts.root)
}

/// The pod's /dev/shm lives in pause's mount namespace only. A mount can be copied from inside its
/// own namespace alone, so the child goes there and comes back.
pub(super) fn shared_memory(
    start: &StartContainer,
    joined: &JoinedNamespaces<'_>,
) -> Result<OwnedFd, StepError> {
    if start.ipc() == NamespaceMode::Host {
        return mounts::copy_tree("/dev/shm", false);
    }
    let own = rustix::fs::open("/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the own mount namespace".into())?;
    let enter = |namespace: &OwnedFd, whose: &str| {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
            .step(|| format!("enter {whose} mount namespace"))
    };
    enter(joined.mnt, "the sandbox's")?;
    let shm = mounts::copy_tree("/dev/shm", false);
    enter(&own, "the own")?;
    shm
}

/// Attributes of mounts nobody may run programs or make devices on.
pub(super) const INERT: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

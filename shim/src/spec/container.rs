//! A container's configuration, checked and merged with its image. Pure. Called by
//! `container::create`, which adds what only the node knows: paths, layers, accounts.

use std::collections::{BTreeMap, HashMap};

use gantry_proto::cri;
use gantry_proto::monitor::{Device, Mount, NamespaceMode, Propagation, StartContainer, UserMapping};

use super::handler;
use super::{Error, IMAGE_HANDLER, Namespaces, capabilities, profiles, selinux, userns};
use crate::cgroup::Resources;
use crate::config::handlers::Handlers;
use crate::seccomp::SeccompChoice;
use crate::store::record::SandboxRecord;
use gantry_image::ImageConfig;

/// The request's security context after the checks.
#[derive(Debug, Clone)]
pub(crate) struct CheckedContainer {
    security: cri::LinuxContainerSecurityContext,
    /// As the request gave them, for status.
    pub linux_resources: cri::LinuxContainerResources,
    /// Profile to compile.
    pub seccomp: SeccompChoice,
}

/// Refuses what is not honoured yet. `handlers` may be named with images, which are the same for all of them;
/// `unset_seccomp` is the profile of containers that name none.
///
/// # Errors
/// The field, by name.
pub(crate) fn check(
    config: &cri::ContainerConfig,
    handlers: &Handlers,
    unset_seccomp: &SeccompChoice,
) -> Result<CheckedContainer, Error> {
    let named = config.image.as_ref().map_or("", |image| image.runtime_handler.as_str());
    handler::of(handlers, IMAGE_HANDLER, named)?;
    let linux = config.linux.clone().unwrap_or_default();
    let security = linux.security_context.unwrap_or_default();
    selinux::SelinuxOptions::new(security.selinux_options.as_ref())?;
    let seccomp = profiles(&security, unset_seccomp)?;
    for mount in &config.mounts {
        recursive_read_only(mount)?;
        check_path("mounts.container_path", &mount.container_path)?;
        match &mount.image {
            Some(image) => image_mount(mount, image, handlers)?,
            None => host_mount(mount)?,
        }
    }
    for device in &config.devices {
        if device.permissions.contains(|letter| !matches!(letter, 'r' | 'w' | 'm')) {
            return Err(Error::Invalid {
                field: "devices.permissions",
                value: device.permissions.clone(),
                expected: "any of r, w and m",
            });
        }
    }
    if !config.working_dir.is_empty() {
        check_path("working_dir", &config.working_dir)?;
    }
    let linux_resources = linux.resources.unwrap_or_default();
    Ok(CheckedContainer { security, linux_resources, seccomp })
}

#[expect(deprecated, reason = "clients still set the old fields, and containerd honours them")]
fn profiles(
    security: &cri::LinuxContainerSecurityContext,
    unset: &SeccompChoice,
) -> Result<SeccompChoice, Error> {
    let old = &security.seccomp_profile_path;
    profiles::seccomp(security.seccomp.as_ref(), old, security.privileged, unset)
}

fn host_mount(mount: &cri::Mount) -> Result<(), Error> {
    if !mount.image_sub_path.is_empty() {
        return Err(Error::Invalid {
            field: "mounts.image_sub_path",
            value: mount.image_sub_path.clone(),
            expected: "set with mounts.image only",
        });
    }
    absolute("mounts.host_path", &mount.host_path)
}

/// Containerd's rules, and that a sub-path leads downwards.
fn image_mount(mount: &cri::Mount, image: &cri::ImageSpec, handlers: &Handlers) -> Result<(), Error> {
    handler::of(handlers, "mounts.image.runtime_handler", &image.runtime_handler)?;
    let invalid =
        |field, value: &str, expected| Err(Error::Invalid { field, value: value.to_owned(), expected });
    if !mount.host_path.is_empty() {
        return invalid("mounts.host_path", &mount.host_path, "it must be empty while an image is mounted");
    }
    if !mount.readonly {
        return invalid("mounts.readonly", "false", "it must be true while an image is mounted");
    }
    if mount.propagation() != cri::MountPropagation::PropagationPrivate {
        let mode = mount.propagation().as_str_name();
        return invalid("mounts.propagation", mode, "nothing is mounted below an image: PRIVATE");
    }
    if image.image.is_empty() {
        return Err(Error::Missing("mounts.image.image"));
    }
    let sub_path = &mount.image_sub_path;
    if sub_path.starts_with('/') || sub_path.contains('\0') || sub_path.split('/').any(|part| part == "..") {
        return invalid("mounts.image_sub_path", sub_path, "a relative path without ..");
    }
    Ok(())
}

/// What the CRI says of the field, and containerd checks.
fn recursive_read_only(mount: &cri::Mount) -> Result<(), Error> {
    let private = mount.propagation() == cri::MountPropagation::PropagationPrivate;
    if !mount.recursive_read_only || (mount.readonly && private) {
        return Ok(());
    }
    Err(Error::Invalid {
        field: "mounts.recursive_read_only",
        value: mount.container_path.clone(),
        expected: "set with readonly and propagation PRIVATE only",
    })
}

/// A path that goes through [`clean_path`] before it is used.
fn check_path(field: &'static str, path: &str) -> Result<(), Error> {
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(());
    }
    Err(Error::Invalid { field, value: path.to_owned(), expected: "an absolute path" })
}

fn absolute(field: &'static str, path: &str) -> Result<(), Error> {
    if path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..") {
        return Ok(());
    }
    Err(Error::Invalid { field, value: path.to_owned(), expected: "an absolute path without .." })
}

/// The path without `.` and `..`, by its words alone, as runc cleans a working folder and containerd an image's volume.
pub(crate) fn clean_path(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// CRI's resources as cgroup limits.
#[must_use]
pub(crate) fn resources(from: &cri::LinuxContainerResources) -> Resources {
    Resources {
        cpu_period: from.cpu_period,
        cpu_quota: from.cpu_quota,
        cpu_shares: from.cpu_shares,
        memory_limit: from.memory_limit_in_bytes,
        memory_swap_limit: from.memory_swap_limit_in_bytes,
        cpuset_cpus: from.cpuset_cpus.clone(),
        cpuset_mems: from.cpuset_mems.clone(),
        hugepages: from.hugepage_limits.iter().map(|page| (page.page_size.clone(), page.limit)).collect(),
        unified: from.unified.clone().into_iter().collect::<BTreeMap<_, _>>(),
    }
}

impl CheckedContainer {
    /// The request's wishes about the user.
    #[must_use]
    pub(crate) fn user<'a>(&'a self, image: &'a ImageConfig) -> super::user::UserRequest<'a> {
        let security = &self.security;
        super::user::UserRequest {
            uid: security.run_as_user.map(|uid| uid.value),
            gid: security.run_as_group.map(|gid| gid.value),
            name: &security.run_as_username,
            image: &image.user,
            supplemental: &security.supplemental_groups,
            strict: security.supplemental_groups_policy() == cri::SupplementalGroupsPolicy::Strict,
        }
    }

    /// Everything of the start that follows from request and image.
    ///
    /// # Errors
    /// What is invalid, by field.
    pub(crate) fn start(
        &self,
        config: &cri::ContainerConfig,
        image: &ImageConfig,
        user: &super::user::ProcessUser,
        sandbox: &SandboxRecord,
    ) -> Result<StartContainer, Error> {
        let security = &self.security;
        let options = security.namespace_options.clone().unwrap_or_default();
        let Namespaces { net, pid, ipc } = Namespaces::of_container(&options, &sandbox.namespaces)?;
        let users = sandbox.users.map(|users| users.mapping());
        userns::check_same(users.as_ref(), userns::parse(options.userns_options.as_ref())?.as_ref())?;
        userns::check_user(user, users.as_ref())?;
        let privileged = security.privileged;
        if privileged && !sandbox.privileged {
            return Err(Error::Invalid {
                field: "security_context.privileged",
                value: "true".into(),
                expected: "the sandbox was not made for privileged containers",
            });
        }
        let hidden = |paths: &[String]| if privileged { Vec::new() } else { paths.to_vec() };
        Ok(StartContainer {
            args: command(config, image)?,
            env: environment(config, image, &user.home, &sandbox.hostname)?,
            cwd: [&config.working_dir, &image.working_dir]
                .into_iter()
                .find(|dir| !dir.is_empty())
                .map_or_else(|| "/".into(), |dir| clean_path(dir)),
            uid: user.uid,
            gid: user.gid,
            additional_gids: user.groups.clone(),
            masked_paths: hidden(&security.masked_paths),
            readonly_paths: hidden(&security.readonly_paths),
            capabilities: Some(capabilities::sets(security.capabilities.as_ref(), privileged)?),
            no_new_privs: security.no_new_privs,
            oom_score_adj: oom_score(self.linux_resources.oom_score_adj)?,
            pid: pid.into(),
            pid_target: if pid == NamespaceMode::Target { options.target_id } else { String::new() },
            ipc: ipc.into(),
            net: net.into(),
            privileged,
            tty: config.tty,
            stdin: config.stdin,
            stdin_once: config.stdin && config.stdin_once,
            devices: config.devices.iter().map(device).collect(),
            mounts: config.mounts.iter().map(|from| mount(from, users.as_ref())).collect::<Result<_, _>>()?,
            users,
            ..StartContainer::default()
        })
    }

    /// For the node's security modules.
    #[must_use]
    pub(crate) fn security(&self) -> &cri::LinuxContainerSecurityContext {
        &self.security
    }

    /// Whether `/` is read-only.
    #[must_use]
    pub(crate) fn readonly_rootfs(&self) -> bool {
        self.security.readonly_rootfs
    }
}

fn mount(from: &cri::Mount, pod: Option<&UserMapping>) -> Result<Mount, Error> {
    let propagation = match from.propagation() {
        cri::MountPropagation::PropagationPrivate => Propagation::Private,
        cri::MountPropagation::PropagationHostToContainer => Propagation::Slave,
        cri::MountPropagation::PropagationBidirectional => Propagation::Shared,
    };
    Ok(Mount {
        source: from.host_path.clone(),
        destination: clean_path(&from.container_path),
        readonly: from.readonly,
        recursive_readonly: from.recursive_read_only,
        propagation: propagation.into(),
        // Which layers these are, the node knows.
        image: None,
        users: userns::of_mount(from, pod)?,
        ..Mount::default()
    })
}

/// What the kernel takes (proc_pid_oom_score_adj(5)).
fn oom_score(wanted: i64) -> Result<i32, Error> {
    i32::try_from(wanted).ok().filter(|score| (-1000..=1000).contains(score)).ok_or_else(|| Error::Invalid {
        field: "resources.oom_score_adj",
        value: wanted.to_string(),
        expected: "a number from -1000 to 1000",
    })
}

/// A command of the request replaces the image's entrypoint and its arguments both; arguments alone
/// replace the image's arguments.
fn command(config: &cri::ContainerConfig, image: &ImageConfig) -> Result<Vec<String>, Error> {
    let arguments =
        if config.command.is_empty() && config.args.is_empty() { &image.cmd } else { &config.args };
    let program = if config.command.is_empty() { &image.entrypoint } else { &config.command };
    let command: Vec<String> = program.iter().chain(arguments).cloned().collect();
    match command.first() {
        Some(program) if !program.is_empty() => Ok(command),
        _ => {
            Err(Error::NoCommand(config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default()))
        }
    }
}

/// More than anybody means: of a few more, execve(2) would have no room even for the names.
const MAX_VARIABLES: usize = 65_536;

/// The image's variables, then the request's; a later one of the same name replaces the earlier. PATH
/// and HOME are never missing.
fn environment(
    config: &cri::ContainerConfig,
    image: &ImageConfig,
    home: &str,
    hostname: &str,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut env: Vec<(String, Vec<u8>)> = vec![
        ("PATH".into(), b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("HOME".into(), home.into()),
        ("HOSTNAME".into(), hostname.into()),
    ];
    if config.tty {
        env.push(("TERM".into(), b"xterm".into()));
    }
    let split = image.env.iter().filter_map(|pair| pair.split_once('='));
    let from_image = split.map(|(name, value)| (name.to_owned(), value.as_bytes().to_owned()));
    let from_request = config.envs.iter().map(|pair| match pair.key.split_once('=') {
        None => (pair.key.clone(), pair.value.clone()),
        // The name ends at the first sign, whoever wrote it: else there would be two variables of it.
        Some((name, value)) => (name.to_owned(), [value.as_bytes(), b"=", &pair.value].concat()),
    });
    let mut places: HashMap<String, usize> =
        env.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
    for (name, value) in from_image.chain(from_request) {
        match places.get(&name).and_then(|at| env.get_mut(*at)) {
            Some((_, old)) => *old = value,
            None => {
                places.insert(name.clone(), env.len());
                env.push((name, value));
            }
        }
    }
    if env.len() > MAX_VARIABLES {
        return Err(Error::TooMany { what: "environment variables", count: env.len(), most: MAX_VARIABLES });
    }
    Ok(env.into_iter().map(|(name, value)| [name.as_bytes(), b"=", &value].concat()).collect())
}

/// What a container is asked to stop with when nobody says.
const TERM: i32 = 15;

/// Signals of signal(7) on x86-64 and arm, by number.
pub(crate) const SIGNALS: [(i32, &str); 31] = [
    (1, "HUP"),
    (2, "INT"),
    (3, "QUIT"),
    (4, "ILL"),
    (5, "TRAP"),
    (6, "ABRT"),
    (7, "BUS"),
    (8, "FPE"),
    (9, "KILL"),
    (10, "USR1"),
    (11, "SEGV"),
    (12, "USR2"),
    (13, "PIPE"),
    (14, "ALRM"),
    (15, "TERM"),
    (16, "STKFLT"),
    (17, "CHLD"),
    (18, "CONT"),
    (19, "STOP"),
    (20, "TSTP"),
    (21, "TTIN"),
    (22, "TTOU"),
    (23, "URG"),
    (24, "XCPU"),
    (25, "XFSZ"),
    (26, "VTALRM"),
    (27, "PROF"),
    (28, "WINCH"),
    (29, "IO"),
    (30, "PWR"),
    (31, "SYS"),
];

/// The signal that asks a container to stop: the request's, else the image's, else SIGTERM.
///
/// # Errors
/// An unknown name in the image.
pub(crate) fn stop_signal(config: &cri::ContainerConfig, image: &ImageConfig) -> Result<i32, Error> {
    match config.stop_signal() {
        // Written by whoever made the image: one that nobody knows is none (moby does the same).
        cri::Signal::RuntimeDefault => Ok(signal(&image.stop_signal).unwrap_or(TERM)),
        wanted => signal(&wanted.as_str_name().replace("PLUS", "+").replace("MINUS", "-")),
    }
}

/// Number of a signal named as in `SIGTERM`, `TERM` or `15`, or real-time as in `SIGRTMIN+3`.
///
/// # Errors
/// An unknown name.
pub(crate) fn signal(name: &str) -> Result<i32, Error> {
    let unknown = || Error::Signal(name.to_owned());
    if name.is_empty() {
        return Ok(TERM);
    }
    if let Ok(number) = name.parse::<i32>() {
        return if (1..=64).contains(&number) { Ok(number) } else { Err(unknown()) };
    }
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("SIG").unwrap_or(&upper);
    match plain {
        "RTMIN" => return Ok(34),
        "RTMAX" => return Ok(64),
        "CLD" => return Ok(17),
        "POLL" => return Ok(29),
        "IOT" => return Ok(6),
        _ => {}
    }
    if let Some(offset) = plain.strip_prefix("RTMAX-") {
        let offset = offset.parse::<i32>().ok().filter(|offset| (0..=30).contains(offset));
        return offset.map(|offset| 64 - offset).ok_or_else(unknown);
    }
    if let Some(offset) = plain.strip_prefix("RTMIN+") {
        return offset
            .parse::<i32>()
            .ok()
            .filter(|offset| (0..=30).contains(offset))
            .map(|offset| 34 + offset)
            .ok_or_else(unknown);
    }
    SIGNALS.iter().find(|(_, known)| *known == plain).map(|(number, _)| *number).ok_or_else(unknown)
}

fn device(asked: &cri::Device) -> Device {
    Device {
        host_path: asked.host_path.clone(),
        container_path: asked.container_path.clone(),
        permissions: asked.permissions.clone(),
        ..Device::default()
    }
}

#[cfg(test)]
mod tests;

//! A container as CRI's ContainerConfig, with the kubelet's labels, annotations and
//! hidden paths. Pure: owns the mapping; never calls. Called by [`super::CriRuntime`].

use std::collections::BTreeMap;

use gantry_model::mount::Mount;
use gantry_model::pod::security::AppArmor;
use gantry_model::pod::volume::Propagation;
use gantry_model::pod::{Pod, Security};
use gantry_proto::cri::security_profile::ProfileType;
use gantry_proto::cri::{self as wire};

use super::observe::CONTAINER_NAME;
use super::sandbox_config::{
    id_mappings, namespaces, pod_labels, profile, se_linux, seccomp, signal, supplemental_groups,
};
use super::{NodeConfig, annotations, resources};
use crate::devices::DeviceOptions;
use crate::runtime::{NewContainer, Users};

/// What a container must not see of /proc and /sys, as the kubelet asks.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(super) fn container(new: &NewContainer<'_>, node: &NodeConfig) -> wire::ContainerConfig {
    let NewContainer { pod, container, attempt, image_id, setup, .. } = *new;
    let mut labels: BTreeMap<String, String> = BTreeMap::from(pod_labels(pod));
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    let mut linux = resources::linux(pod, container, node);
    resources::hold(&mut linux, &setup.affinity, node);
    wire::ContainerConfig {
        metadata: Some(wire::ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(wire::ImageSpec {
            image: image_id.to_owned(),
            user_specified_image: container.image.clone(),
            ..Default::default()
        }),
        command: setup.command.clone(),
        args: setup.args.clone(),
        working_dir: container.working_dir.clone(),
        envs: setup
            .env
            .iter()
            .map(|(key, value)| wire::KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        mounts: setup.mounts.iter().map(|of| mount(pod, of, new.users)).collect(),
        labels,
        annotations: with_annotations(&setup.devices, annotations::of(pod, container, attempt)),
        devices: setup.devices.devices.iter().map(device).collect(),
        cdi_devices: setup.devices.cdi.iter().map(|name| wire::CdiDevice { name: name.clone() }).collect(),
        log_path: format!("{}/{attempt}.log", container.name),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        stop_signal: i32::from(signal(container.lifecycle.stop_signal.as_deref())),
        linux: Some(wire::LinuxContainerConfig {
            resources: Some(linux),
            security_context: Some(security(new, node)),
        }),
        ..Default::default()
    }
}

fn device((container_path, host_path, permissions): &(String, String, String)) -> wire::Device {
    wire::Device {
        container_path: container_path.clone(),
        host_path: host_path.clone(),
        permissions: permissions.clone(),
    }
}

/// The kubelet's own win.
fn with_annotations(devices: &DeviceOptions, own: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = devices.annotations.iter().cloned().collect();
    all.extend(own);
    all
}

fn mount(pod: &Pod, mount: &Mount, users: Option<Users>) -> wire::Mount {
    let ids = users.map(id_mappings).unwrap_or_default();
    let propagation = match mount.propagation {
        Propagation::None => wire::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => wire::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => wire::MountPropagation::PropagationBidirectional,
    };
    wire::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.to_string_lossy().into_owned(),
        readonly: mount.read_only,
        recursive_read_only: mount.recursive_read_only,
        propagation: i32::from(propagation),
        selinux_relabel: mount.relabel,
        uid_mappings: ids.clone(),
        gid_mappings: ids,
        image: mount.image.as_ref().map(|image| wire::ImageSpec {
            image: image.id.clone(),
            user_specified_image: image.written.clone(),
            annotations: pod.annotations.clone().into_iter().collect(),
            ..wire::ImageSpec::default()
        }),
        image_sub_path: mount.image.as_ref().map(|image| image.sub_path.clone()).unwrap_or_default(),
    }
}

#[expect(deprecated, reason = "runtimes that do not know the new field of AppArmor read the old one")]
fn security(new: &NewContainer<'_>, node: &NodeConfig) -> wire::LinuxContainerSecurityContext {
    let NewContainer { pod, users, target, image_user, .. } = *new;
    let security = &new.container.security;
    let mut namespaces = namespaces(pod.namespaces, users);
    if !target.is_empty() && namespaces.pid() == wire::NamespaceMode::Container {
        namespaces.set_pid(wire::NamespaceMode::Target);
        namespaces.target_id = target.to_owned();
    }
    let (run_as_user, run_as_username) = user(security, image_user);
    let id = |id: Option<i64>| id.map(|value| wire::Int64Value { value });
    let owned = |list: &[&str]| -> Vec<String> {
        // Nothing is hidden with procMount: Unmasked.
        let list = if security.unmasked_proc { &[] } else { list };
        list.iter().map(|path| (*path).to_owned()).collect()
    };
    let policy = if pod.security.strict_groups {
        wire::SupplementalGroupsPolicy::Strict
    } else {
        wire::SupplementalGroupsPolicy::Merge
    };
    wire::LinuxContainerSecurityContext {
        capabilities: Some(wire::Capability {
            add_capabilities: security.add_capabilities.clone(),
            drop_capabilities: security.drop_capabilities.clone(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: security.privileged,
        namespace_options: Some(namespaces),
        run_as_user: id(run_as_user),
        run_as_username,
        run_as_group: id(security.run_as_group),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: i32::from(policy),
        readonly_rootfs: security.read_only_root,
        no_new_privs: security.no_new_privileges,
        masked_paths: owned(MASKED),
        readonly_paths: owned(READONLY),
        seccomp: Some(seccomp(security.seccomp.as_ref(), node)),
        apparmor: security.app_armor.as_ref().map(app_armor),
        apparmor_profile: security.app_armor.as_ref().map(app_armor_text).unwrap_or_default(),
        selinux_options: security.se_linux.as_ref().map(se_linux),
        ..Default::default()
    }
}

/// The pod's user, else the image's: the runtime is told what runAsNonRoot was checked on, and is not left to read the
/// image in a way of its own.
fn user(security: &Security, image: (Option<i64>, &str)) -> (Option<i64>, String) {
    match security.run_as_user {
        Some(own) => (Some(own), String::new()),
        None => (image.0, image.1.to_owned()),
    }
}

/// As runtimes before 1.30 read it.
fn app_armor_text(wanted: &AppArmor) -> String {
    match wanted {
        AppArmor::Unconfined => "unconfined".to_owned(),
        AppArmor::RuntimeDefault => "runtime/default".to_owned(),
        AppArmor::Localhost(name) => format!("localhost/{name}"),
    }
}

fn app_armor(wanted: &AppArmor) -> wire::SecurityProfile {
    match wanted {
        AppArmor::Unconfined => profile(ProfileType::Unconfined, String::new()),
        AppArmor::RuntimeDefault => profile(ProfileType::RuntimeDefault, String::new()),
        AppArmor::Localhost(name) => profile(ProfileType::Localhost, name.clone()),
    }
}

//! The statuses of a pod's containers. Pure. Called by [`super::status`].

use std::collections::BTreeMap;

use gantry_model::pod::volume::RecursiveReadOnly;
use gantry_model::pod::{Container, Pod, Role};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{amounts, devices, seconds, text, time};
use crate::pod::status::{ContainerState, ContainerStatus, PodStatus};
use crate::runtime::{Exit, User};

/// Whose.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) pod: &'a Pod,
    pub(super) status: &'a PodStatus,
}

impl Of<'_> {
    /// In the pod's order.
    pub(super) fn all(
        self,
        list: &[ContainerStatus],
        before: Option<&[api::ContainerStatus]>,
    ) -> Vec<api::ContainerStatus> {
        let before = before.unwrap_or_default();
        list.iter()
            .map(|status| self.one(status, before.iter().find(|old| old.name == status.name)))
            .collect()
    }

    fn one(self, status: &ContainerStatus, before: Option<&api::ContainerStatus>) -> api::ContainerStatus {
        let spec = self.pod.container(&status.name);
        let id = self.container_id(&status.id);
        let was = |state: &ContainerState| self.state(state, &status.id);
        let last = status.last_exit.as_ref().map(|exit| self.convert_terminated(exit, &status.last_id));
        let made = !status.id.is_empty();
        api::ContainerStatus {
            name: status.name.clone(),
            image: status.image.clone(),
            image_id: status.image_id.clone(),
            container_id: id,
            state: Some(was(&status.state)),
            last_state: Some(api::ContainerState { terminated: last, ..api::ContainerState::default() }),
            ready: status.ready,
            restart_count: i32::try_from(status.restart_count).unwrap_or(i32::MAX),
            // An ephemeral container is asked nothing.
            started: (status.role != Role::Ephemeral).then_some(status.started),
            resources: spec.filter(|_| made).map(|spec| resources(spec, status)),
            allocated_resources: spec
                .filter(|_| made)
                .map(|spec| amounts::as_written(&spec.written.requests))
                .filter(|list| !list.is_empty()),
            volume_mounts: spec.map(|spec| self.mounts(spec)).filter(|list| !list.is_empty()),
            user: status.user.as_ref().map(user),
            allocated_resources_status: devices::resources_status(
                // Of regular containers only, as upstream.
                self.status.devices.get(&status.name).filter(|_| status.role == Role::Regular),
                before.and_then(|old| old.allocated_resources_status.as_ref()),
            ),
            stop_signal: None,
        }
    }

    /// `containerd://…`; none without an ID.
    fn container_id(self, id: &str) -> Option<String> {
        (!id.is_empty()).then(|| format!("{}://{id}", self.status.runtime))
    }

    fn state(self, state: &ContainerState, id: &str) -> api::ContainerState {
        let none = api::ContainerState::default();
        match state {
            ContainerState::Waiting { reason, message } => {
                let waiting = api::ContainerStateWaiting { reason: text(reason), message: text(message) };
                api::ContainerState { waiting: Some(waiting), ..none }
            }
            ContainerState::Running { started_at } => {
                let running = api::ContainerStateRunning { started_at: time(*started_at) };
                api::ContainerState { running: Some(running), ..none }
            }
            ContainerState::Terminated(exit) => {
                api::ContainerState { terminated: Some(self.convert_terminated(exit, id)), ..none }
            }
        }
    }

    fn convert_terminated(self, exit: &Exit, id: &str) -> api::ContainerStateTerminated {
        // One that never started did so at the epoch, as upstream shows it; one of which nothing is
        // known has no times.
        let known = exit.finished_at != 0;
        api::ContainerStateTerminated {
            exit_code: exit.code,
            signal: None,
            reason: text(&exit.reason),
            message: text(&exit.message),
            started_at: if known { seconds(exit.started_at) } else { None },
            finished_at: if known { seconds(exit.finished_at) } else { None },
            container_id: self.container_id(id),
        }
    }

    fn mounts(self, spec: &Container) -> Vec<api::VolumeMountStatus> {
        let able = self.status.recursive_read_only;
        let one = |mount: &gantry_model::pod::volume::VolumeMount| {
            let wants = match mount.recursive_read_only {
                RecursiveReadOnly::Disabled => false,
                RecursiveReadOnly::IfPossible | RecursiveReadOnly::Enabled => able,
            };
            let word = if wants { "Enabled" } else { "Disabled" };
            api::VolumeMountStatus {
                name: mount.volume.clone(),
                mount_path: mount.path.clone(),
                read_only: mount.read_only.then_some(true),
                recursive_read_only: mount.read_only.then(|| word.to_owned()),
                volume_status: None,
            }
        };
        spec.mounts.iter().map(one).collect()
    }
}

/// As described; what runs, as the runtime holds it to. Values below what the kernel can tell apart are
/// shown as described.
fn resources(spec: &Container, status: &ContainerStatus) -> api::ResourceRequirements {
    let mut limits = amounts::as_written(&spec.written.limits);
    let mut requests = amounts::as_written(&spec.written.requests);
    let set = |list: &mut BTreeMap<String, Quantity>, name: &str, actual: Option<i64>, least: i64| {
        let Some(actual) = actual.filter(|_| !list.is_empty()) else { return };
        let cpu = name == "cpu";
        let described = list.get(name).map_or(0, |Quantity(text)| amounts::parse(name, text));
        if !cpu || actual > least || described > least {
            let text = if cpu { amounts::milli(actual) } else { amounts::bytes(actual) };
            list.insert(name.to_owned(), Quantity(text));
        }
    };
    if let Some(actual) = status.actual {
        set(&mut limits, "cpu", actual.cpu_limit, amounts::LEAST_LIMIT);
        set(&mut limits, "memory", actual.memory_limit, 0);
        set(&mut requests, "cpu", actual.cpu_request, amounts::LEAST_REQUEST);
    }
    if let Some(memory) = status.memory_request.as_ref().filter(|_| !requests.is_empty()) {
        requests.insert("memory".to_owned(), Quantity(memory.clone()));
    }
    let list = |list: BTreeMap<String, Quantity>| Some(list).filter(|list| !list.is_empty());
    api::ResourceRequirements { claims: None, limits: list(limits), requests: list(requests) }
}

fn user(user: &User) -> api::ContainerUser {
    let User { uid, gid, groups } = user;
    let groups = Some(groups.clone()).filter(|groups| !groups.is_empty());
    api::ContainerUser {
        linux: Some(api::LinuxContainerUser { uid: *uid, gid: *gid, supplemental_groups: groups }),
    }
}

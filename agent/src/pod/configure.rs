//! What a container is started with: everything that its description refers to is looked up and
//! expanded. Owns the order of the steps; never calls the runtime. Called by [`super::run`] right
//! before a container is created.
//!
//! devices: [`crate::devices`], [`crate::dra`] · who: [`user`] · with what: [`environment`] · on what: [`crate::volumes`]

mod env_file;
mod environment;
mod services;
mod user;

use gantry_model::mount::Mount;
use gantry_model::pod::volume::Propagation;
use gantry_model::pod::{Container, Pod};

use super::run::Deps;
use super::worker_state::WaitReason;
use crate::devices::DeviceOptions;
use crate::runtime::{Image, Setup};
use crate::volumes::{MountsOf, PodFacts};
use environment::{EnvOf, environment, expand_all, texts};

/// A container about to be created.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContainerRequest<'a> {
    pub(super) deps: &'a Deps,
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    /// Which start of it.
    pub(super) attempt: u32,
    /// What it is made from.
    pub(super) image: &'a Image,
    /// Known since its sandbox runs.
    pub(super) facts: &'a PodFacts,
    /// IDs of the images of its image volumes, by volume.
    pub(super) images: &'a [(String, String)],
}

/// Looks everything up.
///
/// # Errors
/// As CreateContainerConfigError, naming what is missing.
pub(super) async fn configure(of: ContainerRequest<'_>) -> Result<Setup, WaitReason> {
    let trouble = |message| WaitReason {
        reason: "CreateContainerConfigError".to_owned(),
        message,
        image: String::new(),
    };
    let ContainerRequest { deps, pod, container, attempt, image, facts, images } = of;
    deps.managers.begin(pod, container).await;
    let mut devices = deps.devices.options(pod, container).await.map_err(trouble)?;
    // Those of claims come first, as upstream.
    devices.cdi.splice(..0, deps.dra.cdi(pod, container).map_err(trouble)?);
    let env = environment(
        deps.api.as_ref(),
        EnvOf { pod, container, facts, node: &deps.node, volumes: deps.volumes.as_ref() },
    );
    let env = with_variables(&devices, env.await.map_err(trouble)?);
    user::check(pod, container, image.uid, &image.username).map_err(trouble)?;
    let texts = texts(&env);
    let mounts = deps.volumes.mounts(MountsOf { pod, container, attempt, env: &texts, facts, images });
    let mounts = mounts.await.map_err(|error| trouble(error.message))?;
    let blocks = deps.volumes.devices(pod, container).await.map_err(|error| trouble(error.message))?;
    devices.devices.extend(blocks);
    let (command, args) = (expand_all(&container.command, &env), expand_all(&container.args, &env));
    Ok(Setup {
        command: command.map_err(trouble)?,
        args: args.map_err(trouble)?,
        env,
        // The container's own come after them, as upstream.
        mounts: devices.mounts.iter().map(device_mount).chain(mounts).collect(),
        devices,
        affinity: deps.managers.affinity(&pod.uid, &container.name),
    })
}

/// The variables of devices, but for those that the container sets itself.
fn with_variables(devices: &DeviceOptions, own: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let free = |(name, _): &&(String, String)| own.iter().all(|(set, _)| set != name);
    let of_devices = devices.env.iter().filter(free);
    let mut env: Vec<(String, Vec<u8>)> =
        of_devices.map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect();
    env.extend(own);
    env
}

fn device_mount((container_path, host_path, read_only): &(String, String, bool)) -> Mount {
    Mount {
        host_path: host_path.into(),
        image: None,
        container_path: container_path.clone(),
        read_only: *read_only,
        recursive_read_only: false,
        propagation: Propagation::None,
        relabel: false,
    }
}

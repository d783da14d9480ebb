//! CreateContainer: checks everything that can be checked, resolves the user, and writes down what
//! the monitor will be told. No process is started. Called by the RPC handler, in a task of its own.

#![expect(clippy::disallowed_methods, reason = "part of a container that counts once its record is there")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use gantry_failpoint::failpoint;
use gantry_proto::cri;
use gantry_proto::monitor::{Mount, Rootfs, StartContainer, UserMapping};
use prost::Message;

use super::labels::Labels;
use super::sources::{self, MountSources};
use super::{
    START_FILE, accounts, bundle, devices, image_mounts, image_volumes, labels, propagation, reserved_name,
    target,
};
use crate::cdi;
use crate::cgroup::Cgroup;
use crate::config::HOST_FILES;
use crate::error::Error;
use crate::handler::plan;
use crate::node::{Node, new_id};
use crate::seccomp;
use crate::spec;
use crate::spec::container::CheckedContainer;
use crate::spec::profiles;
use crate::spec::user::ProcessUser;
use crate::store::event_order::Kind;
use crate::store::names::{Claim, NameTaken, fingerprint};
use crate::store::record::{self, ContainerRecord, MountRecord, MountedImage, SandboxRecord, VERSION};
use crate::store::{Container, ContainerState, RecordStore, Sandbox, SandboxState};
use gantry_base::timeline::unix_nanos;
use gantry_image::pins::Pin;
use gantry_image::{Image, Reference};
use gantry_monitor::user_mapping;

/// In errors.
const KIND: &str = "container";

/// Makes a container and returns its id. Nothing in this keeps the sandbox from being stopped meanwhile: the container
/// becomes the sandbox's own at the end, if that is still ready, or is undone.
///
/// # Errors
/// What is wrong with the request, or with this node; nothing is left behind.
pub(crate) async fn create(node: Arc<Node>, request: cri::CreateContainerRequest) -> Result<String, Error> {
    let mut config = request.config.ok_or(spec::Error::Missing("config"))?;
    let metadata = config.metadata.clone().ok_or(spec::Error::Missing("config.metadata"))?;
    if metadata.name.is_empty() {
        return Err(spec::Error::Missing("config.metadata.name").into());
    }
    let sandbox = node.store.sandbox(&request.pod_sandbox_id)?;
    check_ready(&sandbox)?;
    target::resolve(&node.store, &mut config, &sandbox.id)?;
    let unset_seccomp = unset_seccomp(&node, &sandbox.record());
    spec::container::check(&config, &node.config.handlers, &unset_seccomp)?;
    let labels = labels::of(&node, &config, &sandbox.record())?;
    let sources = sources::resolve(&config.mounts, &labels.files, &sandbox.sources).await?;
    let named = config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
    let id = new_id()?;
    let name = reserved_name(&metadata.name, metadata.attempt, &sandbox.id);
    let reservation = match node.store.names.claim(KIND, &name, &id, &fingerprint(&config)).await? {
        Claim::Mine(reservation) => reservation,
        // A caller that gave up waiting asks again: it gets the container that was made. One that has been
        // started has a caller that knows it.
        Claim::Done(id) if exists(&node, &id) => return Ok(id),
        Claim::Done(id) => return Err(NameTaken { kind: KIND, name, id }.into()),
    };
    failpoint!("create.named"?);
    // Before anything is made: from here to RemoveContainer the image's layers stay.
    let (image, pin) = node.images.pin(&named, &id).ok_or_else(|| Error::NoImage(named.clone()))?;
    let folder = node.container_folder(&id);
    let (owned, mut parent, into) = (node.clone(), SandboxRecord::clone(&sandbox.record()), folder.clone());
    // As containerd, which goes by the pod as it is now: `kubectl debug` may have added a privileged container to it.
    let now = request.sandbox_config.and_then(|config| config.linux?.security_context);
    parent.privileged |= now.is_some_and(|now| now.privileged);
    let job = move || {
        let made = image_mounts::pin(&config, &pin).and_then(|mounted| {
            make(&owned, &parent, &PinnedImages { image, mounted, sources, labels }, &config, &id, &into)
        });
        // Here, not with the caller: letting go of layers may delete them.
        match made {
            Ok(record) => Ok((record, pin)),
            Err(error) => {
                undo(&into, pin);
                Err(error)
            }
        }
    };
    let (record, pin) = tokio::task::spawn_blocking(job).await??;
    let container = Arc::new(Container::new(record, folder, ContainerState::Created));
    if let Err(error) = add(&node.store, &sandbox, &container).await {
        let folder = container.folder.clone();
        tokio::task::spawn_blocking(move || undo(&folder, pin)).await?;
        return Err(error);
    }
    pin.keep();
    reservation.commit();
    failpoint!("create.kept");
    node.container_events.send_container_event(&node.store, Kind::ContainerCreatedEvent, &container);
    Ok(container.id.clone())
}

fn check_ready(sandbox: &Sandbox) -> Result<(), Error> {
    match sandbox.state() {
        SandboxState::Ready => Ok(()),
        SandboxState::Starting | SandboxState::NotReady => Err(Error::SandboxNotReady(sandbox.id.clone())),
    }
}

/// Gives the sandbox a container that has been made.
///
/// # Errors
/// When the sandbox has been stopped meanwhile.
async fn add(store: &RecordStore, sandbox: &Sandbox, container: &Arc<Container>) -> Result<(), Error> {
    // Who stops or removes the sandbox sees all of its containers: they are added before it or not at all.
    let _operation = sandbox.begin_operation().await;
    check_ready(sandbox)?;
    store.add_container(container.clone());
    Ok(())
}

/// Removes what there is of a container that will not be, and lets go of its layers, which may delete them. Blocks.
fn undo(folder: &Path, pin: Pin) {
    if folder.exists() {
        // The failure is what the caller must hear; what stays is removed at the next start.
        if let Err(error) = gantry_image::remove::tree(folder) {
            tracing::warn!(folder = %folder.display(), "{error}");
        }
    }
    drop(pin);
}

/// Of the handler as the sandbox was made with it; of its name where an older runtime has made the sandbox.
fn unset_seccomp(node: &Node, sandbox: &SandboxRecord) -> seccomp::SeccompChoice {
    let own = sandbox.unset_seccomp_profile.clone();
    let own = own.or_else(|| node.config.unset_seccomp_of(&sandbox.runtime_handler));
    profiles::unset_seccomp_profile(&node.config, own.as_deref())
}

fn exists(node: &Node, id: &str) -> bool {
    node.store.container(id).is_ok_and(|container| matches!(container.state(), ContainerState::Created))
}

/// What the container needs of the node: images, and paths.
struct PinnedImages {
    /// Its own.
    image: Arc<Image>,
    /// One for each mount of the request that is of an image.
    mounted: Vec<Option<Arc<Image>>>,
    /// Of its other mounts.
    sources: MountSources,
    /// Which these have by now.
    labels: Labels,
}

impl PinnedImages {
    /// What the record has to hold.
    fn layer_keys(&self) -> Vec<String> {
        let all = std::iter::once(&self.image).chain(self.mounted.iter().flatten());
        all.flat_map(|image| image.layer_keys()).cloned().collect()
    }
}

fn make(
    node: &Node,
    sandbox: &SandboxRecord,
    pinned: &PinnedImages,
    config: &cri::ContainerConfig,
    id: &str,
    folder: &Path,
) -> Result<ContainerRecord, Error> {
    let image = &pinned.image;
    let unset_seccomp = unset_seccomp(node, sandbox);
    let checked = spec::container::check(config, &node.config.handlers, &unset_seccomp)?;
    let names = cdi::requested_devices(config, node.config.cdi.enabled)?;
    spec::container::resources(&checked.linux_resources).check(node.layout.is_unified())?;
    let layers = node.images.layers(image);
    let users = sandbox.users.map(|users| users.mapping());
    let top = layers.first().map(|top| node.images.layers_dir().join(top));
    make_folders(folder, top.as_deref(), users.as_ref())?;
    failpoint!("create.folders"?);
    let accounts = accounts::read(node.images.layers_dir(), &layers, &folder.join("root"))?;
    let user = spec::user::resolve(&checked.user(&image.config), &accounts)?;
    let mut start = checked.start(config, &image.config, &user, sandbox)?;
    devices::expand_folders(&mut start.devices)?;
    if start.privileged {
        devices::add_all_of_node(&mut start.devices)?;
    }
    let bounding = start.capabilities.map_or(0, |sets| sets.bounding);
    let filter = seccomp::filter(&checked.seccomp, bounding)?;
    (start.seccomp_filter, start.seccomp_flags) = (filter.program, filter.flags);
    let stop_signal = spec::container::stop_signal(config, &image.config)?;
    let cgroup_path = sandbox.member_cgroup(id);
    let cgroup = Cgroup::new(&node.layout, &cgroup_path)?;
    let log_path = log_path(sandbox, config);
    start.id = id.to_owned();
    start.cgroup = Some(cgroup.target());
    start.log_path.clone_from(&log_path);
    start.record_dir = folder.display().to_string();
    image_mounts::resolve(&mut start, config, (&node.images, &pinned.mounted), folder)?;
    let taken =
        config.mounts.iter().map(|mount| spec::container::clean_path(&mount.container_path)).collect();
    let of = (node.images.layers_dir(), layers.as_slice());
    let volumes = image_volumes::make(&image.config.volumes, &taken, of, folder)?;
    // Copied with the image's owners, as its layers have them.
    start.mounts.extend(volumes.into_iter().map(|volume| Mount { users, ..volume }));
    start.rootfs = Some(rootfs(node, folder, layers, checked.readonly_rootfs()));
    let own = node.sandbox_folder(&sandbox.id);
    resolve_mounts(&mut start, config, &pinned.sources, &own, checked.readonly_rootfs())?;
    labels::add(node, &mut start, config, &checked, &pinned.labels)?;
    failpoint!("create.labelled"?);
    cdi::inject(&mut start, &names, &node.config.cdi.spec_dirs)?;
    spec::userns::check_hooks(&start)?;
    bundle::write(&mut start, config, sandbox, folder)?;
    plan::complete_create(&mut start, sandbox, &checked.seccomp, &folder.join(bundle::FOLDER))?;
    let path = folder.join(START_FILE);
    fs::write(&path, start.encode_to_vec()).map_err(|source| Error::Files { what: "write", path, source })?;
    failpoint!("create.planned"?);
    let record = ContainerRecord {
        log_path,
        stop_signal,
        cgroup: cgroup_path,
        process_label: pinned.labels.process.clone(),
        ..new_record(node, sandbox, pinned, config, &checked, &user, id)
    };
    record::write(folder, &record)?;
    failpoint!("create.record"?);
    Ok(record)
}

/// Empty where nothing is to be logged.
fn log_path(sandbox: &SandboxRecord, config: &cri::ContainerConfig) -> String {
    if sandbox.log_directory.is_empty() || config.log_path.is_empty() {
        return String::new();
    }
    // Relative to the pod's folder, also when it begins with a slash.
    let name = config.log_path.trim_start_matches('/');
    Path::new(&sandbox.log_directory).join(name).display().to_string()
}

/// The container's own folders. Mode and owner of the upper become those of the container's `/`: they
/// are the image's, and its topmost folder has them. With users of its own the pod finds them behind its map.
fn make_folders(folder: &Path, top_layer: Option<&Path>, users: Option<&UserMapping>) -> Result<(), Error> {
    for name in ["upper", "work", "root", "empty"] {
        let path = folder.join(name);
        fs::create_dir_all(&path).map_err(|source| Error::Files { what: "make", path, source })?;
    }
    let upper = folder.join("upper");
    let wrap = |source| Error::Files { what: "set mode and owner of", path: upper.clone(), source };
    let (mode, uid, gid) = match top_layer {
        Some(layer) => {
            let found = fs::metadata(layer).map_err(wrap)?;
            (found.mode() & 0o7777, found.uid(), found.gid())
        }
        None => (0o755, 0, 0),
    };
    let (uid, gid) = match users {
        None => (uid, gid),
        Some(users) => user_mapping::owner(users, uid, gid).ok_or_else(|| {
            spec::Error::Users(format!("the image's / belongs to {uid}:{gid}, which the pod does not have"))
        })?,
    };
    std::os::unix::fs::chown(&upper, Some(uid), Some(gid)).map_err(wrap)?;
    fs::set_permissions(&upper, fs::Permissions::from_mode(mode)).map_err(wrap)
}

fn rootfs(node: &Node, folder: &Path, mut lower: Vec<String>, readonly: bool) -> Rootfs {
    let path = |name: &str| folder.join(name).display().to_string();
    if lower.is_empty() {
        // An overlay needs one; an image may have none.
        lower.push(path("empty"));
    }
    Rootfs {
        layers_dir: node.images.layers_dir().display().to_string(),
        lower,
        upper: path("upper"),
        work: path("work"),
        target: path("root"),
        readonly,
    }
}

/// The sandbox's own files where the request brings none, and the request's mounts with what their sources
/// have turned out to be.
fn resolve_mounts(
    start: &mut StartContainer,
    config: &cri::ContainerConfig,
    sources: &MountSources,
    sandbox: &Path,
    readonly: bool,
) -> Result<(), Error> {
    for mount in start.mounts.iter_mut().filter(|mount| mount.image.is_none()) {
        if let Some(found) = sources.get(&mount.source) {
            mount.source.clone_from(found);
        }
    }
    propagation::check(&start.mounts)?;
    let users = start.users;
    let own = HOST_FILES
        .iter()
        .filter(|(_, destination)| !config.mounts.iter().any(|mount| mount.container_path == *destination))
        .map(|(name, destination)| Mount {
            source: sandbox.join(name).display().to_string(),
            destination: (*destination).to_owned(),
            readonly,
            users,
            ..Mount::default()
        });
    start.mounts.extend(own);
    // Outer before inner, whatever order they were given in.
    start.mounts.sort_by_key(|mount| mount.destination.trim_end_matches('/').matches('/').count());
    Ok(())
}

/// The name that a container's status tells: the user's among the image's tags, else the first of them,
/// which is all that containerd looks at.
fn tag_of(image: &Image, written: &str) -> String {
    let written = Reference::parse(written).ok().and_then(|reference| reference.tag_name());
    let own = written.filter(|name| image.repo_tags.contains(name));
    own.or_else(|| image.repo_tags.first().cloned()).unwrap_or_default()
}

/// As the request has them; `spec::userns` has checked that there is one line of each, or none.
fn users_of(mount: &cri::Mount) -> Option<record::Users> {
    let line = |of: &cri::IdMapping| record::IdLine {
        container_id: of.container_id,
        host_id: of.host_id,
        length: of.length,
    };
    let (uids, gids) = mount.uid_mappings.first().zip(mount.gid_mappings.first())?;
    Some(record::Users { uids: line(uids), gids: line(gids) })
}

fn mount_record(mount: &cri::Mount) -> MountRecord {
    MountRecord {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        propagation: mount.propagation,
        recursive_readonly: mount.recursive_read_only,
        users: users_of(mount),
        image: mount.image.as_ref().map(|image| MountedImage {
            image: image.image.clone(),
            user_specified_image: image.user_specified_image.clone(),
            sub_path: mount.image_sub_path.clone(),
        }),
    }
}

fn new_record(
    node: &Node,
    sandbox: &SandboxRecord,
    pinned: &PinnedImages,
    config: &cri::ContainerConfig,
    checked: &CheckedContainer,
    user: &ProcessUser,
    id: &str,
) -> ContainerRecord {
    let image = &pinned.image;
    let metadata = config.metadata.clone().unwrap_or_default();
    let named = config.image.clone().unwrap_or_default();
    ContainerRecord {
        version: VERSION,
        id: id.to_owned(),
        sandbox_id: sandbox.id.clone(),
        boot_id: node.boot_id.clone(),
        name: metadata.name,
        attempt: metadata.attempt,
        image_spec: record::to_hex(&named.encode_to_vec()),
        image_name: tag_of(image, &named.user_specified_image),
        image: if named.user_specified_image.is_empty() { named.image } else { named.user_specified_image },
        image_id: image.id.clone(),
        image_ref: image.repo_digests.first().cloned().unwrap_or_else(|| image.id.clone()),
        layers: pinned.layer_keys(),
        labels: config.labels.clone().into_iter().collect(),
        annotations: config.annotations.clone().into_iter().collect(),
        mounts: config.mounts.iter().map(mount_record).collect(),
        log_path: String::new(),
        cgroup: String::new(),
        process_label: String::new(),
        stop_signal: 0,
        created_at: unix_nanos(),
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        resources: record::to_hex(&checked.linux_resources.encode_to_vec()),
        request: fingerprint(config),
        started: None,
        start_failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Arc<Container> {
        let record: ContainerRecord = serde_json::from_value(serde_json::json!({
            "version": VERSION, "id": "c", "sandbox_id": "", "boot_id": "b", "name": "web", "attempt": 0,
            "image": "i", "image_id": "sha256:1", "image_ref": "r", "labels": {}, "annotations": {}, "mounts": [],
            "log_path": "", "cgroup": "/c", "stop_signal": 15, "created_at": 1, "uid": 0, "gid": 0, "groups": [],
            "resources": "", "started": null, "start_failure": null,
        }))
        .unwrap();
        Arc::new(Container::new(record, "/none".into(), ContainerState::Created))
    }

    #[tokio::test]
    async fn a_container_whose_sandbox_is_stopped_while_it_is_made_is_not_added() {
        let store = RecordStore::default();
        let sandbox = Sandbox::new(spec::fuzzing::record(), "/none".into(), SandboxState::Ready);
        let container = made();
        {
            // A stop is under way, and is waited for.
            let stopping = sandbox.begin_operation().await;
            let mut adding = std::pin::pin!(add(&store, &sandbox, &container));
            let looked = std::future::poll_fn(|context| {
                std::task::Poll::Ready(adding.as_mut().poll(context).is_pending())
            });
            assert!(looked.await);
            sandbox.set_state(SandboxState::NotReady);
            drop(stopping);
            assert!(matches!(adding.await, Err(Error::SandboxNotReady(_))));
        }
        assert!(store.containers().is_empty());
        let sandbox = Sandbox::new(spec::fuzzing::record(), "/none".into(), SandboxState::Ready);
        add(&store, &sandbox, &container).await.unwrap();
        assert_eq!(store.containers().len(), 1);
    }
}

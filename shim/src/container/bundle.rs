//! The OCI bundle of a container with hooks: a folder with the `config.json` that hooks read (nvidia-ctk takes
//! root, mounts and process from it). Owns what is in it (docs/adr/0027 says what is not); nothing of ours ever
//! reads it. Called by `container::create`, after everything else of the start is known.

use std::fs;
use std::path::Path;

use gantry_proto::cri;
use gantry_proto::monitor::{Hook, HookStage, Mount, NamespaceMode, Propagation, StartContainer};
use serde_json::{Value, json};

use crate::error::Error;
use crate::spec::capabilities;
use crate::store::record::SandboxRecord;

/// Below the container's folder.
pub(super) const FOLDER: &str = "bundle";

/// Writes it and tells the hooks where, if there are hooks.
///
/// # Errors
/// When the folder can't be written.
pub(super) fn write(
    start: &mut StartContainer,
    config: &cri::ContainerConfig,
    sandbox: &SandboxRecord,
    folder: &Path,
) -> Result<(), Error> {
    let Some(hooks) = &mut start.hooks else { return Ok(()) };
    let bundle = folder.join(FOLDER);
    hooks.bundle = bundle.display().to_string();
    hooks.annotations = annotations(config, sandbox).into_iter().collect();
    let text = serde_json::to_vec_pretty(&document(start, sandbox)).map_err(std::io::Error::other);
    let path = bundle.join("config.json");
    let written = fs::create_dir_all(&bundle).and_then(|()| fs::write(&path, text?));
    written.map_err(|source| Error::Files { what: "write", path, source })
}

/// Those of containerd that hooks look at.
fn annotations(config: &cri::ContainerConfig, sandbox: &SandboxRecord) -> [(String, String); 7] {
    let image = config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
    let name = config.metadata.as_ref().map(|metadata| metadata.name.clone()).unwrap_or_default();
    [
        ("container-type", "container".to_owned()),
        ("sandbox-id", sandbox.id.clone()),
        ("sandbox-name", sandbox.pod.name.clone()),
        ("sandbox-namespace", sandbox.pod.namespace.clone()),
        ("sandbox-uid", sandbox.pod.uid.clone()),
        ("container-name", name),
        ("image-name", image),
    ]
    .map(|(key, value)| (format!("io.kubernetes.cri.{key}"), value))
}

fn document(start: &StartContainer, sandbox: &SandboxRecord) -> Value {
    let root = start.rootfs.clone().unwrap_or_default();
    json!({
        "ociVersion": "1.3.0",
        "root": { "path": root.target, "readonly": root.readonly },
        "hostname": sandbox.hostname,
        "process": process(start),
        "mounts": start.mounts.iter().filter_map(mount).collect::<Vec<_>>(),
        "annotations": start.hooks.as_ref().map(|hooks| hooks.annotations.clone()).unwrap_or_default(),
        "hooks": hooks(start),
        "linux": {
            "cgroupsPath": sandbox.member_cgroup(&start.id),
            "namespaces": namespaces(start, sandbox),
            "devices": start.devices.iter().filter_map(device).collect::<Vec<_>>(),
            "maskedPaths": start.masked_paths,
            "readonlyPaths": start.readonly_paths,
            "mountLabel": start.mount_label,
        },
    })
}

fn process(start: &StartContainer) -> Value {
    let sets = start.capabilities.unwrap_or_default();
    let env: Vec<_> = start.env.iter().map(|pair| String::from_utf8_lossy(pair)).collect();
    json!({
        "terminal": start.tty,
        "user": { "uid": start.uid, "gid": start.gid, "additionalGids": start.additional_gids },
        "args": start.args,
        "env": env,
        "cwd": start.cwd,
        "noNewPrivileges": start.no_new_privs,
        "oomScoreAdj": start.oom_score_adj,
        "apparmorProfile": start.apparmor_profile,
        "selinuxLabel": start.process_label,
        "capabilities": {
            "bounding": capabilities::names(sets.bounding),
            "effective": capabilities::names(sets.effective),
            "permitted": capabilities::names(sets.permitted),
            "inheritable": capabilities::names(sets.inheritable),
            "ambient": capabilities::names(sets.ambient),
        },
    })
}

/// Those with a source on the node; an image's layers have no place there.
fn mount(mount: &Mount) -> Option<Value> {
    if mount.image.is_some() {
        return None;
    }
    let mut options = Vec::new();
    if let Some(tmpfs) = &mount.tmpfs {
        options.extend(tmpfs.options.iter().map(String::as_str));
    } else {
        options.push(if mount.single { "bind" } else { "rbind" });
    }
    options.push(match mount.propagation() {
        Propagation::Private => "rprivate",
        Propagation::Slave => "rslave",
        Propagation::Shared => "rshared",
    });
    options.push(if mount.readonly { "ro" } else { "rw" });
    if mount.recursive_readonly {
        options.push("rro");
    }
    let (kind, source) =
        if mount.tmpfs.is_some() { ("tmpfs", "tmpfs") } else { ("bind", mount.source.as_str()) };
    Some(json!({ "destination": mount.destination, "type": kind, "source": source, "options": options }))
}

/// Those that a CDI file says in full.
fn device(device: &gantry_proto::monitor::Device) -> Option<Value> {
    let node = device.node.as_ref()?;
    Some(json!({
        "path": device.container_path,
        "type": node.kind,
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.mode,
        "uid": node.uid,
        "gid": node.gid,
    }))
}

fn namespaces(start: &StartContainer, sandbox: &SandboxRecord) -> Vec<Value> {
    let mut all = vec![json!({ "type": "mount" }), json!({ "type": "cgroup" })];
    if let Some(network) = &sandbox.network {
        all.push(json!({ "type": "network", "path": network.netns }));
        all.push(json!({ "type": "uts" }));
    }
    if start.ipc() != NamespaceMode::Host {
        all.push(json!({ "type": "ipc" }));
    }
    if start.pid() != NamespaceMode::Host {
        all.push(json!({ "type": "pid" }));
    }
    all
}

fn hooks(start: &StartContainer) -> Value {
    let of = |stage: HookStage| -> Vec<Value> {
        let all = start.hooks.iter().flat_map(|hooks| &hooks.hooks);
        all.filter(|hook| hook.stage() == stage).map(hook).collect()
    };
    json!({
        "prestart": of(HookStage::HookPrestart),
        "createRuntime": of(HookStage::HookCreateRuntime),
        "createContainer": of(HookStage::HookCreateContainer),
        "startContainer": of(HookStage::HookStartContainer),
        "poststart": of(HookStage::HookPoststart),
        "poststop": of(HookStage::HookPoststop),
    })
}

fn hook(hook: &Hook) -> Value {
    let mut value = json!({ "path": hook.path, "args": hook.args, "env": hook.env });
    if let (Some(fields), Some(seconds)) = (value.as_object_mut(), hook.timeout) {
        fields.insert("timeout".to_owned(), seconds.into());
    }
    value
}

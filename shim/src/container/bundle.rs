//! The OCI bundle of a container with hooks: a folder with the `config.json` that hooks read (nvidia-ctk takes
//! root, mounts and process from it). Owns what is in it (docs/adr/0027 says what is not); nothing of ours ever
//! reads it. Called by `container::create`, after everything else of the start is known, and for the document alone by
//! `container::specification`.

#![expect(clippy::disallowed_methods, reason = "part of a container that counts once its record is there")]

use std::fs;
use std::path::Path;

use gantry_failpoint::failpoint;
use gantry_proto::cri;
use gantry_proto::monitor::{Mount, NamespaceMode, StartContainer};
use serde_json::{Value, json};

use crate::error::Error;
use crate::handler::document::{self, DocumentLimits};
use crate::store::record::SandboxRecord;
use gantry_monitor::init::cgroups::View;

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
    let text = serde_json::to_vec_pretty(&contents(start, sandbox)).map_err(std::io::Error::other);
    let path = bundle.join("config.json");
    let written = fs::create_dir_all(&bundle).and_then(|()| fs::write(&path, text?));
    written.map_err(|source| Error::Files { what: "write", path, source })?;
    failpoint!("create.bundle"?);
    Ok(())
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

pub(super) fn contents(start: &StartContainer, sandbox: &SandboxRecord) -> Value {
    let root = start.rootfs.clone().unwrap_or_default();
    json!({
        "ociVersion": "1.3.0",
        "root": { "path": root.target, "readonly": root.readonly },
        "hostname": sandbox.hostname,
        "process": document::process(start, start.tty, unlimited()),
        "mounts": start.mounts.iter().filter_map(mount).collect::<Vec<_>>(),
        "annotations": start.hooks.as_ref().map(|hooks| hooks.annotations.clone()).unwrap_or_default(),
        "hooks": document::hooks(start),
        "linux": {
            "cgroupsPath": sandbox.member_cgroup(&start.id),
            "namespaces": namespaces(start, sandbox),
            "devices": start.devices.iter().filter_map(document::device).collect::<Vec<_>>(),
            "maskedPaths": start.masked_paths,
            "readonlyPaths": start.readonly_paths,
            "mountLabel": start.mount_label,
        },
    })
}

/// Of the container itself, whatever the node can give.
fn unlimited() -> DocumentLimits {
    DocumentLimits { held: u64::MAX, oom_score: i32::MIN, open_files: (1024, 524_288) }
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
    options.push(document::propagation(mount));
    options.push(if mount.readonly { "ro" } else { "rw" });
    if mount.recursive_readonly {
        options.push("rro");
    }
    let (kind, source) =
        if mount.tmpfs.is_some() { ("tmpfs", "tmpfs") } else { ("bind", mount.source.as_str()) };
    Some(json!({ "destination": mount.destination, "type": kind, "source": source, "options": options }))
}

fn namespaces(start: &StartContainer, sandbox: &SandboxRecord) -> Vec<Value> {
    let mut all = vec![json!({ "type": "mount" })];
    if View::of(start) == View::Own {
        all.push(json!({ "type": "cgroup" }));
    }
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

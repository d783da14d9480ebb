//! A container of an OCI runtime from create to start and exec: the program it goes to, and what only the node
//! knows of it. Owns what is kept from one to the other; the words are `handler::document`'s. Called by
//! `container::create`, `container::start`, `container::stop` and `exec`, on blocking threads.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use gantry_proto::monitor::{Device, DeviceNode, External, NamespaceMode, StartContainer};
use rustix::process::Resource;
use serde_json::Value;

use super::document::{self, DocumentLimits, NodeFacts};
use crate::error::Error;
use crate::seccomp;
use crate::store::record::{ContainerRecord, OciProgram, SandboxRecord};

/// Terminals are made by the container's own devpts (runc leaves it out as well).
const PTMX: &str = "/dev/ptmx";

/// Has the container be made by its sandbox's program, where that has one.
///
/// # Errors
/// What the program can't be told.
pub(crate) fn complete_create(
    start: &mut StartContainer,
    sandbox: &SandboxRecord,
    wanted: &seccomp::SeccompChoice,
    bundle: &Path,
) -> Result<(), Error> {
    let Some(OciProgram { program, root }) = &sandbox.oci else { return Ok(()) };
    if let Some(pair) = start.env.iter().find(|pair| std::str::from_utf8(pair).is_err()) {
        return Err(Error::HandlerEnv(String::from_utf8_lossy(pair).into_owned()));
    }
    let bounding = start.capabilities.map_or(0, |sets| sets.bounding);
    start.external = Some(External {
        program: program.display().to_string(),
        root: root.display().to_string(),
        bundle: bundle.display().to_string(),
        document: Vec::new(),
        seccomp: seccomp::oci(wanted, bounding)?,
    });
    // Compiled by the program, of the same profile.
    (start.seccomp_filter, start.seccomp_flags) = (Vec::new(), 0);
    Ok(())
}

/// Says to the program what the container is. `target` is the process whose pid namespace it joins.
///
/// # Errors
/// A device that is not there, a sandbox whose holder is not known.
pub(crate) fn complete_start(
    start: &mut StartContainer,
    sandbox: &SandboxRecord,
    container: &ContainerRecord,
    target: Option<i32>,
) -> Result<(), Error> {
    let Some(external) = &start.external else { return Ok(()) };
    let damaged = |error: serde_json::Error| Error::Files {
        what: "read the seccomp profile of",
        path: external.bundle.clone().into(),
        source: error.into(),
    };
    let profile = match external.seccomp.as_slice() {
        [] => None,
        bytes => Some(serde_json::from_slice::<Value>(bytes).map_err(damaged)?),
    };
    let pause = sandbox.pause.ok_or_else(|| Error::SandboxNotReady(sandbox.id.clone()))?;
    start.devices.retain(|device| device.container_path != PTMX);
    find_nodes(&mut start.devices)?;
    if start.pid() == NamespaceMode::Target && target.is_none() {
        return Err(Error::NotRunning("CONTAINER_EXITED"));
    }
    let facts = NodeFacts {
        pause: pause.pid,
        target: target.unwrap_or(0),
        cgroup: container.cgroup.clone(),
        annotations: annotations(sandbox, container),
        seccomp: profile,
        limits: limits()?,
    };
    let text = document::container(start, &facts).to_string();
    if let Some(external) = &mut start.external {
        external.document = text.into_bytes();
        external.seccomp = Vec::new();
    }
    Ok(())
}

/// Says to the program what an exec is.
///
/// # Errors
/// When the node's own limits can't be read.
pub(crate) fn complete_exec(process: &mut StartContainer, terminal: bool) -> Result<(), Error> {
    if process.external.is_none() {
        return Ok(());
    }
    let text = document::process(process, terminal, limits()?).to_string();
    if let Some(external) = &mut process.external {
        external.document = text.into_bytes();
        external.seccomp = Vec::new();
    }
    Ok(())
}

/// Those whose numbers nobody has said, by the node's.
fn find_nodes(devices: &mut Vec<Device>) -> Result<(), Error> {
    let mut failed = None;
    devices.retain_mut(|device| {
        if device.node.is_none() {
            match of_the_node(device) {
                Ok(node) => device.node = Some(node),
                Err(error) if device.optional => {
                    tracing::info!("left out, it has gone: {}", gantry_base::error::chain(&error));
                    return false;
                }
                Err(error) => failed = failed.take().or(Some(error)),
            }
        }
        true
    });
    failed.map_or(Ok(()), Err)
}

/// With the node's own number, mode and owner.
fn of_the_node(device: &Device) -> Result<DeviceNode, Error> {
    let path = Path::new(&device.host_path);
    let wrap = |source| Error::Files { what: "look at the device", path: path.to_owned(), source };
    let found = fs::metadata(path).map_err(wrap)?;
    let kind = match found.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return Err(wrap(std::io::Error::from_raw_os_error(libc::ENODEV))),
    };
    Ok(DeviceNode {
        kind: kind.to_owned(),
        major: rustix::fs::major(found.rdev()),
        minor: rustix::fs::minor(found.rdev()),
        mode: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
    })
}

/// Those of containerd.
pub(crate) fn annotations(sandbox: &SandboxRecord, container: &ContainerRecord) -> BTreeMap<String, String> {
    [
        ("container-type", "container"),
        ("sandbox-id", &sandbox.id),
        ("sandbox-name", &sandbox.pod.name),
        ("sandbox-namespace", &sandbox.pod.namespace),
        ("sandbox-uid", &sandbox.pod.uid),
        ("container-name", &container.name),
        ("image-name", &container.image),
    ]
    .into_iter()
    .map(|(key, value)| (format!("io.kubernetes.cri.{key}"), value.to_owned()))
    .collect()
}

const SYS_RESOURCE: u64 = 1 << 24;

/// The monitor's are the runtime's: it is its child.
fn limits() -> Result<DocumentLimits, Error> {
    let own = |what: &'static str| {
        move |source: std::io::Error| Error::Files { what, path: "/proc/self".into(), source }
    };
    let held = rustix::thread::capabilities(None)
        .map_err(|error| own("read the capabilities of")(error.into()))?
        .permitted
        .bits();
    // Without the right to, nobody goes below where it stands (proc_pid_oom_score_adj(5)).
    let oom_score = if held & SYS_RESOURCE != 0 {
        i32::MIN
    } else {
        let text = fs::read_to_string("/proc/self/oom_score_adj").map_err(own("read oom_score_adj of"))?;
        text.trim().parse().unwrap_or(0)
    };
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(524_288);
    Ok(DocumentLimits { held, oom_score, open_files: (hard.min(1024), hard) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_gone_is_left_out_unless_it_was_asked_for() {
        let of = |path: &str, optional| Device { host_path: path.into(), optional, ..Device::default() };
        let mut devices = vec![of("/dev/null", false), of("/dev/gone", true), of("/dev/zero", true)];
        find_nodes(&mut devices).unwrap();
        let minors: Vec<_> =
            devices.iter().filter_map(|device| device.node.as_ref()).map(|node| node.minor).collect();
        assert_eq!((devices.len(), minors), (2, vec![3, 5]));
        let error = find_nodes(&mut vec![of("/dev/gone", false)]).unwrap_err();
        assert!(gantry_base::error::chain(&error).contains("/dev/gone"), "{error:?}");
    }
}

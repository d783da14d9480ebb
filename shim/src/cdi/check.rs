//! What makes a CDI file valid. Pure. Owns the checks of each field, in the words of CDI's own library; paths
//! must be absolute besides, since a container's root is not to be left.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{Device, Edits, Hook, Mount, NetDevice, SpecDeviceNode, SpecFile};
use super::{name, version};

/// Of the stages of the OCI runtime specification.
pub(super) const STAGES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// A file whose devices can be given.
#[derive(Debug)]
pub(super) struct CdiSpec {
    /// For a container with any of its devices.
    pub(super) edits: Edits,
    /// By their full names.
    pub(super) devices: BTreeMap<String, Edits>,
}

pub(super) fn spec(file: SpecFile) -> Result<CdiSpec, String> {
    let wrap = |why: String| format!("invalid CDI Spec: {why}");
    version::check(&file).map_err(wrap)?;
    let (vendor, class) = name::kind(&file.kind).map_err(wrap)?;
    edits(&file.container_edits).map_err(wrap)?;
    let mut devices = BTreeMap::new();
    for device in file.devices {
        own(&device).map_err(|why| wrap(format!("failed add device {:?}: {why}", device.name)))?;
        let full = format!("{vendor}/{class}={}", device.name);
        if devices.insert(full, device.container_edits).is_some() {
            return Err(wrap(format!("invalid spec, multiple device {:?}", device.name)));
        }
    }
    if devices.is_empty() {
        return Err(wrap("invalid spec, no devices".to_owned()));
    }
    Ok(CdiSpec { edits: file.container_edits, devices })
}

fn own(device: &Device) -> Result<(), String> {
    name::device(&device.name)?;
    if device.container_edits == Edits::default() {
        return Err("invalid device, empty device edits".to_owned());
    }
    edits(&device.container_edits).map_err(|why| format!("invalid device {:?}: {why}", device.name))
}

fn edits(edits: &Edits) -> Result<(), String> {
    env(&edits.env).map_err(|why| format!("invalid container edits: {why}"))?;
    edits.device_nodes.iter().try_for_each(node)?;
    edits.hooks.iter().try_for_each(hook)?;
    edits.mounts.iter().try_for_each(mount)?;
    if let Some(rdt) = &edits.intel_rdt {
        let id = &rdt.clos_id;
        if id != "/" && (id.len() >= 4096 || matches!(id.as_str(), "." | "..") || id.contains(['/', '\n'])) {
            return Err("invalid ClosID".to_owned());
        }
    }
    net_devices(&edits.net_devices)
}

fn env(env: &[String]) -> Result<(), String> {
    let odd = |pair: &&String| pair.find('=').unwrap_or(0) == 0 || pair.contains('\0');
    env.iter().find(odd).map_or(Ok(()), |pair| Err(format!("invalid environment variable {pair:?}")))
}

fn node(node: &SpecDeviceNode) -> Result<(), String> {
    let SpecDeviceNode { path, host_path, kind, permissions, .. } = node;
    if path.is_empty() {
        return Err("invalid (empty) device path".to_owned());
    }
    absolute("device path", path)?;
    if !host_path.is_empty() {
        absolute("device host path", host_path)?;
    }
    if !matches!(kind.as_str(), "" | "b" | "c" | "u" | "p") {
        return Err(format!("device {path:?}: invalid type {kind:?}"));
    }
    if permissions.contains(|letter| !matches!(letter, 'r' | 'w' | 'm')) {
        return Err(format!("device {path:?}: invalid permissions {permissions:?}"));
    }
    Ok(())
}

fn hook(hook: &Hook) -> Result<(), String> {
    let stage = &hook.hook_name;
    if !STAGES.contains(&stage.as_str()) {
        return Err(format!("invalid hook name {stage:?}"));
    }
    if hook.path.is_empty() {
        return Err(format!("invalid hook {stage:?} with empty path"));
    }
    absolute("hook path", &hook.path)?;
    if hook.args.iter().any(|arg| arg.contains('\0')) {
        return Err(format!("invalid hook {stage:?}: an argument holds a NUL"));
    }
    env(&hook.env).map_err(|why| format!("invalid hook {stage:?}: {why}"))
}

fn mount(mount: &Mount) -> Result<(), String> {
    if mount.host_path.is_empty() {
        return Err("invalid mount, empty host path".to_owned());
    }
    if mount.container_path.is_empty() {
        return Err("invalid mount, empty container path".to_owned());
    }
    absolute("mount's container path", &mount.container_path)?;
    if mount.kind == "tmpfs" { Ok(()) } else { absolute("mount's host path", &mount.host_path) }
}

fn absolute(what: &str, path: &str) -> Result<(), String> {
    let plain = path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    if plain { Ok(()) } else { Err(format!("invalid {what} {path:?}, expected an absolute path without ..")) }
}

fn net_devices(devices: &[NetDevice]) -> Result<(), String> {
    let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
    for NetDevice { host_interface_name, name } in devices {
        let error = |what: String| Err(format!("invalid linux net device, {what}"));
        if host_interface_name.is_empty() {
            return error("empty HostInterfaceName".to_owned());
        }
        if name.is_empty() {
            return error("empty Name".to_owned());
        }
        if !hosts.insert(host_interface_name) {
            return error(format!("duplicate HostInterfaceName {host_interface_name:?}"));
        }
        if !names.insert(name) {
            return error(format!("duplicate Name {name:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(edits: &str) -> Result<CdiSpec, String> {
        let text =
            format!("{{cdiVersion: 1.1.0, kind: v.com/c, devices: [{{name: d, containerEdits: {edits}}}]}}");
        spec(super::super::file::parse(&text).unwrap())
    }

    #[test]
    fn a_device_has_its_full_name() {
        let spec = with("{env: [A=]}").unwrap();
        assert_eq!(spec.devices.keys().collect::<Vec<_>>(), ["v.com/c=d"]);
    }

    #[test]
    fn what_is_not_valid_is_named() {
        for (edits, words) in [
            ("{}", "failed add device \"d\": invalid device, empty device edits"),
            ("{env: [A]}", "invalid environment variable \"A\""),
            ("{env: ['=A']}", "invalid environment variable"),
            ("{deviceNodes: [{path: ''}]}", "invalid (empty) device path"),
            ("{deviceNodes: [{path: dev/x}]}", "invalid device path \"dev/x\""),
            ("{deviceNodes: [{path: /dev/../x}]}", "without .."),
            ("{deviceNodes: [{path: /dev/x, type: d}]}", "invalid type \"d\""),
            ("{deviceNodes: [{path: /dev/x, permissions: rx}]}", "invalid permissions \"rx\""),
            ("{hooks: [{hookName: late, path: /h}]}", "invalid hook name \"late\""),
            ("{hooks: [{hookName: poststop, path: ''}]}", "with empty path"),
            ("{hooks: [{hookName: poststop, path: h}]}", "invalid hook path \"h\""),
            ("{hooks: [{hookName: poststop, path: /h, env: [A]}]}", "invalid hook \"poststop\": invalid env"),
            ("{mounts: [{hostPath: '', containerPath: /a}]}", "empty host path"),
            ("{mounts: [{hostPath: /a, containerPath: ''}]}", "empty container path"),
            ("{mounts: [{hostPath: /a, containerPath: /a/../../b}]}", "container path"),
            ("{mounts: [{hostPath: a, containerPath: /a}]}", "host path \"a\""),
            ("{intelRdt: {closID: ..}}", "invalid ClosID"),
            ("{netDevices: [{hostInterfaceName: a}]}", "empty Name"),
        ] {
            let error = with(edits).unwrap_err();
            assert!(error.starts_with("invalid CDI Spec: ") && error.contains(words), "{edits}: {error}");
        }
        let none = "{cdiVersion: 1.0.0, kind: v/c, devices: []}";
        assert!(spec(super::super::file::parse(none).unwrap()).unwrap_err().ends_with("no devices"));
        let twice = "{cdiVersion: 1.0.0, kind: v/c, devices: [{name: d, containerEdits: {env: [A=b]}}, \
                     {name: d, containerEdits: {env: [A=b]}}]}";
        assert!(
            spec(super::super::file::parse(twice).unwrap()).unwrap_err().contains("multiple device \"d\"")
        );
    }
}

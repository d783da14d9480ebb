//! From devices asked for by name to what the monitor is told. Owns the order (a file's own edits before its
//! first device's) and what replaces what, as CDI's library has it. Called through `cdi::inject`.

use std::path::PathBuf;

use gantry_proto::monitor::{Hook, HookStage, Hooks, StartContainer};

use super::file::{self, Edits};
use super::{Error, check, folder, mount, node};

/// Bad files that an error names.
const NAMED: usize = 3;

/// Adds all that the devices need. `start` has the container's own already.
///
/// # Errors
/// Devices that no file has, and what this node can't do.
pub(crate) fn inject(start: &mut StartContainer, names: &[String], folders: &[PathBuf]) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    for edits in edits(names, folders)? {
        apply(start, &edits)?;
    }
    // Outer before inner, whatever order they were given in.
    start.mounts.sort_by_key(|mount| mount.destination.trim_end_matches('/').matches('/').count());
    Ok(())
}

fn edits(names: &[String], folders: &[PathBuf]) -> Result<Vec<Edits>, Error> {
    let found = folder::read(folders);
    let missing: Vec<String> =
        names.iter().filter(|name| !found.devices.contains_key(*name)).cloned().collect();
    if !missing.is_empty() {
        let bad = found.errors.iter().take(NAMED);
        let files = bad.map(|(path, why)| format!("{}: {}", path.display(), why.join(", "))).collect();
        return Err(Error::Unresolvable { names: missing, files });
    }
    let mut seen = Vec::new();
    let mut all = Vec::new();
    for (name, spec) in names.iter().filter_map(|name| Some((name, found.devices.get(name)?))) {
        let at = std::sync::Arc::as_ptr(spec);
        if !seen.contains(&at) {
            seen.push(at);
            all.push(spec.edits.clone());
        }
        all.extend(spec.devices.get(name).cloned());
    }
    Ok(all)
}

fn apply(start: &mut StartContainer, edits: &Edits) -> Result<(), Error> {
    if edits.intel_rdt.is_some() {
        return Err(Error::Unsupported("intelRdt"));
    }
    if !edits.net_devices.is_empty() {
        return Err(Error::Unsupported("netDevices"));
    }
    for pair in &edits.env {
        variable(&mut start.env, pair);
    }
    for wanted in &edits.device_nodes {
        let device = node::complete_device(wanted, (start.uid, start.gid))?;
        start.devices.retain(|known| known.container_path != device.container_path);
        start.devices.push(device);
    }
    for wanted in &edits.mounts {
        let mount = mount::to_monitor_mount(wanted)?;
        start.mounts.retain(|known| known.destination != mount.destination);
        start.mounts.push(mount);
    }
    let hooks = edits.hooks.iter().filter_map(hook);
    for hook in hooks {
        start.hooks.get_or_insert_with(Hooks::default).hooks.push(hook);
    }
    for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
        if !start.additional_gids.contains(gid) {
            start.additional_gids.push(*gid);
        }
    }
    Ok(())
}

/// In the place of one of the same name.
fn variable(env: &mut Vec<Vec<u8>>, pair: &str) {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name).as_bytes();
    let same =
        |known: &&mut Vec<u8>| known.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'='));
    match env.iter_mut().find(same) {
        Some(known) => *known = pair.as_bytes().to_vec(),
        None => env.push(pair.as_bytes().to_vec()),
    }
}

/// `check` has let no other stage pass.
fn hook(hook: &file::Hook) -> Option<Hook> {
    let place = check::STAGES.iter().position(|stage| *stage == hook.hook_name)?;
    let stage = HookStage::try_from(i32::try_from(place).ok()?).ok()?;
    Some(Hook {
        stage: stage.into(),
        path: hook.path.clone(),
        args: hook.args.clone(),
        env: hook.env.clone(),
        timeout: hook.timeout.map(u64::from),
    })
}

//! The kubelet's folders of plugins: which sockets are there, and what the checkpoint of devices says. Plugins may write
//! there, so folders and files of any size and kind are met. Owns reading; never dials. Called by [`super`].

use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use gantry_agent::devices;

use super::{PluginFacts, PluginFolder, PluginSocket};

/// Sockets that are asked at most: a node has a handful.
const SOCKETS: usize = 64;
/// Entries of folders that are looked at at most.
const ENTRIES: usize = 4096;
/// Folders within folders, as the kubelet looks into them.
const DEPTH: usize = 8;
/// Bytes of a checkpoint.
const CHECKPOINT: u64 = 16 << 20;

/// The sockets, by path, and the rest of the facts but for the answers.
pub(super) fn look(root: &Path) -> (Vec<PluginSocket>, PluginFacts) {
    let mut facts = PluginFacts::default();
    let mut sockets = Vec::new();
    let devices = root.join("device-plugins");
    let common = (root.join("plugins_registry"), PluginFolder::Common, DEPTH);
    for (folder, within, depth) in [common, (devices.clone(), PluginFolder::Devices, 0)] {
        let mut found = Vec::new();
        match walk(&folder, within, depth, &mut found) {
            Ok(whole) => facts.more |= !whole,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => facts.unread.push((folder, error.to_string())),
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        facts.more |= found.len() > SOCKETS;
        sockets.extend(found.into_iter().take(SOCKETS));
    }
    let checkpoint = devices.join("kubelet_internal_checkpoint");
    match read(&checkpoint).and_then(|content| match content {
        Some(content) => devices::healthy_devices(&content),
        None => Ok(Default::default()),
    }) {
        Ok(resources) => facts.resources = resources,
        Err(why) => facts.unread.push((checkpoint, why)),
    }
    (sockets, facts)
}

/// Whether all of it was looked at. What begins with a dot is none of the kubelet's, and its own socket is no plugin's.
fn walk(
    folder: &Path,
    within: PluginFolder,
    depth: usize,
    found: &mut Vec<PluginSocket>,
) -> io::Result<bool> {
    let mut folders: Vec<(PathBuf, usize)> = Vec::new();
    let (mut entries, mut seen) = (std::fs::read_dir(folder)?, 0);
    let mut depth = depth;
    loop {
        for entry in entries.by_ref().flatten() {
            seen += 1;
            if seen > ENTRIES {
                return Ok(false);
            }
            let name = entry.file_name();
            let own = within == PluginFolder::Devices && name == "kubelet.sock";
            let Ok(kind) = entry.file_type() else { continue };
            if own || name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if kind.is_socket() {
                let made = entry.metadata().and_then(|metadata| metadata.modified()).ok();
                found.push(PluginSocket { path: entry.path(), within, made });
            } else if kind.is_dir() && depth > 0 {
                folders.push((entry.path(), depth - 1));
            }
        }
        // One that has gone meanwhile has no sockets.
        entries = loop {
            let Some((folder, left)) = folders.pop() else { return Ok(true) };
            depth = left;
            if let Ok(entries) = std::fs::read_dir(folder) {
                break entries;
            }
        };
    }
}

/// None where there is no such file. A pipe in its place would be waited for, so the file is opened without.
fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW).bits();
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("not a file".to_owned());
    }
    let mut content = Vec::new();
    file.take(CHECKPOINT + 1).read_to_end(&mut content).map_err(|error| error.to_string())?;
    if content.len() as u64 > CHECKPOINT {
        return Err(format!("larger than {} MiB", CHECKPOINT >> 20));
    }
    Ok(Some(content))
}

//! All devices of the node, for a privileged container. Owns which folders of /dev are not devices.
//! Called by `container::create`.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use gantry_proto::monitor::Device;

use crate::error::Error;

/// Folders of /dev that every container has of its own, or that hold no devices (containerd's
/// HostDevices leaves out the same).
const SKIPPED: [&str; 8] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev", "hugepages"];

/// Every character and block device below /dev but the console, which belongs to a terminal.
pub(super) fn all_of_node() -> Result<Vec<Device>, Error> {
    let mut devices = Vec::new();
    collect(Path::new("/dev"), &mut devices)?;
    Ok(devices)
}

fn collect(folder: &Path, devices: &mut Vec<Device>) -> Result<(), Error> {
    let wrap = |source: io::Error| Error::Files { what: "list", path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(wrap)? {
        let entry = entry.map_err(wrap)?;
        let (kind, path) = (entry.file_type().map_err(wrap)?, entry.path());
        let name = entry.file_name();
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            collect(&path, devices)?;
        } else if (kind.is_char_device() || kind.is_block_device()) && name != "console" {
            let path = path.display().to_string();
            devices.push(Device { host_path: path.clone(), container_path: path, ..Device::default() });
        }
    }
    Ok(())
}

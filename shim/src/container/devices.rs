//! All devices of the node, for a privileged container. Owns which folders of /dev are not devices.
//! Called by `container::create`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use gantry_proto::monitor::Device;

use crate::error::Error;

/// Folders of /dev that every container has of its own, or that hold no devices (containerd's
/// HostDevices leaves out the same).
const SKIPPED: [&str; 8] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev", "hugepages"];

/// Adds every character and block device below /dev but the console, which belongs to a terminal, to
/// those that the request names: of two with one path the request's is meant.
pub(super) fn add_all_of_node(devices: &mut Vec<Device>) -> Result<(), Error> {
    let mut all = Vec::new();
    collect(Path::new("/dev"), &mut all)?;
    let asked: HashSet<String> = devices.iter().map(|device| device.container_path.clone()).collect();
    devices.extend(all.into_iter().filter(|device| !asked.contains(&device.container_path)));
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_devices_come_beside_those_of_the_request_and_replace_none() {
        let own = |container: &str| Device {
            host_path: "/dev/zero".into(),
            container_path: container.into(),
            permissions: "r".into(),
        };
        let asked = [own("/dev/null"), own("/dev/asked")];
        let mut devices = asked.to_vec();
        add_all_of_node(&mut devices).unwrap();
        assert_eq!(devices[..2], asked);
        let count = |path: &str| devices.iter().filter(|device| device.container_path == path).count();
        assert_eq!((count("/dev/null"), count("/dev/zero"), count("/dev/console")), (1, 1, 0));
    }
}

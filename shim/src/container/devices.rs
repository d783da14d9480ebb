//! Devices of the node: all of them, for a privileged container, and those in a folder that a request names. Owns
//! which folders of /dev are not devices. Called by `container::create`.

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
    let others = all.into_iter().filter(|device| !asked.contains(&device.container_path));
    // Loop devices and what is plugged come and go before the start.
    devices.extend(others.map(|device| Device { optional: true, ..device }));
    Ok(())
}

/// Puts the devices below it in the place of each one that is a folder, `/dev/snd` say, with what the request allows;
/// the path in the container keeps what comes after the folder's.
pub(super) fn expand_folders(devices: &mut Vec<Device>) -> Result<(), Error> {
    let mut all = Vec::with_capacity(devices.len());
    for device in devices.drain(..) {
        if !Path::new(&device.host_path).is_dir() {
            all.push(device);
            continue;
        }
        let mut found = Vec::new();
        collect(Path::new(&device.host_path), &mut found)?;
        all.extend(found.into_iter().map(|one| Device {
            container_path: match one.host_path.strip_prefix(&device.host_path) {
                Some(rest) => format!("{}{rest}", device.container_path),
                None => device.container_path.clone(),
            },
            permissions: device.permissions.clone(),
            ..one
        }));
    }
    *devices = all;
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
    fn a_folder_stands_for_the_devices_below_it() {
        let own = |path: &str| Device {
            host_path: path.into(),
            container_path: path.replace("/dev", "/dev/own"),
            permissions: "r".into(),
            ..Device::default()
        };
        let mut devices = vec![own("/dev/null"), own("/dev")];
        expand_folders(&mut devices).unwrap();
        let zero = devices.iter().find(|device| device.host_path == "/dev/zero").unwrap();
        assert_eq!((zero.container_path.as_str(), zero.permissions.as_str()), ("/dev/own/zero", "r"));
        assert!(devices.iter().all(|device| device.host_path != "/dev"));
        assert_eq!(devices.first().map(|device| device.host_path.as_str()), Some("/dev/null"));
    }

    #[test]
    fn the_nodes_devices_come_beside_those_of_the_request_and_replace_none() {
        let own = |container: &str| Device {
            host_path: "/dev/zero".into(),
            container_path: container.into(),
            permissions: "r".into(),
            ..Device::default()
        };
        let asked = [own("/dev/null"), own("/dev/asked")];
        let mut devices = asked.to_vec();
        add_all_of_node(&mut devices).unwrap();
        assert_eq!(devices[..2], asked);
        assert!(devices[2..].iter().all(|device| device.optional));
        let count = |path: &str| devices.iter().filter(|device| device.container_path == path).count();
        assert_eq!((count("/dev/null"), count("/dev/zero"), count("/dev/console")), (1, 1, 0));
    }
}

//! A device node of a CDI file, made whole from the node's own device. Owns the rules of what the file must
//! say itself (those of CDI's library); looks at the node's devices. Called by `cdi::apply`.

use gantry_proto::monitor::{Device, DeviceNode};
use rustix::fs::FileType;

use super::file::SpecDeviceNode;

/// Of a device that has no mode of its own, as runc has it.
const MODE: u32 = 0o666;

/// Why there can be no such device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node does not have it.
    #[error("failed to stat CDI host device {path:?}: {why}")]
    Stat {
        /// Looked at.
        path: String,
        /// In words.
        why: String,
    },
    /// It is another kind.
    #[error("CDI device ({path:?}, {host:?}), host type mismatch ({said}, {found})")]
    Kind {
        /// In the container.
        path: String,
        /// On the node.
        host: String,
        /// By the file.
        said: String,
        /// By the node.
        found: &'static str,
    },
}

struct HostDevice {
    kind: &'static str,
    major: u32,
    minor: u32,
    mode: u32,
}

/// The device for a container whose program is this user and group: theirs when nobody says otherwise.
pub(super) fn complete_device(node: &SpecDeviceNode, (uid, gid): (u32, u32)) -> Result<Device, Error> {
    let host = if node.host_path.is_empty() { &node.path } else { &node.host_path };
    // Said in full, it need not be on the node at all.
    let complete = !node.kind.is_empty() && (node.major != 0 || node.kind == "p");
    let found = match look(host) {
        Ok(found) => Some(found),
        Err(_) if complete => None,
        Err(why) => return Err(Error::Stat { path: host.clone(), why }),
    };
    let mut kind = node.kind.clone();
    let (mut major, mut minor) = (node.major, node.minor);
    if let Some(found) = found.as_ref().filter(|_| !complete) {
        if kind.is_empty() {
            found.kind.clone_into(&mut kind);
        }
        // A character device without buffers is one.
        if kind.replace('u', "c") != found.kind {
            let (path, host) = (node.path.clone(), host.clone());
            return Err(Error::Kind { path, host, said: kind, found: found.kind });
        }
        if major == 0 {
            (major, minor) = (found.major, found.minor);
        }
    }
    let mode = node.file_mode.or_else(|| found.map(|found| found.mode)).unwrap_or(MODE);
    Ok(Device {
        host_path: host.clone(),
        container_path: node.path.clone(),
        permissions: node.permissions.clone(),
        node: Some(DeviceNode {
            kind: kind.replace('u', "c"),
            major,
            minor,
            mode: mode & 0o7777,
            uid: node.uid.unwrap_or(uid),
            gid: node.gid.unwrap_or(gid),
        }),
        ..Device::default()
    })
}

fn look(path: &str) -> Result<HostDevice, String> {
    let found = rustix::fs::lstat(path).map_err(|errno| {
        let text = std::io::Error::from(errno).to_string().to_lowercase();
        text.split(" (os error").next().unwrap_or_default().to_owned()
    })?;
    let kind = match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => "b",
        FileType::CharacterDevice => "c",
        FileType::Fifo => "p",
        _ => return Err("not a device node".to_owned()),
    };
    let (major, minor) = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    Ok(HostDevice { kind, major, minor, mode: found.st_mode & 0o7777 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Device, String> {
        let text = format!("{{devices: [{{containerEdits: {{deviceNodes: [{text}]}}}}]}}");
        let file = super::super::file::parse(&text).unwrap();
        complete_device(&file.devices[0].container_edits.device_nodes[0], (1000, 0))
            .map_err(|error| error.to_string())
    }

    fn node(kind: &str, major: u32, minor: u32, mode: u32, uid: u32) -> Option<DeviceNode> {
        Some(DeviceNode { kind: kind.into(), major, minor, mode, uid, gid: 0 })
    }

    #[test]
    fn what_the_file_leaves_out_is_as_on_the_node() {
        let device = of("{path: /dev/mine, hostPath: /dev/zero, permissions: r}").unwrap();
        assert_eq!(device.node, node("c", 1, 5, 0o666, 1000));
        assert_eq!((device.container_path.as_str(), device.permissions.as_str()), ("/dev/mine", "r"));
        assert_eq!(of("{path: /dev/zero, fileMode: 0600, uid: 7}").unwrap().node, node("c", 1, 5, 0o600, 7));
        assert_eq!(of("{path: /dev/zero, type: u}").unwrap().node, node("c", 1, 5, 0o666, 1000));
    }

    #[test]
    fn a_device_said_in_full_need_not_be_there() {
        let device = of("{path: /dev/none, type: b, major: 9, minor: 3, gid: 0}").unwrap();
        assert_eq!(device.node, node("b", 9, 3, 0o666, 1000));
        assert_eq!(of("{path: /dev/none, type: p}").unwrap().node, node("p", 0, 0, 0o666, 1000));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        assert_eq!(
            of("{path: /dev/none}").unwrap_err(),
            "failed to stat CDI host device \"/dev/none\": no such file or directory"
        );
        assert!(of("{path: /dev/none, type: c}").unwrap_err().contains("failed to stat"));
        assert!(of("{path: /dev}").unwrap_err().ends_with("not a device node"));
        assert_eq!(
            of("{path: /dev/x, hostPath: /dev/zero, type: b}").unwrap_err(),
            "CDI device (\"/dev/x\", \"/dev/zero\"), host type mismatch (b, c)"
        );
    }
}

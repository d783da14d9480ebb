//! What the kernel says of iSCSI sessions and their disks, below `/sys`, and its two switches for disks. Owns the paths,
//! which are those of drivers/scsi/scsi_transport_iscsi.c and drivers/scsi/scsi_sysfs.c. Called by [`super::session`].

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A session of this node with a target.
#[derive(Debug, PartialEq, Eq)]
struct IscsiSession {
    /// Of its SCSI host.
    host: u32,
    folder: PathBuf,
}

/// Sessions with the target. One that goes while it is looked at is none.
fn sessions(sys: &Path, iqn: &str) -> io::Result<Vec<IscsiSession>> {
    let mut found = Vec::new();
    for name in names(&sys.join("class/iscsi_host"))? {
        let Some(host) = name.strip_prefix("host").and_then(|number| number.parse().ok()) else { continue };
        let device = sys.join("class/iscsi_host").join(&name).join("device");
        for session in names(&device)?.into_iter().filter(|name| name.starts_with("session")) {
            let folder = device.join(&session);
            let target = text(&folder.join("iscsi_session").join(&session).join("targetname"));
            if target.is_some_and(|target| target == iqn) {
                found.push(IscsiSession { host, folder });
            }
        }
    }
    Ok(found)
}

/// SCSI hosts by the portals by which this node is logged into the target.
///
/// # Errors
/// Of a folder.
pub(super) fn portal_hosts(sys: &Path, iqn: &str) -> io::Result<BTreeMap<String, u32>> {
    let mut hosts = BTreeMap::new();
    for IscsiSession { host, folder } in sessions(sys, iqn)? {
        for connection in names(&folder)?.into_iter().filter(|name| name.starts_with("connection")) {
            let facts = folder.join(&connection).join("iscsi_connection").join(&connection);
            // As it is connected, and as it was asked for.
            for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")] {
                if let (Some(address), Some(port)) = (text(&facts.join(address)), text(&facts.join(port))) {
                    hosts.insert(join(&address, &port), host);
                }
            }
        }
    }
    Ok(hosts)
}

/// Names of the devices that the disk is, one for each session.
///
/// # Errors
/// Of a folder.
pub(super) fn devices(sys: &Path, iqn: &str, lun: u32) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for IscsiSession { host, folder } in sessions(sys, iqn)? {
        let disk = folder.join(format!("target{host}:0:0/{host}:0:0:{lun}/block"));
        found.extend(names(&disk)?.into_iter().next());
    }
    Ok(found)
}

/// The multipath device over a device, which may be named by a link.
pub(super) fn multipath(sys: &Path, device: &Path) -> Option<PathBuf> {
    let real = device.canonicalize().ok()?;
    let name = real.file_name()?.to_str()?;
    if name.starts_with("dm-") {
        return Some(real);
    }
    let maps = names(&sys.join("block")).ok()?.into_iter().filter(|name| name.starts_with("dm-"));
    let mut over =
        maps.filter(|map| sys.join("block").join(map).join("slaves").join(name).symlink_metadata().is_ok());
    over.next().map(|map| Path::new("/dev").join(map))
}

/// Has the host look for that disk, and for no other: channel and target are always 0 with iSCSI.
///
/// # Errors
/// The kernel's.
pub(super) fn scan(sys: &Path, host: u32, lun: u32) -> io::Result<()> {
    let file = sys.join(format!("class/scsi_host/host{host}/scan"));
    write(&file, &format!("0 0 {lun}"))
        .map_err(|error| io::Error::new(error.kind(), format!("write {}: {error}", file.display())))
}

/// Has the kernel forget the device; one that is not there is forgotten.
///
/// # Errors
/// The kernel's.
pub(super) fn delete(sys: &Path, device: &str) -> io::Result<()> {
    match write(&sys.join("block").join(device).join("device/delete"), "1") {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Never makes a file.
fn write(file: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

/// In order; none where there is no folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(io::Error::new(error.kind(), format!("list {}: {error}", folder.display())));
        }
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry?.file_name().into_string().ok());
    }
    found.sort();
    Ok(found)
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// As Go's net.JoinHostPort.
fn join(address: &str, port: &str) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const IQN: &str = "iqn.2003-01.io.k8s:e2e";

    fn put(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A session of host 3, as a kernel 6.1 shows it.
    fn session(sys: &Path, target: &str) {
        let device = "class/iscsi_host/host3/device";
        put(sys, &format!("{device}/session1/iscsi_session/session1/targetname"), &format!("{target}\n"));
        let facts = format!("{device}/session1/connection1:0/iscsi_connection/connection1:0");
        for (name, value) in [
            ("address", "10.0.0.1\n"),
            ("port", "3260\n"),
            ("persistent_address", "fd00::1\n"),
            ("persistent_port", "3261\n"),
        ] {
            put(sys, &format!("{facts}/{name}"), value);
        }
        put(sys, &format!("{device}/session1/target3:0:0/3:0:0:2/block/sdb/size"), "0");
        put(sys, "class/iscsi_host/not-a-host/device/x", "");
    }

    #[test]
    fn sessions_of_a_target_and_their_disks_are_found_below_sys() {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        assert_eq!(portal_hosts(sys, IQN).unwrap(), BTreeMap::new(), "no session, no folder");
        session(sys, IQN);
        let hosts = [("10.0.0.1:3260".to_owned(), 3), ("[fd00::1]:3261".to_owned(), 3)];
        assert_eq!(portal_hosts(sys, IQN).unwrap(), BTreeMap::from(hosts));
        assert_eq!(portal_hosts(sys, "iqn.2003-01.io.k8s:other").unwrap(), BTreeMap::new());
        assert_eq!(devices(sys, IQN, 2).unwrap(), ["sdb"]);
        assert_eq!(devices(sys, IQN, 1).unwrap(), Vec::<String>::new());
        // Its kernel is about to end it.
        fs::remove_dir_all(sys.join("class/iscsi_host/host3/device/session1/iscsi_session")).unwrap();
        assert_eq!(devices(sys, IQN, 2).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_multipath_device_is_the_one_over_the_disk() {
        let root = tempfile::tempdir().unwrap();
        let (sys, link) = (root.path(), root.path().join("by-path"));
        put(sys, "dev/sdb", "");
        symlink(sys.join("dev/sdb"), &link).unwrap();
        put(sys, "block/sdb/size", "");
        put(sys, "block/dm-0/slaves/sdc", "");
        assert_eq!(multipath(sys, &link), None);
        put(sys, "block/dm-1/slaves/sdb", "");
        assert_eq!(multipath(sys, &link), Some(PathBuf::from("/dev/dm-1")));
        assert_eq!(multipath(sys, &sys.join("dev/gone")), None);
    }

    #[test]
    fn a_switch_that_is_not_there_is_never_made() {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        put(sys, "class/scsi_host/host3/scan", "");
        scan(sys, 3, 2).unwrap();
        assert_eq!(fs::read_to_string(sys.join("class/scsi_host/host3/scan")).unwrap(), "0 0 2");
        assert_eq!(scan(sys, 4, 2).unwrap_err().kind(), ErrorKind::NotFound);
        delete(sys, "sdz").unwrap();
        assert!(!sys.join("block").exists());
    }
}

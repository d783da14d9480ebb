//! What is kept on the disk of volumes of CSI, in upstream's places and form. Owns paths and `vol_data.json`, which is
//! written before a driver is called and removed after it has given back. Called by [`super::steps`] and [`super::owner`].
//!
//! ```text
//! ROOT/pods/UID/volumes/kubernetes.io~csi/NAME/{vol_data.json,mount}                  a pod's
//! ROOT/plugins/kubernetes.io/csi/DRIVER/sha256(HANDLE)/{vol_data.json,globalmount}    the device's
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use gantry_base::files::replace;
use gantry_failpoint::failpoint;
use gantry_model::go_json;
use gantry_model::pod::PodUid;

use super::block::BlockPlaces;
use crate::block::BlockMap;

/// The plugin's folder among a pod's volumes.
pub(crate) const FOLDER: &str = "kubernetes.io~csi";
pub(super) const DATA: &str = "vol_data.json";
/// In it, of what is mounted with an SELinux label.
pub(super) const LABEL: &str = "seLinuxMountContext";

/// A mount table, as far as it is asked.
pub(crate) trait Mounts: Send + Sync + std::fmt::Debug {
    /// Whether something is mounted exactly there. Asks no file system, which may hang.
    fn is_mounted(&self, path: &Path) -> io::Result<bool>;
    /// Where else below `folder` is mounted what is mounted there.
    fn copies(&self, path: &Path, folder: &Path) -> io::Result<Vec<PathBuf>>;
}

/// This process's.
#[derive(Debug)]
pub(crate) struct Table;

impl Mounts for Table {
    fn is_mounted(&self, path: &Path) -> io::Result<bool> {
        Ok(gantry_base::mountinfo::own()?.iter().any(|mount| mount.point == path))
    }

    fn copies(&self, path: &Path, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let all = gantry_base::mountinfo::own()?;
        let Some(own) = all.iter().rfind(|mount| mount.point == path) else { return Ok(Vec::new()) };
        let same = all.iter().filter(|mount| mount.device == own.device && mount.root == own.root);
        Ok(same.map(|mount| mount.point.clone()).filter(|point| point.starts_with(folder)).collect())
    }
}

/// What `vol_data.json` says, by upstream's keys.
pub(super) type VolumeData = BTreeMap<String, String>;

/// Which pod has which volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundMount {
    pub(super) pod: PodUid,
    /// Its folder: of the PersistentVolume, or of the pod's own volume.
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) handle: String,
    pub(super) ephemeral: bool,
    /// The SELinux label that it is mounted with; may be empty.
    pub(super) label: String,
    /// Of the device that it is of.
    pub(super) place: DevicePlace,
}

/// Where a volume is for all pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DevicePlace {
    /// Its file system is mounted there.
    Folder(PathBuf),
    /// It is a device.
    Block(BlockPlaces),
}

impl DevicePlace {
    /// Whether pods have both in one way: what is staged as one cannot be had as the other.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            // An older kubelet had other folders.
            (Self::Folder(_), Self::Folder(_)) => true,
            (Self::Block(one), Self::Block(other)) => one == other,
            _ => false,
        }
    }
}

/// A device, or what may be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundDevice {
    pub(super) place: DevicePlace,
    pub(super) driver: String,
    pub(super) handle: String,
    /// As of a pod's.
    pub(super) label: String,
}

/// What an earlier kubelet has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) mounts: Vec<FoundMount>,
    pub(super) devices: Vec<FoundDevice>,
    /// Folders of volumes of which nothing was written down yet, or is any more.
    pub(super) leftovers: Vec<DevicePlace>,
    /// What could not be read, and why.
    pub(super) unread: Vec<String>,
}

/// Below a kubelet's root.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pods: PathBuf,
    devices: PathBuf,
}

impl Places {
    /// By `ROOT/pods` and `ROOT/plugins`, as the mount table names them.
    pub(crate) fn new(pods: &Path, plugins: &Path) -> Self {
        Self { pods: pods.to_owned(), devices: plugins.join(super::PLUGIN) }
    }

    /// Of all pods.
    pub(super) fn pods(&self) -> &Path {
        &self.pods
    }

    /// Where a pod has the volume of that name.
    pub(crate) fn target(&self, pod: &PodUid, name: &str) -> PathBuf {
        self.volumes(pod).join(folder_name(name)).join("mount")
    }

    fn volumes(&self, pod: &PodUid) -> PathBuf {
        self.pods.join(pod.as_str()).join("volumes").join(FOLDER)
    }

    /// Where the device is for all pods.
    pub(super) fn device(&self, driver: &str, handle: &str) -> PathBuf {
        self.devices.join(driver).join(sha256(handle)).join("globalmount")
    }

    /// The plugin's own folder.
    pub(super) fn plugin(&self) -> &Path {
        &self.devices
    }

    /// Of a raw block volume, by the name of its PersistentVolume.
    pub(super) fn block(&self, name: &str) -> BlockPlaces {
        BlockPlaces::new(&self.pods, &self.devices, name)
    }

    /// Of a volume with a file system.
    pub(super) fn folder(&self, driver: &str, handle: &str) -> DevicePlace {
        DevicePlace::Folder(self.device(driver, handle))
    }

    /// How a pod has the raw block volume of that name.
    pub(crate) fn map(&self, pod: &PodUid, name: &str) -> BlockMap {
        self.block(name).map(pod)
    }

    /// Reads what is there. What cannot be read is said, and keeps nothing else from being read.
    pub(super) fn find(&self) -> Found {
        let mut found = Found::default();
        for pod in folders(&self.pods, &mut found.unread) {
            let Some(uid) = pod.file_name().and_then(|name| PodUid::parse(name.to_str()?)) else { continue };
            for volume in folders(&self.volumes(&uid), &mut found.unread) {
                found.add_mount(&uid, &volume, self);
            }
        }
        for driver in folders(&self.devices, &mut found.unread) {
            for volume in folders(&driver, &mut found.unread) {
                found.add_device(&volume);
            }
        }
        found.add_blocks(self);
        found
    }
}

impl Found {
    pub(super) fn data(&mut self, folder: &Path) -> Option<(VolumeData, String, String)> {
        match read(folder) {
            Ok(Some(data)) => {
                let of = |key: &str| data.get(key).cloned().unwrap_or_default();
                let (driver, handle) = (of("driverName"), of("volumeHandle"));
                if !is_driver_name(&driver) || handle.is_empty() {
                    self.unread
                        .push(format!("{}: it names no driver or no volume", folder.join(DATA).display()));
                    return None;
                }
                Some((data, driver, handle))
            }
            Ok(None) => None,
            Err(why) => {
                self.unread.push(why);
                None
            }
        }
    }

    fn add_mount(&mut self, pod: &PodUid, folder: &Path, places: &Places) {
        let unread = self.unread.len();
        let Some((data, driver, handle)) = self.data(folder) else {
            if unread == self.unread.len() && folder.join("mount").exists() {
                self.unread.push(format!("{}: there is no {DATA}", folder.display()));
            }
            return;
        };
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let ephemeral = data.get("volumeLifecycleMode").is_some_and(|mode| mode == "Ephemeral");
        let place = places.folder(&driver, &handle);
        let label = data.get(LABEL).cloned().unwrap_or_default();
        self.mounts.push(FoundMount { pod: pod.clone(), name, driver, handle, ephemeral, label, place });
    }

    fn add_device(&mut self, folder: &Path) {
        let (unread, place) = (self.unread.len(), DevicePlace::Folder(folder.join("globalmount")));
        match self.data(folder) {
            Some((data, driver, handle)) => {
                let label = data.get(LABEL).cloned().unwrap_or_default();
                self.devices.push(FoundDevice { place, driver, handle, label });
            }
            None if unread == self.unread.len() => self.leftovers.push(place),
            None => {}
        }
    }

    /// Tells of folders of which nothing is known and on which something is mounted: that is nobody's to take back.
    pub(super) fn doubt_leftovers(&mut self, mounts: &dyn Mounts) {
        let Self { leftovers, unread, .. } = self;
        leftovers.retain(|place| {
            let DevicePlace::Folder(staging) = place else { return true };
            let why = match mounts.is_mounted(staging) {
                Ok(false) => return true,
                Ok(true) => format!("{} is mounted: there is no {DATA}", staging.display()),
                Err(error) => format!("read the mount table: {error}"),
            };
            unread.push(why);
            false
        });
    }

    /// Removes the others, where they are empty.
    pub(super) fn remove_leftovers(&mut self, mounts: &dyn Mounts) {
        self.doubt_leftovers(mounts);
        for place in std::mem::take(&mut self.leftovers) {
            let removed = match &place {
                DevicePlace::Folder(staging) => remove(staging, mounts),
                DevicePlace::Block(block) => block.remove(),
            };
            if let Err(why) = removed {
                tracing::warn!(why, "folders of a volume of which nothing is known stay");
            }
        }
    }
}

/// Real folders in it; none where it is not there.
pub(super) fn folders(path: &Path, unread: &mut Vec<String>) -> Vec<PathBuf> {
    let list = || -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    };
    match list() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            unread.push(format!("list {}: {error}", path.display()));
            Vec::new()
        }
    }
}

/// As upstream names a folder by an object.
pub(crate) fn folder_name(name: &str) -> String {
    name.replace('/', "~")
}

/// Whether a driver may have that name, which becomes the name of a folder: a name of DNS of 63 characters at most, as the
/// API server checks it.
pub(super) fn is_driver_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        label.bytes().all(is_known)
            && label.starts_with(|first: char| first.is_ascii_alphanumeric())
            && label.ends_with(|last: char| last.is_ascii_alphanumeric())
    };
    name.len() <= 63 && name.split('.').all(is_label)
}

/// Whether a volume of that name has a folder of its own: a path's parts that mean another folder have none.
pub(super) fn is_volume_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('\0')
}

/// In hexadecimal digits.
pub(super) fn sha256(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the file in that folder says; none when there is none.
///
/// # Errors
/// Names the file.
pub(super) fn read(folder: &Path) -> Result<Option<VolumeData>, String> {
    let path = folder.join(DATA);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(format!(
                "kubernetes.io/csi: failed to open volume data file [{}]: {error}",
                path.display()
            ));
        }
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!("kubernetes.io/csi: failed to parse volume data file [{}]: {error}", path.display())
    })
}

/// Writes it, and makes the folder; before a driver is called.
///
/// # Errors
/// Names the file.
pub(super) fn save(folder: &Path, data: &[(&str, &str)]) -> Result<(), String> {
    let failed = |why: String| {
        format!("kubernetes.io/csi: failed to save volume data file {}: {why}", folder.join(DATA).display())
    };
    make_folder(folder).map_err(|error| failed(error.to_string()))?;
    let data: BTreeMap<&str, &str> = data.iter().copied().collect();
    let text = go_json::text(&data).map_err(|error| failed(error.to_string()))?;
    replace(&folder.join(DATA), format!("{text}\n").as_bytes(), 0o644)
        .map_err(|error| failed(error.to_string()))
}

pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path)
}

/// Removes a mount's folder, what is known of it, and the folder of both; in this order, so that what cannot be removed
/// is known of. Nothing is removed while something is mounted.
///
/// # Errors
/// Names what stays.
pub(super) fn remove(mount: &Path, mounts: &dyn Mounts) -> Result<(), String> {
    let mounted = mounts.is_mounted(mount).map_err(|error| format!("read the mount table: {error}"))?;
    if mounted {
        return Err(format!("{} is still mounted", mount.display()));
    }
    let gone = |removed: io::Result<()>, what: &Path| match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("failed to remove {}: {error}", what.display()))
        }
        _ => Ok(()),
    };
    gone(fs::remove_dir(mount), mount)?;
    failpoint!("csi.mount-gone"?);
    let Some(folder) = mount.parent() else { return Ok(()) };
    let data = folder.join(DATA);
    gone(fs::remove_file(&data), &data)?;
    failpoint!("csi.note-gone"?);
    gone(fs::remove_dir(folder), folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct MountedAt(Vec<PathBuf>);

    impl Mounts for MountedAt {
        fn is_mounted(&self, path: &Path) -> io::Result<bool> {
            Ok(self.0.iter().any(|point| point == path))
        }

        fn copies(&self, _: &Path, _: &Path) -> io::Result<Vec<PathBuf>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn names_places_and_forms_are_upstreams() {
        let places = Places::new(Path::new("/k/pods"), Path::new("/k/plugins"));
        let uid = PodUid::parse("u1").unwrap();
        let target = places.target(&uid, "pvc-1");
        assert_eq!(target, Path::new("/k/pods/u1/volumes/kubernetes.io~csi/pvc-1/mount"));
        let sha = "cd42404d52ad55ccfa9aca4adc828aa5800ad9d385a0671fbcbf724118320619";
        let device = format!("/k/plugins/kubernetes.io/csi/d.example/{sha}/globalmount");
        assert_eq!(places.device("d.example", "value"), Path::new(&device));
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("v");
        save(&folder, &[("volumeHandle", "a<b"), ("driverName", "d")]).unwrap();
        let text = fs::read_to_string(folder.join(DATA)).unwrap();
        assert_eq!(text, "{\"driverName\":\"d\",\"volumeHandle\":\"a\\u003cb\"}\n");
        assert_eq!(read(&folder).unwrap().unwrap()["volumeHandle"], "a<b");
        assert_eq!(read(root.path()), Ok(None));
    }

    #[test]
    fn no_name_leads_out_of_its_folder() {
        for name in ["hostpath.csi.k8s.io", "d", "Disk-1.Example"] {
            assert!(is_driver_name(name), "{name}");
        }
        for name in
            ["", ".", "..", "a/b", "../x", "/etc", "-a", "a-", "a..b", "a.", "a_b", "a\0", &"a".repeat(64)]
        {
            assert!(!is_driver_name(name), "{name}");
        }
        assert!(is_volume_name("pvc-1") && is_volume_name("a/../b"), "a slash is replaced");
        assert_eq!(folder_name("a/../b"), "a~..~b");
        assert!(!is_volume_name("..") && !is_volume_name(".") && !is_volume_name(""));
    }

    #[test]
    fn what_is_known_of_a_volume_is_not_removed_while_it_is_mounted_or_in_the_way() {
        let root = tempfile::tempdir().unwrap();
        let (folder, mount) = (root.path().join("v"), root.path().join("v/mount"));
        save(&folder, &[("driverName", "d")]).unwrap();
        fs::create_dir(&mount).unwrap();
        assert!(remove(&mount, &MountedAt(vec![mount.clone()])).unwrap_err().ends_with("is still mounted"));
        fs::create_dir(mount.join("left")).unwrap();
        assert!(remove(&mount, &MountedAt(vec![])).is_err());
        assert!(folder.join(DATA).exists());
        fs::remove_dir(mount.join("left")).unwrap();
        remove(&mount, &MountedAt(vec![])).unwrap();
        assert!(!folder.exists());
        remove(&mount, &MountedAt(vec![])).unwrap();
    }

    #[test]
    fn what_an_earlier_kubelet_left_is_found_and_what_cannot_be_read_is_said() {
        let root = tempfile::tempdir().unwrap();
        let (pods, plugins) = (root.path().join("pods"), root.path().join("plugins"));
        let (places, uid) = (Places::new(&pods, &plugins), PodUid::parse("u1").unwrap());
        assert_eq!(places.find(), Found::default());
        let of = |mount: PathBuf| mount.parent().unwrap().to_owned();
        let data = [("driverName", "d"), ("volumeHandle", "h"), ("volumeLifecycleMode", "Ephemeral")];
        save(&of(places.target(&uid, "pv")), &data).unwrap();
        save(&of(places.device("d", "h")), &[data[0], data[1], (LABEL, "u:r:t:s0")]).unwrap();
        fs::create_dir_all(of(places.target(&uid, "bare"))).unwrap();
        let broken = of(places.target(&uid, "broken"));
        save(&broken, &data[..1]).unwrap();
        let found = places.find();
        let (driver, handle) = ("d".to_owned(), "h".to_owned());
        let device = FoundDevice {
            place: places.folder("d", "h"),
            driver: driver.clone(),
            handle: handle.clone(),
            label: "u:r:t:s0".to_owned(),
        };
        let (place, label) = (places.folder("d", "h"), String::new());
        let mount =
            FoundMount { pod: uid, name: "pv".to_owned(), driver, handle, ephemeral: true, label, place };
        assert_eq!((found.mounts, found.devices), (vec![mount], vec![device]));
        assert_eq!(found.unread, [format!("{}/{DATA}: it names no driver or no volume", broken.display())]);
    }
}

//! What is kept on the disk of raw block volumes of CSI, in upstream's places and form. Owns paths and `vol_data.json`,
//! which all pods of a volume share; how a device is mapped is [`crate::block`]'s. Called by [`super::steps`] and
//! [`super::owner`].
//!
//! ```text
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/PV/data/vol_data.json   which volume of which driver
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/staging/PV              the driver's folder, once for all pods
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/publish/PV/POD_UID      where the driver makes the device appear
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/PV/dev/POD_UID          the device, bound
//! ROOT/pods/UID/volumeDevices/kubernetes.io~csi/PV                     a link to it
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gantry_failpoint::failpoint;
use gantry_model::pod::PodUid;

use super::files::{self, DATA, DevicePlace, FOLDER, Found, FoundDevice, FoundMount, Mounts, Places};
use crate::block::{self, BlockKernel, BlockMap};

/// Folders beside those of the volumes.
const OF_ALL: [&str; 2] = ["staging", "publish"];

/// Where one volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockPlaces {
    /// Of all raw block volumes.
    devices: PathBuf,
    pods: PathBuf,
    /// The volume's folder.
    name: String,
}

impl BlockPlaces {
    /// By `ROOT/pods`, the plugin's folder and the name of the PersistentVolume.
    pub(super) fn new(pods: &Path, plugin: &Path, volume: &str) -> Self {
        Self { devices: plugin.join(block::FOLDER), pods: pods.to_owned(), name: files::folder_name(volume) }
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.devices.join("staging").join(&self.name)
    }

    fn publish_folder(&self) -> PathBuf {
        self.devices.join("publish").join(&self.name)
    }

    /// Where the driver makes the device appear for that pod.
    pub(super) fn target(&self, pod: &PodUid) -> PathBuf {
        self.publish_folder().join(pod.as_str())
    }

    fn own(&self) -> PathBuf {
        self.devices.join(&self.name)
    }

    fn global(&self) -> PathBuf {
        self.own().join("dev")
    }

    fn data(&self) -> PathBuf {
        self.own().join("data")
    }

    /// Of that pod.
    pub(super) fn map(&self, pod: &PodUid) -> BlockMap {
        let link = self.pods.join(pod.as_str()).join(block::FOLDER).join(FOLDER).join(&self.name);
        BlockMap { global: self.global(), pod: pod.clone(), link }
    }

    /// Writes down whose volume it is. Before a driver is called.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn save(&self, data: &[(&str, &str)]) -> Result<(), String> {
        files::save(&self.data(), data)
    }

    /// Whether anything of the volume was ever written down.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn is_known(&self) -> Result<bool, String> {
        files::read(&self.data()).map(|data| data.is_some())
    }

    /// Makes the folder in which the driver makes the device appear, and notes that it may have.
    ///
    /// # Errors
    /// Names what failed.
    pub(super) fn prepare(&self, pod: &PodUid) -> Result<(), String> {
        block::make_folder(&self.publish_folder())?;
        self.map(pod).note()
    }

    /// Removes what is left of a pod's device that its driver has taken back, or has refused to give.
    ///
    /// # Errors
    /// What stays.
    pub(super) fn forget(&self, pod: &PodUid, mounts: &dyn Mounts) -> Result<(), String> {
        let target = self.target(pod);
        let mounted = mounts.is_mounted(&target).map_err(|error| format!("read the mount table: {error}"))?;
        if mounted {
            return Err(format!("{} is still mounted", target.display()));
        }
        block::remove(&target)?;
        failpoint!("csi.block-target-gone"?);
        self.map(pod).forget()
    }

    /// Removes notes of pods that nobody has any more. A device that is bound there stays, and is said.
    ///
    /// # Errors
    /// What stays.
    pub(super) fn remove_notes(&self) -> Result<(), String> {
        let global = self.global();
        let notes = block::entries(&global).map_err(|error| format!("list {}: {error}", global.display()))?;
        notes.iter().try_for_each(|note| block::remove(note))
    }

    /// Pods that have the device bound.
    ///
    /// # Errors
    /// Names the folder.
    pub(super) fn holders(&self, kernel: &dyn BlockKernel) -> Result<Vec<PathBuf>, String> {
        block::holders(&self.global(), kernel)
    }

    /// Removes what the driver has left in its folder, without ever going down: what is mounted there stays, and is said.
    ///
    /// # Errors
    /// What stays.
    pub(super) fn remove_staging(&self) -> Result<(), String> {
        let staging = self.staging();
        let left =
            block::entries(&staging).map_err(|error| format!("list {}: {error}", staging.display()))?;
        for path in left {
            let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
            if is_folder { block::remove_folder(&path)? } else { block::remove(&path)? }
        }
        block::remove_folder(&staging)
    }

    /// Removes all of the volume that nobody has any more; what is known of it last.
    ///
    /// # Errors
    /// What stays.
    pub(super) fn remove(&self) -> Result<(), String> {
        for folder in [self.publish_folder(), self.staging(), self.global()] {
            block::remove_folder(&folder)?;
        }
        failpoint!("csi.block-folders-gone"?);
        block::remove(&self.data().join(DATA))?;
        failpoint!("csi.block-note-gone"?);
        block::remove_folder(&self.data())?;
        block::remove_folder(&self.own())
    }

    /// Pods of which something is there: the note, what the driver has made, or the link.
    fn pods(&self, unread: &mut Vec<String>) -> BTreeSet<PodUid> {
        let mut list = |folder: &Path| match block::entries(folder) {
            Ok(found) => found,
            Err(error) => {
                unread.push(format!("list {}: {error}", folder.display()));
                Vec::new()
            }
        };
        let name = |path: &PathBuf| PodUid::parse(path.file_name()?.to_str()?);
        let mut found: BTreeSet<PodUid> = BTreeSet::new();
        for folder in [self.global(), self.publish_folder()] {
            found.extend(list(&folder).iter().filter_map(name));
        }
        let linked = |pod: &PodUid| self.map(pod).link.is_symlink();
        found.extend(list(&self.pods).iter().filter_map(name).filter(linked));
        found
    }
}

impl Found {
    /// Adds the raw block volumes that an earlier kubelet has left.
    pub(super) fn add_blocks(&mut self, places: &Places) {
        let all = places.plugin().join(block::FOLDER);
        let folders = files::folders(&all, &mut self.unread);
        let names = folders.iter().filter_map(|path| path.file_name()?.to_str());
        for name in names.filter(|name| !OF_ALL.contains(name)) {
            let block = places.block(name);
            let unread = self.unread.len();
            let data = self.data(&block.data());
            let pods = block.pods(&mut self.unread);
            let Some((_, driver, handle)) = data else {
                match (unread == self.unread.len(), pods.is_empty()) {
                    (true, false) => {
                        self.unread.push(format!("{}: there is no {DATA}", block.data().display()));
                    }
                    (true, true) => self.leftovers.push(DevicePlace::Block(block)),
                    (false, _) => {}
                }
                continue;
            };
            for pod in pods {
                let (name, driver, handle) = (name.to_owned(), driver.clone(), handle.clone());
                let place = DevicePlace::Block(block.clone());
                let label = String::new();
                self.mounts.push(FoundMount { pod, name, driver, handle, ephemeral: false, label, place });
            }
            let label = String::new();
            self.devices.push(FoundDevice { place: DevicePlace::Block(block), driver, handle, label });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::csi::fake::FakeDriver;

    #[test]
    fn places_are_upstreams_and_what_stands_there_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::new(&root.path().join("pods"), &root.path().join("plugins"));
        let (block, uid) = (places.block("pv"), |text: &str| PodUid::parse(text).unwrap());
        let all = root.path().join("plugins/kubernetes.io/csi/volumeDevices");
        assert_eq!(block.staging(), all.join("staging/pv"));
        assert_eq!(block.target(&uid("u1")), all.join("publish/pv/u1"));
        assert_eq!(block.map(&uid("u1")).point(), all.join("pv/dev/u1"));
        let link = root.path().join("pods/u3/volumeDevices/kubernetes.io~csi/pv");
        assert_eq!(block.map(&uid("u3")).link, link);
        // A pod that is noted, one whose driver has answered, and one that has all of it.
        block.prepare(&uid("u1")).unwrap();
        fs::write(block.target(&uid("u2")), "").unwrap();
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/sda", &link).unwrap();
        let found = places.find();
        assert_eq!((found.devices.len(), found.unread.len()), (0, 1), "nobody says whose it is");
        block.save(&[("driverName", "d"), ("volumeHandle", "h")]).unwrap();
        assert!(all.join("pv/data/vol_data.json").exists());
        let found = places.find();
        let pods: Vec<&str> = found.mounts.iter().map(|mount| mount.pod.as_str()).collect();
        assert_eq!((pods, found.unread.len()), (vec!["u1", "u2", "u3"], 0));
        let device = FoundDevice {
            place: DevicePlace::Block(block),
            driver: "d".to_owned(),
            handle: "h".to_owned(),
            label: String::new(),
        };
        assert_eq!(found.devices, [device]);
    }

    #[test]
    fn nothing_is_forgotten_of_a_volume_that_somebody_has() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::new(&root.path().join("pods"), &root.path().join("plugins"));
        let (block, uid, driver) = (places.block("pv"), PodUid::parse("u1").unwrap(), FakeDriver::new("d"));
        block.save(&[("driverName", "d"), ("volumeHandle", "h")]).unwrap();
        block.prepare(&uid).unwrap();
        fs::create_dir_all(block.staging().join("folder/in")).unwrap();
        fs::write(block.staging().join("image"), "").unwrap();
        assert!(block.remove_staging().unwrap_err().contains("staging/pv/folder"), "it never goes down");
        assert!(block.remove().is_err() && block.is_known().unwrap());
        fs::remove_dir(block.staging().join("folder/in")).unwrap();
        block.remove_staging().unwrap();
        block.prepare(&uid).unwrap();
        fs::write(block.target(&uid), "").unwrap();
        assert!(block.remove().is_err() && block.is_known().unwrap());
        block.forget(&uid, &driver).unwrap();
        block.remove().unwrap();
        block.remove().unwrap();
        assert!(!block.is_known().unwrap() && !block.own().exists());
    }
}

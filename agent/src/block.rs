//! Raw block devices of pods: mapped as upstream maps them, whoever made them. Owns the paths of a map and the order of its
//! steps; what a device is, is whoever asks' to know. Called by [`crate::csi`] and [`crate::volumes`]. Blocks.
//!
//! ```text
//! GLOBAL/POD_UID                          the device, bound on a file: who holds it
//! ROOT/pods/UID/volumeDevices/PLUGIN/PV   a link to the device: what the runtime is given
//! /dev/loopN                              over the first one: a lock, so that no other device gets its number meanwhile
//! ```
//! The file is there before the device is asked for, and goes after it was given back: by it a later kubelet knows of both.

mod kernel;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use gantry_failpoint::failpoint;
use gantry_model::pod::PodUid;

pub(crate) use kernel::Kernel;

/// Below a pod's folder and a plugin's.
pub(crate) const FOLDER: &str = "volumeDevices";

/// What maps are made of.
pub(crate) trait BlockKernel: Send + Sync + std::fmt::Debug {
    /// The number of the block device at that path; none of what is not there, or is something else.
    fn number(&self, path: &Path) -> io::Result<Option<u64>>;
    /// Makes the device appear on that file.
    fn bind(&self, device: &Path, point: &Path) -> io::Result<()>;
    /// Takes it off.
    fn unbind(&self, point: &Path) -> io::Result<()>;
    /// Keeps the device there open, whoever ends.
    ///
    /// # Errors
    /// What failed.
    fn lock(&self, point: &Path) -> Result<(), String>;
    /// Whether that is so.
    ///
    /// # Errors
    /// What failed.
    fn is_locked(&self, point: &Path) -> Result<bool, String>;
    /// Keeps it open no longer.
    ///
    /// # Errors
    /// What failed.
    fn unlock(&self, point: &Path) -> Result<(), String>;
}

/// One pod's map of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockMap {
    /// The folder of all pods that have the volume.
    pub(crate) global: PathBuf,
    pub(crate) pod: PodUid,
    /// In the pod's own folder.
    pub(crate) link: PathBuf,
}

impl BlockMap {
    /// Where the device is bound.
    pub(crate) fn point(&self) -> PathBuf {
        self.global.join(self.pod.as_str())
    }

    /// Notes that the pod is about to have the device.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn note(&self) -> Result<(), String> {
        make_folder(&self.global)?;
        let point = self.point();
        let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o750).open(&point);
        opened.map(drop).map_err(|error| format!("failed to open file {}: {error}", point.display()))?;
        failpoint!("block.noted"?);
        Ok(())
    }

    /// Whether the pod has the device, as far as the map goes. The device itself is not looked at.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn is_mapped(&self, kernel: &dyn BlockKernel) -> Result<bool, String> {
        let point = self.point();
        let bound = kernel.number(&point).map_err(|error| format!("stat {}: {error}", point.display()))?;
        Ok(bound.is_some() && self.link.is_symlink() && kernel.is_locked(&point)?)
    }

    /// Maps the device, which may be a link to one. Again does nothing that is done.
    ///
    /// # Errors
    /// In upstream's words.
    pub(crate) fn map(&self, device: &Path, kernel: &dyn BlockKernel) -> Result<(), String> {
        let device =
            device.canonicalize().map_err(|error| format!("device path {}: {error}", device.display()))?;
        let (point, uid) = (self.point(), self.pod.as_str());
        let failed = |global: bool, why: String| {
            let (path, name) = match global {
                true => (format!("globalMapPath:{}", self.global.display()), format!("podUID: {uid}")),
                false => {
                    let (folder, name) = (self.link.parent(), self.link.file_name().unwrap_or_default());
                    let folder = folder.unwrap_or(&self.link).display();
                    (format!("podVolumeMapPath:{folder}"), format!("volumeMapName: {}", name.display()))
                }
            };
            let device = device.display();
            format!(
                "blkUtil.MapDevice failed. devicePath: {device}, {path}, {name}, bindMount: {global}: {why}"
            )
        };
        self.bind(&device, &point, kernel).map_err(|why| failed(true, why))?;
        failpoint!("block.bound"?);
        self.link_to(&device).map_err(|why| failed(false, why))?;
        failpoint!("block.linked"?);
        kernel.lock(&point).map_err(|why| {
            let global = self.global.display();
            format!("blkUtil.AttachFileDevice failed. globalMapPath:{global}, podUID: {uid}: {why}")
        })?;
        failpoint!("block.locked"?);
        Ok(())
    }

    fn bind(&self, device: &Path, point: &Path, kernel: &dyn BlockKernel) -> Result<(), String> {
        let number = |path: &Path| {
            kernel.number(path).map_err(|error| format!("failed to stat {}: {error}", path.display()))
        };
        let Some(wanted) = number(device)? else {
            return Err(format!("{} is no block device", device.display()));
        };
        match number(point)? {
            Some(bound) if bound == wanted => return Ok(()),
            // Whoever made the device has made it anew.
            Some(_) => self.unbind(kernel)?,
            None => {}
        }
        self.note()?;
        kernel.bind(device, point).map_err(|error| {
            format!(
                "failed to bind mount devicePath: {} to linkPath {}: {error}",
                device.display(),
                point.display()
            )
        })
    }

    /// Written anew where it is another: after a reboot the device may be.
    fn link_to(&self, device: &Path) -> Result<(), String> {
        if fs::read_link(&self.link).is_ok_and(|old| old == device) {
            return Ok(());
        }
        make_folder(self.link.parent().unwrap_or(&self.link))?;
        remove(&self.link)?;
        symlink(device, &self.link).map_err(|error| format!("symlink {}: {error}", self.link.display()))
    }

    fn unbind(&self, kernel: &dyn BlockKernel) -> Result<(), String> {
        let point = self.point();
        kernel.unlock(&point)?;
        let bound = kernel.number(&point).map_err(|error| format!("stat {}: {error}", point.display()))?;
        if bound.is_some() {
            kernel
                .unbind(&point)
                .map_err(|error| format!("failed to unmount linkPath {}: {error}", point.display()))?;
        }
        Ok(())
    }

    /// Takes the map back, but for the note. Again does nothing.
    ///
    /// # Errors
    /// In upstream's words.
    pub(crate) fn unmap(&self, kernel: &dyn BlockKernel) -> Result<(), String> {
        let failed = |why: String| {
            let (global, uid) = (self.global.display(), &self.pod);
            format!("blkUtil.DetachFileDevice failed. globalUnmapPath:{global}, podUID: {uid}: {why}")
        };
        kernel.unlock(&self.point()).map_err(failed)?;
        failpoint!("block.unlocked"?);
        if self.link.is_symlink() {
            remove(&self.link).map_err(failed)?;
        }
        failpoint!("block.unlinked"?);
        self.unbind(kernel).map_err(failed)?;
        failpoint!("block.unbound"?);
        Ok(())
    }

    /// Removes the note of a device that was given back. What is bound yet stays: the kernel sees to that.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn forget(&self) -> Result<(), String> {
        remove(&self.point())
    }
}

/// Pods that have a device bound in that folder.
///
/// # Errors
/// Names the folder.
pub(crate) fn holders(global: &Path, kernel: &dyn BlockKernel) -> Result<Vec<PathBuf>, String> {
    let failed = |error: io::Error| format!("list {}: {error}", global.display());
    let mut found = Vec::new();
    for path in entries(global).map_err(failed)? {
        if kernel.number(&path).map_err(failed)?.is_some() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether the pod has a device bound in that folder, or is about to.
pub(crate) fn holds(global: &Path, pod: &PodUid) -> bool {
    global.join(pod.as_str()).symlink_metadata().is_ok()
}

/// In order; none where there is no such folder.
///
/// # Errors
/// As the kernel.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let list = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        list => list?,
    };
    let mut found: Vec<PathBuf> =
        list.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    found.sort();
    Ok(found)
}

/// Removes what is no folder; one that is not there is removed.
///
/// # Errors
/// Names it.
pub(crate) fn remove(path: &Path) -> Result<(), String> {
    gone(fs::remove_file(path), path)
}

/// Removes an empty folder; one that is not there is removed.
///
/// # Errors
/// Names it.
pub(crate) fn remove_folder(path: &Path) -> Result<(), String> {
    gone(fs::remove_dir(path), path)
}

fn gone(removed: io::Result<()>, path: &Path) -> Result<(), String> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("failed to remove {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// As upstream makes folders.
///
/// # Errors
/// Names it.
pub(crate) fn make_folder(path: &Path) -> Result<(), String> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(path);
    made.map_err(|error| format!("failed to mkdir {}: {error}", path.display()))
}

#[cfg(test)]
pub(crate) mod fake;

#[cfg(test)]
mod tests {
    use super::fake::FakeBlocks;
    use super::*;

    fn map(root: &Path) -> BlockMap {
        BlockMap {
            global: root.join("plugins/p/volumeDevices/pv"),
            pod: PodUid::parse("u1").unwrap(),
            link: root.join("pods/u1/volumeDevices/p/pv"),
        }
    }

    #[test]
    fn a_device_is_bound_linked_and_locked_and_all_of_it_is_taken_back() {
        let root = tempfile::tempdir().unwrap();
        let (map, kernel) = (map(root.path()), FakeBlocks::default());
        let device = kernel.device(&root.path().join("sda"), 7);
        let alias = root.path().join("by-id");
        symlink(&device, &alias).unwrap();
        map.map(&alias, &kernel).unwrap();
        map.map(&device, &kernel).unwrap();
        let point = root.path().join("plugins/p/volumeDevices/pv/u1");
        assert_eq!(kernel.done(), ["bind", "lock", "lock"]);
        assert_eq!(kernel.number(&point).unwrap(), Some(7));
        assert_eq!(fs::read_link(root.path().join("pods/u1/volumeDevices/p/pv")).unwrap(), device);
        assert_eq!(holders(&map.global, &kernel).unwrap(), std::slice::from_ref(&point));
        map.unmap(&kernel).unwrap();
        map.unmap(&kernel).unwrap();
        assert_eq!(kernel.done()[3..], ["unlock", "unbind"]);
        assert!(!map.link.is_symlink() && point.exists(), "the note stays until the device is given back");
        assert_eq!(holders(&map.global, &kernel), Ok(Vec::new()));
        map.forget().unwrap();
        map.forget().unwrap();
        assert!(!point.exists());
    }

    #[test]
    fn what_is_no_device_is_not_mapped_and_another_device_takes_the_place_of_an_old_one() {
        let root = tempfile::tempdir().unwrap();
        let (map, kernel) = (map(root.path()), FakeBlocks::default());
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let told = map.map(&file, &kernel).unwrap_err();
        assert!(told.starts_with("blkUtil.MapDevice failed. devicePath: "), "{told}");
        assert!(
            told.ends_with("bindMount: true: ".to_owned().as_str()) || told.ends_with("is no block device")
        );
        assert!(map.map(&root.path().join("none"), &kernel).unwrap_err().starts_with("device path "));
        map.map(&kernel.device(&root.path().join("sda"), 7), &kernel).unwrap();
        let other = kernel.device(&root.path().join("sdb"), 8);
        map.map(&other, &kernel).unwrap();
        assert_eq!(kernel.done(), ["bind", "lock", "unlock", "unbind", "bind", "lock"]);
        assert_eq!(
            (kernel.number(&map.point()).unwrap(), fs::read_link(&map.link).unwrap()),
            (Some(8), other)
        );
    }
}

//! Maps of block devices as the kernel makes them. Owns the mounts and the loop device over each, which `losetup` makes
//! and takes back as for upstream's kubelet; never decides when. Called by [`super`].

#![expect(clippy::disallowed_methods, reason = "losetup: ARCHITECTURE.md, invariant 11")]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::BlockKernel;

/// Where the kernel lists block devices.
const LISTED: &str = "/sys/block";

/// This machine's.
#[derive(Debug)]
pub(crate) struct Kernel;

impl BlockKernel for Kernel {
    fn number(&self, path: &Path) -> io::Result<Option<u64>> {
        match fs::symlink_metadata(path) {
            Ok(found) => Ok(found.file_type().is_block_device().then(|| found.rdev())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn bind(&self, device: &Path, point: &Path) -> io::Result<()> {
        Ok(mount_bind(device, point)?)
    }

    fn unbind(&self, point: &Path) -> io::Result<()> {
        Ok(unmount(point, UnmountFlags::NOFOLLOW)?)
    }

    fn lock(&self, point: &Path) -> Result<(), String> {
        match loop_over(Path::new(LISTED), point)? {
            Some(_) => Ok(()),
            None => losetup("-f", point),
        }
    }

    fn is_locked(&self, point: &Path) -> Result<bool, String> {
        loop_over(Path::new(LISTED), point).map(|device| device.is_some())
    }

    fn unlock(&self, point: &Path) -> Result<(), String> {
        let Some(device) = loop_over(Path::new(LISTED), point)? else { return Ok(()) };
        match losetup("-d", &device) {
            Err(_) if !device.exists() => Ok(()),
            done => done,
        }
    }
}

/// The loop device over that file, by the list of block devices in that folder.
fn loop_over(listed: &Path, point: &Path) -> Result<Option<PathBuf>, String> {
    // The kernel says where the file is, and not by which links it was come to.
    let real = point.canonicalize();
    let is_point = |path: &Path| path == point || real.as_ref().is_ok_and(|real| path == real);
    let failed = |error: io::Error| format!("failed to list loop devices in sysfs: {error}");
    for entry in fs::read_dir(listed).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") {
            continue;
        }
        // One that is not in use has no such file.
        let Ok(text) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let text = text.trim();
        let backing = text.strip_suffix("(deleted)").unwrap_or(text).trim();
        if is_point(Path::new(backing)) {
            return Ok(Some(Path::new("/dev").join(name)));
        }
    }
    Ok(None)
}

fn losetup(flag: &str, path: &Path) -> Result<(), String> {
    let words = format!("losetup {flag} {} failed", path.display());
    let output = Command::new("losetup").arg(flag).arg(path).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "{words}: there is no such program: install it (of util-linux; in Debian the package mount)"
        ),
        _ => format!("{words}: {error}"),
    })?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{words}: {}: {}", output.status, said.trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_known_by_what_the_kernel_says_of_loop_devices() {
        let root = tempfile::tempdir().unwrap();
        for (name, backing) in [("loop0", None), ("loop1", Some("/a/dev/u1\n")), ("vda", Some("/a/dev/u2\n"))]
        {
            let folder = root.path().join(name).join("loop");
            fs::create_dir_all(&folder).unwrap();
            if let Some(backing) = backing {
                fs::write(folder.join("backing_file"), backing).unwrap();
            }
        }
        let over = |path: &str| loop_over(root.path(), Path::new(path)).unwrap();
        assert_eq!(over("/a/dev/u1"), Some("/dev/loop1".into()));
        assert_eq!((over("/a/dev/u2"), over("/a/dev")), (None, None));
        fs::write(root.path().join("loop0/loop/backing_file"), "/a/dev/u3 (deleted)\n").unwrap();
        assert_eq!(over("/a/dev/u3"), Some("/dev/loop0".into()));
        let (file, link) = (root.path().join("u4"), root.path().join("link"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(root.path(), &link).unwrap();
        let real = file.canonicalize().unwrap();
        fs::write(root.path().join("loop0/loop/backing_file"), real.to_string_lossy().as_bytes()).unwrap();
        assert_eq!(loop_over(root.path(), &link.join("u4")).unwrap(), Some("/dev/loop0".into()));
        assert!(loop_over(&root.path().join("none"), Path::new("/a")).is_err());
    }

    #[test]
    fn what_losetup_says_is_told() {
        let told = losetup("-f", Path::new("/no/such/device")).unwrap_err();
        assert!(told.starts_with("losetup -f /no/such/device failed: "), "{told}");
    }

    #[test]
    fn only_a_block_device_has_a_number() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), Path::new("/dev/null"), &folder.path().join("none")] {
            assert_eq!(Kernel.number(path).unwrap(), None, "{path:?}");
        }
    }
}

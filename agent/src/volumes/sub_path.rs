//! subPath: a part of a volume, bound where no container can exchange it. Owns the safe way down;
//! never follows a link out of the volume (CVE-2017-1002101, CVE-2021-25741). Called by
//! [`super::host`].

#![expect(clippy::disallowed_methods, reason = "an empty file to mount on")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2, statat,
};
use rustix::io::Errno;

use super::mounts;

/// Concurrent renames make the kernel ask for another try.
const TRIES: u32 = 32;

/// Makes the sub-path where it is missing and binds it to `target`, which is kept when it is
/// that already.
pub(super) fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<(), Failure> {
    let parts: Vec<&str> = sub_path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let root = openat(CWD, volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Failure::Prepare(errno.into()))?;
    let source = match open(&root, &parts.join("/")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(volume, &parts).map_err(Failure::Create)?;
            open(&root, &parts.join("/"))
        }
        result => result,
    }
    .map_err(Failure::Prepare)?;
    attach(&source, target).map_err(Failure::Prepare)
}

/// Which half of the work failed. The source is for the log only, because it tells about the
/// node's files.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("failed to create subPath directory")]
    Create(#[source] io::Error),
    #[error("failed to prepare subPath")]
    Prepare(#[source] io::Error),
}

/// What `path` is below the folder that `root` is open on; links are followed within it only.
fn open(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { "." } else { path };
    patiently(root, path, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::BENEATH)
}

/// openat2(2), which gives up where a rename or a mount anywhere on the node comes in between a `..`.
pub(super) fn patiently(
    root: &OwnedFd,
    path: &str,
    flags: OFlags,
    stay: ResolveFlags,
) -> io::Result<OwnedFd> {
    for _ in 0..TRIES {
        match openat2(root, path, flags, Mode::empty(), stay | ResolveFlags::NO_MAGICLINKS) {
            Err(Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// New folders have the mode of the volume itself.
fn make(volume: &Path, parts: &[&str]) -> io::Result<()> {
    let root = openat(CWD, volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mode = Mode::from_raw_mode(fstat(&root)?.st_mode & 0o7777);
    for end in 1..=parts.len() {
        let (above, name) = (parts.get(..end - 1).unwrap_or_default(), parts.get(end - 1).copied());
        let path = parts.get(..end).unwrap_or_default().join("/");
        let (Some(name), Err(error)) = (name, open(&root, &path)) else { continue };
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        let parent = open(&root, &above.join("/"))?;
        match mkdirat(&parent, name, mode) {
            Ok(()) => {
                // A link put in its place meanwhile is not followed.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // The umask has taken bits away.
                fchmod(openat(&parent, name, flags, Mode::empty())?, mode)?;
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn attach(source: &OwnedFd, target: &Path) -> io::Result<()> {
    let stat = fstat(source)?;
    if mounts::is_listed(target)? {
        let there = statat(CWD, target, AtFlags::SYMLINK_NOFOLLOW)?;
        if (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino) {
            return Ok(());
        }
        mounts::detach(target)?;
    }
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    place(target, folder)?;
    mounts::bind(source.as_fd(), target)
}

/// Something to mount on, of the right kind.
fn place(target: &Path, folder: bool) -> io::Result<()> {
    match std::fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == folder && !found.is_symlink() => return Ok(()),
        Ok(found) if found.is_dir() => std::fs::remove_dir(target)?,
        Ok(_) => std::fs::remove_file(target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if folder { std::fs::create_dir(target) } else { std::fs::write(target, []) }
}

/// `pods/UID/volume-subpaths/VOLUME/CONTAINER/INDEX`, as the kubelet has it.
pub(super) fn target(pod_folder: &Path, volume: &str, container: &str, index: usize) -> PathBuf {
    pod_folder.join("volume-subpaths").join(volume).join(container).join(index.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn root_of(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn missing_folders_get_the_volumes_mode() {
        let volume = tempfile::tempdir().unwrap();
        fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o2777)).unwrap();
        make(volume.path(), &["a", "b"]).unwrap();
        let mode = fs::metadata(volume.path().join("a/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o2777);
        make(volume.path(), &["a", "b", "c"]).unwrap();
        assert!(volume.path().join("a/b/c").is_dir());
    }

    #[test]
    fn links_lead_within_the_volume_only() {
        let (volume, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(volume.path().join("real")).unwrap();
        symlink("real", volume.path().join("inside")).unwrap();
        symlink(other.path(), volume.path().join("outside")).unwrap();
        symlink("../../../../../../etc", volume.path().join("up")).unwrap();
        let root = root_of(volume.path());
        assert!(open(&root, "inside").is_ok());
        assert!(open(&root, "").is_ok());
        for escape in ["outside", "up", "up/passwd", ".."] {
            assert_eq!(
                open(&root, escape).unwrap_err().raw_os_error(),
                Some(Errno::XDEV.raw_os_error()),
                "{escape}"
            );
        }
        assert!(make(volume.path(), &["outside", "new"]).is_err());
        assert!(!other.path().join("new").exists());
    }
}

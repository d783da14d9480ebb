//! The volumes that an image's configuration names (`VOLUME`): a folder of the container's own for each, filled with what
//! the image has there, as containerd makes them. Owns the copy; links of a hostile image stay inside the image, and
//! nothing is followed while copying. Where the request mounts something on the path, that is what counts. Called by
//! `create`, on a blocking thread.

mod budget;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gantry_proto::monitor::Mount;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use self::budget::Budget;
use super::merged;
use crate::error::Error;
use gantry_monitor::within;

/// Below the container's folder.
const FOLDER: &str = "volumes";

/// Volumes of one image; more than any that is meant to be used has.
const MOST: usize = 128;

/// What is copied of a file between two counts.
const PIECE: u64 = 4 << 20;

/// Folders within folders that are copied; more than any image that is meant to be used has, and fewer than a process
/// may have open.
const DEEPEST: usize = 128;

const OPEN_FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Makes the volumes and returns their mounts. `taken` are the paths of the request's own mounts.
///
/// # Errors
/// What can't be made or copied, or is more than the image has itself. What was made by then is the caller's to remove.
pub(super) fn make(
    volumes: &[String],
    taken: &BTreeSet<String>,
    (layers_dir, layers): (&Path, &[String]),
    folder: &Path,
) -> Result<Vec<Mount>, Error> {
    let wanted: BTreeSet<String> =
        volumes.iter().map(|path| crate::spec::container::clean_path(path)).collect();
    if wanted.len() > MOST {
        let count = wanted.len();
        return Err(crate::spec::Error::TooMany { what: "volumes of the image", count, most: MOST }.into());
    }
    let mut budget = Budget::new(layers_dir, layers);
    let mut mounts = Vec::new();
    for (number, path) in wanted.into_iter().enumerate() {
        // The root is no volume, and what the request mounts there is what it wants there.
        if path == "/" || taken.contains(&path) {
            continue;
        }
        let source = folder.join(FOLDER).join(number.to_string());
        fs::create_dir_all(&source).map_err(|error| Error::Files {
            what: "make",
            path: source.clone(),
            source: error,
        })?;
        fill(&source, &path, (layers_dir, layers), &folder.join("root"), &mut budget)?;
        mounts.push(Mount { source: source.display().to_string(), destination: path, ..Mount::default() });
    }
    Ok(mounts)
}

fn fill(
    source: &Path,
    path: &str,
    (layers_dir, layers): (&Path, &[String]),
    mount_point: &Path,
    budget: &mut Budget<'_>,
) -> Result<(), Error> {
    // Before the thread's own mount namespace: its working folder is another one.
    let into = rustix::fs::openat(CWD, source, OPEN_FOLDER, Mode::empty());
    let copied = merged::with(layers_dir, layers, mount_point, |root| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let from = match within::open(root, path, flags, ResolveFlags::empty()) {
            Ok(from) => from,
            // Nothing there to copy.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Ok(())),
            Err(errno) => return Err(errno),
        };
        Ok(into.map_err(io::Error::from).and_then(|into| {
            let found = rustix::fs::fstat(&from)?;
            budget.take(&found, &into)?;
            copy_folder(&from, &into, DEEPEST, budget)?;
            Ok(restore_attributes(&into, &found)?)
        }))
    })?;
    copied.map_err(|error| Error::Files {
        what: "copy the image's volume to",
        path: source.to_owned(),
        source: error,
    })
}

fn copy_folder(from: &OwnedFd, into: &OwnedFd, depth: usize, budget: &mut Budget<'_>) -> io::Result<()> {
    if depth == 0 {
        return Err(Errno::NAMETOOLONG.into());
    }
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let found = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        budget.take(&found, into)?;
        copy_one((from, into), name, &found, depth, budget)?;
    }
    Ok(copy_attributes(from, into)?)
}

fn copy_one(
    (from, into): (&OwnedFd, &OwnedFd),
    name: &CStr,
    found: &Stat,
    depth: usize,
    budget: &mut Budget<'_>,
) -> io::Result<()> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {
            rustix::fs::mkdirat(into, name, Mode::from_raw_mode(0o700))?;
            let source = rustix::fs::openat(from, name, OPEN_FOLDER, Mode::empty())?;
            let target = rustix::fs::openat(into, name, OPEN_FOLDER, Mode::empty())?;
            copy_folder(&source, &target, depth - 1, budget)?;
            Ok(restore_attributes(&target, found)?)
        }
        FileType::RegularFile => {
            let plain = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let source = rustix::fs::openat(from, name, plain | OFlags::RDONLY, Mode::empty())?;
            let fresh = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let target = rustix::fs::openat(into, name, plain | fresh, Mode::from_raw_mode(0o600))?;
            let (mut source, mut target) = (fs::File::from(source), fs::File::from(target));
            loop {
                match io::copy(&mut Read::by_ref(&mut source).take(PIECE), &mut target)? {
                    0 => break,
                    written => budget.count_written(written, &target)?,
                }
            }
            let (source, target) = (OwnedFd::from(source), OwnedFd::from(target));
            restore_attributes(&target, found)?;
            // After the owner, whose change takes file capabilities away.
            Ok(copy_attributes(&source, &target)?)
        }
        FileType::Symlink => {
            let to = rustix::fs::readlinkat(from, name, Vec::new())?;
            rustix::fs::symlinkat(to.as_c_str(), into, name)?;
            Ok(set_owner(into, name, found)?)
        }
        // What an unpacked layer takes away.
        FileType::CharacterDevice if found.st_rdev == 0 => Ok(()),
        kind => {
            rustix::fs::mknodat(
                into,
                name,
                kind,
                Mode::from_raw_mode(found.st_mode & 0o7777),
                found.st_rdev,
            )?;
            set_owner(into, name, found)?;
            let mode = Mode::from_raw_mode(found.st_mode & 0o7777);
            Ok(rustix::fs::chmodat(into, name, mode, AtFlags::empty())?)
        }
    }
}

fn set_owner(folder: &OwnedFd, name: &CStr, found: &Stat) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
    rustix::fs::chownat(folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
}

/// Owner, mode and times, in this order: a change of owner takes set-user-ID bits away.
fn restore_attributes(target: &OwnedFd, found: &Stat) -> Result<(), Errno> {
    rustix::fs::fchown(target, Some(Uid::from_raw(found.st_uid)), Some(Gid::from_raw(found.st_gid)))?;
    rustix::fs::fchmod(target, Mode::from_raw_mode(found.st_mode & 0o7777))?;
    let at = |tv_sec, nanos| Timespec { tv_sec, tv_nsec: i64::try_from(nanos).unwrap_or_default() };
    let times = Timestamps {
        last_access: at(found.st_atime, found.st_atime_nsec),
        last_modification: at(found.st_mtime, found.st_mtime_nsec),
    };
    rustix::fs::futimens(target, &times)
}

/// Those that an unpacked layer may have; a file system without them is none to complain about.
fn copy_attributes(from: &OwnedFd, into: &OwnedFd) -> Result<(), Errno> {
    let mut names = vec![0u8; 64 << 10];
    let length = match rustix::fs::flistxattr(from, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for name in names.get(..length).unwrap_or_default().split(|byte| *byte == 0) {
        if !(name.starts_with(b"user.") && !name.starts_with(b"user.overlay.")
            || name == b"security.capability")
        {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        let length = rustix::fs::fgetxattr(from, name, &mut value[..])?;
        let value = value.get(..length).unwrap_or_default();
        match rustix::fs::fsetxattr(into.as_fd(), name, value, rustix::fs::XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_volume_has_what_the_image_has_there_and_no_link_leads_out() {
        let root = tempfile::tempdir().unwrap();
        let (layers, folder) = (root.path().join("layers"), root.path().join("container"));
        let data = layers.join("l/var/data");
        fs::create_dir_all(data.join("below")).unwrap();
        fs::create_dir_all(folder.join("root")).unwrap();
        fs::write(data.join("below/file"), "text").unwrap();
        fs::set_permissions(data.join("below/file"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o1777)).unwrap();
        symlink("/etc/passwd", data.join("link")).unwrap();
        symlink("/var/data", layers.join("l/alias")).unwrap();
        symlink("/etc", layers.join("l/out")).unwrap();
        let volumes = ["/var/./data/", "/alias", "/out", "/none", "/asked", "/"].map(str::to_owned);
        let taken = BTreeSet::from(["/asked".to_owned()]);
        let mounts = make(&volumes, &taken, (&layers, &["l".to_owned()]), &folder).unwrap();
        let at = |path: &str| {
            let found = mounts.iter().find(|mount| mount.destination == path);
            Path::new(&found.unwrap().source).to_owned()
        };
        assert_eq!(mounts.len(), 4, "{mounts:?}");
        for path in ["/var/data", "/alias"] {
            assert_eq!(fs::read_to_string(at(path).join("below/file")).unwrap(), "text");
            assert_eq!(fs::metadata(at(path).join("below/file")).unwrap().mode() & 0o7777, 0o4751);
            assert_eq!(fs::metadata(at(path)).unwrap().mode() & 0o7777, 0o1777);
            assert_eq!(fs::read_link(at(path).join("link")).unwrap(), Path::new("/etc/passwd"));
        }
        for path in ["/out", "/none"] {
            assert_eq!(fs::read_dir(at(path)).unwrap().count(), 0, "{path}");
        }
    }

    #[test]
    fn more_volumes_than_any_image_means_are_refused_before_one_is_made() {
        let root = tempfile::tempdir().unwrap();
        let (layers, folder) = (root.path().join("layers"), root.path().join("container"));
        fs::create_dir_all(layers.join("l/data")).unwrap();
        fs::create_dir_all(folder.join("root")).unwrap();
        let volumes = |count: usize| (0..count).map(|at| format!("/v{at}")).collect::<Vec<_>>();
        let made = |count| make(&volumes(count), &BTreeSet::new(), (&layers, &["l".into()]), &folder);
        let error = made(129).unwrap_err();
        assert!(error.to_string().contains("129"), "{error}");
        assert!(!folder.join(FOLDER).exists());
        assert_eq!(made(128).unwrap().len(), 128);
    }

    #[test]
    fn what_an_image_has_once_is_not_copied_until_the_disk_is_full() {
        let root = tempfile::tempdir().unwrap();
        let (layers, folder) = (root.path().join("layers"), root.path().join("container"));
        let data = layers.join("l/data");
        fs::create_dir_all(&data).unwrap();
        fs::create_dir_all(folder.join("root")).unwrap();
        let mut volumes = vec!["/data".to_owned()];
        for at in 0..100 {
            symlink("/data", layers.join(format!("l/a{at}"))).unwrap();
            volumes.push(format!("/a{at}"));
        }
        let of = |volumes: &[String]| {
            let made = make(volumes, &BTreeSet::new(), (&layers, &["l".into()]), &folder);
            gantry_image::remove::tree(&folder.join(FOLDER)).unwrap();
            made.map_err(|error| gantry_base::error::chain(&error))
        };
        // A little may be there as often as the image says.
        fs::write(data.join("small"), vec![1; 4 << 10]).unwrap();
        assert_eq!(of(&volumes).unwrap().len(), 101);
        for at in 0..100 {
            fs::write(data.join(format!("f{at}")), "").unwrap();
        }
        let error = of(&volumes).unwrap_err();
        assert!(error.contains("files"), "{error}");
        for at in 0..100 {
            fs::remove_file(data.join(format!("f{at}"))).unwrap();
        }
        fs::write(data.join("large"), vec![1; 1 << 20]).unwrap();
        let error = of(&volumes).unwrap_err();
        assert!(error.contains("bytes"), "{error}");
        // Nor by many names of one file.
        fs::remove_file(data.join("small")).unwrap();
        for at in 0..100 {
            fs::hard_link(data.join("large"), data.join(format!("h{at}"))).unwrap();
        }
        let error = of(&volumes[..1]).unwrap_err();
        assert!(error.contains("bytes"), "{error}");
    }

    #[test]
    fn a_volume_deeper_than_any_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (layers, folder) = (root.path().join("layers"), root.path().join("container"));
        fs::create_dir_all(layers.join("l/data").join("a/".repeat(DEEPEST + 1))).unwrap();
        fs::create_dir_all(folder.join("root")).unwrap();
        let error = make(&["/data".into()], &BTreeSet::new(), (&layers, &["l".into()]), &folder).unwrap_err();
        assert!(gantry_base::error::chain(&error).contains("copy the image's volume to"), "{error}");
    }
}

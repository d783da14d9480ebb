//! The archive of a checkpoint at the place that the caller names. Owns that it is there whole, or not at all, and
//! that nobody but root reads it: it holds the container's memory. Called by `checkpoint`. Blocks.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gantry_failpoint::failpoint;
use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};

use crate::error::checkpoint::{Error, file};

/// A place for an archive.
///
/// # Errors
/// One that is no absolute path of a file.
pub(super) fn location(text: &str) -> Result<PathBuf, Error> {
    let path = Path::new(text);
    let named = path.file_name().is_some() && !text.ends_with('/') && !text.contains('\0');
    let plain = path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
    if named && plain { Ok(path.to_owned()) } else { Err(Error::Location(text.to_owned())) }
}

/// Where the archive grows: beside the place, by one name for each container, so that what a crash leaves is
/// written over by the next attempt.
pub(super) fn growing(location: &Path, id: &str) -> PathBuf {
    location.with_file_name(format!(".gantry-checkpoint-{}", id.get(..16).unwrap_or(id)))
}

/// Packs the work folder.
///
/// # Errors
/// When the place can't be written; nothing is left there then.
pub(super) fn write(work: &Path, location: &Path, id: &str) -> Result<(), crate::error::Error> {
    let temporary = growing(location, id);
    let written = grow(work, &temporary).map_err(crate::error::Error::from).and_then(|()| {
        failpoint!("checkpoint.archive"?);
        fs::rename(&temporary, location).map_err(file("write", location)).map_err(Into::into)
    });
    if written.is_err() {
        // What counts is why there is no archive.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn grow(work: &Path, temporary: &Path) -> Result<(), Error> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file("remove", temporary)(error));
        }
        _ => {}
    }
    let out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary);
    let mut out = Builder::new(out.map_err(file("make", temporary))?);
    folder(&mut out, work, Path::new(""), temporary)?;
    let out = out.into_inner().map_err(file("write", temporary))?;
    // The caller may take it to another machine, and end this one.
    out.sync_all().map_err(file("write", temporary))
}

/// In the order of names. What criu writes are files and folders; all else stays out.
fn folder(out: &mut Builder<File>, from: &Path, path: &Path, temporary: &Path) -> Result<(), Error> {
    let read = || file("read", from);
    let mut names = Vec::new();
    for entry in fs::read_dir(from).map_err(read())? {
        names.push(entry.map_err(read())?.file_name());
    }
    names.sort();
    for name in names {
        let (from, path) = (from.join(&name), path.join(&name));
        let found = fs::symlink_metadata(&from).map_err(file("look at", &from))?;
        let mut header = Header::new_gnu();
        header.set_metadata(&found);
        // Whoever runs the runtime.
        header.set_uid(0);
        header.set_gid(0);
        if found.is_dir() {
            header.set_mode(0o700);
            header.set_entry_type(EntryType::Directory);
            out.append_data(&mut header, &path, io::empty()).map_err(file("write", temporary))?;
            folder(out, &from, &path, temporary)?;
        } else if found.is_file() {
            header.set_mode(0o600);
            let opened = fs::OpenOptions::new()
                .read(true)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(&from);
            let opened = opened.map_err(file("open", &from))?;
            out.append_data(&mut header, &path, opened).map_err(file("write", temporary))?;
        }
    }
    Ok(())
}

/// A copy of the container's log as it is by now, where it has one.
///
/// # Errors
/// When it can't be read: a link there is not followed.
pub(super) fn log(from: &str, to: &Path) -> Result<(), Error> {
    use std::io::Read;
    if from.is_empty() {
        return Ok(());
    }
    let from = Path::new(from);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(from);
    let opened = match opened {
        // Rotated away, or swept.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(file("open", from))?,
    };
    let found = opened.metadata().map_err(file("look at", from))?;
    if !found.is_file() {
        return Ok(());
    }
    let mut copy =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(file("make", to))?;
    io::copy(&mut opened.take(found.len()), &mut copy).map(drop).map_err(file("write", to))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_location_is_an_absolute_path_of_a_file() {
        assert_eq!(location("/a/b.tar").unwrap(), Path::new("/a/b.tar"));
        for bad in ["", "b.tar", "/", "/a/", "/a/../b", "/a/..", "/a\0b"] {
            let error = location(bad).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn an_archive_is_there_whole_and_for_root_alone_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let (work, place) = (root.path().join("work"), root.path().join("place"));
        fs::create_dir_all(work.join("checkpoint")).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(work.join("checkpoint/inventory.img"), "images").unwrap();
        fs::write(work.join("spec.dump"), "{}").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", work.join("link")).unwrap();
        let to = place.join("c.tar");
        // Of an attempt that was cut off.
        fs::write(growing(&to, "c1"), "half").unwrap();
        write(&work, &to, "c1").unwrap();
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
        let mut archive = tar::Archive::new(File::open(&to).unwrap());
        let names: Vec<_> =
            archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
        let expected = ["checkpoint", "checkpoint/inventory.img", "spec.dump"].map(PathBuf::from);
        assert_eq!(names, expected);
        let left = || fs::read_dir(&place).unwrap().count();
        assert_eq!(left(), 1);
        // Something else is there.
        let taken = place.join("taken");
        fs::create_dir(&taken).unwrap();
        write(&work, &taken, "c1").unwrap_err();
        assert_eq!(left(), 2);
    }
}

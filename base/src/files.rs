//! Files that outlive a program, and the machine's power. Owns how one is replaced; never what it says.
//! Called by whoever keeps something over a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Puts a whole file in place of another, which stays until then. After a power cut there is one of the
/// two, never an empty one. One path is for one writer at a time. The folder must be there.
///
/// # Errors
/// When it cannot be written: then the old one stays.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it names no file"));
    };
    // Whoever lists the folder passes over what begins with a dot.
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(".tmp");
    let beside = folder.join(beside);
    let written = write(&beside, content, mode).and_then(|()| fs::rename(&beside, path));
    if let Err(error) = written {
        return Err(match gone(fs::remove_file(&beside)) {
            Ok(()) => error,
            Err(left) => io::Error::new(error.kind(), format!("{error}; {} stays: {left}", beside.display())),
        });
    }
    settle(folder)
}

/// The names in a folder outlive a power cut, too (fsync(2)).
///
/// # Errors
/// When the folder can't be opened or synced.
pub fn settle(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // Not every file system can do so for a folder.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// A file that only we write: what a crash left is gone, and nothing is written through a link.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    gone(fs::remove_file(path))?;
    let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_by_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        fs::write(&other, "other").unwrap();
        // What a crash left, or somebody planted.
        symlink(&other, folder.path().join(".file.tmp")).unwrap();
        for content in ["first", "second"] {
            replace(&path, content.as_bytes(), 0o600).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_replaced_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("folder");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"text", 0o600).is_err());
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(replace(&folder.path().join("none/file"), b"text", 0o600).is_err());
        assert!(replace(Path::new("/"), b"text", 0o600).is_err());
    }
}

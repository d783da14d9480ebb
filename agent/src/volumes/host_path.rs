//! hostPath volumes: what must be there, or is made. Owns the check and the kubelet's words; never
//! removes anything. Called by [`super::host`].

use std::fs::{self, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use gantry_model::pod::volume::HostPathType;

/// What is checked, and what is said when it is something else.
type Rule = (fn(&FileType) -> bool, &'static str);

/// Makes what may be made, and checks the rest; links are followed.
pub(super) fn check(path: &Path, kind: HostPathType) -> Result<(), String> {
    let exists = match fs::metadata(path) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        // The kubelet takes what it cannot see as not there, and then fails to make it.
        Err(error) => return Err(format!("stat {}: {error}", path.display())),
    };
    let failed = |error: io::Error| format!("mkdir {}: {error}", path.display());
    let (fits, what): Rule = match kind {
        HostPathType::Unset => return Ok(()),
        HostPathType::DirectoryOrCreate if !exists => {
            return fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed);
        }
        HostPathType::FileOrCreate if !exists => {
            let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            return made.map(drop).map_err(|error| format!("open {}: {error}", path.display()));
        }
        HostPathType::DirectoryOrCreate | HostPathType::Directory => (FileType::is_dir, "a directory"),
        HostPathType::FileOrCreate | HostPathType::File => (FileType::is_file, "a file"),
        HostPathType::Socket => (FileType::is_socket, "a socket file"),
        HostPathType::CharDevice => (FileType::is_char_device, "a character device"),
        HostPathType::BlockDevice => (FileType::is_block_device, "a block device"),
    };
    match fs::metadata(path) {
        Ok(found) if fits(&found.file_type()) => Ok(()),
        _ => Err(format!("hostPath type check failed: {} is not {what}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_in_the_kubelets_words() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("file"), "").unwrap();
        let at = root.path().display();
        assert_eq!(check(&path("none"), HostPathType::Unset), Ok(()));
        assert_eq!(check(&path("a/b"), HostPathType::DirectoryOrCreate), Ok(()));
        assert!(path("a/b").is_dir());
        assert_eq!(check(&path("new"), HostPathType::FileOrCreate), Ok(()));
        assert!(path("new").is_file());
        assert_eq!(check(&path("a"), HostPathType::Directory), Ok(()));
        assert_eq!(check(Path::new("/dev/null"), HostPathType::CharDevice), Ok(()));
        for (name, kind, what) in [
            ("file", HostPathType::Directory, "a directory"),
            ("file", HostPathType::DirectoryOrCreate, "a directory"),
            ("none", HostPathType::Directory, "a directory"),
            ("a", HostPathType::File, "a file"),
            ("a", HostPathType::FileOrCreate, "a file"),
            ("file", HostPathType::Socket, "a socket file"),
            ("file", HostPathType::CharDevice, "a character device"),
            ("none", HostPathType::BlockDevice, "a block device"),
        ] {
            let expected = format!("hostPath type check failed: {at}/{name} is not {what}");
            assert_eq!(check(&path(name), kind).unwrap_err(), expected);
        }
    }
}

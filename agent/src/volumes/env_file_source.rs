//! The source of an environment file (`fileKeyRef`): a file in a volume. Owns the way to it, which never leaves
//! the volume; never writes. Called by [`super::host`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, open};

use super::sub_path;

/// More than that is no list of variables.
const MOST: u64 = 1 << 20;

/// The text of `path` below the volume's root; links lead within it, as in a root of its own.
///
/// # Errors
/// When there is no such file, or it is too large or no text.
pub(super) fn read(root: &Path, path: &str) -> std::io::Result<String> {
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(sub_path::patiently(&root, path, flags, ResolveFlags::IN_ROOT)?);
    let kind = file.metadata()?;
    if !kind.is_file() || kind.len() > MOST {
        return Err(std::io::Error::other("no file, or larger than 1 MiB"));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_from_below_its_volume_only() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("v"), folder.path().join("secret"));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(&outside, "A='no'").unwrap();
        std::fs::write(root.join("env"), "A='1'").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        assert_eq!(read(&root, "env").unwrap(), "A='1'");
        assert!(read(&root, "link").is_err());
        assert!(read(&root, "../secret").is_err());
        assert!(read(&root, "nope").is_err());
    }
}

//! The files of containers' last words. Owns where they are and how much of one is read; what is in one is a container's.
//! Called by [`super`].

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::make_folder;

/// As the kubelet reads of a container's last words.
const MAX_WORDS: u64 = 4096;

pub(super) fn words_path(pod_folder: &Path, container: &str, attempt: u32) -> PathBuf {
    pod_folder.join("containers").join(container).join(attempt.to_string())
}

/// Nothing but a file of the pod's containers is read, whatever a pod mounts at that path.
pub(super) fn words_below(pod_folder: &Path, said: &Path) -> Option<PathBuf> {
    let below = pod_folder.join("containers").canonicalize().ok()?;
    let folder = said.parent()?.canonicalize().ok()?;
    folder.starts_with(below).then(|| said.file_name().map(|name| folder.join(name)))?
}

/// Anybody in the container may write it.
pub(super) fn make_words(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o666))
}

pub(super) fn read_words(path: &Path) -> io::Result<Option<String>> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let start = file.metadata()?.len().saturating_sub(MAX_WORDS);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_WORDS).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

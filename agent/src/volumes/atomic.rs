//! Files of a projected volume, exchanged all at once. Owns the links and folders by which the
//! kubelet does that; never what the files say. Called by [`super::host`].
//!
//! ```text
//! volume/KEY    → ..data/KEY          what containers open
//! volume/..data → ..2026_11_21_…      renamed over, so that readers see all old or all new
//! volume/..2026_11_21_…/KEY           the files
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::ownership;

/// By relative path.
pub(super) type Payload = BTreeMap<String, PayloadFile>;

/// One file to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PayloadFile {
    pub(super) content: Vec<u8>,
    /// Permission bits.
    pub(super) mode: u32,
    /// Whose it is, if not root's.
    pub(super) user: Option<u32>,
}

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

/// Brings the volume to the payload; touches nothing when it is there already.
pub(super) fn write(volume: &Path, payload: &Payload, fs_group: Option<u32>, now: &str) -> io::Result<()> {
    let data = volume.join(DATA);
    let old = match fs::read_link(&data) {
        Ok(target) => Some(volume.join(target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A power loss may keep the link and lose the folder: then all is written afresh.
    let old = old.filter(|folder| folder.try_exists().unwrap_or(true));
    let before = match &old {
        Some(folder) => paths(folder)?,
        None => BTreeSet::new(),
    };
    let same = old.as_deref().is_some_and(|folder| holds(folder, &before, payload));
    let mut stale = None;
    if !same {
        let fresh = fresh_folder(volume, now)?;
        for (path, file) in payload {
            write_file(&fresh, path, file)?;
        }
        // Before anybody can see the files.
        ownership::set_projected(volume, &fresh, fs_group)?;
        let fresh_name = fresh.file_name().unwrap_or_default();
        let tmp = volume.join(DATA_TMP);
        match fs::remove_file(&tmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => symlink(fresh_name, &tmp)?,
        }
        fs::rename(&tmp, &data)?;
        stale = old;
    }
    show(volume, payload, fs_group)?;
    hide(volume, &before, payload)?;
    match stale {
        Some(folder) => fs::remove_dir_all(folder),
        None => Ok(()),
    }
}

/// `now` is part of the name only: a name that is taken gets a number.
fn fresh_folder(volume: &Path, now: &str) -> io::Result<PathBuf> {
    for number in 0..1000 {
        let folder = volume.join(format!("..{now}.{number}"));
        match fs::DirBuilder::new().mode(0o755).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(()) => {
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
                return Ok(folder);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn write_file(folder: &Path, path: &str, file: &PayloadFile) -> io::Result<()> {
    let path = folder.join(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    open.write_all(&file.content)?;
    if file.user.is_some() {
        std::os::unix::fs::fchown(&open, file.user, None)?;
    }
    open.set_permissions(fs::Permissions::from_mode(file.mode))
}

/// Every file below the folder, by relative path.
fn paths(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec![(folder.to_owned(), String::new())];
    while let Some((folder, prefix)) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                open.push((entry.path(), format!("{path}/")));
            } else {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

fn holds(folder: &Path, before: &BTreeSet<String>, payload: &Payload) -> bool {
    before.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            before.contains(path) && fs::read(folder.join(path)).is_ok_and(|content| content == file.content)
        })
}

fn first_part(path: &str) -> OsString {
    path.split('/').next().unwrap_or(path).into()
}

fn show(volume: &Path, payload: &Payload, fs_group: Option<u32>) -> io::Result<()> {
    for name in payload.keys().map(|path| first_part(path)).collect::<BTreeSet<_>>() {
        let link = volume.join(&name);
        match fs::read_link(&link) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                symlink(Path::new(DATA).join(&name), &link)?;
                ownership::set_link(&link, fs_group)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Links of what is no more.
fn hide(volume: &Path, before: &BTreeSet<String>, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<OsString> = payload.keys().map(|path| first_part(path)).collect();
    for name in before.iter().map(|path| first_part(path)).collect::<BTreeSet<_>>() {
        if !wanted.contains(&name) {
            match fs::remove_file(volume.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(list: &[(&str, &str)]) -> Payload {
        list.iter()
            .map(|(path, text)| {
                (
                    (*path).to_owned(),
                    PayloadFile { content: text.as_bytes().to_vec(), mode: 0o640, user: None },
                )
            })
            .collect()
    }

    fn names(volume: &Path) -> BTreeSet<String> {
        fs::read_dir(volume)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".."))
            .collect()
    }

    #[test]
    fn files_change_all_at_once_and_old_ones_go() {
        let volume = tempfile::tempdir().unwrap();
        let read = |path: &str| fs::read_to_string(volume.path().join(path)).unwrap();
        write(volume.path(), &payload(&[("a", "1"), ("d/b", "2")]), None, "T1").unwrap();
        assert_eq!((read("a"), read("d/b")), ("1".to_owned(), "2".to_owned()));
        assert_eq!(fs::read_link(volume.path().join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::read_link(volume.path().join("..data")).unwrap(), Path::new("..T1.0"));
        let mode = fs::metadata(volume.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        // The same again: nothing moves.
        write(volume.path(), &payload(&[("a", "1"), ("d/b", "2")]), None, "T2").unwrap();
        assert_eq!(fs::read_link(volume.path().join("..data")).unwrap(), Path::new("..T1.0"));
        write(volume.path(), &payload(&[("a", "3"), ("e", "4")]), None, "T2").unwrap();
        assert_eq!(read("a"), "3");
        assert_eq!(names(volume.path()), BTreeSet::from(["a".to_owned(), "e".to_owned()]));
        assert!(!volume.path().join("..T1.0").exists());
        write(volume.path(), &Payload::new(), None, "T2").unwrap();
        assert!(names(volume.path()).is_empty());
    }

    #[test]
    fn what_a_crash_left_is_in_nobodys_way() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("..T1.0")).unwrap();
        symlink("..T1.0", volume.path().join("..data_tmp")).unwrap();
        write(volume.path(), &payload(&[("a", "1")]), None, "T1").unwrap();
        assert_eq!(fs::read_to_string(volume.path().join("a")).unwrap(), "1");
        // The folder was lost, the link to it was not.
        fs::remove_dir_all(volume.path().join("..T1.1")).unwrap();
        write(volume.path(), &payload(&[("a", "1")]), None, "T2").unwrap();
        assert_eq!(fs::read_to_string(volume.path().join("a")).unwrap(), "1");
        // The link came last: it is made the next time.
        fs::remove_file(volume.path().join("a")).unwrap();
        write(volume.path(), &payload(&[("a", "1")]), None, "T1").unwrap();
        assert_eq!(fs::read_to_string(volume.path().join("a")).unwrap(), "1");
    }
}

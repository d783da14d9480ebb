//! Folders on their way out. Owns the folder that they wait in, and the thread that deletes them while the
//! node serves: one may hold millions of files. Called by `recover` and `image::store` before anything is
//! served. What is left of it after a crash the next start deletes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

/// Moves a folder out of the way, into `trash`.
///
/// # Errors
/// When it can't be moved.
pub fn take(folder: &Path, trash: &Path) -> io::Result<()> {
    fs::create_dir_all(trash)?;
    // Earlier starts may have moved something there.
    for number in 0_u64.. {
        match rustix::fs::renameat_with(
            CWD,
            folder,
            CWD,
            trash.join(number.to_string()),
            RenameFlags::NOREPLACE,
        ) {
            Err(Errno::EXIST) => {}
            moved => return Ok(moved?),
        }
    }
    Ok(())
}

/// Deletes everything in `trash`, and it, on a thread of its own.
///
/// # Errors
/// When there can be no such thread.
pub fn empty(trash: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(trash) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let trash = trash.to_owned();
    delete(entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?, move || {
        // Not empty when something could not be deleted.
        let _ = fs::remove_dir(trash);
    })
}

/// Deletes these, files or folders, on a thread of its own; `done` comes last.
///
/// # Errors
/// When there can be no such thread.
pub fn delete(paths: Vec<PathBuf>, done: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        for path in paths {
            if let Err(error) = crate::remove::tree(&path) {
                // Lost space is no reason to refuse the node's pods.
                tracing::error!(path = %path.display(), %error, "it can't be deleted and stays");
            }
        }
        done();
    };
    thread::Builder::new().name("trash".to_owned()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_is_taken_is_away_at_once_and_deleted_beside_those_who_go_on() {
        let root = tempfile::tempdir().unwrap();
        let (folder, trash) = (root.path().join("folder"), root.path().join("trash"));
        for _ in 0..2 {
            fs::create_dir_all(folder.join("inner")).unwrap();
            take(&folder, &trash).unwrap();
            assert!(!folder.exists());
        }
        fs::write(trash.join("file"), "").unwrap();
        let left = || fs::read_dir(&trash).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        assert_eq!(left().len(), 3);
        let (done, ended) = mpsc::channel();
        delete(left(), move || done.send(()).unwrap()).unwrap();
        ended.recv().unwrap();
        assert!(left().is_empty());
        empty(&root.path().join("none")).unwrap();
    }
}

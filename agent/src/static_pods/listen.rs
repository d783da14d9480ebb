//! The ear at the manifest folder: an inotify watch in a thread of its own. Owns the watch and what
//! was heard but not taken yet; never reads a file. Called by [`super::follow`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::watch;

/// Of events: more than one of the longest names fits.
const BUFFER: usize = 16 * 1024;

/// What was heard since the last time: names of files that went, whether or not they are back.
type RemovedFiles = BTreeSet<OsString>;

/// The ear; dropping it ends its thread.
pub(super) struct Changes {
    heard: watch::Receiver<RemovedFiles>,
    take: watch::Sender<RemovedFiles>,
    _stop: OwnedFd,
}

/// Waits in a thread of its own: an inotify descriptor is no socket. None when that cannot be had;
/// then the folder is looked at from time to time only.
pub(super) fn begin(folder: &Path) -> Option<Changes> {
    let (take, heard) = watch::channel(RemovedFiles::new());
    let folder = folder.to_owned();
    let tell = take.clone();
    let begin = || -> std::io::Result<OwnedFd> {
        let (stop, keep) = pipe_with(PipeFlags::CLOEXEC)?;
        std::thread::Builder::new()
            .name("static-pods".into())
            .spawn(move || listen(&folder, &stop, &tell))?;
        Ok(keep)
    };
    match begin() {
        Ok(keep) => Some(Changes { heard, take, _stop: keep }),
        Err(error) => {
            tracing::warn!(%error, "the manifest folder is looked at from time to time only");
            None
        }
    }
}

/// Waits until something has changed, and says which files went meanwhile. Cancel-safe: what was
/// heard stays until this returns.
pub(super) async fn next(changes: &mut Option<Changes>) -> RemovedFiles {
    let Some(Changes { heard, take, _stop: _ }) = changes else { return std::future::pending().await };
    if heard.changed().await.is_err() {
        return std::future::pending().await;
    }
    let mut removed = RemovedFiles::new();
    // Quietly: taking it is no news.
    take.send_if_modified(|heard| {
        removed = std::mem::take(heard);
        false
    });
    removed
}

/// Until the other end of `stop` is closed. A new watch when the folder was removed or moved: it may
/// be made again. Somebody is told to look after it is made, so that no change falls between.
fn listen(folder: &Path, stop: &OwnedFd, tell: &watch::Sender<RemovedFiles>) {
    let again = Timespec { tv_sec: 1, tv_nsec: 0 };
    loop {
        let watch = watch_of(folder);
        if watch.is_ok() {
            tell.send_modify(|_| ());
        }
        loop {
            let mut wait = vec![PollFd::new(stop, PollFlags::IN)];
            wait.extend(watch.as_ref().map(|watch| PollFd::new(watch, PollFlags::IN)));
            // A folder that is not there yet is tried again.
            match poll(&mut wait, watch.is_err().then_some(&again)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "the manifest folder is looked at from time to time only");
                    return;
                }
            }
            if wait.first().is_none_or(|stop| !stop.revents().is_empty()) {
                return;
            }
            // Not there yet: tried again.
            let Ok(watch) = &watch else { break };
            let mut removed = RemovedFiles::new();
            let heard = hear(watch, &mut removed);
            // What was heard before the watch was lost counts all the same. A folder that is only put in
            // another's place is looked at when the new one is there.
            if heard.is_ok() || !removed.is_empty() {
                tell.send_modify(|all| all.extend(removed));
            }
            if heard.is_err() {
                break;
            }
        }
    }
}

/// Everything that waits to be heard: the names of files that went.
///
/// # Errors
/// When the watch is no good any more: its folder has gone, or it could not keep up.
fn hear(watch: &OwnedFd, removed: &mut RemovedFiles) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut events = Reader::new(watch, &mut buffer);
    loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        };
        let over =
            ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::QUEUE_OVERFLOW;
        if event.events().intersects(over) {
            return Err(Errno::NOENT);
        }
        if event.events().intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM)
            && let Some(name) = event.file_name()
        {
            removed.insert(OsStr::from_bytes(name.to_bytes()).to_owned());
        }
    }
}

fn watch_of(folder: &Path) -> rustix::io::Result<OwnedFd> {
    let what = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    let descriptor = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    add_watch(&descriptor, folder, what)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_went_with_their_folder_are_heard_of() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("manifests");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), "").unwrap();
        let watch = watch_of(&folder).unwrap();
        let mut removed = RemovedFiles::new();
        hear(&watch, &mut removed).unwrap();
        assert!(removed.is_empty());
        fs::remove_dir_all(&folder).unwrap();
        hear(&watch, &mut removed).unwrap_err();
        assert_eq!(removed, RemovedFiles::from(["a.yaml".into()]));
    }
}

//! What a pod is told when some of its volumes are not there, and a PersistentVolume whose disk cannot be mounted. Pure: owns
//! which of them is told, and upstream's words. Called by [`super`].

use super::super::disk::DiskFailure;
use super::super::{Error, VOLUME_LIMIT};
use super::claims::Failed;
use crate::csi::owner::MountError;
use crate::events::{Kind, Note};

/// A volume that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingVolume {
    /// As the pod names it.
    volume: String,
    /// The node does not have it yet.
    unattached: bool,
    /// Nobody knows how the pod is to have it.
    unprocessed: bool,
    error: Error,
}

impl MissingVolume {
    pub(super) fn new(volume: &str, error: Error) -> Self {
        Self { volume: volume.to_owned(), unattached: false, unprocessed: false, error }
    }

    pub(super) fn of(volume: &str, failed: &Failed) -> Self {
        let error = Error { reason: failed.reason(), ..Error::new(failed.told(volume)) };
        Self { unprocessed: matches!(failed, Failed::Unprocessed(_)), ..Self::new(volume, error) }
    }

    pub(super) fn of_mount(volume: &str, failed: MountError) -> Self {
        let MountError { message, reason, quiet, unattached, no_room } = failed;
        Self { unattached, ..Self::new(volume, Error { message, reason, quiet, rejects: no_room }) }
    }
}

/// One is told at a time, and rather one that is news; but all of them where the node takes no more volumes.
///
/// # Errors
/// When there is any.
pub(super) fn told(failures: Vec<MissingVolume>) -> Result<(), Error> {
    if !failures.iter().any(|failure| failure.error.rejects) {
        let errors = failures.into_iter().map(|failure| failure.error);
        return errors.min_by_key(|error| error.quiet).map_or(Ok(()), Err);
    }
    let names = |of: fn(&MissingVolume) -> bool| {
        let mut names: Vec<&str> =
            failures.iter().filter(|failure| of(failure)).map(|failure| failure.volume.as_str()).collect();
        names.sort_unstable();
        names.join(" ")
    };
    let message = format!(
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]: context deadline exceeded",
        names(|_| true),
        names(|failure| failure.unattached),
        names(|failure| failure.unprocessed)
    );
    Err(Error { reason: VOLUME_LIMIT, rejects: true, ..Error::new(message) })
}

/// What the PersistentVolume of that name is told when its disk has another file system.
pub(super) fn mismatch_note(volume: &str, failure: &DiskFailure) -> Option<Note> {
    let message = format!("MountVolume failed for volume {volume:?} {}", failure.why);
    failure.mismatch.then(|| Note::pod(Kind::Warning, "FailedMountOnFilesystemMismatch", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(volume: &str, no_room: bool) -> MissingVolume {
        let (message, quiet) = ("not attached".to_owned(), !no_room);
        let reason = "FailedMount";
        MissingVolume::of_mount(volume, MountError { message, reason, quiet, unattached: true, no_room })
    }

    #[test]
    fn all_volumes_are_told_where_one_finds_no_room() {
        let broken = MissingVolume::new("broken", Error::new("mkdir: no"));
        let lost = MissingVolume::of("lost", &Failed::Unprocessed("no claim".to_owned()));
        let failures = vec![waits("logs", false), waits("data", true), broken.clone(), lost];
        let error = told(failures).unwrap_err();
        assert_eq!(
            error.message,
            "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[broken data logs lost], unattached volumes=[data logs], failed to process volumes=[lost]: context deadline exceeded"
        );
        assert_eq!((error.reason, error.rejects, error.quiet), (VOLUME_LIMIT, true, false));
        assert_eq!(told(vec![waits("logs", false), broken]), Err(Error::new("mkdir: no")));
        assert_eq!(told(Vec::new()), Ok(()));
    }
}

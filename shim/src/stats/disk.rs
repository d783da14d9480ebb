//! Bytes and inodes of a container's writable layer. Owns how often it is counted, which `usage` does.
//! Called by `stats` and by ImageFsInfo.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gantry_proto::cri;

use crate::error::Error;
use crate::store::lock;
use crate::timeline::unix_nanos;
use crate::usage::{Usage, of_folder};

/// containerd's `stats_collect_period`.
const MAX_AGE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Walked {
    at: Instant,
    unix: i64,
    /// After the container's end: it changes no more.
    last: bool,
    usage: Usage,
}

/// What the last walk of one container's layer found.
#[derive(Debug, Default)]
pub(crate) struct Writable {
    walked: Mutex<Option<Walked>>,
}

impl Writable {
    /// Use of `upper`, at most ten seconds old. `stopped` when nothing can change it any more.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub(crate) fn usage(
        &self,
        upper: &Path,
        stopped: bool,
        mountpoint: &Path,
    ) -> Result<cri::FilesystemUsage, Error> {
        // Held over the walk: a second asker waits for the first one's answer.
        let mut walked = lock(&self.walked);
        let fresh = walked.filter(|walked| walked.last || (!stopped && walked.at.elapsed() < MAX_AGE));
        let found = match fresh {
            Some(found) => found,
            None => {
                let (at, unix) = (Instant::now(), unix_nanos());
                let usage = of_folder(upper).map_err(|source| Error::Files {
                    what: "measure",
                    path: upper.to_owned(),
                    source,
                })?;
                Walked { at, unix, last: stopped, usage }
            }
        };
        *walked = Some(found);
        Ok(cri::FilesystemUsage {
            timestamp: found.unix,
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: mountpoint.display().to_string() }),
            used_bytes: Some(cri::UInt64Value { value: found.usage.bytes }),
            inodes_used: Some(cri::UInt64Value { value: found.usage.inodes }),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_ended_container_is_walked_once_more_and_never_again() {
        let folder = tempfile::tempdir().unwrap();
        let writable = Writable::default();
        let inodes = |stopped| {
            let usage = writable.usage(folder.path(), stopped, Path::new("/x")).unwrap();
            usage.inodes_used.unwrap().value
        };
        assert_eq!(inodes(false), 1);
        fs::write(folder.path().join("one"), "").unwrap();
        assert_eq!(inodes(false), 1, "the last walk is fresh enough");
        assert_eq!(inodes(true), 2);
        fs::write(folder.path().join("two"), "").unwrap();
        assert_eq!(inodes(true), 2);
    }
}

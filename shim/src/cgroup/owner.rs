//! A cgroup that the container's own root may divide: a privileged container with users of its own has its
//! cgroups writable, and would find them to be the node's. Called by `container::start`.

use std::fs;
use std::io;
use std::os::unix::fs::chown;

use super::{Cgroup, Error};

/// Names the files that may be given away (cgroups(7), "Cgroups delegation").
const FILES: &str = "/sys/kernel/cgroup/delegate";

impl Cgroup {
    /// Gives the folder and the kernel's own list of files in it to a user. On v1 nothing is given away:
    /// it has no safe way to.
    ///
    /// # Errors
    /// What stays the node's.
    pub(crate) fn hand_over(&self, (uid, gid): (u32, u32)) -> Result<(), Error> {
        if !self.layout.is_unified() {
            return Ok(());
        }
        let listed =
            fs::read_to_string(FILES).map_err(|source| Error::Read { path: FILES.into(), source })?;
        for folder in self.folders() {
            let files = listed.lines().map(|name| folder.join(name));
            for path in std::iter::once(folder.clone()).chain(files) {
                match chown(&path, Some(uid), Some(gid)) {
                    // Of a controller that is not on here.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    given => given.map_err(|source| Error::Write {
                        path,
                        value: format!("owner {uid}:{gid}"),
                        source,
                    })?,
                }
            }
        }
        Ok(())
    }
}

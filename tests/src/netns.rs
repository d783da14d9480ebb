//! Network namespaces beside the tests' own: other machines, or pods that nobody runs. Owns the file and its end.
//! Called by the CNI and kernel tiers.

use std::os::fd::AsFd;
use std::process::Command;

use anyhow::{Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace below /run/netns, for as long as this lives.
#[derive(Debug)]
pub struct Netns(String);

impl Netns {
    /// Makes it.
    ///
    /// # Errors
    /// When `ip` does not, as for a name that is taken.
    pub fn new(name: &str) -> Result<Self> {
        ensure!(Command::new("ip").args(["netns", "add", name]).status()?.success(), "ip netns add {name}");
        Ok(Netns(name.to_owned()))
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    /// Does something there, on a thread of its own.
    ///
    /// # Errors
    /// When the namespace can't be entered, or the thread panicked.
    pub fn inside<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let file = std::fs::File::open(self.path())?;
        let visit = std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map(|()| job())
        });
        Ok(visit.join().map_err(|_| anyhow::anyhow!("the visitor panicked"))??)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let gone = Command::new("ip").args(["netns", "del", &self.0]).status();
        assert!(
            std::thread::panicking() || gone.is_ok_and(|status| status.success()),
            "ip netns del {}",
            self.0
        );
        // `ip` mounts the folder onto itself with the first namespace, and never takes that back.
        let empty = std::fs::read_dir("/run/netns").is_ok_and(|mut entries| entries.next().is_none());
        if empty {
            // Not a mount: somebody else's `ip` has been here before, in a namespace above.
            let _ = rustix::mount::unmount("/run/netns", rustix::mount::UnmountFlags::DETACH);
        }
    }
}

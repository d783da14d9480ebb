//! The child's side of a clone: from the monitor's copy to the container's first program. Owns the
//! order of the set-up; never sees tokio or a second thread. Called by the monitor, which builds
//! everything it can before the clone.

pub mod cgroups;
pub mod console;
pub mod container;
mod dev;
mod edits;
pub mod exec;
pub mod external;
pub mod hooks;
mod identity;
mod images;
pub mod lsm;
mod mounts;
pub mod overlay;
pub mod pause;
pub mod pid;
pub mod probe;
pub mod program;
mod reset;
mod rootfs;
pub mod users;

use std::io;

/// A step of the set-up that failed, in words a user of the container can act on.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct StepError {
    /// What was being done, with the path or number.
    pub what: String,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// How far a child's set-up is, for the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// About to do what may take long, in words.
    Step(&'a str),
    /// Another process goes on with the set-up: this one.
    Moved(i32),
    /// All is set up; exec comes next.
    Ready,
}

/// Names the step a kernel error belongs to.
pub(crate) trait StepContext<T> {
    /// Attaches `what`.
    fn step(self, what: impl FnOnce() -> String) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn step(self, what: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(|error| StepError { what: what(), source: error.into() })
    }
}

/// A refusal of our own making.
pub(crate) fn refuse<T>(errno: i32, what: impl Into<String>) -> Result<T, StepError> {
    Err(StepError { what: what.into(), source: io::Error::from_raw_os_error(errno) })
}

//! What is asked of logind, behind traits. Owns the words of the questions; never a bus. The real one is
//! [`super::bus`]. Called by [`super::run`].

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// Why logind does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Bus or logind.
    #[error("{what}")]
    Bus {
        /// What was tried.
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The drop-in.
    #[error("write {}", path.display())]
    DropIn {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// What was asked.
pub(crate) type LogindReply<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Shutdowns wait as long as one of these is open.
pub(crate) type DelayLock = OwnedFd;

/// The way to logind.
pub(crate) trait Logind: Send + Sync + fmt::Debug {
    /// A connection that hears every announcement from now on.
    fn connect(&self) -> LogindReply<'_, Box<dyn Session>>;
    /// What else says how long a shutdown may be delayed, and wins over what was asked for.
    fn overruling(&self) -> Option<PathBuf>;
}

/// One connection.
pub(crate) trait Session: Send + Sync + fmt::Debug {
    /// How long a shutdown may be delayed.
    fn max_delay(&self) -> LogindReply<'_, Duration>;
    /// Asks for so long; when logind has taken it in nobody tells.
    fn raise_max_delay(&self, to: Duration) -> LogindReply<'_, ()>;
    /// Whether a shutdown was announced already.
    fn is_shutting_down(&self) -> LogindReply<'_, bool>;
    /// From now on shutdowns wait.
    fn inhibit(&self) -> LogindReply<'_, DelayLock>;
    /// The next announcement: a shutdown, or that it was cancelled. None when the connection is gone. Cancel-safe.
    fn announcement(&mut self) -> BoxFuture<'_, Option<bool>>;
}

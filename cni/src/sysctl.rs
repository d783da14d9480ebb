//! `/proc/sys/net` of the calling thread's network namespace.
//!
//! Owns nothing; never guesses which namespace is meant: these files show that of the thread which opens them. Called
//! by `bridge`, `ptp` and `portmap` on the host, for forwarding and for ports of 127.0.0.1, and by `veth` for IPv6, on
//! the host and inside a pod's namespace.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::io;
use std::path::{Path, PathBuf};

/// A kernel setting that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {value:?} to {path}")]
    Write {
        path: PathBuf,
        value: &'static str,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether the kernel does not have this setting at all (IPv6 left out, for one).
    pub(crate) fn is_absent(&self) -> bool {
        let (Error::Read { source, .. } | Error::Write { source, .. }) = self;
        source.kind() == io::ErrorKind::NotFound
    }
}

/// Sets a value unless it is set already: `/proc/sys` may be read-only for us and right all the same.
pub(crate) fn ensure(path: impl AsRef<Path>, value: &'static str) -> Result<(), Error> {
    let path = path.as_ref();
    let now = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    if now.trim() == value {
        return Ok(());
    }
    std::fs::write(path, value).map_err(|source| Error::Write { path: path.into(), value, source })
}

/// Lets the host pass on packets of the family of `address`.
pub(crate) fn enable_forwarding(address: std::net::IpAddr) -> Result<(), Error> {
    match address {
        std::net::IpAddr::V4(_) => ensure("/proc/sys/net/ipv4/ip_forward", "1"),
        std::net::IpAddr::V6(_) => ensure("/proc/sys/net/ipv6/conf/all/forwarding", "1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_value_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ip_forward");
        std::fs::write(&path, "1\n").unwrap();
        ensure(&path, "1").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n", "rewritten");
        ensure(&path, "0").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "0");
    }

    #[test]
    fn an_absent_setting_is_told_apart() {
        let error = ensure("/proc/sys/net/no/such/setting", "1").unwrap_err();
        assert!(error.is_absent(), "{error}");
    }
}

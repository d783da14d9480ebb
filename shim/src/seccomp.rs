//! Seccomp profiles to filters. Owns the compiler and containerd's default profile as data; never
//! installs a filter (the cloned child does). Pure but for reading a Localhost profile. Called by
//! `container::create` and `sandbox::run`.

mod bpf;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod profile;
mod syscalls;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) use profile::Error as ProfileError;

use profile::Profile;

/// containerd's contrib/seccomp as of 2.3.7, in the format of containers/common.
const DEFAULT: &str = include_str!("seccomp/default.json");

/// More than any profile anybody wrote; no more is read.
const MAX_PROFILE: u64 = 4 << 20;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SeccompChoice {
    /// No filter.
    Unconfined,
    /// The runtime's own profile.
    RuntimeDefault,
    /// A file of the node.
    Localhost(PathBuf),
}

/// A compiled filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// `struct sock_filter` array as the kernel takes it; empty for none.
    pub program: Vec<u8>,
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
}

/// A filter could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("read the seccomp profile {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is no profile.
    #[error("seccomp profile {path}", path = path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ProfileError,
    },
}

/// The filter for a container whose bounding set is `capabilities`.
///
/// # Errors
/// A Localhost profile that can't be read or compiled.
pub(crate) fn filter(wanted: &SeccompChoice, capabilities: u64) -> Result<Filter, Error> {
    let Some((profile, path)) = profile(wanted)? else { return Ok(Filter::default()) };
    let wrap = |source| Error::Profile { path: path.to_owned(), source };
    let policy = profile.policy(capabilities).map_err(wrap)?;
    Ok(Filter { program: bpf::compile(&policy).map_err(wrap)?, flags: policy.flags })
}

/// The same as JSON of the OCI runtime specification; empty for none.
///
/// # Errors
/// As `filter`.
pub(crate) fn oci(wanted: &SeccompChoice, capabilities: u64) -> Result<Vec<u8>, Error> {
    let Some((profile, path)) = profile(wanted)? else { return Ok(Vec::new()) };
    let wrap = |source| Error::Profile { path: path.to_owned(), source };
    Ok(profile.oci(capabilities).map_err(wrap)?.to_string().into_bytes())
}

fn profile(wanted: &SeccompChoice) -> Result<Option<(Profile, &Path)>, Error> {
    let (text, path) = match wanted {
        SeccompChoice::Unconfined => return Ok(None),
        SeccompChoice::RuntimeDefault => (DEFAULT.to_owned(), Path::new("runtime/default")),
        SeccompChoice::Localhost(path) => (read(path)?, path.as_path()),
    };
    let wrap = |source| Error::Profile { path: path.to_owned(), source };
    Ok(Some((Profile::parse(&text).map_err(wrap)?, path)))
}

fn read(path: &Path) -> Result<String, Error> {
    let wrap = |source| Error::Read { path: path.to_owned(), source };
    let mut text = String::new();
    // To open a FIFO would hang, and a device may never end.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(wrap)?;
    if !file.metadata().map_err(wrap)?.is_file() {
        return Err(wrap(io::Error::from_raw_os_error(libc::EINVAL)));
    }
    file.take(MAX_PROFILE).read_to_string(&mut text).map_err(wrap)?;
    Ok(text)
}

#[cfg(test)]
mod tests;

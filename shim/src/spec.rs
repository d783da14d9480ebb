//! From CRI's configuration to what the monitor is told. PURE: no file, clock or process is touched.
//! Owns what is honoured and what is refused: a field that would change the container and is not
//! honoured yet is an error that names it, never ignored. Called by `container::create` and
//! `sandbox::run`.

pub(crate) mod capabilities;
pub(crate) mod container;
pub(crate) mod profiles;
pub(crate) mod resources;
pub(crate) mod sandbox;
pub(crate) mod user;

use gantry_proto::cri;
use gantry_proto::monitor::NamespaceMode;

/// A request that can't be honoured.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0} is missing from the request")]
    Missing(&'static str),
    #[error("{field} is not supported yet: leave it unset")]
    Unsupported { field: &'static str },
    #[error("{field}: {value:?} is not valid: {expected}")]
    Invalid { field: &'static str, value: String, expected: &'static str },
    #[error("capability {0:?} is unknown: use a name of capabilities(7) or ALL")]
    Capability(String),
    #[error("no command: neither the container nor image {0:?} names one")]
    NoCommand(String),
    #[error("user {user:?} is not in the image's /etc/passwd: give a number, or a user it has")]
    UnknownUser { user: String },
    #[error("group {group:?} is not in the image's /etc/group: give a number, or a group it has")]
    UnknownGroup { group: String },
    #[error("run_as_group is set without run_as_user or run_as_username")]
    GroupWithoutUser,
    #[error("path {path:?} is mounted on {point:?} but it is not a {lacks} mount")]
    Propagation { path: String, point: String, lacks: &'static str },
    #[error("signal {0:?} is unknown: use a name of signal(7) or a number")]
    Signal(String),
}

/// Refuses `field` when the caller set it.
fn unsupported(set: bool, field: &'static str) -> Result<(), Error> {
    if set { Err(Error::Unsupported { field }) } else { Ok(()) }
}

/// CRI's mode of a namespace that pods share unless told otherwise.
fn shared(mode: i32, field: &'static str) -> Result<NamespaceMode, Error> {
    match cri::NamespaceMode::try_from(mode) {
        Ok(cri::NamespaceMode::Pod) => Ok(NamespaceMode::Sandbox),
        Ok(cri::NamespaceMode::Node) => Ok(NamespaceMode::Host),
        _ => Err(Error::Unsupported { field }),
    }
}

fn pid_mode(mode: i32, field: &'static str) -> Result<NamespaceMode, Error> {
    match cri::NamespaceMode::try_from(mode) {
        Ok(cri::NamespaceMode::Container) => Ok(NamespaceMode::Private),
        _ => shared(mode, field),
    }
}

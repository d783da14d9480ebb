//! What can go wrong with a chain, in words that name network, sandbox and plugin.
//!
//! Owns the error types; decides nothing. Made by the chain and its plugins, printed by the runtime.

use gantry_base::error::chain;

use super::{ConflistError, cache, plugin};
use crate::{bridge, exec, host_local, ipam, loopback, portmap, ptp};

/// Why an attachment could not be made, removed or confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A container id or interface name that cannot be used.
    #[error("{field} {value:?} cannot be used: {rule}")]
    Attachment {
        /// Which one.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it should be like.
        rule: &'static str,
    },
    /// A plugin's configuration is wrong, or its program is not there.
    #[error("plugin {plugin} of {origin} is not configured right")]
    Config {
        /// Its type.
        plugin: Box<str>,
        /// The file that configures it.
        origin: String,
        /// What is wrong.
        #[source]
        source: PluginError,
    },
    /// A plugin failed; those before it were undone, which may have failed too.
    #[error("cannot add {ifname} of container {container_id} to network {network}: plugin {plugin} failed{}", undo_suffix(.undo))]
    Add {
        /// The network.
        network: String,
        /// The sandbox.
        container_id: String,
        /// The interface.
        ifname: Box<str>,
        /// The plugin's type.
        plugin: Box<str>,
        /// What failed.
        #[source]
        source: PluginError,
        /// What could not be undone.
        undo: Vec<Error>,
    },
    /// The result could not be stored; everything was undone, which may have failed too.
    #[error("cannot cache the result of network {network} for container {container_id}{}", undo_suffix(.undo))]
    Cache {
        /// The network.
        network: String,
        /// The sandbox.
        container_id: String,
        /// What failed.
        #[source]
        source: PluginError,
        /// What could not be undone.
        undo: Vec<Error>,
    },
    /// A plugin could not remove its part.
    #[error("plugin {plugin} cannot remove {ifname} of container {container_id} from network {network}")]
    Del {
        /// The network.
        network: String,
        /// The sandbox.
        container_id: String,
        /// The interface.
        ifname: Box<str>,
        /// The plugin's type, or `cache`.
        plugin: Box<str>,
        /// What failed.
        #[source]
        source: PluginError,
    },
    /// The network's version of the specification has no CHECK.
    #[error("network {network} cannot be checked: its cniVersion {version} is older than 0.4.0")]
    CheckVersion {
        /// The network.
        network: String,
        /// Its version.
        version: String,
    },
    /// CHECK of an attachment without a cached result.
    #[error(
        "{ifname} of container {container_id} was not added to network {network}: there is no cached result"
    )]
    NotAdded {
        /// The network.
        network: String,
        /// The sandbox.
        container_id: String,
        /// The interface.
        ifname: Box<str>,
    },
    /// An attachment is not as ADD left it.
    #[error(
        "{ifname} of container {container_id} in network {network} is not as it should be, says plugin {plugin}"
    )]
    Check {
        /// The network.
        network: String,
        /// The sandbox.
        container_id: String,
        /// The interface.
        ifname: Box<str>,
        /// The plugin's type, or `cache`.
        plugin: Box<str>,
        /// What is missing.
        #[source]
        source: PluginError,
    },
    /// A network takes no more sandboxes.
    #[error("network {network} is not ready, says plugin {plugin}")]
    Status {
        /// The network.
        network: String,
        /// The plugin's type.
        plugin: Box<str>,
        /// Why.
        #[source]
        source: PluginError,
    },
    /// The cached results cannot be listed.
    #[error("cannot look at the cached results")]
    ListCache {
        /// What failed.
        #[source]
        source: PluginError,
    },
    /// Leftovers of attachments that are gone could not be removed.
    #[error("plugin {plugin} cannot collect what is left over in network {network}")]
    Gc {
        /// The network.
        network: String,
        /// The plugin's type, or `cache`.
        plugin: Box<str>,
        /// What failed.
        #[source]
        source: PluginError,
    },
    /// What a network keeps on the host could not be removed.
    #[error("plugin {plugin} cannot tidy up after network {network}")]
    Idle {
        /// The network.
        network: String,
        /// The plugin's type.
        plugin: Box<str>,
        /// What failed.
        #[source]
        source: PluginError,
    },
    /// Several things could not be removed.
    #[error("{} parts of an attachment could not be removed: {}", .0.len(), join_errors(.0))]
    Several(Vec<Error>),
}

impl Error {
    /// Whether the network works and only has no address left for another sandbox.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Error::Status { source, .. } if source.0.is_exhausted())
    }
}

/// An error of a plugin or of the cache. Its text and sources say what happened; callers do not decide by it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PluginError(pub(crate) Box<PluginErrorKind>);

impl From<PluginErrorKind> for PluginError {
    fn from(kind: PluginErrorKind) -> PluginError {
        PluginError(Box::new(kind))
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginErrorKind {
    #[error(transparent)]
    Bridge(#[from] bridge::Error),
    #[error(transparent)]
    BridgeConfig(#[from] bridge::BridgeConfigError),
    #[error(transparent)]
    Ptp(#[from] ptp::Error),
    #[error(transparent)]
    PtpConfig(#[from] ptp::PtpConfigError),
    #[error(transparent)]
    Portmap(#[from] portmap::Error),
    #[error(transparent)]
    PortmapConfig(#[from] portmap::PortmapConfigError),
    #[error(transparent)]
    HostLocal(#[from] host_local::Error),
    #[error(transparent)]
    HostLocalConfig(#[from] host_local::HostLocalConfigError),
    #[error(transparent)]
    Ipam(#[from] ipam::Error),
    #[error(transparent)]
    Loopback(#[from] loopback::Error),
    #[error(transparent)]
    Exec(#[from] exec::Error),
    #[error(transparent)]
    Cache(#[from] cache::Error),
    #[error("the cached configuration cannot be used")]
    Conflist(#[source] ConflistError),
    #[error(transparent)]
    Chained(#[from] plugin::NotChained),
}

impl PluginErrorKind {
    /// Whether there is no address left.
    pub(crate) fn is_exhausted(&self) -> bool {
        match self {
            PluginErrorKind::Ipam(error) => error.is_exhausted(),
            PluginErrorKind::HostLocal(error) => error.is_exhausted(),
            _ => false,
        }
    }

    /// Whether the configuration is at fault.
    pub(crate) fn is_config(&self) -> bool {
        matches!(
            self,
            PluginErrorKind::BridgeConfig(_)
                | PluginErrorKind::PtpConfig(_)
                | PluginErrorKind::PortmapConfig(_)
                | PluginErrorKind::HostLocalConfig(_)
        )
    }

    /// The code of a program's own error.
    pub(crate) fn code(&self) -> Option<u32> {
        match self {
            PluginErrorKind::Exec(error) => error.code(),
            PluginErrorKind::Ipam(error) => error.code(),
            _ => None,
        }
    }
}

/// No error, the only one, or all of them as one.
pub(super) fn all(mut errors: Vec<Error>) -> Result<(), Error> {
    match errors.pop() {
        None => Ok(()),
        Some(only) if errors.is_empty() => Err(only),
        Some(last) => {
            errors.push(last);
            Err(Error::Several(errors))
        }
    }
}

fn join_errors(errors: &[Error]) -> String {
    errors.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; ")
}

fn undo_suffix(undo: &[Error]) -> String {
    if undo.is_empty() { String::new() } else { format!(" (and undoing failed: {})", join_errors(undo)) }
}

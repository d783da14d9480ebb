//! A network's chain of plugins: ADD in order, DEL in reverse, and the result that DEL and other tools need later.
//!
//! Owns the order and the undoing. Never touches a link itself. Called by the runtime, once for each sandbox that does
//! not use the host's network. Everything is checked before anything is done; DEL goes on past errors and returns them
//! all; both may be called again after a crash.
//! <https://www.cni.dev/docs/spec/#section-3-execution-of-network-configurations>

mod cache;
mod conflist;
mod plugin;

pub use conflist::{Conflist, ConflistError};

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bridge::{self, Target};
use crate::loopback;
use crate::result::CniResult;
use plugin::Plugin;

/// Longest name of a link: `IFNAMSIZ` without the final zero byte.
const INTERFACE_NAME: usize = 15;

/// One interface of one sandbox.
#[derive(Debug, Clone)]
pub struct Attachment<'a> {
    /// The sandbox's id.
    pub container_id: &'a str,
    /// The path of its network namespace.
    pub netns: &'a Path,
    /// The interface's name in the sandbox, usually `eth0`.
    pub ifname: &'a str,
    /// `CNI_ARGS`: `K8S_POD_NAMESPACE` and the like, for plugins that want them, and for the cache.
    pub args: Vec<(String, String)>,
}

/// Where things lie.
#[derive(Debug, Clone)]
pub struct Dirs {
    /// Leases, a folder for each network: `/var/lib/cni/networks`.
    pub data_dir: PathBuf,
    /// Cached results: `/var/lib/cni/results`.
    pub cache_dir: PathBuf,
    /// Programs of other plugins, `/opt/cni/bin`. Named in errors: running them is not supported yet.
    pub bin_dir: PathBuf,
}

/// Why an attachment could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A container id, interface name or argument that cannot be used.
    #[error("{field} {value:?} cannot be used: {rule}")]
    Attachment {
        /// Which one.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it should be like.
        rule: &'static str,
    },
    /// A plugin that is not built in.
    #[error(
        "plugin type {plugin:?} of {origin} is not built in (built in are bridge and loopback, with host-local for addresses), and running {program} is not supported yet"
    )]
    UnknownPlugin {
        /// Its type.
        plugin: String,
        /// The file that names it.
        origin: String,
        /// Where other runtimes would look for it.
        program: PathBuf,
    },
    /// A plugin's configuration is wrong.
    #[error("plugin {plugin} of {origin} is not configured right")]
    Config {
        /// Its type.
        plugin: String,
        /// The file that configures it.
        origin: String,
        /// What is wrong.
        #[source]
        source: PluginError,
    },
    /// A plugin failed; those before it were undone, which may have failed too.
    #[error("cannot add {ifname} of container {container_id} to network {network}: plugin {plugin} failed{}", also(.undo))]
    Add {
        /// The network.
        network: String,
        /// The sandbox.
        container_id: String,
        /// The interface.
        ifname: String,
        /// The plugin's type.
        plugin: &'static str,
        /// What failed.
        #[source]
        source: PluginError,
        /// What could not be undone.
        undo: Vec<Error>,
    },
    /// The result could not be stored; everything was undone, which may have failed too.
    #[error("cannot cache the result of network {network} for container {container_id}{}", also(.undo))]
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
        ifname: String,
        /// The plugin's type, or `cache`.
        plugin: &'static str,
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
        plugin: &'static str,
        /// What failed.
        #[source]
        source: PluginError,
    },
    /// Several parts of an attachment could not be removed.
    #[error("{} parts of an attachment could not be removed: {}", .0.len(), listed(.0))]
    Several(Vec<Error>),
}

/// An error of a plugin or of the cache. Its text and sources say what happened; callers do not decide by it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PluginError(Box<PluginErrorKind>);

impl From<PluginErrorKind> for PluginError {
    fn from(kind: PluginErrorKind) -> PluginError {
        PluginError(Box::new(kind))
    }
}

#[derive(Debug, thiserror::Error)]
enum PluginErrorKind {
    #[error(transparent)]
    Bridge(#[from] bridge::Error),
    #[error(transparent)]
    BridgeConfig(#[from] bridge::ConfigError),
    #[error(transparent)]
    Loopback(#[from] loopback::Error),
    #[error(transparent)]
    Cache(#[from] cache::Error),
}

/// An error and its sources as one line.
pub(crate) fn explain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

fn listed(errors: &[Error]) -> String {
    errors.iter().map(|error| explain(error)).collect::<Vec<_>>().join("; ")
}

fn also(undo: &[Error]) -> String {
    if undo.is_empty() { String::new() } else { format!(" (and undoing failed: {})", listed(undo)) }
}

/// Checks a network's configuration without any effect, as ADD does first. For the runtime's `NetworkReady`.
///
/// # Errors
/// The first plugin that is unknown or configured wrong.
pub fn check(list: &Conflist, dirs: &Dirs) -> Result<(), Error> {
    plugin::parse_all(list, dirs).map(drop)
}

/// Attaches a sandbox: brings its loopback up, runs the chain, caches the result. `on_plugin` hears of each plugin that
/// ran (its type, start and end in nanoseconds since 1970); `host-local` lies within `bridge`.
///
/// # Errors
/// When anything is wrong with configuration or attachment (nothing was done then), or a plugin fails: those that ran
/// before it were undone, and the error has both its reason and what could not be undone.
pub fn add(
    list: &Conflist,
    attachment: &Attachment<'_>,
    dirs: &Dirs,
    on_plugin: &mut dyn FnMut(&str, i64, i64),
) -> Result<CniResult, Error> {
    check_attachment(attachment)?;
    check_args(attachment)?;
    let plugins = plugin::parse_all(list, dirs)?;
    let target = target(attachment);
    let failed = |plugin, source: PluginErrorKind, undo| Error::Add {
        network: list.name().into(),
        container_id: attachment.container_id.into(),
        ifname: attachment.ifname.into(),
        plugin,
        source: source.into(),
        undo,
    };
    timed(on_plugin, "loopback", |_| loopback::add(attachment.netns))
        .map_err(|source| failed("loopback", source.into(), Vec::new()))?;
    let mut result = CniResult::default();
    for (index, plugin) in plugins.iter().enumerate() {
        result = match timed(on_plugin, plugin.name(), |on_plugin| plugin.add(target, result, on_plugin)) {
            Ok(result) => result,
            // A plugin that fails has left nothing behind, so only those before it are to be undone.
            Err(source) => {
                let undo = undo(list, attachment, plugins.get(..index).unwrap_or_default());
                return Err(failed(plugin.name(), source, undo));
            }
        };
    }
    let result = result.in_version(list.cni_version());
    match cache::write(&dirs.cache_dir, list, attachment, &result) {
        Ok(()) => Ok(result),
        Err(source) => Err(Error::Cache {
            network: list.name().into(),
            container_id: attachment.container_id.into(),
            source: PluginErrorKind::from(source).into(),
            undo: undo(list, attachment, &plugins),
        }),
    }
}

/// Detaches a sandbox. What is gone already is fine: links, leases, the cached result, the namespace itself. `list` is
/// the one that ADD was called with, not what the folder of configurations says today.
///
/// # Errors
/// All that could not be removed, after everything else was. The cached result stays then, for the next try.
pub fn del(list: &Conflist, attachment: &Attachment<'_>, dirs: &Dirs) -> Result<(), Error> {
    check_attachment(attachment)?;
    let plugins = plugin::parse_all(list, dirs)?;
    let mut errors = undo(list, attachment, &plugins);
    if errors.is_empty()
        && let Err(source) = cache::remove(&dirs.cache_dir, list.name(), attachment)
    {
        errors.push(del_error(list, attachment, "cache", source.into()));
    }
    match errors.pop() {
        None => Ok(()),
        Some(only) if errors.is_empty() => Err(only),
        Some(last) => {
            errors.push(last);
            Err(Error::Several(errors))
        }
    }
}

/// Removes what a network keeps on the host when no sandbox uses it: its bridges, if no lease and no port is left.
/// Says whether there was any. For one-off runs, which leave nothing behind.
///
/// # Errors
/// When the configuration is wrong, or a bridge cannot be looked at or removed.
pub fn remove_idle(list: &Conflist, dirs: &Dirs) -> Result<bool, Error> {
    let mut any = false;
    for plugin in plugin::parse_all(list, dirs)? {
        any |= plugin.remove_idle().map_err(|source| Error::Idle {
            network: list.name().into(),
            plugin: plugin.name(),
            source: source.into(),
        })?;
    }
    Ok(any)
}

fn undo(list: &Conflist, attachment: &Attachment<'_>, plugins: &[Plugin]) -> Vec<Error> {
    plugins
        .iter()
        .rev()
        .filter_map(|plugin| {
            let source = plugin.del(target(attachment)).err()?;
            Some(del_error(list, attachment, plugin.name(), source))
        })
        .collect()
}

fn del_error(
    list: &Conflist,
    attachment: &Attachment<'_>,
    plugin: &'static str,
    source: PluginErrorKind,
) -> Error {
    Error::Del {
        network: list.name().into(),
        container_id: attachment.container_id.into(),
        ifname: attachment.ifname.into(),
        plugin,
        source: source.into(),
    }
}

fn target<'a>(attachment: &Attachment<'a>) -> Target<'a> {
    Target { container_id: attachment.container_id, ifname: attachment.ifname, netns: attachment.netns }
}

fn timed<T>(
    on_plugin: &mut dyn FnMut(&str, i64, i64),
    plugin: &str,
    job: impl FnOnce(&mut dyn FnMut(&str, i64, i64)) -> T,
) -> T {
    let start = unix_nanos();
    let outcome = job(on_plugin);
    on_plugin(plugin, start, unix_nanos());
    outcome
}

fn unix_nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Ids and names become parts of paths, so nothing else may be in them. The rules are the specification's (§2).
fn check_attachment(attachment: &Attachment<'_>) -> Result<(), Error> {
    let refused = |field, value: &str, rule| Err(Error::Attachment { field, value: value.into(), rule });
    if !is_identifier(attachment.container_id) {
        return refused(
            "container id",
            attachment.container_id,
            "letters, digits, '_', '.', '-', beginning with a letter or digit",
        );
    }
    if !is_interface_name(attachment.ifname) {
        return refused(
            "interface name",
            attachment.ifname,
            "1 to 15 bytes, not '.' or '..', without '/', ':' and blanks",
        );
    }
    Ok(())
}

/// Arguments that ask a built-in plugin for something it cannot do are not passed over in silence.
fn check_args(attachment: &Attachment<'_>) -> Result<(), Error> {
    match attachment
        .args
        .iter()
        .find(|(key, value)| matches!(key.as_str(), "IP" | "MAC") && !value.is_empty())
    {
        Some((key, value)) => Err(Error::Attachment {
            field: if key == "IP" { "argument IP" } else { "argument MAC" },
            value: value.clone(),
            rule: "asking for an address is not supported yet",
        }),
        None => Ok(()),
    }
}

/// Whether this is an id of a container or name of a network, as the specification has it.
fn is_identifier(text: &str) -> bool {
    let first_is_right = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    first_is_right && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Whether the kernel takes this for the name of a link (`dev_valid_name`).
pub(crate) fn is_interface_name(text: &str) -> bool {
    let length_is_right = (1..=INTERFACE_NAME).contains(&text.len());
    let is_odd = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
    length_is_right && text != "." && text != ".." && !text.contains(is_odd)
}

#[cfg(test)]
mod tests;

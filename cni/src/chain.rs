//! A network's chain of plugins: ADD in order, DEL in reverse, CHECK, STATUS and GC, and the result that DEL and other
//! tools need later.
//!
//! Owns the order and the undoing. Never touches a link itself. Called by the runtime: ADD and DEL once for each sandbox
//! that does not use the host's network, STATUS for `NetworkReady`, GC when it starts. Everything is checked before
//! anything is done; DEL and GC go on past errors and return them all; both may be called again after a crash. GC must
//! not run beside ADD and DEL of the same network.
//! <https://www.cni.dev/docs/spec/#section-3-execution-of-network-configurations>

mod cache;
mod conflist;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod gc;
mod plugin;

pub use crate::request::ValidAttachment;
pub use cache::CachedAttachment;
pub use conflist::{Conflist, ConflistError};
pub use error::{Error, PluginError};
pub use gc::{cached_attachments, gc};

pub(crate) use error::PluginErrorKind;
pub(crate) use plugin::{ChainPlugin, VERSIONS};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gantry_base::error::chain;
use serde_json::Value;

use crate::loopback;
use crate::report::run_timed;
use crate::request::{AttachmentTarget, NodeDirs, PluginContext, is_identifier, is_interface_name};
use crate::result::CniResult;

/// One interface of one sandbox.
#[derive(Debug, Clone)]
pub struct Attachment<'a> {
    /// The sandbox's id.
    pub container_id: &'a str,
    /// The path of its network namespace; empty for DEL when it is gone.
    pub netns: &'a Path,
    /// The interface's name in the sandbox, usually `eth0`.
    pub ifname: &'a str,
    /// `CNI_ARGS`: `K8S_POD_NAMESPACE` and the like, for plugins that want them, and for the cache.
    pub args: Vec<(String, String)>,
    /// Capability arguments, `portMappings` and the like. A plugin gets those that its configuration declares.
    pub capabilities: BTreeMap<String, Value>,
}

/// Where things lie, and which programs are run.
#[derive(Debug, Clone)]
pub struct Dirs {
    /// Leases, a folder for each network: `/var/lib/cni/networks`.
    pub data_dir: PathBuf,
    /// Cached results: `/var/lib/cni/results`.
    pub cache_dir: PathBuf,
    /// Programs of plugins that are not built in: `/opt/cni/bin`.
    pub bin_dir: PathBuf,
    /// Run the programs even of plugins that are built in.
    pub prefer_external: bool,
}

impl Dirs {
    fn home(&self) -> NodeDirs<'_> {
        NodeDirs { data_dir: &self.data_dir, cache_dir: &self.cache_dir }
    }
}

/// Checks a network's configuration without any effect, as ADD does first.
///
/// # Errors
/// The first plugin that is configured wrong, or whose program is not there.
pub fn validate(list: &Conflist, dirs: &Dirs) -> Result<(), Error> {
    let plugins = parse(list, None, dirs)?;
    require(list, &plugins)
}

/// Attaches a sandbox: brings its loopback up, runs the chain, caches the result. `on_plugin` hears of each plugin that
/// ran (its type, start and end in nanoseconds since 1970); the plugin that hands out addresses lies within another.
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
    let plugins = parse(list, Some(attachment), dirs)?;
    require(list, &plugins)?;
    let target = target(list, attachment, dirs);
    let failed = |plugin: &str, source: PluginErrorKind, undo| Error::Add {
        network: list.name().into(),
        container_id: attachment.container_id.into(),
        ifname: attachment.ifname.into(),
        plugin: plugin.into(),
        source: source.into(),
        undo,
    };
    run_timed(on_plugin, "loopback", |_| loopback::up(attachment.netns))
        .map_err(|source| failed("loopback", source.into(), Vec::new()))?;
    let mut result = None;
    for (index, plugin) in plugins.iter().enumerate() {
        let added =
            run_timed(on_plugin, plugin.name(), |on_plugin| plugin.add(target, result.take(), on_plugin));
        result = match added {
            Ok(result) => Some(result),
            Err(source) => {
                // A built-in plugin that fails has left nothing behind; a program is told to undo its part, too.
                let begun = index + usize::from(plugin.is_external());
                let undo = undo(list, attachment, dirs, plugins.get(..begun).unwrap_or_default(), None);
                return Err(failed(plugin.name(), source, undo));
            }
        };
    }
    let result = result.unwrap_or_default().in_version(list.cni_version());
    match cache::write(&dirs.cache_dir, list, attachment, &result) {
        Ok(()) => Ok(result),
        Err(source) => Err(Error::Cache {
            network: list.name().into(),
            container_id: attachment.container_id.into(),
            source: PluginErrorKind::from(source).into(),
            undo: undo(list, attachment, dirs, &plugins, Some(&result)),
        }),
    }
}

/// Detaches a sandbox. What is gone already is fine: links, leases, the cached result, the namespace, the program of a
/// plugin. `list` is the one that ADD was called with, not what the folder of configurations says today.
///
/// # Errors
/// All that could not be removed, after everything else was. The cached result stays then, for the next try.
pub fn del(list: &Conflist, attachment: &Attachment<'_>, dirs: &Dirs) -> Result<(), Error> {
    check_attachment(attachment)?;
    let plugins = parse(list, Some(attachment), dirs)?;
    // A cached result that cannot be read keeps nothing from being removed: a plugin that misses it says so itself.
    let previous = cache::read_result(&dirs.cache_dir, list, attachment).unwrap_or_else(|error| {
        tracing::warn!(container_id = attachment.container_id, error = %chain(&error), "no cached result for DEL");
        None
    });
    let mut errors = undo(list, attachment, dirs, &plugins, previous.as_ref());
    if errors.is_empty()
        && let Err(source) = cache::remove(&dirs.cache_dir, list.name(), attachment)
    {
        errors.push(del_error(list, attachment, "cache", source.into()));
    }
    error::all(errors)
}

/// Asks every plugin whether an attachment is still as ADD left it. Does nothing when the list says `disableCheck`.
///
/// # Errors
/// What the first plugin misses; or that the attachment has no cached result, so that it was never added.
pub fn check(list: &Conflist, attachment: &Attachment<'_>, dirs: &Dirs) -> Result<(), Error> {
    check_attachment(attachment)?;
    if list.is_older_than("0.4.0") {
        return Err(Error::CheckVersion { network: list.name().into(), version: list.cni_version().into() });
    }
    if list.flag("disableCheck") {
        return Ok(());
    }
    let plugins = parse(list, Some(attachment), dirs)?;
    let failed = |plugin: &str, source: PluginErrorKind| Error::Check {
        network: list.name().into(),
        container_id: attachment.container_id.into(),
        ifname: attachment.ifname.into(),
        plugin: plugin.into(),
        source: source.into(),
    };
    let cached = cache::read_result(&dirs.cache_dir, list, attachment);
    let result = cached.map_err(|source| failed("cache", source.into()))?.ok_or_else(|| Error::NotAdded {
        network: list.name().into(),
        container_id: attachment.container_id.into(),
        ifname: attachment.ifname.into(),
    })?;
    plugins.iter().try_for_each(|plugin| {
        plugin.check(target(list, attachment, dirs), &result).map_err(|source| failed(plugin.name(), source))
    })
}

/// Whether the network can take another sandbox: its configuration is right, programs are there, and, since version
/// 1.1.0 of the specification, each plugin says so.
///
/// # Errors
/// The first plugin that cannot; [`Error::is_exhausted`] tells when only addresses are missing.
pub fn status(list: &Conflist, dirs: &Dirs) -> Result<(), Error> {
    let plugins = parse(list, None, dirs)?;
    require(list, &plugins)?;
    if list.is_older_than("1.1.0") {
        return Ok(());
    }
    plugins.iter().try_for_each(|plugin| {
        plugin.status().map_err(|source| Error::Status {
            network: list.name().into(),
            plugin: plugin.name().into(),
            source: source.into(),
        })
    })
}

/// Removes what a network keeps on the host when no sandbox uses it: its bridges, if no lease and no port is left.
/// Says whether there was any. For one-off runs, which leave nothing behind.
///
/// # Errors
/// When the configuration is wrong, or a bridge cannot be looked at or removed.
pub fn remove_idle(list: &Conflist, dirs: &Dirs) -> Result<bool, Error> {
    let mut any = false;
    for plugin in parse(list, None, dirs)? {
        any |= plugin.remove_idle().map_err(|source| Error::Idle {
            network: list.name().into(),
            plugin: plugin.name().into(),
            source: source.into(),
        })?;
    }
    Ok(any)
}

/// Reads every plugin's configuration before the first of them has an effect.
fn parse(
    list: &Conflist,
    attachment: Option<&Attachment<'_>>,
    dirs: &Dirs,
) -> Result<Vec<ChainPlugin>, Error> {
    let none = BTreeMap::new();
    let context = PluginContext {
        network: list.name(),
        args: attachment.map(|attachment| attachment.args.as_slice()).unwrap_or_default(),
        data_dir: &dirs.data_dir,
        bin_dirs: std::slice::from_ref(&dirs.bin_dir),
        prefer_external: dirs.prefer_external,
    };
    let capabilities = attachment.map_or(&none, |attachment| &attachment.capabilities);
    list.plugins()
        .map(|(kind, conf)| {
            let conf = crate::request::derive(conf, list.name(), list.cni_version(), capabilities);
            ChainPlugin::parse(kind, &conf, &context).map_err(|source| config_error(list, kind, source))
        })
        .collect()
}

/// Programs that are missing are an error for what needs them; DEL and GC do without.
fn require(list: &Conflist, plugins: &[ChainPlugin]) -> Result<(), Error> {
    plugins
        .iter()
        .try_for_each(|plugin| plugin.require().map_err(|source| config_error(list, plugin.name(), source)))
}

fn config_error(list: &Conflist, plugin: &str, source: PluginErrorKind) -> Error {
    Error::Config { plugin: plugin.into(), origin: list.origin().into(), source: source.into() }
}

fn undo(
    list: &Conflist,
    attachment: &Attachment<'_>,
    dirs: &Dirs,
    plugins: &[ChainPlugin],
    previous: Option<&CniResult>,
) -> Vec<Error> {
    // CNI has handed results to DEL since 0.4.0.
    let previous = previous.filter(|_| !list.is_older_than("0.4.0"));
    plugins
        .iter()
        .rev()
        .filter_map(|plugin| {
            let source = plugin.del(target(list, attachment, dirs), previous).err()?;
            Some(del_error(list, attachment, plugin.name(), source))
        })
        .collect()
}

fn del_error(list: &Conflist, attachment: &Attachment<'_>, plugin: &str, source: PluginErrorKind) -> Error {
    Error::Del {
        network: list.name().into(),
        container_id: attachment.container_id.into(),
        ifname: attachment.ifname.into(),
        plugin: plugin.into(),
        source: source.into(),
    }
}

fn target<'a>(list: &'a Conflist, attachment: &'a Attachment<'_>, dirs: &'a Dirs) -> AttachmentTarget<'a> {
    AttachmentTarget {
        network: list.name(),
        home: dirs.home(),
        container_id: attachment.container_id,
        ifname: attachment.ifname,
        netns: attachment.netns,
        args: &attachment.args,
    }
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

#[cfg(test)]
mod tests;

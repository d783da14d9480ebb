//! The built-in plugins that a chain may name.
//!
//! Owns the list of them and how a configuration's object becomes one. Never orders or undoes: the chain does.

use super::{Conflist, Dirs, Error, PluginErrorKind};
use crate::bridge::{self, Target};
use crate::host_local;
use crate::loopback;
use crate::result::CniResult;

/// A plugin with its checked configuration.
#[derive(Debug)]
pub(super) enum Plugin {
    Bridge(Box<bridge::Config>),
    Loopback,
}

/// Checks all plugins of a list before the first of them has an effect.
pub(super) fn parse_all(list: &Conflist, dirs: &Dirs) -> Result<Vec<Plugin>, Error> {
    list.plugins().map(|(name, conf)| parse(name, conf, list, dirs)).collect()
}

fn parse(name: &str, conf: &serde_json::Value, list: &Conflist, dirs: &Dirs) -> Result<Plugin, Error> {
    match name {
        "bridge" => bridge::Config::parse(conf, list.name(), &dirs.data_dir)
            .map(|config| Plugin::Bridge(Box::new(config)))
            .map_err(|source| Error::Config {
                plugin: name.into(),
                origin: list.origin().into(),
                source: PluginErrorKind::from(source).into(),
            }),
        "loopback" => Ok(Plugin::Loopback),
        other => Err(Error::UnknownPlugin {
            plugin: other.into(),
            origin: list.origin().into(),
            program: dirs.bin_dir.join(other),
        }),
    }
}

impl Plugin {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Plugin::Bridge(_) => "bridge",
            Plugin::Loopback => "loopback",
        }
    }

    /// Adds its part; `previous` is the result of the plugins before it. After an error nothing is left of its part.
    pub(super) fn add(
        &self,
        target: Target<'_>,
        previous: CniResult,
        on_plugin: &mut dyn FnMut(&str, i64, i64),
    ) -> Result<CniResult, PluginErrorKind> {
        match self {
            Plugin::Bridge(config) => {
                let allocate = |ipam: &host_local::Config| {
                    super::timed(on_plugin, "host-local", |_| {
                        host_local::add(ipam, target.container_id, target.ifname)
                    })
                };
                Ok(bridge::add(config, target, allocate)?)
            }
            Plugin::Loopback => {
                loopback::add(target.netns)?;
                Ok(previous)
            }
        }
    }

    /// Removes its part; what is gone already is fine.
    pub(super) fn del(&self, target: Target<'_>) -> Result<(), PluginErrorKind> {
        match self {
            Plugin::Bridge(config) => Ok(bridge::del(config, target)?),
            // lo goes with its namespace.
            Plugin::Loopback => Ok(()),
        }
    }

    /// Removes what it keeps on the host for all attachments, if there are none.
    pub(super) fn remove_idle(&self) -> Result<bool, PluginErrorKind> {
        match self {
            Plugin::Bridge(config) => Ok(bridge::remove_idle(config)?),
            Plugin::Loopback => Ok(false),
        }
    }
}

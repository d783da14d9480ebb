//! The plugins that a chain may name: those that are built in, and programs.
//!
//! Owns the list of them, how a configuration becomes one, and which part of it each operation reaches. Never orders or
//! undoes: the chain does. Called by the chain, and by the plugins' executables for the one they are.

use gantry_base::error::chain;
use serde_json::Value;

use super::PluginErrorKind;
use crate::bridge;
use crate::exec::{Program, Verb};
use crate::host_local;
use crate::loopback;
use crate::portmap;
use crate::ptp;
use crate::request::{AttachmentTarget, NodeDirs, PluginContext, ValidAttachment};
use crate::result::CniResult;

/// Versions of the specification that the built-in plugins and the chain speak, oldest first.
pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A plugin that works on what others made was called first.
#[derive(Debug, thiserror::Error)]
#[error("plugin {0} must come behind another one: there is no result yet that it could work on")]
pub(crate) struct NotChained(&'static str);

/// A plugin with its checked configuration.
#[derive(Debug)]
pub(crate) enum ChainPlugin {
    Bridge(Box<bridge::BridgeConfig>),
    Ptp(Box<ptp::PtpConfig>),
    Portmap(Box<portmap::PortmapConfig>),
    HostLocal(Box<host_local::HostLocalConfig>),
    Loopback,
    /// A program, and whether the result of the one before is handed to it.
    External(Box<Program>),
}

impl ChainPlugin {
    /// Whether a type is built in.
    pub(crate) fn is_built_in(kind: &str) -> bool {
        matches!(kind, "bridge" | "ptp" | "portmap" | "host-local" | "loopback")
    }

    /// Reads the configuration of a call.
    pub(crate) fn parse(
        kind: &str,
        conf: &Value,
        context: &PluginContext<'_>,
    ) -> Result<ChainPlugin, PluginErrorKind> {
        if context.prefer_external || !ChainPlugin::is_built_in(kind) {
            return Ok(ChainPlugin::External(Box::new(Program::find(kind, context.bin_dirs, conf.clone()))));
        }
        Ok(match kind {
            "bridge" => ChainPlugin::Bridge(Box::new(bridge::BridgeConfig::parse(conf, context)?)),
            "ptp" => ChainPlugin::Ptp(Box::new(ptp::PtpConfig::parse(conf, context)?)),
            "portmap" => ChainPlugin::Portmap(Box::new(portmap::PortmapConfig::parse(conf)?)),
            "host-local" => {
                ChainPlugin::HostLocal(Box::new(host_local::HostLocalConfig::parse(conf, context)?))
            }
            _ => ChainPlugin::Loopback,
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            ChainPlugin::Bridge(_) => "bridge",
            ChainPlugin::Ptp(_) => "ptp",
            ChainPlugin::Portmap(_) => "portmap",
            ChainPlugin::HostLocal(_) => "host-local",
            ChainPlugin::Loopback => "loopback",
            ChainPlugin::External(program) => program.kind(),
        }
    }

    pub(super) fn is_external(&self) -> bool {
        matches!(self, ChainPlugin::External(_))
    }

    /// Whether everything is there that it needs beside the kernel.
    pub(super) fn require(&self) -> Result<(), PluginErrorKind> {
        match self {
            ChainPlugin::External(program) => Ok(program.path().map(drop)?),
            ChainPlugin::Bridge(config) => {
                Ok(config.ipam.as_ref().map_or(Ok(()), crate::ipam::Ipam::require)?)
            }
            ChainPlugin::Ptp(config) => Ok(config.ipam.require()?),
            _ => Ok(()),
        }
    }

    /// Adds its part; `previous` is the result of the plugins before it. After an error nothing is left of the part of a
    /// built-in plugin.
    pub(crate) fn add(
        &self,
        target: AttachmentTarget<'_>,
        previous: Option<CniResult>,
        on_plugin: &mut dyn FnMut(&str, i64, i64),
    ) -> Result<CniResult, PluginErrorKind> {
        match self {
            ChainPlugin::Bridge(config) => Ok(bridge::add(config, target, on_plugin)?),
            ChainPlugin::Ptp(config) => Ok(ptp::add(config, target, on_plugin)?),
            ChainPlugin::Portmap(config) => {
                let previous = previous.ok_or(NotChained("portmap"))?;
                portmap::add(config, target, &previous)?;
                Ok(previous)
            }
            ChainPlugin::HostLocal(config) => {
                Ok(host_local::add(config, target.container_id, target.ifname)?.into_result())
            }
            ChainPlugin::Loopback => {
                let found = loopback::add(target.netns)?;
                Ok(previous.unwrap_or(found))
            }
            ChainPlugin::External(program) => Ok(program.add(target, previous.as_ref())?),
        }
    }

    /// Removes its part; what is gone already is fine, and so is a program that was uninstalled: a pod must not stay
    /// Terminating for ever because its network plugin went before it (runtime-traps 7.2).
    pub(crate) fn del(
        &self,
        target: AttachmentTarget<'_>,
        previous: Option<&CniResult>,
    ) -> Result<(), PluginErrorKind> {
        match self {
            ChainPlugin::Bridge(config) => Ok(bridge::del(config, target)?),
            ChainPlugin::Ptp(config) => Ok(ptp::del(config, target)?),
            ChainPlugin::Portmap(config) => Ok(portmap::del(config, target)?),
            ChainPlugin::HostLocal(config) => {
                Ok(host_local::del(config, target.container_id, target.ifname)?)
            }
            // lo goes with its namespace.
            ChainPlugin::Loopback => Ok(()),
            ChainPlugin::External(program) => match program.call(Verb::Del, target, previous) {
                Err(error) if error.is_missing() => {
                    tracing::warn!(
                        container_id = target.container_id,
                        "DEL continues without a plugin that is missing: {}",
                        chain(&error)
                    );
                    Ok(())
                }
                other => Ok(other?),
            },
        }
    }

    /// Looks whether its part is as ADD left it.
    pub(crate) fn check(
        &self,
        target: AttachmentTarget<'_>,
        result: &CniResult,
    ) -> Result<(), PluginErrorKind> {
        match self {
            ChainPlugin::Bridge(config) => Ok(bridge::check(config, target, result)?),
            ChainPlugin::Ptp(config) => Ok(ptp::check(config, target, result)?),
            ChainPlugin::Portmap(config) => Ok(portmap::check(config, target, result)?),
            ChainPlugin::HostLocal(config) => {
                Ok(host_local::check(config, target.container_id, target.ifname)?)
            }
            ChainPlugin::Loopback => Ok(loopback::check(target.netns)?),
            ChainPlugin::External(program) => Ok(program.call(Verb::Check, target, Some(result))?),
        }
    }

    /// Whether it can take another attachment.
    pub(crate) fn status(&self) -> Result<(), PluginErrorKind> {
        match self {
            ChainPlugin::Bridge(config) => {
                Ok(config.ipam.as_ref().map_or(Ok(()), crate::ipam::Ipam::status)?)
            }
            ChainPlugin::Ptp(config) => Ok(config.ipam.status()?),
            ChainPlugin::Portmap(_) => Ok(portmap::status()?),
            ChainPlugin::HostLocal(config) => Ok(host_local::status(config)?),
            ChainPlugin::Loopback => Ok(()),
            ChainPlugin::External(program) => Ok(program.status()?),
        }
    }

    /// Removes what belongs to attachments that are none of these.
    pub(crate) fn gc(
        &self,
        network: &str,
        home: NodeDirs<'_>,
        valid: &[ValidAttachment],
    ) -> Result<(), PluginErrorKind> {
        match self {
            ChainPlugin::Bridge(config) => Ok(bridge::gc(config, network, home, valid)?),
            ChainPlugin::Ptp(config) => Ok(ptp::gc(config, network, home, valid)?),
            ChainPlugin::Portmap(_) => Ok(portmap::gc(network, home, valid)?),
            ChainPlugin::HostLocal(config) => Ok(host_local::gc(config, valid)?),
            ChainPlugin::Loopback => Ok(()),
            ChainPlugin::External(program) => Ok(program.gc(valid)?),
        }
    }

    /// Removes what it keeps on the host for all attachments, if there are none.
    pub(super) fn remove_idle(&self) -> Result<bool, PluginErrorKind> {
        match self {
            ChainPlugin::Bridge(config) => Ok(bridge::remove_idle(config)?),
            _ => Ok(false),
        }
    }
}

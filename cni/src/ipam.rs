//! Who hands out the addresses: `host-local` in-process, or another plugin's program.
//!
//! Owns the delegation (specification §4): a main plugin asks here, and whatever happened to itself, its DEL, CHECK,
//! STATUS and GC reach the plugin behind. Never touches a link. Called by `bridge` and `ptp`.

use serde_json::Value;

use crate::exec::{self, Program, Verb};
use crate::host_local::{self, Allocation, Lease};
use crate::request::{AttachmentTarget, PluginContext, ValidAttachment};
use crate::result::CniResult;

/// A plugin for addresses with its checked configuration.
#[derive(Debug, Clone)]
pub(crate) enum Ipam {
    HostLocal(host_local::HostLocalConfig),
    External(Box<Program>),
}

/// What is wrong with the `ipam` object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IpamConfigError {
    #[error("the address ranges are wrong")]
    HostLocal(#[source] host_local::HostLocalConfigError),
}

/// Why addresses were not handed out, taken back or confirmed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    HostLocal(#[from] host_local::Error),
    #[error(transparent)]
    Exec(#[from] exec::Error),
}

impl Error {
    pub(crate) fn is_exhausted(&self) -> bool {
        matches!(self, Error::HostLocal(error) if error.is_exhausted())
    }

    pub(crate) fn code(&self) -> Option<u32> {
        match self {
            Error::HostLocal(_) => None,
            Error::Exec(error) => error.code(),
        }
    }
}

impl Ipam {
    /// Reads the `ipam` object of a plugin's configuration; `None` when there is none.
    pub(crate) fn parse(conf: &Value, context: &PluginContext<'_>) -> Result<Option<Ipam>, IpamConfigError> {
        let kind =
            conf.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str).unwrap_or_default();
        match kind {
            "" => Ok(None),
            "host-local" if !context.prefer_external => host_local::HostLocalConfig::parse(conf, context)
                .map(|config| Some(Ipam::HostLocal(config)))
                .map_err(IpamConfigError::HostLocal),
            // It gets the whole configuration of the plugin that asks, not only the `ipam` object.
            other => Ok(Some(Ipam::External(Box::new(Program::find(other, context.bin_dirs, conf.clone()))))),
        }
    }

    /// Its type, for spans and messages.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Ipam::HostLocal(_) => "host-local",
            Ipam::External(program) => program.kind(),
        }
    }

    /// Whether its program is there.
    pub(crate) fn require(&self) -> Result<(), Error> {
        match self {
            Ipam::HostLocal(_) => Ok(()),
            Ipam::External(program) => Ok(program.path().map(drop)?),
        }
    }

    pub(crate) fn add(&self, target: AttachmentTarget<'_>) -> Result<Allocation, Error> {
        match self {
            Ipam::HostLocal(config) => Ok(host_local::add(config, target.container_id, target.ifname)?),
            Ipam::External(program) => Ok(allocation(program.add(target, None)?)),
        }
    }

    /// Takes the addresses back. A program that was uninstalled keeps no pod from ending.
    pub(crate) fn del(&self, target: AttachmentTarget<'_>) -> Result<(), Error> {
        match self {
            Ipam::HostLocal(config) => Ok(host_local::del(config, target.container_id, target.ifname)?),
            Ipam::External(program) => match program.call(Verb::Del, target, None) {
                Err(error) if error.is_missing() => {
                    tracing::warn!(
                        container_id = target.container_id,
                        "DEL continues without releasing addresses: {error}"
                    );
                    Ok(())
                }
                other => Ok(other?),
            },
        }
    }

    pub(crate) fn check(&self, target: AttachmentTarget<'_>, result: &CniResult) -> Result<(), Error> {
        match self {
            Ipam::HostLocal(config) => Ok(host_local::check(config, target.container_id, target.ifname)?),
            Ipam::External(program) => Ok(program.call(Verb::Check, target, Some(result))?),
        }
    }

    pub(crate) fn status(&self) -> Result<(), Error> {
        match self {
            Ipam::HostLocal(config) => Ok(host_local::status(config)?),
            Ipam::External(program) => Ok(program.status()?),
        }
    }

    pub(crate) fn gc(&self, valid: &[ValidAttachment]) -> Result<(), Error> {
        match self {
            Ipam::HostLocal(config) => Ok(host_local::gc(config, valid)?),
            Ipam::External(program) => Ok(program.gc(valid)?),
        }
    }
}

fn allocation(result: CniResult) -> Allocation {
    let leases = result.ips.iter().map(|ip| Lease { address: ip.address, gateway: ip.gateway }).collect();
    Allocation { leases, routes: result.routes, dns: result.dns }
}

//! The plugin `host-local`: gives an attachment one address of each range set of its configuration.
//!
//! Owns the order of things: under the network's lock look, choose, write. Never touches a link. `config` and `alloc`
//! decide, `store` keeps leases in the format of the upstream plugin, so that a node can change runtimes and back,
//! `resolv_conf` reads the name servers to pass on. Called by `ipam`, and by the chain when it stands alone.

mod alloc;
mod config;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod resolv_conf;
mod store;

pub(crate) use config::{HostLocalConfig, HostLocalConfigError};
pub(crate) use store::LeaseStore;

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::request::ValidAttachment;
use crate::result::{CniResult, Dns, IpConfig, Route};

/// An address that is now an attachment's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) address: IpNet,
    /// Always there with `host-local`; other plugins may leave it out.
    pub(crate) gateway: Option<IpAddr>,
}

/// What a plugin for addresses answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) leases: Vec<Lease>,
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
}

impl Allocation {
    /// The answer as such a plugin's own, without links.
    pub(crate) fn into_result(self) -> CniResult {
        let ips = self.leases.iter().map(|lease| ip_config(lease, None)).collect();
        CniResult { ips, routes: self.routes, dns: self.dns, ..CniResult::default() }
    }
}

/// A lease as it stands in a result.
pub(crate) fn ip_config(lease: &Lease, interface: Option<usize>) -> IpConfig {
    IpConfig { version: None, interface, address: lease.address, gateway: lease.gateway }
}

/// Why no address was given, or one not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot use the leases in {dir}")]
    Store {
        dir: PathBuf,
        #[source]
        source: store::Error,
    },
    #[error("{address} is leased to container {container_id} interface {ifname} already, in {dir}")]
    AlreadyLeased { address: IpAddr, container_id: String, ifname: String, dir: PathBuf },
    #[error(
        "no free address in {ranges}: all are leased in {dir}; remove leases of containers that are gone, or widen the range"
    )]
    Exhausted { ranges: String, dir: PathBuf },
    #[error("address {address} was asked for and is leased to {owner} already, in {dir}")]
    Taken { address: IpAddr, owner: String, dir: PathBuf },
    #[error("container {container_id} interface {ifname} has no lease in {dir}")]
    NoLease { container_id: String, ifname: String, dir: PathBuf },
    #[error("cannot read the name servers of {path}")]
    ResolvConf {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot allocate ({primary}), nor release what was allocated before")]
    Undo {
        primary: Box<Error>,
        #[source]
        source: store::Error,
    },
}

impl Error {
    /// Whether all addresses are leased.
    pub(crate) fn is_exhausted(&self) -> bool {
        matches!(self, Error::Exhausted { .. })
    }
}

/// Leases an address of each range set to a container's interface. All or nothing.
pub(crate) fn add(config: &HostLocalConfig, container_id: &str, ifname: &str) -> Result<Allocation, Error> {
    let failed = |source| Error::Store { dir: config.dir.clone(), source };
    let dns = match &config.resolv_conf {
        None => Dns::default(),
        Some(path) => {
            resolv_conf::read(path).map_err(|source| Error::ResolvConf { path: path.clone(), source })?
        }
    };
    let store = LeaseStore::lock(&config.dir).map_err(failed)?;
    let owned = store.leases().map_err(failed)?;
    if let Some(lease) = owned.iter().find(|lease| lease.is_of(container_id, ifname)) {
        return Err(Error::AlreadyLeased {
            address: lease.address,
            container_id: container_id.into(),
            ifname: ifname.into(),
            dir: config.dir.clone(),
        });
    }
    match lease_each(config, &store, &owned, container_id, ifname) {
        Ok(leases) => Ok(Allocation { leases, routes: config.routes.clone(), dns }),
        Err(primary) => match store.release(container_id, ifname) {
            Ok(_) => Err(primary),
            Err(source) => Err(Error::Undo { primary: Box::new(primary), source }),
        },
    }
}

fn lease_each(
    config: &HostLocalConfig,
    store: &LeaseStore,
    owned: &[store::LeaseFile],
    container_id: &str,
    ifname: &str,
) -> Result<Vec<Lease>, Error> {
    let failed = |source| Error::Store { dir: config.dir.clone(), source };
    let mut taken: HashSet<IpAddr> = owned.iter().map(|lease| lease.address).collect();
    let mut leases = Vec::new();
    for (number, set) in config.sets.iter().enumerate() {
        let lease = match config.requested.get(&number) {
            Some(lease) => match owned.iter().find(|other| other.address == lease.address.addr()) {
                None => lease.clone(),
                Some(other) => {
                    let (address, owner) = (other.address, other.owner());
                    return Err(Error::Taken { address, owner, dir: config.dir.clone() });
                }
            },
            None => {
                let last = store.last(number).map_err(failed)?;
                let exhausted = || Error::Exhausted { ranges: set.to_string(), dir: config.dir.clone() };
                alloc::choose(set, last, &taken).ok_or_else(exhausted)?
            }
        };
        let address = lease.address.addr();
        store.take(address, container_id, ifname, number).map_err(failed)?;
        taken.insert(address);
        leases.push(lease);
    }
    Ok(leases)
}

/// Releases every address of a container's interface; having none is fine.
pub(crate) fn del(config: &HostLocalConfig, container_id: &str, ifname: &str) -> Result<(), Error> {
    in_store(config, |store| store.release(container_id, ifname).map(drop)).map(drop)
}

/// Whether the container's interface has a lease.
pub(crate) fn check(config: &HostLocalConfig, container_id: &str, ifname: &str) -> Result<(), Error> {
    let has_one = |store: &LeaseStore| {
        let leases = store.leases()?;
        Ok(leases.iter().any(|lease| lease.is_of(container_id, ifname) || lease.is_of_old(container_id)))
    };
    match in_store(config, has_one)? {
        Some(true) => Ok(()),
        _ => Err(Error::NoLease {
            container_id: container_id.into(),
            ifname: ifname.into(),
            dir: config.dir.clone(),
        }),
    }
}

/// Whether every range set has an address left.
pub(crate) fn status(config: &HostLocalConfig) -> Result<(), Error> {
    let leases = in_store(config, LeaseStore::leases)?.unwrap_or_default();
    let taken = leases.iter().map(|lease| lease.address).collect();
    match config.sets.iter().find(|set| alloc::choose(set, None, &taken).is_none()) {
        None => Ok(()),
        Some(set) => Err(Error::Exhausted { ranges: set.to_string(), dir: config.dir.clone() }),
    }
}

/// Releases every address whose owner is none of these.
pub(crate) fn gc(config: &HostLocalConfig, valid: &[ValidAttachment]) -> Result<(), Error> {
    let released = in_store(config, |store| store.release_all_but(valid))?.unwrap_or_default();
    for address in released {
        tracing::info!(%address, dir = %config.dir.display(), "released the address of a container that is gone");
    }
    Ok(())
}

/// Runs a job under the lock. A network that never had an attachment has no folder, and gets none.
fn in_store<T>(
    config: &HostLocalConfig,
    job: impl FnOnce(&LeaseStore) -> Result<T, store::Error>,
) -> Result<Option<T>, Error> {
    if !config.dir.exists() {
        return Ok(None);
    }
    LeaseStore::lock(&config.dir)
        .and_then(|store| job(&store))
        .map(Some)
        .map_err(|source| Error::Store { dir: config.dir.clone(), source })
}

#[cfg(test)]
mod tests;

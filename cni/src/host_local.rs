//! The plugin `host-local`: gives an attachment one address of each range set of its configuration.
//!
//! Owns the order of things: under the network's lock look, choose, write. Never touches a link. `config` and `alloc`
//! decide, `store` keeps leases in the format of the upstream plugin, so that a node can change runtimes and back.
//! Called by the bridge.

mod alloc;
mod config;
mod store;

pub(crate) use config::{Config, ConfigError};
pub(crate) use store::Store;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

/// An address that is now an attachment's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) address: IpNet,
    pub(crate) gateway: IpAddr,
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
    #[error("cannot allocate ({primary}), nor release what was allocated before")]
    Undo {
        primary: Box<Error>,
        #[source]
        source: store::Error,
    },
}

/// Leases an address of each range set to a container's interface. All or nothing.
pub(crate) fn add(config: &Config, container_id: &str, ifname: &str) -> Result<Vec<Lease>, Error> {
    let failed = |source| Error::Store { dir: config.dir.clone(), source };
    let store = Store::lock(&config.dir).map_err(failed)?;
    let owned = store.leases().map_err(failed)?;
    if let Some(lease) = owned.iter().find(|lease| lease.is_of(container_id, ifname)) {
        return Err(Error::AlreadyLeased {
            address: lease.address,
            container_id: container_id.into(),
            ifname: ifname.into(),
            dir: config.dir.clone(),
        });
    }
    let mut taken: HashSet<IpAddr> = owned.iter().map(|lease| lease.address).collect();
    match lease_each(config, &store, &mut taken, container_id, ifname) {
        Ok(leases) => Ok(leases),
        Err(primary) => match store.release(container_id, ifname) {
            Ok(_) => Err(primary),
            Err(source) => Err(Error::Undo { primary: Box::new(primary), source }),
        },
    }
}

fn lease_each(
    config: &Config,
    store: &Store,
    taken: &mut HashSet<IpAddr>,
    container_id: &str,
    ifname: &str,
) -> Result<Vec<Lease>, Error> {
    let failed = |source| Error::Store { dir: config.dir.clone(), source };
    let mut leases = Vec::new();
    for (number, set) in config.sets.iter().enumerate() {
        let last = store.last(number).map_err(failed)?;
        let Some(lease) = alloc::choose(set, last, taken) else {
            return Err(Error::Exhausted { ranges: set.to_string(), dir: config.dir.clone() });
        };
        let address = lease.address.addr();
        store.take(address, container_id, ifname, number).map_err(failed)?;
        taken.insert(address);
        leases.push(lease);
    }
    Ok(leases)
}

/// Releases every address of a container's interface; having none is fine.
pub(crate) fn del(config: &Config, container_id: &str, ifname: &str) -> Result<(), Error> {
    let failed = |source| Error::Store { dir: config.dir.clone(), source };
    // DEL of a network that never had an attachment makes no folder.
    if !config.dir.exists() {
        return Ok(());
    }
    Store::lock(&config.dir).and_then(|store| store.release(container_id, ifname)).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests;

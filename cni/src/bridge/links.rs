//! The kernel half of `bridge`: makes the links and brings them up.
//!
//! Owns which messages are sent in which order. Never decides what the links look like (`plan`) and never undoes
//! (`bridge`). Called by `bridge` on the host's thread; the pod's side runs on a fresh thread inside its namespace.

use super::{BridgeConfig, plan};
use crate::netlink::{self, Link, Netlink, NewAddress};
use crate::sysctl;
use crate::veth;
use ipnet::IpNet;

/// Which step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot look up link {name}")]
    Lookup {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("{name} exists but is not a bridge; name another one in the configuration")]
    NotABridge { name: String },
    #[error("link {name} vanished")]
    Vanished { name: String },
    #[error("cannot make bridge {name}")]
    MakeBridge {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot bring {name} up")]
    BringUp {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot read the addresses of bridge {name}")]
    Addresses {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot use the bridge")]
    Clash(#[source] plan::Error),
    #[error("cannot give {name} the address {address}")]
    Address {
        name: String,
        address: IpNet,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot fix the hardware address of {name}")]
    Mac {
        name: String,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot let the host forward packets")]
    Forwarding(#[source] sysctl::Error),
    #[error("cannot wire the pod up")]
    Pod(#[source] veth::Error),
    #[error("cannot take address {address} from bridge {name}")]
    TakeAddress {
        name: String,
        address: IpNet,
        #[source]
        source: netlink::Error,
    },
    #[error("cannot make bridge {name} listen to all frames")]
    Promiscuous {
        name: String,
        #[source]
        source: netlink::Error,
    },
}

/// Finds the bridge, or makes it; up in either case.
pub(crate) fn ensure_bridge(host: &mut Netlink, config: &BridgeConfig) -> Result<Link, Error> {
    let name = config.bridge.as_str();
    let mut bridge = lookup(host, name)?;
    if bridge.is_none() {
        match host.add_bridge(name, veth::random_mac().map_err(Error::Pod)?, config.mtu) {
            // Another ADD was faster.
            Err(error) if error.is_exists() => {}
            other => other.map_err(|source| Error::MakeBridge { name: name.into(), source })?,
        }
        bridge = lookup(host, name)?;
    }
    let bridge = bridge.ok_or_else(|| Error::Vanished { name: name.into() })?;
    if !bridge.is_bridge {
        return Err(Error::NotABridge { name: name.into() });
    }
    if !bridge.up {
        veth::detect_duplicates(name, config.enable_dad);
        host.set_up(name).map_err(|source| Error::BringUp { name: name.into(), source })?;
    }
    if config.promiscuous {
        host.set_promiscuous(name).map_err(|source| Error::Promiscuous { name: name.into(), source })?;
    }
    Ok(bridge)
}

fn lookup(host: &mut Netlink, name: &str) -> Result<Option<Link>, Error> {
    host.link(name).map_err(|source| Error::Lookup { name: name.into(), source })
}

/// Gives the bridge the gateway's address and lets the host forward.
pub(crate) fn ensure_gateway(
    host: &mut Netlink,
    bridge: &Link,
    gateway: IpNet,
    force: bool,
) -> Result<(), Error> {
    let name = || bridge.name.clone();
    let existing = host
        .addresses(bridge.index, gateway.addr())
        .map_err(|source| Error::Addresses { name: name(), source })?;
    let wanted = plan::address(&bridge.name, &existing, gateway, force).map_err(Error::Clash)?;
    if let plan::Address::Lacking(in_the_way) = wanted {
        for address in in_the_way {
            host.delete_address(bridge.index, address).map_err(|source| Error::TakeAddress {
                name: name(),
                address,
                source,
            })?;
        }
        match host.add_address(bridge.index, gateway, NewAddress { on_link: true, skip_dad: true }) {
            Err(error) if error.is_exists() => {}
            other => other.map_err(|source| Error::Address { name: name(), address: gateway, source })?,
        }
        // A bridge that someone else made may have taken its hardware address from a port; as gateway it must keep it.
        host.set_mac(&bridge.name, &bridge.mac).map_err(|source| Error::Mac { name: name(), source })?;
    }
    sysctl::enable_forwarding(gateway.addr()).map_err(Error::Forwarding)
}

/// Brings the host's end up.
pub(crate) fn bring_up_port(host: &mut Netlink, name: &str, config: &BridgeConfig) -> Result<(), Error> {
    host.set_port_up(name, config.hairpin, config.port_isolation)
        .map_err(|source| Error::BringUp { name: name.into(), source })
}

/// Waits until the port forwards; returns the hardware address of the host's end.
pub(crate) fn await_port(host: &mut Netlink, name: &str) -> Result<Vec<u8>, Error> {
    veth::await_link(host, name, |link| link.forwarding).map(|link| link.mac).map_err(Error::Pod)
}

/// The hardware address of the host's end, whether it forwards or not.
pub(crate) fn host_mac(host: &mut Netlink, name: &str) -> Result<Vec<u8>, Error> {
    Ok(lookup(host, name)?.ok_or_else(|| Error::Vanished { name: name.into() })?.mac)
}

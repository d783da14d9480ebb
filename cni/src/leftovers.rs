//! What a node's kernel keeps of a cluster that it has left: rules of kube-proxy and kubelets, routes to other nodes'
//! pods. Owns their removal in the calling thread's network namespace; never touches rules and routes of others. Called
//! by `gantry join`, which remembers what was there before, and `gantry leave`.

use std::error::Error as Cause;

use ipnet::IpNet;

use crate::netlink::Netlink;
use crate::nft::{Family, NftTable, kube_tables, remove_kube};

/// What could not be read or removed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: &'static str,
    #[source]
    source: Box<dyn Cause + Send + Sync>,
}

fn at<E: Cause + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error { what, source: Box::new(source) }
}

/// The tables of nf_tables for IPv4 and IPv6, each as `nft` names it: `ip nat`.
///
/// # Errors
/// When the kernel does not tell.
pub fn tables() -> Result<Vec<String>, Error> {
    let found = kube_tables().map_err(at("list the tables of nf_tables"))?;
    Ok(found.iter().map(|(family, name)| format!("{family} {name}")).collect())
}

/// Removes the rules of kube-proxy and kubelets: tables `kube-proxy`, chains `KUBE-…` with the jumps into them, and
/// tables of iptables that are empty then and not among those of `before`. Tells how many chains and tables went.
///
/// # Errors
/// When the kernel refuses.
pub fn remove_rules(before: &[String]) -> Result<usize, Error> {
    let known: Vec<NftTable> = before.iter().filter_map(|table| parse(table)).collect();
    remove_kube(&known).map_err(at("remove the rules of kube-proxy"))
}

fn parse(table: &str) -> Option<NftTable> {
    let (family, name) = table.split_once(' ')?;
    let family = Family::ALL.into_iter().find(|known| known.to_string() == family)?;
    Some((family, name.to_owned()))
}

/// Removes routes of the main table into these networks, as `10.244.0.0/16`, but for the kernel's own. Tells where they
/// led. What is no network is passed over.
///
/// # Errors
/// When the kernel refuses.
pub fn remove_routes(within: &[String]) -> Result<Vec<String>, Error> {
    const WHAT: &str = "remove routes into the pods' networks";
    let nets: Vec<IpNet> = within.iter().filter_map(|net| net.parse().ok()).collect();
    let mut netlink = Netlink::open().map_err(at(WHAT))?;
    let gone = netlink.delete_routes(&nets).map_err(at(WHAT))?;
    Ok(gone.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_nfts_names() {
        assert_eq!(parse("ip nat"), Some((Family::Ip, "nat".into())));
        assert_eq!(parse("ip6 kube-proxy"), Some((Family::Ip6, "kube-proxy".into())));
        assert_eq!(parse("inet x"), None);
        assert_eq!(Family::Ip6.to_string(), "ip6");
    }
}

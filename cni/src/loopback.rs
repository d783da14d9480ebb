//! The plugin `loopback`: brings `lo` of a namespace up.
//!
//! Owns nothing that would need undoing: `lo` goes with its namespace, and the kernel gives it its addresses. Called by
//! the chain for every attachment, and again when a configuration names it.

use std::path::Path;

use crate::netlink::{self, Netlink};
use crate::netns;

/// Why `lo` is not up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot reach the loopback interface")]
    Netns(#[source] netns::Error),
    #[error("cannot bring lo up")]
    Up(#[source] netlink::Error),
}

/// Brings `lo` of the namespace up.
pub(crate) fn add(netns: &Path) -> Result<(), Error> {
    netns::run(netns, || Netlink::open()?.set_up("lo")).map_err(Error::Netns)?.map_err(Error::Up)
}

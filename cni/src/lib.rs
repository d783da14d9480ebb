//! CNI for Gantry: a chain runner and the plugins `bridge`, `ptp`, `portmap`, `host-local` and `loopback`, run
//! in-process over netlink as function calls, and as programs of their own for other runtimes.
//!
//! Owns: reading network configurations, handing out addresses, making and removing links, routes and rules, a
//! namespace's bind mount, and the cached results that DEL needs. Never: runs a program other than a plugin that a
//! configuration names, runs on a thread that is used again after it changed its namespace, or knows anything of pods.
//! The runtime (`shim`) calls [`chain`] and [`netns`], the command (`cli`) calls [`serve`] and [`leftovers`]; everything is blocking, so
//! the runtime calls from a blocking task.
//!
//! Map, in reading order:
//! - [`chain`]: the network's configuration, the operations on a whole chain, the result cache;
//! - `request`: what one call of one plugin is about; `report`: how it is told what came of it;
//! - [`result`]: what a plugin answers (CNI 1.1.0 wire types);
//! - `exec`: programs of plugins that are not built in; [`serve`]: ours as such programs;
//! - `bridge`, `ptp`: the plugins that make links (`config` and `plan` decide, `links` does); `attachment`,
//!   `veth`: what both need;
//! - `ipam`: who hands out addresses; `host_local`: from ranges (`config` and `alloc` decide, `store` keeps the leases);
//! - `portmap`, `masquerade`: ports of the host, and addresses outside; `nft`: how the kernel is told;
//! - [`leftovers`]: what a node's kernel keeps of a cluster that it has left;
//! - `loopback`: brings `lo` up;
//! - [`netns`]: making, entering and removing network namespaces;
//! - `netlink`, `sysctl`: the two other kernel interfaces in use; `socket`: what `netlink` and `nft` speak over.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod chain;
pub mod leftovers;
pub mod result;
pub mod serve;

mod exec;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod report;
mod request;

mod attachment;
mod bridge;
mod host_local;
mod ipam;
mod loopback;
mod masquerade;
mod portmap;
mod ptp;
mod veth;

pub mod netns;

mod netlink;
mod nft;
mod socket;
mod sysctl;

pub use chain::Error;
pub use result::CniResult;

//! CNI for Gantry: a chain runner and the plugins `bridge`, `host-local` and `loopback`, run in-process over
//! netlink as function calls.
//!
//! Owns: reading network configurations, handing out addresses, making and removing the links of a pod's network
//! namespace, the namespace's bind mount, and the cached results that DEL needs. Never: starts a program, runs on a
//! thread that is used again after it changed its namespace, or knows anything of pods. The runtime (`shim`) calls
//! [`chain::add`], [`chain::del`] and [`netns`]; everything is blocking, so it calls from a blocking task.
//!
//! Map, in reading order:
//! - [`chain`]: the network's configuration, ADD and DEL of a whole chain, the result cache;
//! - [`result`]: what a plugin answers (CNI 1.1.0 wire types);
//! - `bridge`: bridge, veth pair, addresses and routes (`config` and `plan` decide, `wire` does);
//! - `host_local`: addresses from ranges (`config` and `alloc` decide, `store` keeps the leases on disk);
//! - `loopback`: brings `lo` up;
//! - [`netns`]: making, entering and removing network namespaces;
//! - `netlink`, `sysctl`: the two kernel interfaces in use.

pub mod chain;
pub mod result;

mod bridge;
mod host_local;
mod loopback;

pub mod netns;

mod netlink;
mod sysctl;

pub use chain::Error;
pub use result::CniResult;

//! What a node asks of systemd: transient slices and scopes, their limits and their end, and how their
//! names become paths. Owns the D-Bus for that and no more (docs/adr/0023-own-d-bus.md); never decides a limit, never writes a cgroup
//! file. Blocks: called off the async threads, by the agent's cgroup tree and the runtime's sandboxes.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod bus;
#[cfg(test)]
mod shipped;
mod slice;
mod units;
mod wire;

pub use bus::Error;
pub use slice::{BadSlice, escape, expand, name, of_path, unescape};
pub use units::Systemd;
pub use wire::{Property, Value};

//! The monitor, which is the parent of a pod's processes, and the child that it clones until exec. The programs
//! in `bin/` are built static. Crate map in ARCHITECTURE.md. Never has a second thread, an async runtime, TLS or HTTP.
//! Used by `gantry-shim` for what both sides of the connection and both sides of a clone must agree on.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod descriptors;
pub mod exit;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod init;
pub mod monitor;
pub mod user_mapping;
pub mod wire;
pub mod within;

//! What the agent speaks of: pods and their parts, amounts, names, durations, the time. Owns types and arithmetic that
//! several crates and modules share; never a file, a socket or a task. Crate map in ARCHITECTURE.md. Used by
//! `gantry-agent` and the crates beside this one. Pure.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod allocation;
pub mod cgroup;
pub mod clock;
pub mod drain;
pub mod expand;
pub mod failure;
pub mod field_path;
pub mod go_duration;
pub mod go_json;
pub mod log_line;
pub mod mount;
pub mod names;
pub mod observation;
pub mod pod;
pub mod quantity;
pub mod random;
pub mod requests;
pub mod resize;
pub mod shutdown;
pub mod signal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod version;

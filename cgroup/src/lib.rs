//! The host's cgroup file systems: which there are, and which version holds the controllers. Agent, runtime
//! and `gantry doctor` ask here, so that they never differ.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod layout;

pub use layout::{Error, Hierarchy, Layout};

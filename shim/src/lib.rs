//! Gantry's CRI runtime: sandboxes and containers, and all that a CRI client asks about them. Crate map in
//! ARCHITECTURE.md. Images are `gantry-image`'s, processes the monitor's (`gantry-monitor`). Used by `cli`.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod sys;

mod apparmor;
mod attach;
mod capabilities;
pub mod cdi;
pub mod cgroup;
mod checkpoint;
pub mod config;
mod container;
mod cri;
pub mod error;
mod event_stream;
mod events;
mod exec;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod handler;
pub mod heap;
mod metrics;
mod monitor_client;
mod node;
mod oom_counts;
mod probe;
mod reconnect;
mod recover;
pub mod runtime;
mod sandbox;
mod seccomp;
mod selinux;
pub mod spans;
mod spec;
mod stats;
mod status;
mod store;
pub mod streaming;

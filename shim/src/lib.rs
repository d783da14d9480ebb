//! Gantry's CRI runtime: images, sandboxes, containers, and the monitor that
//! outlives it. Crate map in ARCHITECTURE.md. Used by `cli` (the runtime) and by
//! the programs in `bin/` (monitor, pause, unpack), which build it without `runtime`.

pub mod descriptors;
pub mod exit;
pub mod init;
pub mod monitor;
pub mod sys;
pub mod unpack;
pub mod user_mapping;
pub mod wire;
mod within;

#[cfg(feature = "runtime")]
mod apparmor;
#[cfg(feature = "runtime")]
mod attach;
#[cfg(feature = "runtime")]
mod capabilities;
#[cfg(feature = "runtime")]
pub mod cdi;
#[cfg(feature = "runtime")]
pub mod cgroup;
#[cfg(feature = "runtime")]
mod checkpoint;
#[cfg(feature = "runtime")]
pub mod config;
#[cfg(feature = "runtime")]
pub mod contained;
#[cfg(feature = "runtime")]
mod container;
#[cfg(feature = "runtime")]
mod cri;
#[cfg(feature = "runtime")]
pub mod error;
#[cfg(feature = "runtime")]
mod events;
#[cfg(feature = "runtime")]
mod exec;
#[cfg(feature = "runtime")]
mod feed;
#[cfg(all(any(test, fuzzing), feature = "runtime"))]
pub mod fuzzing;
#[cfg(feature = "runtime")]
mod handler;
#[cfg(feature = "runtime")]
pub mod image;
#[cfg(feature = "runtime")]
mod metrics;
#[cfg(feature = "runtime")]
mod monitor_client;
#[cfg(feature = "runtime")]
mod mutex;
#[cfg(feature = "runtime")]
mod node;
#[cfg(feature = "runtime")]
mod ooms;
#[cfg(feature = "runtime")]
mod probe;
#[cfg(feature = "runtime")]
mod reconnect;
#[cfg(feature = "runtime")]
mod recover;
#[cfg(feature = "runtime")]
mod remove;
#[cfg(feature = "runtime")]
pub mod runtime;
#[cfg(feature = "runtime")]
mod sandbox;
#[cfg(feature = "runtime")]
mod seccomp;
#[cfg(feature = "runtime")]
mod selinux;
#[cfg(feature = "runtime")]
mod spec;
#[cfg(feature = "runtime")]
mod stats;
#[cfg(feature = "runtime")]
mod status;
#[cfg(feature = "runtime")]
mod store;
#[cfg(feature = "runtime")]
pub mod streaming;
#[cfg(feature = "runtime")]
pub mod timeline;
#[cfg(feature = "runtime")]
mod trash;
#[cfg(feature = "runtime")]
mod usage;

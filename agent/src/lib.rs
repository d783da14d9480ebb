//! The kubelet half of Gantry, as a library: decides what should run, asks a CRI runtime
//! for it, and publishes how it goes. Never touches a namespace, a cgroup or an image
//! itself. Called by the `gantry` binary.
//!
//! Reading order: [`manifest`] (files → pods), [`pod`] (one pod's life), [`runtime`] (what
//! the agent asks of a runtime), [`agent`] (the workers of all pods), [`kubelet`] (the assembly), [`operator`] (the
//! socket of `gantry ps`), [`timeline`] and [`logs`] (what people look at).

mod admission;
pub mod agent;
pub mod api;
pub mod beyond;
pub mod cgroups;
pub mod checkpoint;
pub mod config;
mod dns;
pub mod drain;
mod events;
mod eviction;
mod explain;
mod healthz;
mod housekeeping;
pub mod images;
pub mod kubelet;
pub mod logs;
pub mod manifest;
pub mod node;
mod oom;
pub mod operator;
mod orphans;
pub mod pod;
pub mod ports;
pub mod probe;
mod registration;
pub mod root;
pub mod runtime;
pub mod server;
mod source;
mod static_pods;
mod status;
mod sync;
pub mod timeline;
pub mod users;
pub mod volumes;

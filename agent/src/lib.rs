//! The kubelet half of Gantry, as a library: decides what should run, asks a CRI runtime
//! for it, and publishes how it goes. Never touches a namespace, a cgroup or an image
//! itself. Called by the `gantry` binary.
//!
//! Reading order: [`manifest`] (files → pods), [`pod`] (one pod's life), [`runtime`] (what
//! the agent asks of a runtime), [`pod_workers`] (the workers of all pods), [`kubelet`] (the assembly), [`operator`] (the
//! socket of `gantry ps`), [`timeline`] and [`logs`] (what people look at).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod admission;
pub mod api;
mod attachments;
mod block;
pub mod cgroups;
pub mod checkpoint;
pub mod config;
mod csi;
pub mod devices;
mod dns;
pub mod dra;
mod events;
mod eviction;
mod explain;
mod gc;
mod healthz;
pub mod images;
pub mod kubelet;
pub mod logs;
pub mod manifest;
pub mod node;
mod oom_watcher;
pub mod operator;
mod orphans;
mod plugins;
pub mod pod;
mod pod_manager;
mod pod_source;
pub mod pod_workers;
mod podresources;
pub mod ports;
pub mod probe;
mod registration;
pub mod resource_managers;
pub mod root;
pub mod runtime;
pub mod runtime_ext;
mod shutdown;
mod static_pods;
mod status;
pub mod timeline;
pub mod users;
pub mod volumes;

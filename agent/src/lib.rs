//! The kubelet half of Gantry, as a library: decides what should run, asks a CRI runtime
//! for it, and publishes how it goes. Never touches a namespace, a cgroup or an image
//! itself. Called by the `gantry` binary.
//!
//! Reading order: [`manifest`] (files → pods), [`pod`] (one pod's life), [`runtime`] (what
//! the agent asks of a runtime), [`agent`] (the workers of all pods), [`kubelet`] (the assembly), [`operator`] (the
//! socket of `gantry ps`), [`timeline`] and [`logs`] (what people look at).

pub mod admission;
pub mod agent;
pub mod api;
pub mod backoff;
pub mod beyond;
pub mod cgroups;
pub mod checkpoint;
pub mod clock;
pub mod config;
pub mod dns;
pub mod drain;
pub mod events;
pub mod eviction;
pub mod explain;
#[cfg(any(test, feature = "testing"))]
pub mod fake_apiserver;
mod go_json;
pub mod healthz;
pub mod housekeeping;
pub mod identity;
pub mod images;
pub mod kubelet;
pub mod logs;
pub mod manifest;
pub mod metrics;
pub mod model;
pub mod node;
pub mod oom;
pub mod operator;
pub mod orphans;
pub mod pod;
pub mod ports;
pub mod probe;
pub mod random;
pub mod reflect;
pub mod registration;
pub mod root;
pub mod runtime;
pub mod server;
pub mod source;
pub mod static_pods;
pub mod status;
pub mod strategic;
pub mod sync;
pub mod timeline;
pub mod users;
pub mod version;
pub mod volumes;

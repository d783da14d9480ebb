//! The node's HTTPS API, port 10250, and its read-only port: logs, exec, attach, port forwarding,
//! statistics, metrics. Owns the listeners, who may do what, and the form of answers, as upstream's
//! kubelet; never changes a pod. Crate map in ARCHITECTURE.md. Used by `gantry-agent`, whose assembly fills in
//! [`ServerDeps`].
//!
//! A request goes through [`listen`] (bytes), `gate` (who, and may they), [`route`] (what) and
//! `serve` (the answer). Nothing is served before the gate, not even that a path is unknown.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod answer;
pub mod authn;
pub mod authz;
mod cache;
mod checkpoints;
pub mod ciphers;
pub mod client_ca;
mod container_logs;
mod context;
mod cri;
mod deps;
mod gate;
mod gauge;
pub mod health;
pub mod listen;
mod node_logs;
mod node_pods;
mod pages;
mod pending_connections;
mod proxy;
mod query;
mod refusals;
mod review;
pub mod route;
mod scrape;
mod serve;
mod server;
pub mod stats;
mod streams;
#[cfg(test)]
mod tests;
mod traced;
mod user;

pub use context::Settings;
pub use cri::RuntimeConnection;
pub use deps::{OomCounts, ServerDeps, SystemVersion, Verbosity};
pub use node_pods::NodePods;
pub use server::{Error, Server};

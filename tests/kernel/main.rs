//! The kernel tier: pods as root through the real programs, in namespaces of their own or in the
//! small VM. Each test starts its own node and ends with a leak check. Never run by a plain
//! `cargo test`; refuses to run in the host's namespaces. Run by `cargo xtask test`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod apparmor;
mod attach;
mod block;
mod cdi;
mod cgroups;
mod checkpoint;
mod clients;
mod dead_source;
mod defaults;
mod errors;
mod escapes;
mod events;
mod exec;
mod exec_stream;
mod full_disk;
mod handler;
mod handler_faults;
mod harness;
mod image_mounts;
mod images;
mod iscsi;
mod isolation;
mod kindnet;
mod kubelet_api;
mod layers;
mod lifecycle;
mod limits;
mod lives;
mod local_volumes;
mod log_disk;
mod log_reopen;
mod monitor;
mod mounts;
mod network;
mod nfs;
mod pod_spec;
mod port_forward;
mod ports;
mod pulls;
mod reboot;
mod restart;
mod retries;
mod seccomp;
mod stats;
mod unpacker;
mod upgrade;
mod userns;
mod users;
mod volumes;

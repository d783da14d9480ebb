//! The kernel tier: pods as root through the real programs, in namespaces of their own or in the
//! small VM. Each test starts its own node and ends with a leak check. Never run by a plain
//! `cargo test`; refuses to run in the host's namespaces. Run by `cargo xtask test`.

mod errors;
mod harness;
mod images;
mod isolation;
mod layers;
mod lifecycle;
mod limits;
mod lives;
mod network;
mod pod_spec;
mod restart;
mod standalone;
mod volumes;

//! The CRI tier: `gantry runtime` as a process of its own, seen through its socket alone, as a
//! kubelet sees it. Each test ends with a leak check. Never run by a plain `cargo test`; refuses to
//! run in the host's namespaces. Run by `cargo xtask test --tier cri`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod cost;
mod go_suite;
mod nginx;
mod pods;
mod spans;
mod tour;

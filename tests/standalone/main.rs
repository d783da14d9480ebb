//! The standalone tier: `gantry run` and the commands beside it as a user types them, as root in a
//! place of its own. Each test ends with a leak check. Never run by a plain `cargo test`; refuses
//! to run in the host's namespaces. Run by `cargo xtask test --tier standalone`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod alone;
mod background;
mod beside;
mod commands;
mod documents;
mod examples;
mod fleet;
mod folder;
mod foreign;
mod kind;
mod kubelet;
mod load;
mod nginx;
mod pod;
mod progress;
mod reboot;
mod streams;
mod terminal;

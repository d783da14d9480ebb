//! Interop with upstream's CNI, both ways: our runtime runs upstream's plugins, and upstream's libcni runs ours. Needs Go
//! beside root and a place of its own; `nft` is what upstream's `portmap` runs. Run by `cargo xtask test`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

#[expect(dead_code, unused_imports, reason = "shared with the kernel tier, which uses more of it")]
#[path = "../kernel/images.rs"]
mod images;
mod libcni;
mod upstream;

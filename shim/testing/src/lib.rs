//! What tests and fuzz targets of the runtime's crates share: archives that no tool writes, folders for a target's
//! files, the inputs that are kept. Never part of a program: a dependency of tests and of `cargo fuzz` alone.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests end at the first surprise")]

pub mod archive;
pub mod corpus;
pub mod place;

/// Ends a test that would fail in a way nobody understands.
///
/// # Panics
/// When not run as root.
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test unpacks layers: run it as root");
}

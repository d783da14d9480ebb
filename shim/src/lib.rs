//! Gantry's CRI runtime: images, sandboxes, containers, and the monitor that
//! outlives it. Crate map in ARCHITECTURE.md. Used by `cli` (the runtime) and by
//! the programs in `bin/` (monitor, pause), which build it without `runtime`.

#[cfg(feature = "runtime")]
pub mod image;
#[cfg(feature = "runtime")]
pub mod timeline;

//! One layer's archive into one folder, in overlayfs's own form: whiteouts become 0:0 devices. Run by the program
//! `gantry-unpack` in confinement (ADR 0013): no async runtime, no TLS, no HTTP. Used by `gantry-image`, which reads
//! its reports and builds fix-up layers with `Tree`. Crate map in ARCHITECTURE.md.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod confine;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod inflate;
mod layer;
mod plan;
mod program;
mod report;
mod space;
mod tarball;
mod tree;

#[cfg(test)]
mod tests;

pub use confine::ConfineError;
pub use error::{UnpackError, UnpackErrorKind};
pub use inflate::{Packing, inflate};
pub use layer::unpack;
pub use program::{ProgramError, UnpackCommand, run};
pub use report::{UnpackRefusal, UnpackReport, UnpackVerdict, escape, unescape};
pub use space::{LowSpace, Space, SpaceCheck};
pub use tarball::EntryKind;
pub use tarball::{Meta, TarError, Tarball, clip, shown};
pub use tree::{Paths, Tree, mark_opaque, own_xattrs};

//! Images of the runtime, and how much of the disk folders use. Crate map in ARCHITECTURE.md. Used by `gantry-shim`.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod contained;
mod image;
pub mod remove;
pub mod trash;
pub mod usage;

#[cfg(any(test, fuzzing))]
pub use image::fuzzing;
pub use image::{
    ArchiveError, Auth, AuthError, Class, Digest, DigestError, DockerConfigError, Error, HostsError, Image,
    ImageConfig, Images, ImagesConfig, IngestError, LayerError, LayerProgress, ManifestError, Naming,
    Optimisation, PullProgress, Reference, ReferenceError, RegistryError, StoreCheck, StoreError, StoreFault,
    Switches, UnknownOptimisation, Unpacker, Upload, Usage, login, pins, prepull,
};

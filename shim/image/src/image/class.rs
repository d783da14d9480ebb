//! Which kind of failure an error is. Pure; one match per error type, without a catch-all, so that
//! a new variant must be sorted in. Called by the RPC edge.

use super::layer::LayerError;
use super::load::ArchiveError;
use super::manifest::ManifestError;
use super::registry::RegistryError;
use super::{Class, Error};
use gantry_unpack::UnpackErrorKind;

impl Error {
    /// The kind of failure.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Registry { source, .. } => registry(source),
            Self::Manifest { source, .. } => match **source {
                ManifestError::Platform { .. } => Class::NotFound,
                ManifestError::Json { .. }
                | ManifestError::Ambiguous { .. }
                | ManifestError::MediaType { .. }
                | ManifestError::Foreign { .. }
                | ManifestError::Digest { .. }
                | ManifestError::Count { .. }
                | ManifestError::Many { .. } => Class::Invalid,
            },
            Self::Nested { .. } => Class::Invalid,
            Self::Layer { source, .. } | Self::Unpack { source, .. } => layer(source),
            Self::Archive { source } => archive(source),
            Self::Implied { .. } => Class::Invalid,
            Self::Fixup { source, .. } => unpack(source.kind()),
            Self::Store { .. } | Self::Sync { .. } | Self::Task { .. } => Class::Io,
        }
    }
}

fn registry(error: &RegistryError) -> Class {
    match error {
        RegistryError::NotFound { .. } => Class::NotFound,
        RegistryError::Unauthorized { .. } | RegistryError::Challenge { .. } => Class::Unauthorized,
        RegistryError::Mirrors { source, .. } => registry(source),
        RegistryError::Connect { .. }
        | RegistryError::Untrusted { .. }
        | RegistryError::Plain { .. }
        | RegistryError::Lost { .. }
        | RegistryError::Stalled { .. }
        | RegistryError::Slow { .. }
        | RegistryError::Redirect { .. }
        | RegistryError::Range { .. }
        | RegistryError::Status { .. } => Class::Unavailable,
        RegistryError::Auth { .. }
        | RegistryError::NoPlace
        | RegistryError::Hosts { .. }
        | RegistryError::DockerConfig { .. }
        | RegistryError::Large { .. }
        | RegistryError::Url { .. } => Class::Invalid,
        RegistryError::Digest { .. } | RegistryError::Size { .. } => Class::Corrupt,
        RegistryError::Client { .. } | RegistryError::Spool { .. } => Class::Io,
    }
}

fn archive(error: &ArchiveError) -> Class {
    match error {
        ArchiveError::GivenUp => Class::Unavailable,
        ArchiveError::Digest { .. } | ArchiveError::Missing { .. } => Class::Corrupt,
        ArchiveError::Full { .. } | ArchiveError::Io { .. } | ArchiveError::Read { .. } => Class::Io,
        ArchiveError::Empty => Class::NotFound,
        ArchiveError::Tar { .. }
        | ArchiveError::Unknown
        | ArchiveError::Many { .. }
        | ArchiveError::Images { .. }
        | ArchiveError::Layers { .. }
        | ArchiveError::Twice { .. }
        | ArchiveError::Large { .. }
        | ArchiveError::Json { .. }
        | ArchiveError::BadDigest { .. }
        | ArchiveError::Nested { .. }
        | ArchiveError::Unnamed { .. }
        | ArchiveError::Called { .. }
        | ArchiveError::Named { .. }
        | ArchiveError::Name { .. }
        | ArchiveError::Manifest { .. } => Class::Invalid,
    }
}

fn layer(error: &LayerError) -> Class {
    match error {
        LayerError::Download { source } => registry(source),
        LayerError::Size { .. }
        | LayerError::Digest { .. }
        | LayerError::DiffId { .. }
        | LayerError::Inflate { .. } => Class::Corrupt,
        LayerError::Bomb { .. } | LayerError::Implied { .. } | LayerError::Window => Class::Invalid,
        LayerError::Unpack { source } => unpack(source.kind),
        LayerError::Aborted { source, .. } => layer(source),
        LayerError::GivenUp => Class::Unavailable,
        LayerError::Archive { .. }
        | LayerError::Ingest { .. }
        | LayerError::Store { .. }
        | LayerError::Worker { .. }
        | LayerError::Killed { .. }
        | LayerError::Full { .. }
        | LayerError::Stuck { .. }
        | LayerError::Opaque { .. }
        | LayerError::Thread => Class::Io,
    }
}

fn unpack(kind: UnpackErrorKind) -> Class {
    match kind {
        UnpackErrorKind::Corrupt => Class::Corrupt,
        UnpackErrorKind::Invalid => Class::Invalid,
        UnpackErrorKind::Node | UnpackErrorKind::Full => Class::Io,
    }
}

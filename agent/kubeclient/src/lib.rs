//! How a kubelet speaks to an API server: who it is (certificates, kubeconfigs, connections), what it follows, how it
//! tells what has changed. Never knows what becomes of a pod. Crate map in ARCHITECTURE.md. Used by `gantry-agent` and
//! by `gantry join`.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod backoff;
#[cfg(any(test, feature = "testing"))]
pub mod fake_apiserver;
pub mod identity;
pub mod reflector;
pub mod strategic_merge;

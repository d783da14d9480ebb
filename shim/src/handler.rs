//! Containers of a runtime handler of type `oci`, which a program of the node makes, run by the pod's monitor
//! (docs/adr/0029). Owns nothing itself; `config::handlers` knows which there are. Called by `sandbox::run` and by the
//! container operations.

pub(crate) mod document;
pub(crate) mod plan;
pub(crate) mod program;

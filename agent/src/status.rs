//! What the API server is told of pods.

pub mod form;

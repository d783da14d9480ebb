//! SPDY/3.1, as much as Kubernetes streams use: streams that either side opens, with headers, data and
//! a half-close. Owns the codec and the connection; knows nothing of commands or ports. Used by the
//! streaming server and by `gantry port-forward`.
//!
//! The peer (moby/spdystream) has no flow control, so back-pressure is TCP's: a reader that stalls holds
//! up its whole connection, and no more than its queue is kept for it.

pub mod connection;
pub(super) mod dictionary;
pub mod frame;
mod headers;
mod receive_budget;

pub use connection::{Connection, Handle, SpdyStream};
pub use headers::Headers;

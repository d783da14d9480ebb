//! The fuzz targets' way to parsers that are nobody else's: each function takes any bytes and panics when
//! something does not hold that should hold for all bytes. Owns the names of the targets; the bodies stand
//! beside the parsers. Only built by `cargo fuzz` (which sets `cfg(fuzzing)`) and for tests, which run
//! every input of `fuzz/corpus` through them, so that a finding that is kept stays fixed.

pub use crate::seccomp::fuzzing::seccomp;
pub use crate::spec::fuzzing::spec;
pub use crate::streaming::fuzzing::{spdy, websocket};

#[cfg(test)]
mod seeds;
#[cfg(test)]
mod tests;

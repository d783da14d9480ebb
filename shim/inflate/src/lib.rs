//! gzip (RFC 1952) to the bytes in it, from a stream to a stream. Owns deflate's codes (RFC 1951) and checks both sums
//! of each member; never opens a file, starts a thread or keeps more than half a megabyte. Called by
//! `gantry-unpack inflate`, in confinement; why there is one of our own: `docs/adr/0030-inflate.md`.
//!
//! ```text
//!   read ─► input: bytes, bits ─► member ─► block ─► symbols, fast ─► output: window, sums ─► write
//! ```
//!
//! All bytes are hostile. Every index is checked or masked by the length of its array, arithmetic is on numbers that
//! were bounded before, and nothing recurses. Code that was compiled for processors with BMI2 may be called on these
//! only: whoever asks the processor hands it in, which is the one step that is not safe, and not taken here.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]
#![forbid(unsafe_code)]

mod block;
mod code;
mod fast;
mod input;
mod member;
mod output;
mod run;
mod symbols;

use std::io::{self, Read, Write};

pub use fast::Stop;
#[cfg(target_arch = "x86_64")]
pub use run::with_bmi2;
pub use run::{Fast, FastLoop, plain};

/// Inflates all members of `from`, one or more, up to its end. What comes before a fault is written nevertheless.
///
/// # Errors
/// `UnexpectedEof` when the stream is cut off (one without any byte is), `InvalidInput` when it is no gzip or is
/// damaged, and those of `from` and `to` as they are.
pub fn gzip(from: &mut dyn Read, to: &mut dyn Write, fast: Fast) -> io::Result<()> {
    member::all(from, to, fast)
}

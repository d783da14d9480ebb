//! Why a streaming request gets no token. Owns the words. Returned by `streaming::token`.

use std::io;

/// No token can be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Clients that never came, most likely.
    #[error("maximum number of in-flight requests exceeded")]
    TooMany,
    /// The kernel gives none.
    #[error("get randomness for a token")]
    Randomness(#[source] io::Error),
}

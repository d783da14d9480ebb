//! Spans of OpenTelemetry, for kubelet and runtime alike. Owns the queue of spans that ended; never makes who ends one
//! wait. Without a configured endpoint there is no `Tracer`, so no queue, task or connection.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "tests spawn tasks and stop at the first fault"
    )
)]

pub mod context;
pub mod current;
pub mod endpoint;
pub mod export;
pub mod rpc;
pub mod sampler;
pub mod span;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

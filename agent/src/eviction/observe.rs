//! What eviction looks at. Owns the trait that measures; the numbers are the server's, which also shows them.

use std::fmt;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use gantry_model::observation::{Observation, Usage};
use gantry_server::Server;

/// Measures. Both are asked for anew each time: what was kept would have innocents ended (#41032).
pub(crate) trait Gauge: Send + Sync + fmt::Debug {
    /// What is left of the machine.
    fn look(&self) -> BoxFuture<'_, Result<Observation, String>>;
    /// What pods use.
    fn usage(&self) -> BoxFuture<'_, Result<Usage, String>>;
}

impl Gauge for Server {
    fn look(&self) -> BoxFuture<'_, Result<Observation, String>> {
        self.observe().boxed()
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage, String>> {
        Self::usage(self).boxed()
    }
}

//! How long the start of a new node took, and its parts: told once, and not of a node that was there
//! before. Owns these moments; never measures anything else. Called by [`super::status`].
//!
//! ```text
//! boot ──▶ agent ──▶ first try ──▶ registered ──▶ ready
//! ```

use std::sync::Arc;

use gantry_metrics::Metrics;

/// Unix nanoseconds each; 0 when it is not known, or not yet.
#[derive(Debug)]
pub(super) struct Startup {
    metrics: Arc<Metrics>,
    booted: i64,
    begun: i64,
    tried: i64,
    registered: i64,
    ready: bool,
}

impl Startup {
    pub(super) fn new(metrics: Arc<Metrics>, booted: i64, begun: i64) -> Self {
        Self { metrics, booted, begun, tried: 0, registered: 0, ready: false }
    }

    /// To register; the first time counts.
    pub(super) fn tries(&mut self, now: i64) {
        if self.tried == 0 {
            self.tried = now;
        }
    }

    /// As a node that the API server did not have.
    pub(super) fn record_registration(&mut self, now: i64) {
        if self.tried == 0 || self.registered != 0 {
            return;
        }
        self.registered = now;
        if self.booted != 0 {
            self.metrics.node_startup_pre_kubelet.set([], seconds(self.booted, self.begun));
        }
        self.metrics.node_startup_pre_registration.set([], seconds(self.begun, self.tried));
        self.metrics.node_startup_registration.set([], seconds(self.tried, now));
    }

    /// As the API server has it.
    pub(super) fn ready(&mut self, now: i64) {
        if self.registered == 0 || self.ready {
            return;
        }
        self.ready = true;
        self.metrics.node_startup_post_registration.set([], seconds(self.registered, now));
        if self.booted != 0 {
            self.metrics.node_startup.set([], seconds(self.booted, now));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a float has digits enough for nanoseconds of days")]
fn seconds(from: i64, to: i64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn parts(metrics: &Metrics) -> [Option<f64>; 5] {
        [
            metrics.node_startup_pre_kubelet.get([]),
            metrics.node_startup_pre_registration.get([]),
            metrics.node_startup_registration.get([]),
            metrics.node_startup_post_registration.get([]),
            metrics.node_startup.get([]),
        ]
    }

    #[test]
    fn a_start_is_told_in_its_parts_and_once() {
        let metrics = Arc::new(Metrics::default());
        let mut startup = Startup::new(metrics.clone(), 100 * SECOND, 130 * SECOND);
        startup.tries(132 * SECOND);
        startup.tries(133 * SECOND);
        startup.record_registration(135 * SECOND);
        startup.ready(139 * SECOND);
        startup.ready(200 * SECOND);
        assert_eq!(parts(&metrics), [30.0, 2.0, 3.0, 4.0, 39.0].map(Some));
    }

    #[test]
    fn a_node_that_was_there_before_tells_nothing() {
        let metrics = Arc::new(Metrics::default());
        let mut startup = Startup::new(metrics.clone(), 100 * SECOND, 130 * SECOND);
        startup.tries(132 * SECOND);
        startup.ready(139 * SECOND);
        assert_eq!(parts(&metrics), [Some(0.0); 5]);
    }
}

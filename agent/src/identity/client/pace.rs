//! How fast requests may follow each other: a bucket of tokens, as upstream's clients have it. Owns
//! the count; never what waits. Called by [`super`].

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// So many a second, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Nothing is no limit.
    pub per_second: f64,
    /// At least one.
    pub burst: f64,
}

/// Where requests wait for their turn.
#[derive(Debug)]
pub(super) struct Gate {
    pace: Pace,
    /// Tokens, which may be owed, and when they were counted.
    bucket: Mutex<(f64, Option<Instant>)>,
}

impl Gate {
    pub(super) fn new(pace: Pace) -> Option<Self> {
        let pace = Pace { burst: pace.burst.max(1.0), ..pace };
        (pace.per_second > 0.0).then(|| Self { pace, bucket: Mutex::new((pace.burst, None)) })
    }

    /// Waits for its turn. Who gives up while waiting has used it.
    pub(super) async fn pass(&self) {
        let wait = {
            let mut bucket = self.bucket.lock().await;
            let now = Instant::now();
            let since = bucket.1.map_or(Duration::ZERO, |then| now - then);
            let tokens = (bucket.0 + since.as_secs_f64() * self.pace.per_second).min(self.pace.burst) - 1.0;
            *bucket = (tokens, Some(now));
            Duration::from_secs_f64((-tokens / self.pace.per_second).max(0.0))
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_its_pace() {
        let gate = Gate::new(Pace { per_second: 10.0, burst: 5.0 }).unwrap();
        let start = Instant::now();
        for _ in 0..5 {
            gate.pass().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            gate.pass().await;
        }
        let took = start.elapsed();
        assert!((990..=1020).contains(&took.as_millis()), "{took:?}");
        assert!(Gate::new(Pace { per_second: 0.0, burst: 5.0 }).is_none());
    }
}

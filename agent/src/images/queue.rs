//! How many pulls run at once, and how fast new ones begin. Owns the waiting, in the order of asking;
//! never pulls. Called by [`super`].

use std::time::Duration;

use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// How pulls wait for each other.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// serializeImagePulls (1), maxParallelImagePulls; none: as many as there are.
    pub at_once: Option<u32>,
    /// registryPullQPS; none: as fast as they come.
    pub per_second: Option<f64>,
    /// registryBurst: so many may begin before the rate counts.
    pub burst: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    places: Option<Semaphore>,
    pace: Option<Pace>,
}

/// A bucket of tokens, filled at a rate.
#[derive(Debug)]
struct Pace {
    per_second: f64,
    burst: f64,
    /// What was in it, and when.
    level: Mutex<(f64, Instant)>,
}

/// Its holder pulls.
#[derive(Debug)]
pub(super) struct PullPermit<'a>(
    #[expect(dead_code, reason = "held until it is dropped")] Option<SemaphorePermit<'a>>,
);

impl Queue {
    pub(super) fn new(settings: Settings) -> Self {
        let Settings { at_once, per_second, burst } = settings;
        let places = at_once.map(|places| Semaphore::new(places.max(1).try_into().unwrap_or(usize::MAX)));
        let pace = per_second.filter(|rate| *rate > 0.0).map(|per_second| {
            let burst = f64::from(burst.max(1));
            Pace { per_second, burst, level: Mutex::new((burst, Instant::now())) }
        });
        Self { places, pace }
    }

    /// Comes when it is the asker's turn. Cancel-safe: a place that was not taken is given on.
    pub(super) async fn turn(&self) -> PullPermit<'_> {
        let place = match &self.places {
            // It is never closed.
            Some(places) => places.acquire().await.ok(),
            None => None,
        };
        if let Some(pace) = &self.pace {
            pace.token().await;
        }
        PullPermit(place)
    }
}

impl Pace {
    async fn token(&self) {
        // Held while waiting: who comes later waits longer.
        let mut level = self.level.lock().await;
        let (full, since) = *level;
        let now = Instant::now();
        let full = (full + now.duration_since(since).as_secs_f64() * self.per_second).min(self.burst);
        *level = (full, now);
        let missing = 1.0 - full;
        if missing > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(missing / self.per_second)).await;
            *level = (1.0, Instant::now());
        }
        level.0 -= 1.0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// When each of so many pulls of ten seconds ended, in the order of asking.
    async fn ends(settings: Settings, pulls: u64) -> Vec<u64> {
        let queue = Arc::new(Queue::new(settings));
        let begun = Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..pulls {
            let queue = queue.clone();
            tasks.push(tokio::spawn(async move {
                let _turn = queue.turn().await;
                tokio::time::sleep(Duration::from_secs(10)).await;
                begun.elapsed().as_secs()
            }));
        }
        let mut ends = Vec::new();
        for task in tasks {
            ends.push(task.await.unwrap());
        }
        ends
    }

    #[tokio::test(start_paused = true)]
    async fn pulls_wait_in_the_order_of_asking() {
        let at_once = |at_once| Settings { at_once, ..Settings::default() };
        assert_eq!(ends(at_once(None), 3).await, [10, 10, 10]);
        assert_eq!(ends(at_once(Some(1)), 3).await, [10, 20, 30]);
        assert_eq!(ends(at_once(Some(2)), 4).await, [10, 10, 20, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn past_the_burst_pulls_begin_at_the_rate_and_none_fails() {
        let pace = Settings { per_second: Some(0.5), burst: 2, ..Settings::default() };
        assert_eq!(ends(pace, 5).await, [10, 10, 12, 14, 16]);
    }
}

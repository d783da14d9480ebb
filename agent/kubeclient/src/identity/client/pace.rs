//! How fast requests may follow each other: a bucket of tokens, as upstream's clients have it. Owns
//! the count; never what waits. Called by [`super`], and by who has to know when a request may leave before it makes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
pub(super) struct RateLimiter {
    pace: Pace,
    /// Tokens, which may be owed, and when they were counted.
    bucket: Mutex<(f64, Option<Instant>)>,
}

impl RateLimiter {
    pub(super) fn new(pace: Pace) -> Option<Self> {
        let pace = Pace { burst: pace.burst.max(1.0), ..pace };
        (pace.per_second > 0.0).then(|| Self { pace, bucket: Mutex::new((pace.burst, None)) })
    }

    fn bucket(&self) -> MutexGuard<'_, (f64, Option<Instant>)> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn. Who gives up while waiting leaves it to the next: an API server that comes back would else
    /// find a queue of requests that nobody waits for.
    pub(super) async fn pass(self: &Arc<Self>) {
        self.reserve().await.spend();
    }

    /// The same; a token that is not spent is the next one's.
    async fn reserve(self: &Arc<Self>) -> Token {
        let wait = {
            let mut bucket = self.bucket();
            let now = Instant::now();
            let since = bucket.1.map_or(Duration::ZERO, |then| now - then);
            let tokens = (bucket.0 + since.as_secs_f64() * self.pace.per_second).min(self.pace.burst) - 1.0;
            *bucket = (tokens, Some(now));
            Duration::from_secs_f64((-tokens / self.pace.per_second).max(0.0))
        };
        let token = Token(Some(Arc::clone(self)));
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        token
    }
}

/// The pace of a way to the API server, for who asks on a way without one.
#[derive(Debug, Clone, Default)]
pub struct RequestPace(Option<Arc<RateLimiter>>);

impl RequestPace {
    /// Without a limit where it allows nothing.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self(RateLimiter::new(pace).map(Arc::new))
    }

    pub(super) fn limiter(&self) -> Option<Arc<RateLimiter>> {
        self.0.clone()
    }

    /// Waits until a request may leave; at once where there is no limit. Cancel-safe.
    pub async fn reserve(&self) -> Token {
        match &self.0 {
            Some(limiter) => limiter.reserve().await,
            None => Token(None),
        }
    }
}

/// One request's leave. Dropped, it is the next one's.
#[derive(Debug)]
#[must_use]
pub struct Token(Option<Arc<RateLimiter>>);

impl Token {
    /// The request leaves.
    pub fn spend(mut self) {
        self.0 = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(limiter) = &self.0 {
            let mut bucket = limiter.bucket();
            bucket.0 = (bucket.0 + 1.0).min(limiter.pace.burst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_the_turn_to_the_next() {
        let gate = Arc::new(RateLimiter::new(Pace { per_second: 10.0, burst: 1.0 }).unwrap());
        gate.pass().await;
        let start = Instant::now();
        let all = (0..100).map(|_| tokio::time::timeout(Duration::from_millis(50), gate.pass()));
        assert!(futures_util::future::join_all(all).await.iter().all(Result::is_err));
        gate.pass().await;
        let took = start.elapsed();
        assert!((90..=110).contains(&took.as_millis()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_not_spent_is_the_next_ones() {
        let pace = RequestPace::new(Pace { per_second: 1.0, burst: 1.0 });
        let start = Instant::now();
        drop(pace.reserve().await);
        pace.reserve().await.spend();
        assert_eq!(start.elapsed(), Duration::ZERO);
        pace.reserve().await.spend();
        assert!(start.elapsed() >= Duration::from_secs(1));
        RequestPace::default().reserve().await.spend();
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_its_pace() {
        let gate = Arc::new(RateLimiter::new(Pace { per_second: 10.0, burst: 5.0 }).unwrap());
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
        assert!(RateLimiter::new(Pace { per_second: 0.0, burst: 5.0 }).is_none());
    }
}

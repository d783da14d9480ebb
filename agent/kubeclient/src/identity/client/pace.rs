//! How fast requests may follow each other: a bucket of tokens, as upstream's clients have it. Owns
//! the count; never what waits. Called by [`super`], and by who has to know when a request may leave before it makes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

/// By this an API server says that its priority and fairness have let the request in
/// (`apiserver/pkg/util/flowcontrol`, `ResponseHeaderMatchedFlowSchemaUID`).
const FLOW_SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";
/// No server keeps its clients away for longer.
const LONGEST: Duration = Duration::from_secs(60);

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
    /// Whether an API server that limits its clients itself is left to it.
    yields: bool,
    /// Whether the one that is asked does so.
    is_limited_by_server: AtomicBool,
    /// By its word nothing leaves before.
    not_before: Mutex<Option<Instant>>,
}

impl RateLimiter {
    pub(super) fn new(pace: Pace) -> Option<Self> {
        let pace = Pace { burst: pace.burst.max(1.0), ..pace };
        (pace.per_second > 0.0).then(|| Self {
            pace,
            bucket: Mutex::new((pace.burst, None)),
            yields: false,
            is_limited_by_server: AtomicBool::new(false),
            not_before: Mutex::new(None),
        })
    }

    /// What an answer says of limits: whose they are, and how long to stay away.
    pub(super) fn hear(&self, status: StatusCode, headers: &HeaderMap) {
        if status == StatusCode::TOO_MANY_REQUESTS {
            let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            if let Some(seconds) = seconds {
                let until = Instant::now() + Duration::from_secs(seconds).min(LONGEST);
                *self.not_before.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
            }
        }
        if !self.yields {
            return;
        }
        let is_its = headers.contains_key(FLOW_SCHEMA);
        // An answer of a proxy before it says nothing of the server.
        if (is_its || status.is_success())
            && self.is_limited_by_server.swap(is_its, Ordering::Relaxed) != is_its
        {
            let by = if is_its { "the API server's priority and fairness" } else { "kubeAPIQPS" };
            tracing::info!(by, "requests are limited");
        }
    }

    async fn wait_for_server(&self) {
        let until = *self.not_before.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
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
        self.wait_for_server().await;
        if self.is_limited_by_server.load(Ordering::Relaxed) {
            return Token(None);
        }
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

    /// The same, as long as the API server does not limit its clients itself (kubernetes#116121).
    #[must_use]
    pub fn yielding(pace: Pace) -> Self {
        Self(RateLimiter::new(pace).map(|limiter| Arc::new(RateLimiter { yields: true, ..limiter })))
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

    fn answer(status: u16, headers: &[(&'static str, &str)]) -> (StatusCode, HeaderMap) {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_str(value).unwrap())
        });
        (StatusCode::from_u16(status).unwrap(), headers.collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_limits_its_clients_itself_is_left_to_it() {
        let slow = Pace { per_second: 0.001, burst: 1.0 };
        let (served, headers) = answer(200, &[(FLOW_SCHEMA, "1-2-3")]);
        for (pace, is_left) in [(RequestPace::yielding(slow), true), (RequestPace::new(slow), false)] {
            let start = Instant::now();
            pace.reserve().await.spend();
            pace.limiter().unwrap().hear(served, &headers);
            for _ in 0..3 {
                pace.reserve().await.spend();
            }
            assert_eq!(start.elapsed() < Duration::from_secs(1), is_left);
        }
        let pace = RequestPace::yielding(slow);
        pace.limiter().unwrap().hear(served, &headers);
        let (bare, none) = answer(200, &[]);
        pace.limiter().unwrap().hear(bare, &none);
        pace.reserve().await.spend();
        let start = Instant::now();
        pace.reserve().await.spend();
        assert!(start.elapsed() > Duration::from_secs(60), "a server without it is asked at our own pace");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_busy_is_asked_when_it_says() {
        for pace in [Pace { per_second: 50.0, burst: 100.0 }].map(RequestPace::yielding) {
            let start = Instant::now();
            let (busy, headers) = answer(429, &[("retry-after", "3"), (FLOW_SCHEMA, "1-2-3")]);
            pace.limiter().unwrap().hear(busy, &headers);
            pace.reserve().await.spend();
            assert!((3..4).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
            let (busy, headers) = answer(429, &[("retry-after", "99999999999"), (FLOW_SCHEMA, "1-2-3")]);
            pace.limiter().unwrap().hear(busy, &headers);
            pace.reserve().await.spend();
            assert!(start.elapsed() < Duration::from_secs(70), "{:?}", start.elapsed());
        }
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

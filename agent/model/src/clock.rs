//! The clocks: a monotonic one for back-off and grace, the wall clock for what people
//! read. Owns the trait and both implementations; never sleeps (tokio does). Called by
//! the pod workers and the timeline.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Both clocks. A step of the wall clock must never kill, expire or hot-loop anything, so
/// everything that is decided is decided on [`Clock::mono`].
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since some fixed instant of this process; never steps.
    fn mono(&self) -> Duration;
    /// Nanoseconds since 1970 by the wall clock; for display only.
    fn wall_nanos(&self) -> i64;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Starts counting now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn mono(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall_nanos(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos)
    }
}

/// A clock for tests: monotonic time is tokio's (which tests pause), wall time starts at a
/// given second and can be stepped.
#[derive(Debug)]
pub struct FakeClock {
    origin: Instant,
    wall_at_origin: AtomicI64,
}

impl FakeClock {
    /// Starts at `unix_seconds`.
    #[must_use]
    pub fn new(unix_seconds: i64) -> Self {
        Self { origin: Instant::now(), wall_at_origin: AtomicI64::new(unix_seconds * 1_000_000_000) }
    }

    /// Moves the wall clock, forwards or back.
    pub fn step_wall(&self, seconds: i64) {
        self.wall_at_origin.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn mono(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall_nanos(&self) -> i64 {
        self.wall_at_origin.load(Ordering::Relaxed) + nanos(self.origin.elapsed())
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

//! How long to wait before the next try, as client-go's reflector does it: doubled each time, with
//! jitter, and from the start again after a quiet while. Pure: time and randomness are arguments.
//! Called by every loop that speaks to the API server.

use std::time::Duration;

/// The waits of one loop.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    /// On the monotonic clock, when the last wait was given out.
    last: Option<Duration>,
}

impl Backoff {
    /// The first wait is at least `first`; none is based on more than `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first, last: None }
    }

    /// The next wait: between once and twice what is due. `random` is from 0 to 1, `now` on the
    /// monotonic clock. Nothing asked for four times the longest wait: it begins anew.
    pub fn next(&mut self, now: Duration, random: f64) -> Duration {
        let quiet = self.most.saturating_mul(4);
        if self.last.is_some_and(|last| now.saturating_sub(last) > quiet) {
            self.next = self.first;
        }
        self.last = Some(now);
        let due = self.next.min(self.most);
        self.next = due.saturating_mul(2);
        due + due.mul_f64(random.clamp(0.0, 1.0))
    }

    /// What failed works again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_most_and_begin_anew_after_a_quiet_while() {
        let mut backoff = Backoff::new(Duration::from_millis(800), 30 * SECOND);
        let waits: Vec<u128> = (0..8).map(|n| backoff.next(n * SECOND, 0.0).as_millis()).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(backoff.next(60 * SECOND, 1.0), 60 * SECOND, "jitter doubles at most");
        assert_eq!(backoff.next(600 * SECOND, 0.5), Duration::from_millis(1200));
        backoff.reset();
        assert_eq!(backoff.next(600 * SECOND, 0.0), Duration::from_millis(800));
    }
}

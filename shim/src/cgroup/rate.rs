//! CPU use per second from the totals of two readings. Owns the last reading of one container or
//! pod. Pure: time comes in. Called by `stats`.

use std::sync::Mutex;

use gantry_base::mutex::lock;

/// Readings closer together than this share a rate: the kernel's totals move by ticks.
const MIN_INTERVAL: i64 = 500_000_000;

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: i64,
    total: u64,
    /// Nanoseconds of CPU per second, from the sample before to this one.
    rate: Option<u64>,
}

/// What one container or pod was last seen at.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    last: Mutex<Option<Sample>>,
}

impl Rate {
    /// Notes a reading. None until there are two.
    pub(crate) fn next(&self, at: i64, total: u64) -> Option<u64> {
        let mut last = lock(&self.last);
        let Some(before) = *last else {
            *last = Some(Sample { at, total, rate: None });
            return None;
        };
        let elapsed = at.saturating_sub(before.at);
        if (0..MIN_INTERVAL).contains(&elapsed) {
            return before.rate;
        }
        let rate = match (u64::try_from(elapsed), total.checked_sub(before.total)) {
            (Ok(elapsed @ 1..), Some(used)) => {
                let rate = u128::from(used) * 1_000_000_000 / u128::from(elapsed);
                Some(u64::try_from(rate).unwrap_or(u64::MAX))
            }
            // The clock went back, or the cgroup is another one.
            _ => None,
        };
        *last = Some(Sample { at, total, rate });
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn the_first_reading_has_no_rate_and_the_second_has() {
        let rate = Rate::default();
        assert_eq!(rate.next(0, 0), None);
        assert_eq!(rate.next(2 * SECOND, 1_000_000_000), Some(500_000_000));
    }

    #[test]
    fn readings_at_once_share_a_rate_and_a_clock_that_goes_back_gives_none() {
        let rate = Rate::default();
        rate.next(0, 0);
        assert_eq!(rate.next(SECOND, 100), Some(100));
        assert_eq!(rate.next(SECOND + 1, 5000), Some(100));
        assert_eq!(rate.next(0, 6000), None);
        assert_eq!(rate.next(SECOND, 6500), Some(500));
    }
}

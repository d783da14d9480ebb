//! Restart policy and back-off. Pure: owns the arithmetic of both back-offs; time is an
//! argument. Called by the planner and the history.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::pod::{Container, Pod, RestartPolicy};

/// Forgotten after so long without need, however long a wait may be.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Of a container that crashes, unless crashLoopBackOff.maxContainerRestartPeriod says otherwise.
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// 10 s, doubled up to 5 min, forgotten after 10 min without need.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: Duration,
    updated: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(LONGEST_WAIT)
    }
}

impl Backoff {
    /// That waits no longer than `max`.
    #[must_use]
    pub fn up_to(max: Duration) -> Self {
        Self { initial: max.min(Duration::from_secs(10)), max, entries: BTreeMap::new() }
    }

    /// Until when the key is blocked, counted from `event` (when the container ended).
    #[must_use]
    pub fn blocked_since_event(&self, key: &str, event: Duration, now: Duration) -> Option<Duration> {
        let entry = self.entries.get(key).filter(|entry| !is_expired(entry, event))?;
        Some(event + entry.delay).filter(|until| now < *until)
    }

    /// Until when the key is blocked, counted from its last failure.
    #[must_use]
    pub fn blocked_until(&self, key: &str, now: Duration) -> Option<Duration> {
        let entry = self.entries.get(key).filter(|entry| !is_expired(entry, now))?;
        Some(entry.updated + entry.delay).filter(|until| now < *until)
    }

    /// One more failure, which happened at `event`.
    pub fn next(&mut self, key: &str, event: Duration, now: Duration) {
        let delay = match self.entries.get(key) {
            Some(entry) if !is_expired(entry, event) => (entry.delay * 2).min(self.max),
            _ => self.initial,
        };
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
    }

    /// The key's present delay.
    #[must_use]
    pub fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |entry| entry.delay)
    }
}

fn is_expired(entry: &Entry, event: Duration) -> bool {
    event.saturating_sub(entry.updated) > FORGOTTEN
}

/// Whether a container that ended with `code` is started again.
#[must_use]
pub fn restarts(policy: RestartPolicy, code: i32) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Never => false,
    }
}

/// Whether this container is started again after `code`: by its rules, else by its policy.
#[must_use]
pub fn starts_again(container: &Container, code: i32) -> bool {
    container.rule_for(code).is_some() || restarts(container.restart_policy, code)
}

/// A changed image or changed resources start with a clean slate.
#[must_use]
pub fn crash_key(pod: &Pod, container: &Container) -> String {
    let Pod { name, namespace, uid, .. } = pod;
    format!("{name}_{namespace}_{uid}_{}_{}_{:?}", container.name, container.image, container.resources)
}

/// Two containers of one image share it.
#[must_use]
pub fn pull_key(pod: &Pod, container: &Container) -> String {
    format!("{}_{}", pod.uid, container.image)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn trap_08_back_off_doubles_to_five_minutes_and_is_forgotten_after_ten() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.blocked_since_event("a", s(0), s(0)), None);
        let mut now = s(0);
        let mut delays = Vec::new();
        for _ in 0..7 {
            backoff.next("a", now, now);
            delays.push(backoff.delay("a").as_secs());
            assert_eq!(backoff.blocked_since_event("a", now, now), Some(now + backoff.delay("a")));
            now += backoff.delay("a");
            assert_eq!(backoff.blocked_since_event("a", now - backoff.delay("a"), now), None);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        let updated = now - s(300);
        assert!(backoff.blocked_since_event("a", updated + s(600), updated + s(600)).is_some());
        assert_eq!(backoff.blocked_since_event("a", updated + s(601), updated + s(601)), None);
        backoff.next("a", updated + s(601), updated + s(601));
        assert_eq!(backoff.delay("a"), s(10));
        assert_eq!(backoff.delay("b"), s(0));
    }

    #[test]
    fn the_longest_wait_may_be_shorter_and_is_forgotten_no_sooner() {
        let waits = |max: u64| -> Vec<u64> {
            let mut backoff = Backoff::up_to(s(max));
            let next = |_| {
                backoff.next("a", s(0), s(0));
                backoff.delay("a").as_secs()
            };
            (0..4).map(next).collect()
        };
        assert_eq!(waits(30), [10, 20, 30, 30]);
        assert_eq!(waits(4), [4, 4, 4, 4]);
        let mut backoff = Backoff::up_to(s(20));
        backoff.next("a", s(0), s(0));
        backoff.next("a", s(599), s(599));
        assert_eq!(backoff.delay("a"), s(20));
    }

    #[test]
    fn policies() {
        use RestartPolicy::{Always, Never, OnFailure};
        let table = [
            (Always, 0, true),
            (Always, 1, true),
            (OnFailure, 0, false),
            (OnFailure, 1, true),
            (Never, 1, false),
        ];
        for (policy, code, want) in table {
            assert_eq!(restarts(policy, code), want, "{policy:?} {code}");
        }
    }
}

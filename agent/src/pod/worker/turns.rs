//! The agent's own share of a pod's start: from what woke a worker until what it then began. Owns
//! when that was; never looks at a clock. Called by [`super::Worker`].

use crate::timeline::Span;
use crate::timeline::render::millis;

/// What woke the worker, and how long it has looked since.
#[derive(Debug)]
pub(super) struct Turns {
    /// Of several things that came while the worker was busy, the first.
    woken: Option<i64>,
    looked: i64,
    /// When it began to look the last time.
    last: i64,
}

impl Turns {
    /// What happened before `seen_at` (unix nanoseconds, as all times here) woke nobody.
    pub(super) fn new(seen_at: i64) -> Self {
        Self { woken: None, looked: 0, last: seen_at }
    }

    /// Something happened at that time that the next turn is about.
    pub(super) fn wake(&mut self, at: i64) {
        self.woken = Some(self.woken.map_or(at, |woken| woken.min(at)));
    }

    /// It looked at the pod, and saw that containers had ended at `ends`: the turn is about those that
    /// it had not seen before.
    pub(super) fn record_observation(&mut self, begun: i64, ended: i64, ends: impl Iterator<Item = i64>) {
        let last = std::mem::replace(&mut self.last, begun);
        ends.filter(|at| (last..=ended).contains(at)).for_each(|at| self.wake(at));
        self.looked += ended - begun;
    }

    /// The turn is over at `until`. Its span, if it led to something; `led_to` prints what.
    pub(super) fn end(&mut self, until: i64, led_to: &[String]) -> Option<Span> {
        let (woken, looked) = (self.woken.take(), std::mem::take(&mut self.looked));
        let start = woken.filter(|_| !led_to.is_empty())?;
        let detail = format!("to {}; looked for {}", led_to.join(", "), millis(looked));
        Some(Span { name: "agent.turn".to_owned(), container: String::new(), start, end: until, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_turn_begins_with_the_first_thing_that_woke_it_and_leads_to_something() {
        let mut turns = Turns::new(0);
        turns.wake(20 * MS);
        turns.wake(10 * MS);
        turns.record_observation(20 * MS, 21 * MS, std::iter::empty());
        let span = turns.end(30 * MS, &["sandbox".to_owned(), "image".to_owned()]).unwrap();
        assert_eq!((span.start, span.end), (10 * MS, 30 * MS));
        assert_eq!(span.detail, "to sandbox, image; looked for 1.0 ms");
        assert_eq!(turns.end(40 * MS, &["ready".to_owned()]), None, "nothing woke it");
        turns.wake(50 * MS);
        assert_eq!(turns.end(60 * MS, &[]), None, "it led to nothing");
        turns.wake(70 * MS);
        assert_eq!(turns.end(80 * MS, &["ready".to_owned()]).unwrap().start, 70 * MS, "forgotten");
    }

    #[test]
    fn an_end_wakes_once_and_old_ones_never() {
        let mut turns = Turns::new(100);
        let next = ["x".to_owned()];
        turns.wake(300);
        turns.record_observation(300, 310, [50, 250].into_iter());
        assert_eq!(turns.end(320, &next).unwrap().start, 250);
        turns.wake(400);
        turns.record_observation(400, 410, [50, 250].into_iter());
        assert_eq!(turns.end(420, &next).unwrap().start, 400);
    }
}

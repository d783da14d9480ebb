//! How many pieces of layers may be on their way at once, for all downloads that come in pieces. Owns who has how many
//! of the lanes; sees no bytes and no network. Called by `pieces`.
//!
//! A download takes a seat, and a lane for each piece while it is asked for and comes. One that has none always gets
//! one, and up to an equal share nobody takes a seat's lanes; what is over goes to whoever asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Pieces on their way at a time; two more for as long as one download has all lanes and two others begin.
const LANES: usize = 10;
/// Downloads in pieces at a time: with less than three lanes each, one answer is as good.
const SEATS: usize = 3;

/// All of the lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    seats: Mutex<Seats>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Seats {
    last: u64,
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    lanes: usize,
    /// Will ask for more. A seat is another's only when all of its lanes are free, too.
    asks: bool,
}

/// One download's right to lanes.
#[derive(Debug)]
pub(super) struct Seat {
    lanes: Arc<Lanes>,
    number: u64,
}

/// The lane of one piece, free when it is dropped.
#[derive(Debug)]
pub(super) struct Lane {
    lanes: Arc<Lanes>,
    number: u64,
}

impl Lanes {
    /// A seat, if one is free.
    pub(super) fn seat(self: &Arc<Self>) -> Option<Seat> {
        let mut seats = self.seats();
        if seats.held.len() >= SEATS {
            return None;
        }
        seats.last += 1;
        let number = seats.last;
        seats.held.insert(number, Held { lanes: 0, asks: true });
        Some(Seat { lanes: Arc::clone(self), number })
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, number: u64, change: impl FnOnce(&mut Held)) {
        let mut seats = self.seats();
        if let Some(held) = seats.held.get_mut(&number) {
            change(held);
        }
        seats.held.retain(|_, held| held.asks || held.lanes > 0);
        drop(seats);
        self.freed.notify_waiters();
    }
}

impl Seats {
    /// Whether a seat may have one more.
    fn may_take(&self, number: u64) -> bool {
        let own = self.held.get(&number).map_or(0, |held| held.lanes);
        if own == 0 {
            return true;
        }
        let asking = self.held.values().filter(|held| held.asks).count().max(1);
        let share = LANES / asking;
        let others = self.held.iter().filter(|(other, held)| **other != number && held.asks);
        let owed: usize = match own < share {
            true => 0,
            false => others.map(|(_, held)| share.saturating_sub(held.lanes)).sum(),
        };
        let taken: usize = self.held.values().map(|held| held.lanes).sum();
        taken + owed < LANES
    }
}

impl Seat {
    /// A lane for a piece, as soon as there is one.
    pub(super) async fn lane(&self) -> Lane {
        loop {
            let freed = self.lanes.freed.notified();
            tokio::pin!(freed);
            // What is freed between the look and the wait counts.
            freed.as_mut().enable();
            if let Some(lane) = self.try_lane() {
                return lane;
            }
            freed.await;
        }
    }

    fn try_lane(&self) -> Option<Lane> {
        let mut seats = self.lanes.seats();
        if !seats.may_take(self.number) {
            return None;
        }
        if let Some(held) = seats.held.get_mut(&self.number) {
            held.lanes += 1;
        }
        Some(Lane { lanes: Arc::clone(&self.lanes), number: self.number })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lanes.leave(self.number, |held| held.asks = false);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.lanes.leave(self.number, |held| held.lanes = held.lanes.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(seat: &Seat) -> Vec<Lane> {
        std::iter::from_fn(|| seat.try_lane()).collect()
    }

    fn taken(lanes: &Lanes) -> usize {
        lanes.seats().held.values().map(|held| held.lanes).sum()
    }

    #[test]
    fn one_alone_has_all_and_leaves_it() {
        let lanes = Arc::new(Lanes::default());
        let seat = lanes.seat().unwrap();
        let mut all = fill(&seat);
        assert_eq!(all.len(), 10);
        all.pop();
        assert_eq!(fill(&seat).len(), 1, "and was free again");
        drop(seat);
        assert_eq!(lanes.seats().held.len(), 1, "its pieces are still on their way");
        drop(all);
        assert!(lanes.seats().held.is_empty());
    }

    #[test]
    fn one_that_has_none_always_gets_one_and_its_share_next() {
        let lanes = Arc::new(Lanes::default());
        let (first, second) = (lanes.seat().unwrap(), lanes.seat().unwrap());
        let mut firsts = fill(&first);
        assert_eq!(firsts.len(), 5, "five are the other's");
        let seconds = fill(&second);
        assert_eq!(seconds.len(), 5);
        let third = lanes.seat().unwrap();
        let mut thirds = fill(&third);
        assert_eq!((thirds.len(), taken(&lanes)), (1, 11), "over the limit by one");
        firsts.truncate(3);
        assert_eq!(fill(&first).len(), 0, "what was freed is the third's");
        thirds.extend(fill(&third));
        assert_eq!((thirds.len(), taken(&lanes)), (2, 10));
        assert!(lanes.seat().is_none(), "with a fourth each would have two");
        drop((second, seconds));
        let (more, rest) = (fill(&first), fill(&third));
        assert_eq!((more.len(), rest.len()), (2, 3), "its share each");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_by_another_seats_lane() {
        let lanes = Arc::new(Lanes::default());
        let (first, second) = (lanes.seat().unwrap(), lanes.seat().unwrap());
        let (firsts, seconds) = (fill(&first), fill(&second));
        let waiting = tokio::spawn(async move { second.lane().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop((first, firsts));
        let lane = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.unwrap().unwrap();
        assert_eq!(taken(&lanes), 6);
        drop((lane, seconds));
        assert_eq!(taken(&lanes), 0);
    }
}

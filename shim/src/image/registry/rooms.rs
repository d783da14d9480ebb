//! Memory for pieces of layers, shared by all downloads that come in pieces. Owns who may hold how much of it; sees
//! no bytes and no network. Called by `pieces`.
//!
//! A download takes a seat, and room for each piece before it asks for it. One that holds nothing always gets a
//! piece: so what it waits for later is its own reader, never another's. Up to an equal share nobody takes a seat's
//! room; what is over goes to whoever asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Bytes asked for at once: long enough that a round trip between two does not count.
pub(super) const PIECE: u64 = 4 << 20;
/// Of all pieces that are on their way or wait for their turn; two more pieces for as long as one download holds all
/// of it and two others begin. What is over goes on arriving while the unpacker has more work than the line, so
/// more is faster, on a machine that can spare it.
const LEAST: u64 = 7 * PIECE;
const MOST: u64 = 10 * PIECE;
/// The part of a machine's memory.
const PART: u64 = 512;
/// Downloads in pieces at a time: with less than two pieces each, one answer is as good.
const SEATS: usize = 3;

/// All of the room.
#[derive(Debug)]
pub(crate) struct Rooms {
    size: u64,
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
    bytes: u64,
    /// Will ask for more. A seat is another's only when all that it held is gone, too.
    asks: bool,
}

/// One download's right to room.
#[derive(Debug)]
pub(super) struct Seat {
    rooms: Arc<Rooms>,
    number: u64,
}

/// Room for one piece; what is left of it is free when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Arc<Rooms>,
    number: u64,
    bytes: u64,
}

impl Rooms {
    /// As this machine has memory.
    pub(crate) fn of_machine() -> Self {
        let info = rustix::system::sysinfo();
        Self::of_memory(info.totalram.saturating_mul(u64::from(info.mem_unit)))
    }

    /// `bytes`: the machine's memory.
    pub(crate) fn of_memory(bytes: u64) -> Self {
        let size = (bytes / PART).clamp(LEAST, MOST) / PIECE * PIECE;
        Self { size, seats: Mutex::default(), freed: Notify::new() }
    }

    /// A seat, if one is free.
    pub(super) fn seat(self: &Arc<Self>) -> Option<Seat> {
        let mut seats = self.seats();
        if seats.held.len() >= SEATS {
            return None;
        }
        seats.last += 1;
        let number = seats.last;
        seats.held.insert(number, Held { bytes: 0, asks: true });
        Some(Seat { rooms: Arc::clone(self), number })
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, number: u64, bytes: u64, leaves: bool) {
        let mut seats = self.seats();
        if let Some(held) = seats.held.get_mut(&number) {
            held.bytes = held.bytes.saturating_sub(bytes);
            held.asks &= !leaves;
        }
        seats.held.retain(|_, held| held.asks || held.bytes > 0);
        drop(seats);
        self.freed.notify_waiters();
    }
}

impl Seats {
    /// Whether a seat may have so many more bytes of `all`.
    fn may_take(&self, all: u64, number: u64, bytes: u64) -> bool {
        let own = self.held.get(&number).map_or(0, |held| held.bytes);
        if own == 0 {
            return true;
        }
        let asking = self.held.values().filter(|held| held.asks).count().max(1) as u64;
        let share = all / PIECE / asking * PIECE;
        let others = self.held.iter().filter(|(other, held)| **other != number && held.asks);
        let owed = match own + bytes <= share {
            true => 0,
            false => others.map(|(_, held)| share.saturating_sub(held.bytes)).sum(),
        };
        let taken: u64 = self.held.values().map(|held| held.bytes).sum();
        taken + bytes + owed <= all
    }
}

impl Seat {
    /// Room for a piece of so many bytes, as soon as there is some.
    pub(super) async fn room(&self, bytes: u64) -> Room {
        loop {
            let freed = self.rooms.freed.notified();
            tokio::pin!(freed);
            // What is freed between the look and the wait counts.
            freed.as_mut().enable();
            if let Some(room) = self.try_room(bytes) {
                return room;
            }
            freed.await;
        }
    }

    fn try_room(&self, bytes: u64) -> Option<Room> {
        let mut seats = self.rooms.seats();
        if !seats.may_take(self.rooms.size, self.number, bytes) {
            return None;
        }
        if let Some(held) = seats.held.get_mut(&self.number) {
            held.bytes += bytes;
        }
        Some(Room { rooms: Arc::clone(&self.rooms), number: self.number, bytes })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.rooms.free(self.number, 0, true);
    }
}

impl Room {
    /// So much of it has been handed on.
    pub(super) fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.rooms.free(self.number, bytes, false);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.rooms.free(self.number, self.bytes, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(seat: &Seat) -> Vec<Room> {
        std::iter::from_fn(|| seat.try_room(PIECE)).collect()
    }

    fn taken(rooms: &Rooms) -> u64 {
        rooms.seats().held.values().map(|held| held.bytes).sum()
    }

    #[test]
    fn a_machine_with_more_memory_has_more_of_it() {
        let pieces = |gib: u64| Rooms::of_memory(gib << 30).size as f64 / PIECE as f64;
        assert_eq!([1, 14, 16, 17, 24, 1024].map(pieces), [7.0, 7.0, 8.0, 8.0, 10.0, 10.0]);
    }

    #[test]
    fn one_alone_has_all_and_leaves_it() {
        let rooms = Arc::new(Rooms::of_memory(0));
        let seat = rooms.seat().unwrap();
        let all = fill(&seat);
        assert_eq!(all.len(), 7);
        drop(seat);
        assert_eq!(rooms.seats().held.len(), 1, "its pieces still take room");
        drop(all);
        assert!(rooms.seats().held.is_empty());
    }

    #[test]
    fn one_that_holds_nothing_always_gets_a_piece_and_its_share_next() {
        let rooms = Arc::new(Rooms::of_memory(0));
        let (first, second) = (rooms.seat().unwrap(), rooms.seat().unwrap());
        let mut firsts = fill(&first);
        assert_eq!(firsts.len(), 4, "three are the other's");
        let seconds = fill(&second);
        assert_eq!(seconds.len(), 3);
        let third = rooms.seat().unwrap();
        let mut thirds = fill(&third);
        assert_eq!((thirds.len(), taken(&rooms)), (1, 8 * PIECE), "over the limit by one");
        firsts.truncate(2);
        assert_eq!(fill(&first).len(), 0, "what was freed is the third's");
        thirds.extend(fill(&third));
        assert_eq!((thirds.len(), taken(&rooms)), (2, 7 * PIECE));
        assert!(rooms.seat().is_none(), "with a fourth each would have less than two");
        drop((second, seconds));
        let (more, rest) = (fill(&first), fill(&third));
        assert_eq!((more.len(), rest.len()), (2, 1), "its share, and the one that is over");
    }

    #[test]
    fn parts_of_a_room_are_free_as_they_are_handed_on() {
        let rooms = Arc::new(Rooms::of_memory(0));
        let seat = rooms.seat().unwrap();
        let mut all = fill(&seat);
        all[0].give_back(PIECE - 1);
        assert!(seat.try_room(PIECE).is_none());
        all[0].give_back(9);
        assert!(seat.try_room(PIECE).is_some());
        drop(all);
        assert_eq!(taken(&rooms), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_by_another_seats_room() {
        let rooms = Arc::new(Rooms::of_memory(0));
        let (first, second) = (rooms.seat().unwrap(), rooms.seat().unwrap());
        let (firsts, _seconds) = (fill(&first), fill(&second));
        let waiting = tokio::spawn(async move { second.room(PIECE).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop((first, firsts));
        let room = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.unwrap();
        assert_eq!(room.unwrap().bytes, PIECE);
    }
}

//! How far pulls have come, between those who pull, who tells of it and who shows it. Owns the board of
//! pulls; never asks a runtime. Written by [`crate::runtime::cri`] (a pull begins and ends) and by who
//! looks, read by the operator API and the timeline.

pub mod progress;

use std::sync::Arc;
use std::time::Duration;

use gantry_model::clock::{Clock, SystemClock};
use gantry_model::names::parse_image;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::timeline::Span;
use progress::{Layer, Progress};

/// Pulls that have ended and whose stages nobody asked for; the oldest make room.
const MOST_ENDED: usize = 64;
/// For the last look at a pull that has ended.
const PATIENCE: Duration = Duration::from_secs(3);

/// A handle of the board.
#[derive(Debug, Clone)]
pub struct Pulls {
    board: watch::Sender<Board>,
    clock: Arc<dyn Clock>,
}

/// Every pull that is of interest, in the order in which they began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Board {
    next: u64,
    pulls: Vec<PullEntry>,
}

/// One pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullEntry {
    /// Which.
    pub number: u64,
    /// The image's name with tag or digest.
    pub image: String,
    /// Unix nanoseconds.
    pub began: i64,
    /// How it goes.
    pub state: State,
    /// What was seen last; none while nothing of the image is known.
    pub layers: Vec<Layer>,
}

/// ```text
/// UnderWay ──the runtime has answered──▶ Ended ──last look──▶ Settled
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Worth a look now and then.
    UnderWay,
    /// Worth one more.
    Ended,
    /// Nothing will be told of it any more.
    Settled,
}

/// A pull is under way for as long as this is held.
#[derive(Debug)]
#[must_use]
pub struct UnderWay {
    number: u64,
    board: watch::Sender<Board>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.board.send_modify(|board| {
            if let Some(entry) = board.find(self.number) {
                entry.state = State::Ended;
            }
            board.make_room();
        });
    }
}

impl Default for Pulls {
    fn default() -> Self {
        Self { board: watch::Sender::default(), clock: Arc::new(SystemClock::new()) }
    }
}

impl Pulls {
    /// A pull begins.
    pub fn begin(&self, image: &str) -> UnderWay {
        let mut number = 0;
        let (image, began) = (full(image), self.clock.wall_nanos());
        self.board.send_modify(|board| {
            number = board.next;
            board.next += 1;
            let entry = PullEntry { number, image, began, state: State::UnderWay, layers: Vec::new() };
            board.pulls.push(entry);
        });
        UnderWay { number, board: self.board.clone() }
    }

    /// How far the pull of this image has come; none when none is under way. Of several it is the one
    /// that began first.
    #[must_use]
    pub fn progress(&self, image: &str) -> Option<Progress> {
        let image = full(image);
        let board = self.board.borrow();
        let entry = board.pulls.iter().find(|e| e.image == image && e.state == State::UnderWay)?;
        Some(Progress::new(&entry.image, entry.began, &entry.layers))
    }

    /// The stages of the pull of this image that ended last, told once. A pull that nobody looks at any
    /// more has none.
    pub async fn stages(&self, image: &str) -> Vec<Span> {
        let image = full(image);
        let ended = |e: &&PullEntry| e.image == image && e.state != State::UnderWay;
        let newest = self.board.borrow().pulls.iter().rfind(ended).map(|entry| entry.number);
        let Some(number) = newest else { return Vec::new() };
        let settled = |board: &Board| {
            board.pulls.iter().find(|e| e.number == number).is_none_or(|e| e.state == State::Settled)
        };
        let mut seen = self.board.subscribe();
        let until = Instant::now() + PATIENCE;
        let looked = tokio::time::timeout_at(until, seen.wait_for(settled)).await.is_ok();
        if !looked {
            tracing::debug!(image, "nobody had a last look at the pull");
        }
        let mut stages = Vec::new();
        self.board.send_if_modified(|board| {
            if let Some(at) = board.pulls.iter().position(|e| e.number == number) {
                let entry = board.pulls.remove(at);
                stages = progress::stages(entry.began, &entry.layers);
            }
            // What is taken away is of no interest to those who look.
            false
        });
        stages
    }

    /// What those who look follow.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Board> {
        self.board.subscribe()
    }

    /// What was seen of a pull.
    pub fn tell(&self, number: u64, layers: Vec<Layer>, last: bool) {
        self.board.send_if_modified(|board| {
            let Some(entry) = board.find(number) else { return false };
            entry.layers = layers;
            if last {
                entry.state = State::Settled;
            }
            last
        });
    }
}

impl Board {
    /// Those that are worth a look.
    pub fn open(&self) -> impl Iterator<Item = &PullEntry> {
        self.pulls.iter().filter(|entry| entry.state < State::Settled)
    }

    fn find(&mut self, number: u64) -> Option<&mut PullEntry> {
        self.pulls.iter_mut().find(|entry| entry.number == number)
    }

    fn make_room(&mut self) {
        let ended = self.pulls.iter().filter(|entry| entry.state != State::UnderWay).count();
        let mut surplus = ended.saturating_sub(MOST_ENDED);
        self.pulls.retain(|entry| {
            let goes = surplus > 0 && entry.state != State::UnderWay;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

/// By its full name, however it is written; what is no name is nobody's.
fn full(image: &str) -> String {
    parse_image(image).map_or_else(|| image.to_owned(), |name| name.full)
}

#[cfg(test)]
mod tests;

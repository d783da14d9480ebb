//! Connections on which nobody has been upgraded yet. Owns which of them goes when too many come: the
//! oldest. Any process with the node's network may hold one open, and none shall keep the clients of the
//! whole node out by that. Called by `http`.
//!
//! A twin of that in the agent (`agent/src/server/lobby.rs`): all that agent and runtime share is `proto`, which has no
//! logic (ARCHITECTURE.md), and fifty lines are no crate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// Shared by a connection and its requests: whether one of them was granted.
#[derive(Debug, Clone, Default)]
pub(super) struct Guest(Arc<AtomicBool>);

impl Guest {
    /// From now on the connection is nobody's to end.
    pub(super) fn let_in(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_in(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The oldest first.
#[derive(Debug)]
pub(super) struct Lobby {
    most: usize,
    guests: VecDeque<(Guest, AbortHandle)>,
}

impl Lobby {
    pub(super) fn new(most: usize) -> Self {
        Self { most, guests: VecDeque::new() }
    }

    /// Takes one more; where there is no room the oldest is shown out.
    pub(super) fn enter(&mut self, guest: Guest, task: AbortHandle) {
        if self.guests.len() >= self.most {
            self.guests.retain(|(guest, task)| !guest.is_in() && !task.is_finished());
        }
        if self.guests.len() >= self.most
            && let Some((_, oldest)) = self.guests.pop_front()
        {
            tracing::debug!("a streaming client that asks for nothing makes room for another");
            oldest.abort();
        }
        self.guests.push_back((guest, task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_for_nothing_makes_room_the_oldest_first_and_who_was_let_in_stays() {
        let mut lobby = Lobby::new(2);
        let mut enter = || {
            let (guest, task) = (Guest::default(), tokio::spawn(std::future::pending::<()>()));
            lobby.enter(guest.clone(), task.abort_handle());
            (guest, task)
        };
        let (first, second) = (enter(), enter());
        first.0.let_in();
        let third = enter();
        assert!(!second.1.is_finished());
        let fourth = enter();
        assert!(second.1.await.unwrap_err().is_cancelled());
        for task in [first.1, third.1, fourth.1] {
            assert!(!task.is_finished());
            task.abort();
        }
    }
}

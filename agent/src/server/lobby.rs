//! Connections of those who have not said who they are. Owns which of them goes when too many come:
//! the oldest. Never counts who was let in. Called by [`super::listen`]; [`super::serve`] lets in.
//!
//! A twin of that in the runtime (`shim/src/streaming/pending_connections.rs`): all that agent and runtime share is
//! `proto`, which has no logic (ARCHITECTURE.md), and fifty lines are no crate.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// Shared by a connection and its requests: whether one of them passed the gate.
#[derive(Debug, Clone, Default)]
pub(super) struct Guest {
    is_in: Arc<AtomicBool>,
    peer: Option<IpAddr>,
}

impl Guest {
    pub(super) fn from(peer: IpAddr) -> Self {
        Self { is_in: Arc::default(), peer: Some(peer.to_canonical()) }
    }

    /// Where the connection comes from.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// From now on the connection is nobody's to end.
    pub(super) fn let_in(&self) {
        self.is_in.store(true, Ordering::Relaxed);
    }

    fn is_in(&self) -> bool {
        self.is_in.load(Ordering::Relaxed)
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

    /// Takes one more. Where there is no room the oldest is shown out: everybody may hold a connection
    /// open, and nobody shall keep the API server out by that.
    pub(super) fn enter(&mut self, guest: Guest, task: AbortHandle) {
        if self.guests.len() >= self.most {
            self.guests.retain(|(guest, task)| !guest.is_in() && !task.is_finished());
        }
        if self.guests.len() >= self.most
            && let Some((_, oldest)) = self.guests.pop_front()
        {
            oldest.abort();
        }
        self.guests.push_back((guest, task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_nobody_who_was_let_in() {
        let mut lobby = Lobby::new(2);
        let mut enter = |guest: &Guest| {
            let task = tokio::spawn(std::future::pending::<()>());
            lobby.enter(guest.clone(), task.abort_handle());
            task
        };
        let (known, stranger) = (Guest::default(), Guest::default());
        known.let_in();
        let (one, two) = (enter(&known), enter(&stranger));
        let (three, four) = (enter(&stranger), enter(&stranger));
        assert!(two.await.unwrap_err().is_cancelled());
        tokio::task::yield_now().await;
        assert!(!one.is_finished() && !three.is_finished() && !four.is_finished());
        for task in [one, three, four] {
            task.abort();
        }
    }
}

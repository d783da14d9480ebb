//! Connections that no client has authenticated on yet. Owns which of them is closed when there are too many:
//! the oldest. Never counts an admitted one. Called by [`super::listen`]; [`super::serve`] admits.
//!
//! A twin of that in the runtime (`shim/src/streaming/pending_connections.rs`): what both depend on is `proto`, which has
//! no logic, and `base`, which has no tokio (ARCHITECTURE.md); fifty lines are no crate.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// Shared by a connection and its requests: whether one of them passed the gate.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission {
    is_admitted: Arc<AtomicBool>,
    peer: Option<SocketAddr>,
}

impl Admission {
    pub(super) fn from(peer: SocketAddr) -> Self {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Self { is_admitted: Arc::default(), peer: Some(peer) }
    }

    /// Where the connection comes from.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// From now on the connection is nobody's to end.
    pub(super) fn admit(&self) {
        self.is_admitted.store(true, Ordering::Relaxed);
    }

    fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }
}

/// The oldest first.
#[derive(Debug)]
pub(super) struct PendingConnections {
    most: usize,
    connections: VecDeque<(Admission, AbortHandle)>,
}

impl PendingConnections {
    pub(super) fn new(most: usize) -> Self {
        Self { most, connections: VecDeque::new() }
    }

    /// Takes one more. Where there is no room the oldest is ended: everybody may hold a connection
    /// open, and nobody shall keep the API server out by that.
    pub(super) fn add(&mut self, admission: Admission, task: AbortHandle) {
        if self.connections.len() >= self.most {
            self.connections.retain(|(admission, task)| !admission.is_admitted() && !task.is_finished());
        }
        if self.connections.len() >= self.most
            && let Some((_, oldest)) = self.connections.pop_front()
        {
            oldest.abort();
        }
        self.connections.push_back((admission, task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_nobody_who_was_let_in() {
        let mut pending = PendingConnections::new(2);
        let mut enter = |admission: &Admission| {
            let task = tokio::spawn(std::future::pending::<()>());
            pending.add(admission.clone(), task.abort_handle());
            task
        };
        let (known, stranger) = (Admission::default(), Admission::default());
        known.admit();
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

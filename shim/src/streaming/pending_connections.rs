//! Connections on which nobody has been upgraded yet. Owns which of them goes when too many come: the
//! oldest. Any process with the node's network may hold one open, and none shall keep the clients of the
//! whole node out by that. Called by `http`.
//!
//! A twin of that in the agent (`agent/server/src/pending_connections.rs`): what both depend on is `proto`, which has no
//! logic, and `base`, which has no tokio (ARCHITECTURE.md); fifty lines are no crate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// Shared by a connection and its requests: whether one of them was granted.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission(Arc<AtomicBool>);

impl Admission {
    /// From now on the connection is nobody's to end.
    pub(super) fn admit(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_admitted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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

    /// Takes one more; where there is no room the oldest is shown out.
    pub(super) fn add(&mut self, admission: Admission, task: AbortHandle) {
        if self.connections.len() >= self.most {
            self.connections.retain(|(admission, task)| !admission.is_admitted() && !task.is_finished());
        }
        if self.connections.len() >= self.most
            && let Some((_, oldest)) = self.connections.pop_front()
        {
            tracing::debug!("a streaming client that asks for nothing makes room for another");
            oldest.abort();
        }
        self.connections.push_back((admission, task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_for_nothing_makes_room_the_oldest_first_and_who_was_let_in_stays() {
        let mut pending = PendingConnections::new(2);
        let mut enter = || {
            let (admission, task) = (Admission::default(), tokio::spawn(std::future::pending::<()>()));
            pending.add(admission.clone(), task.abort_handle());
            (admission, task)
        };
        let (first, second) = (enter(), enter());
        first.0.admit();
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

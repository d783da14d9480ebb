//! How much of what a client sent may wait for its readers. Owns the count of bytes of one connection; who
//! is over it is not read from until something has been taken. Called by `connection`.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one connection that wait: 16 streams with full queues. `kubectl port-forward` has a pair of
/// streams for each connection that is made to it.
pub(super) const MOST: u32 = 16 << 20;
/// What a piece takes beside its bytes.
const EACH: u32 = 128;
/// Smaller ones get memory of their own: a piece of a large buffer would keep all of it.
const SMALL: usize = 16 << 10;

/// Shared by all streams of a connection.
#[derive(Debug)]
pub(super) struct ReceiveBudget(Arc<Semaphore>);

/// A piece, and its right to be here.
struct BudgetedBytes {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ReceiveBudget {
    pub(super) fn new(most: u32) -> Self {
        Self(Arc::new(Semaphore::new(most as usize)))
    }

    /// The same bytes, once there is room for them; it is free again when they are dropped.
    pub(super) async fn acquire(&self, bytes: Bytes) -> Bytes {
        let bytes = if bytes.len() < SMALL { Bytes::copy_from_slice(&bytes) } else { bytes };
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX).saturating_add(EACH);
        // Closed by nobody.
        match Arc::clone(&self.0).acquire_many_owned(size).await {
            Ok(permit) => Bytes::from_owner(BudgetedBytes { bytes, _permit: permit }),
            Err(_) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_waits_is_bounded_for_all_streams_together() {
        let budget = ReceiveBudget::new(100_000);
        let piece = || Bytes::from(vec![7; 30_000]);
        let mut held: Vec<Bytes> =
            (0..3).map(|_| budget.acquire(piece()).now_or_never().expect("there is room")).collect();
        assert!(budget.acquire(piece()).now_or_never().is_none());
        assert_eq!(held.pop().unwrap(), piece());
        assert!(budget.acquire(piece()).now_or_never().is_some(), "one was taken");
    }

    #[test]
    fn a_small_piece_does_not_keep_the_buffer_it_came_in() {
        let budget = ReceiveBudget::new(100_000);
        let buffer = Bytes::from(vec![7; 60_000]);
        let piece = budget.acquire(buffer.slice(..10)).now_or_never().unwrap();
        assert!(buffer.is_unique());
        assert_eq!(piece.len(), 10);
    }
}

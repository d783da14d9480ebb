//! The log's lines about those who are refused. Owns how many there are, and how long: whoever reaches
//! the port may be refused as often as they like, and must not fill the node's disk by that. Called by
//! [`super::gate`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// One line of a peer's in so long.
const EVERY: Duration = Duration::from_secs(1);
/// So many peers are told apart, and so many lines there are in that time at most.
const PEERS: usize = 64;
/// Bytes of what a stranger has sent.
const LONGEST: usize = 256;

/// Who was refused of late.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    told: Mutex<BTreeMap<Option<IpAddr>, LastLogged>>,
}

#[derive(Debug)]
struct LastLogged {
    at: Instant,
    unsaid: u64,
}

impl Refusals {
    /// Whether there is to be a line, and how many there were not since the one before.
    pub(super) fn tell(&self, peer: Option<IpAddr>) -> Option<u64> {
        let now = Instant::now();
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = all.get_mut(&peer) {
            if now.duration_since(told.at) < EVERY {
                told.unsaid += 1;
                return None;
            }
            told.at = now;
            return Some(std::mem::take(&mut told.unsaid));
        }
        if all.len() >= PEERS {
            all.retain(|_, told| now.duration_since(told.at) < EVERY);
        }
        if all.len() >= PEERS {
            return None;
        }
        all.insert(peer, LastLogged { at: now, unsaid: 0 });
        Some(0)
    }
}

/// As much of it as belongs into a log.
pub(super) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u32) -> Option<IpAddr> {
        Some(IpAddr::from(n.to_be_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn each_peer_has_a_line_a_second() {
        let refusals = Refusals::default();
        for _ in 0..3 {
            assert_eq!(refusals.tell(peer(1)), Some(0));
            assert_eq!(refusals.tell(peer(1)), None);
            assert_eq!(refusals.tell(peer(2)), Some(0), "that is another");
            tokio::time::sleep(EVERY - Duration::from_millis(1)).await;
            assert_eq!(refusals.tell(peer(1)), None);
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(refusals.tell(peer(1)), Some(2));
            tokio::time::sleep(EVERY).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_peers_have_no_more_lines_than_are_counted() {
        let refusals = Refusals::default();
        let lines = |peers: std::ops::Range<u32>| peers.filter(|n| refusals.tell(peer(*n)).is_some()).count();
        assert_eq!(lines(0..100_000), PEERS);
        assert_eq!(refusals.told.lock().unwrap().len(), PEERS);
        tokio::time::sleep(EVERY).await;
        assert_eq!(lines(200_000..300_000), PEERS, "those of before are forgotten");
    }

    #[test]
    fn what_a_stranger_sent_is_cut() {
        assert_eq!(cut("/pods"), "/pods");
        assert_eq!(cut(&"x".repeat(1000)).len(), LONGEST);
        assert_eq!(cut(&format!("x{}", "ä".repeat(1000))).len(), LONGEST - 1);
    }
}

//! The socket that is kept from one use to the next.
//!
//! Owns it, and the turns of this process. When a socket of netfilter is closed, the kernel waits until what was deleted
//! shortly before is freed (`nft_rcv_nl_event`): some milliseconds, in which nobody can change any rule. And two jobs at
//! once would only make each other start anew. A socket that may have unread answers is closed. Called by `masquerade`,
//! `portmap` and the other files of `nft`.

use std::sync::{Mutex, PoisonError};

use super::{Error, Netfilter};

/// Device and inode of a network namespace: sockets stay in the one that they were made in.
type NetworkNamespace = (u64, u64);

/// More than one only where threads of a process are in several namespaces.
const LIMIT: usize = 4;

static KEPT: Mutex<Vec<(NetworkNamespace, Netfilter)>> = Mutex::new(Vec::new());

/// Does a job on a socket of the calling thread's network namespace, one at a time.
pub(crate) fn with<T, E: From<Error>>(job: impl FnOnce(&mut Netfilter) -> Result<T, E>) -> Result<T, E> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let here = namespace();
    let of_here = kept.iter().position(|(of, _)| Some(*of) == here);
    let mut netfilter = match of_here {
        Some(index) => kept.swap_remove(index).1,
        None => Netfilter::open()?,
    };
    let done = job(&mut netfilter);
    if let Some(here) = here.filter(|_| netfilter.is_settled && kept.len() < LIMIT) {
        kept.push((here, netfilter));
    }
    done
}

/// `None` where it cannot be told: then nothing is kept.
fn namespace() -> Option<NetworkNamespace> {
    let found = rustix::fs::stat("/proc/thread-self/ns/net").ok()?;
    Some((found.st_dev, found.st_ino))
}

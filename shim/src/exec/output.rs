//! The output of an ExecSync, which the runtime keeps until it has been sent. Owns how much of it that is, for one exec
//! and for all of them together. Called by `exec::sync`.

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::OwnedSemaphorePermit;

use crate::node::room::Room;

/// Of each stream of an ExecSync; what comes after is read and dropped (CVE-2022-31030).
pub(super) const MOST: usize = 16 << 20;

/// Of each stream, whatever the others keep: probes need 10 KiB.
const ALWAYS: usize = 64 << 10;

/// What is read at once.
const PIECE: usize = 64 << 10;

/// Parts of the shared memory; dropped when the output has been sent, or nobody waits for it.
pub(crate) type Held = Vec<OwnedSemaphorePermit>;

/// Where a stream comes from, for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) container: &'a str,
    pub(super) stream: &'static str,
}

/// What has been read of one stream.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    pub(super) held: Option<OwnedSemaphorePermit>,
    /// There was no room: what comes later would not follow what is here.
    is_cut: bool,
}

impl Kept {
    /// Reads to the end of the stream.
    pub(super) async fn read(&mut self, pipe: Option<&mut pipe::Receiver>, room: &Room, source: Source<'_>) {
        let Some(pipe) = pipe else { return };
        let mut piece = vec![0u8; PIECE];
        // An error is the end of the output, too: there is nobody to tell.
        while let Ok(count @ 1..) = pipe.read(&mut piece).await {
            self.keep(piece.get(..count).unwrap_or_default(), room, source);
        }
    }

    fn keep(&mut self, read: &[u8], room: &Room, source: Source<'_>) {
        if self.is_cut {
            return;
        }
        let most = read.len().min(MOST.saturating_sub(self.bytes.len()));
        let free = most.min(ALWAYS.saturating_sub(self.bytes.len()));
        let shared = most.saturating_sub(free);
        let mut count = most;
        if shared > 0 {
            match room.take(shared) {
                Some(taken) => match &mut self.held {
                    Some(held) => held.merge(taken),
                    None => self.held = Some(taken),
                },
                None => {
                    (count, self.is_cut) = (free, true);
                    let Source { container, stream } = source;
                    let kept = self.bytes.len().saturating_add(free);
                    tracing::warn!(
                        container,
                        stream,
                        kept,
                        "the rest of an exec's output is dropped: other execs' outputs take all of the memory for them"
                    );
                }
            }
        }
        self.bytes.extend_from_slice(read.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::pipe::PipeFlags;

    use super::*;
    use crate::node::room::SHARED;

    const WEB: Source<'static> = Source { container: "web", stream: "stdout" };

    fn pair() -> (pipe::Receiver, std::fs::File) {
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        (pipe::Receiver::from_owned_fd(ours).unwrap(), theirs.into())
    }

    #[tokio::test]
    async fn rt_2_11_output_over_the_cap_is_read_and_dropped() {
        let (mut pipe, mut file) = pair();
        let writer = std::thread::spawn(move || {
            for _ in 0..17 {
                file.write_all(&vec![b'x'; 1 << 20]).unwrap();
            }
        });
        let (mut kept, room) = (Kept::default(), Room::default());
        kept.read(Some(&mut pipe), &room, WEB).await;
        writer.join().unwrap();
        assert_eq!(kept.bytes.len(), MOST);
        assert_eq!(room.left(), SHARED - MOST + ALWAYS);
    }

    #[tokio::test]
    async fn without_room_the_first_64_kib_are_kept_and_all_of_it_is_read() {
        let (mut pipe, mut file) = pair();
        let writer = std::thread::spawn(move || file.write_all(&vec![b'x'; 1 << 20]).unwrap());
        let (mut kept, room) = (Kept::default(), Room::of(0));
        kept.read(Some(&mut pipe), &room, WEB).await;
        // The program could write all of it.
        writer.join().unwrap();
        assert_eq!((kept.bytes.len(), kept.is_cut), (ALWAYS, true));
    }

    #[test]
    fn what_is_cut_stays_cut_when_there_is_room_again() {
        let (mut kept, room) = (Kept::default(), Room::of(100));
        let other = room.take(100).unwrap();
        kept.keep(&vec![b'a'; ALWAYS], &room, WEB);
        assert!(!kept.is_cut);
        kept.keep(b"b", &room, WEB);
        drop(other);
        kept.keep(b"c", &room, WEB);
        assert_eq!((kept.bytes.len(), kept.is_cut), (ALWAYS, true));
        assert_eq!(room.left(), 100);
    }

    #[test]
    fn execs_share_what_they_keep_beyond_the_first_64_kib() {
        let room = Room::of(ALWAYS);
        let mut all = [Kept::default(), Kept::default(), Kept::default()];
        for kept in &mut all {
            for _ in 0..2 {
                kept.keep(&vec![b'x'; ALWAYS], &room, WEB);
            }
        }
        let lengths = all.each_ref().map(|kept| kept.bytes.len());
        assert_eq!(lengths, [2 * ALWAYS, ALWAYS, ALWAYS]);
        drop(all);
        assert_eq!(room.left(), ALWAYS);
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_gives_its_room_back() {
        let (mut pipe, mut file) = pair();
        let room = Room::default();
        let call = {
            let room = room.clone();
            tokio::spawn(async move { Kept::default().read(Some(&mut pipe), &room, WEB).await })
        };
        // The writer stays: nothing but the drop ends the call.
        let (file, written) = tokio::task::spawn_blocking(move || {
            let written = file.write_all(&vec![b'x'; 1 << 20]);
            (file, written)
        })
        .await
        .unwrap();
        written.unwrap();
        while room.left() == SHARED {
            tokio::task::yield_now().await;
        }
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(room.left(), SHARED);
        drop(file);
    }
}

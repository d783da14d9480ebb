//! The output of an ExecSync, which the runtime keeps until it has been sent. Owns how much of it that is, for one exec
//! and for all of them together. Called by `exec::exec_sync`.

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::OwnedSemaphorePermit;

use crate::node::output_budget::OutputBudget;

/// Of each stream of an ExecSync; what comes after is read and dropped (CVE-2022-31030).
pub(super) const MOST: usize = 16 << 20;

/// Of each stream, whatever the others keep: probes need 10 KiB.
const ALWAYS: usize = 64 << 10;

/// What is read at once.
const PIECE: usize = 64 << 10;

/// Parts of the shared memory; dropped when the output has been sent, or nobody waits for it.
pub(crate) type OutputPermits = Vec<OwnedSemaphorePermit>;

/// Where a stream comes from, for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputOrigin<'a> {
    pub(super) container: &'a str,
    pub(super) stream: &'static str,
}

/// What has been read of one stream.
#[derive(Debug, Default)]
pub(super) struct CollectedOutput {
    pub(super) bytes: Vec<u8>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// There was no room: what comes later would not follow what is here.
    is_cut: bool,
}

impl CollectedOutput {
    /// Reads to the end of the stream.
    pub(super) async fn read(
        &mut self,
        pipe: Option<&mut pipe::Receiver>,
        budget: &OutputBudget,
        source: OutputOrigin<'_>,
    ) {
        let Some(pipe) = pipe else { return };
        let mut piece = vec![0u8; PIECE];
        // An error is the end of the output, too: there is nobody to tell.
        while let Ok(count @ 1..) = pipe.read(&mut piece).await {
            self.append(piece.get(..count).unwrap_or_default(), budget, source);
        }
    }

    fn append(&mut self, read: &[u8], budget: &OutputBudget, source: OutputOrigin<'_>) {
        if self.is_cut {
            return;
        }
        let most = read.len().min(MOST.saturating_sub(self.bytes.len()));
        let free = most.min(ALWAYS.saturating_sub(self.bytes.len()));
        let shared = most.saturating_sub(free);
        let mut count = most;
        if shared > 0 {
            match budget.try_take(shared) {
                Some(taken) => match &mut self.permit {
                    Some(held) => held.merge(taken),
                    None => self.permit = Some(taken),
                },
                None => {
                    (count, self.is_cut) = (free, true);
                    let OutputOrigin { container, stream } = source;
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
    use crate::node::output_budget::SHARED;

    const WEB: OutputOrigin<'static> = OutputOrigin { container: "web", stream: "stdout" };

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
        let (mut output, budget) = (CollectedOutput::default(), OutputBudget::default());
        output.read(Some(&mut pipe), &budget, WEB).await;
        writer.join().unwrap();
        assert_eq!(output.bytes.len(), MOST);
        assert_eq!(budget.left(), SHARED - MOST + ALWAYS);
    }

    #[tokio::test]
    async fn without_room_the_first_64_kib_are_kept_and_all_of_it_is_read() {
        let (mut pipe, mut file) = pair();
        let writer = std::thread::spawn(move || file.write_all(&vec![b'x'; 1 << 20]).unwrap());
        let (mut output, budget) = (CollectedOutput::default(), OutputBudget::with_bytes(0));
        output.read(Some(&mut pipe), &budget, WEB).await;
        // The program could write all of it.
        writer.join().unwrap();
        assert_eq!((output.bytes.len(), output.is_cut), (ALWAYS, true));
    }

    #[test]
    fn what_is_cut_stays_cut_when_there_is_room_again() {
        let (mut output, budget) = (CollectedOutput::default(), OutputBudget::with_bytes(100));
        let other = budget.try_take(100).unwrap();
        output.append(&vec![b'a'; ALWAYS], &budget, WEB);
        assert!(!output.is_cut);
        output.append(b"b", &budget, WEB);
        drop(other);
        output.append(b"c", &budget, WEB);
        assert_eq!((output.bytes.len(), output.is_cut), (ALWAYS, true));
        assert_eq!(budget.left(), 100);
    }

    #[test]
    fn execs_share_what_they_keep_beyond_the_first_64_kib() {
        let budget = OutputBudget::with_bytes(ALWAYS);
        let mut all = [CollectedOutput::default(), CollectedOutput::default(), CollectedOutput::default()];
        for output in &mut all {
            for _ in 0..2 {
                output.append(&vec![b'x'; ALWAYS], &budget, WEB);
            }
        }
        let lengths = all.each_ref().map(|output| output.bytes.len());
        assert_eq!(lengths, [2 * ALWAYS, ALWAYS, ALWAYS]);
        drop(all);
        assert_eq!(budget.left(), ALWAYS);
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_gives_its_room_back() {
        let (mut pipe, mut file) = pair();
        let budget = OutputBudget::default();
        let call = {
            let budget = budget.clone();
            tokio::spawn(async move { CollectedOutput::default().read(Some(&mut pipe), &budget, WEB).await })
        };
        // The writer stays: nothing but the drop ends the call.
        let (file, written) = tokio::task::spawn_blocking(move || {
            let written = file.write_all(&vec![b'x'; 1 << 20]);
            (file, written)
        })
        .await
        .unwrap();
        written.unwrap();
        while budget.left() == SHARED {
            tokio::task::yield_now().await;
        }
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(budget.left(), SHARED);
        drop(file);
    }
}

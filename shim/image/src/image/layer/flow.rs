//! The bytes of one layer on their way through the confined processes, hashed by the runtime on both
//! sides of the inflater. Owns the two loops that move them; judges nothing. Called by `layer`.
//!
//! ```text
//!   chunks ─► feed: sha256 ─► [inflate] ─► tap: tee(2), sha256 ─► [unpack] ─► verdict
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use tokio::sync::mpsc;

use super::disk_guard::{DiskGuard, PipeWaiter, worker};
use super::worker::{ProcessEnd, UnpackOptions, UnpackWorker};
use super::{Chunk, LayerError, MAX_ENTRIES};
use crate::image::digest::{Digest, Hasher};
use crate::image::manifest::LayerBlob;
use gantry_sys::task::Batches;
use gantry_unpack::{Packing, UnpackCommand, UnpackVerdict};

/// Stays in a core's own cache between the copy and the hash, and is little for each of sixteen layers.
const CHUNK: usize = 256 << 10;
/// Paths of directories that nobody described, escaped; far more than a layer may have. Text of this length takes
/// several times as much memory once it is read.
const MAX_VERDICT: u64 = 8 << 20;
/// Slower than this, in bytes a second, no processor inflates or hashes.
const SLOWEST: u64 = 16 << 20;
const LEAST_SECONDS: u64 = 60;
/// So much more is taken to know whether the bytes were those that were promised, when nobody unpacks them any more.
const WORTH: u64 = 1 << 20;

/// What came of it.
pub(super) struct Flow {
    pub(super) feed_result: FeedResult,
    /// What the inflater has to say for itself; nothing when there was none, or when it was stopped.
    pub(super) inflate_result: Result<(), LayerError>,
    pub(super) tap_result: Result<TapResult, LayerError>,
    pub(super) verdict: Result<UnpackVerdict, LayerError>,
}

/// The compressed side.
pub(super) struct FeedResult {
    pub(super) count: u64,
    pub(super) digest: Digest,
    pub(super) end: FeedEnd,
}

/// Why there was no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedEnd {
    /// The download said that it was complete.
    Whole,
    /// The download failed or was cancelled.
    GivenUp,
    /// The disk is full: what else comes is of no use.
    DiskFull,
    /// The processes have ended, and much was still to come.
    Aborted,
}

/// The inflated side.
pub(super) struct TapResult {
    pub(super) digest: Digest,
    pub(super) bomb: bool,
}

/// Moves all of it.
///
/// # Errors
/// When the processes can't be started.
pub(super) fn run(
    mut chunks: mpsc::Receiver<Chunk>,
    layer: &LayerBlob,
    folder: &Path,
    limit: u64,
    options: &UnpackOptions,
) -> Result<Flow, LayerError> {
    // The processes and the thread between them have it from here, and need no leave for it.
    let _batches = options.batches.then(Batches::begin);
    let (packing, size) = (layer.packing, layer.blob.size);
    let guard = DiskGuard::new(folder)?;
    let seconds = LEAST_SECONDS + limit / SLOWEST;
    let command =
        UnpackCommand::Unpack { folder: folder.to_owned(), entries: MAX_ENTRIES, bytes: limit, seconds };
    let mut unpack = UnpackWorker::start(options, &command)?;
    let archive = unpack.input.take();
    if packing == Packing::Plain {
        let fed = feed(&mut chunks, size, archive, &mut guard.waiter());
        let tapped = Ok(TapResult { digest: fed.digest, bomb: fed.count > limit });
        let verdict = verdict(&mut unpack, &guard, fed.end != FeedEnd::GivenUp);
        return Ok(Flow { feed_result: fed, inflate_result: Ok(()), tap_result: tapped, verdict });
    }
    let mut inflate = UnpackWorker::start(options, &UnpackCommand::Inflate { packing, seconds })?;
    let (bytes, inflated) = (inflate.input.take(), inflate.output.take());
    let (fed, tapped) = thread::scope(|scope| {
        let tap = scope.spawn(|| tap(inflated, archive, limit, &mut guard.waiter()));
        let fed = feed(&mut chunks, size, bytes, &mut guard.waiter());
        if fed.end == FeedEnd::GivenUp {
            // Nobody wants it any more, and neither may wait for what does not come.
            inflate.kill();
            unpack.kill();
        }
        (fed, tap.join().unwrap_or(Err(LayerError::Thread)))
    });
    let stopped = fed.end == FeedEnd::GivenUp || !matches!(&tapped, Ok(tapped) if !tapped.bomb);
    let verdict = verdict(&mut unpack, &guard, !stopped);
    let unheard = matches!(verdict, Ok(UnpackVerdict::Refused(_)) | Err(_));
    let inflated = if stopped { Ok(()) } else { check_inflater(&mut inflate, packing, unheard) };
    Ok(Flow { feed_result: fed, inflate_result: inflated, tap_result: tapped, verdict })
}

/// Hashes what comes and passes it on for as long as somebody takes it; to the end where that is near, since only all
/// of it tells whether the bytes were those that were promised.
fn feed(
    chunks: &mut mpsc::Receiver<Chunk>,
    size: u64,
    mut to: Option<File>,
    waiter: &mut PipeWaiter<'_>,
) -> FeedResult {
    let (mut hasher, mut count, mut end) = (Hasher::new(), 0, FeedEnd::GivenUp);
    while let Some(next) = chunks.blocking_recv() {
        let Chunk::Bytes(chunk, _permit) = next else {
            end = FeedEnd::Whole;
            break;
        };
        hasher.update(&chunk);
        count += chunk.len() as u64;
        if let Some(file) = &mut to
            && write(file, &chunk, waiter).is_err()
        {
            // Its reader has ended, or takes nothing: the other side knows why.
            to = None;
            if waiter.is_full() {
                end = FeedEnd::DiskFull;
                break;
            }
        }
        if to.is_none() && size.saturating_sub(count) > WORTH {
            end = FeedEnd::Aborted;
            break;
        }
    }
    FeedResult { count, digest: hasher.finish(), end }
}

fn write(file: &mut File, mut bytes: &[u8], waiter: &mut PipeWaiter<'_>) -> Result<(), LayerError> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                waiter.wait(&*file, PollFlags::OUT)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(LayerError::Worker { operation: "write to", source: Arc::new(source) });
            }
        }
    }
    Ok(())
}

/// Passes the inflater's output on by reference and hashes the same bytes: neither process can show the
/// other anything that was not hashed.
fn tap(
    from: Option<File>,
    to: Option<File>,
    limit: u64,
    waiter: &mut PipeWaiter<'_>,
) -> Result<TapResult, LayerError> {
    let mut hasher = Hasher::new();
    let (Some(mut from), Some(to)) = (from, to) else {
        return Ok(TapResult { digest: hasher.finish(), bomb: false });
    };
    let mut buffer = vec![0; CHUNK];
    let mut left = limit;
    loop {
        waiter.wait(&to, PollFlags::OUT)?;
        let count = match rustix::pipe::tee(&from, &to, CHUNK, SpliceFlags::empty()) {
            // The unpacker has seen enough, and says why.
            Ok(0) | Err(Errno::PIPE) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            // Since one end never blocks, neither does this, and it looks for bytes before it looks for a reader.
            Err(Errno::AGAIN) => match waiter.wait_for_more(&from, &to)? {
                true => continue,
                false => break,
            },
            Err(errno) => return Err(worker("pass bytes to")(errno)),
        };
        let chunk = &mut buffer[..count];
        from.read_exact(chunk)
            .map_err(|source| LayerError::Worker { operation: "read from", source: Arc::new(source) })?;
        hasher.update(chunk);
        let Some(rest) = left.checked_sub(count as u64) else {
            return Ok(TapResult { digest: hasher.finish(), bomb: true });
        };
        left = rest;
    }
    Ok(TapResult { digest: hasher.finish(), bomb: false })
}

/// The unpacker's last word. `patient`: it has had all that there is.
fn verdict(unpack: &mut UnpackWorker, guard: &DiskGuard, patient: bool) -> Result<UnpackVerdict, LayerError> {
    let killed = |detail: String| LayerError::Killed { which: "unpacker", detail };
    if !patient {
        unpack.kill();
    }
    let mut text = Vec::new();
    if let Some(mut output) = unpack.output.take() {
        let mut waiter = guard.waiter();
        let mut buffer = vec![0; 64 << 10];
        loop {
            waiter.wait(&output, PollFlags::IN)?;
            match output.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) if (text.len() + count) as u64 > MAX_VERDICT => {
                    let detail = "the layer has too many directories that no entry of it describes";
                    return Err(killed(detail.to_owned()));
                }
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(LayerError::Worker { operation: "read from", source: Arc::new(source) });
                }
            }
        }
    }
    let end = unpack.end()?;
    match serde_json::from_slice(&text) {
        Ok(verdict) if end == ProcessEnd::Done => Ok(verdict),
        _ => Err(killed(end.detail())),
    }
}

/// `unheard`: the unpacker stopped listening, and the inflater may only have noticed that.
fn check_inflater(inflate: &mut UnpackWorker, packing: Packing, unheard: bool) -> Result<(), LayerError> {
    match inflate.end()? {
        ProcessEnd::Done => Ok(()),
        ProcessEnd::Code(74) if unheard => Ok(()),
        ProcessEnd::Code(code @ (2 | 3)) => {
            let detail = gantry_unpack::ProgramError::of_exit_code(code).unwrap_or_default();
            Err(LayerError::Inflate { packing: packing.name(), detail })
        }
        ProcessEnd::Code(4) => Err(LayerError::Window),
        end => Err(LayerError::Killed { which: "inflater", detail: end.detail() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::switches::{Optimisation, Switches};

    /// A pipe whose write end never blocks, as a worker's.
    fn pipe() -> (File, File) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        (reader.into(), writer.into())
    }

    #[test]
    fn one_that_has_nothing_to_pass_on_sleeps() {
        let folder = tempfile::tempdir().unwrap();
        let guard = DiskGuard::new(folder.path()).unwrap();
        let (from, mut inflater) =
            rustix::pipe::pipe().map(|(from, to)| (File::from(from), File::from(to))).unwrap();
        let (mut unpacker, to) = pipe();
        let mut waiter = guard.waiter();
        thread::scope(|scope| {
            let waiter = &mut waiter;
            let tapping = scope.spawn(move || tap(Some(from), Some(to), 100, waiter));
            for _ in 0..3 {
                inflater.write_all(b"abc").unwrap();
                let mut passed = [0; 3];
                unpacker.read_exact(&mut passed).unwrap();
                assert_eq!(&passed, b"abc");
                thread::sleep(std::time::Duration::from_millis(50));
            }
            drop(inflater);
            let tapped = tapping.join().unwrap().unwrap();
            assert_eq!((tapped.digest, tapped.bomb), (Digest::of(b"abcabcabc"), false));
        });
        // Twice for each chunk and once for the end. A loop that does not sleep comes to thousands.
        assert!(waiter.waits() <= 12, "{}", waiter.waits());
    }

    /// Theirs from the start, and this thread's for no longer than the layer takes.
    #[test]
    fn whoever_moves_a_layer_leaves_the_processor_to_those_that_wait_for_an_answer() {
        const USUAL: &str = "0";
        const BATCH: &str = "3";
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        // Written by another process: a file that this one's other threads take along when they fork can't be executed.
        let script = r#"printf '#!/bin/sh\ncut -d" " -f41 /proc/$$/stat > %s/$1\n' "$0" > "$0/program"; chmod 755 "$0/program""#;
        let status = std::process::Command::new("sh").args(["-c", script]).arg(folder.path()).status();
        assert!(status.unwrap().success());
        let policy = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap();
            text.rsplit(')').next().unwrap().split_whitespace().nth(38).map(str::to_owned)
        };
        let own = || policy(Path::new("/proc/thread-self/stat"));
        let before = own();
        let blob = crate::image::manifest::Blob { digest: Digest::of(b""), size: 0 };
        let layer = LayerBlob { blob, packing: Packing::Gzip };
        for (without, wanted) in [(vec![], BATCH), (vec![Optimisation::Batches], USUAL)] {
            let (send, chunks) = mpsc::channel(1);
            send.blocking_send(Chunk::End).unwrap();
            let unpacker = super::super::Unpacker::Program(program.clone());
            let options = UnpackOptions::new(unpacker, &Switches::without(without));
            run(chunks, &layer, folder.path(), 1, &options).unwrap();
            for name in ["inflate", "unpack"] {
                let found = std::fs::read_to_string(folder.path().join(name)).unwrap();
                assert_eq!(found.trim(), wanted, "{name}");
            }
            assert_eq!(own(), before);
        }
    }

    #[test]
    fn one_that_has_nobody_to_pass_it_on_to_ends() {
        let folder = tempfile::tempdir().unwrap();
        let guard = DiskGuard::new(folder.path()).unwrap();
        let (from, _inflater) =
            rustix::pipe::pipe().map(|(from, to)| (File::from(from), File::from(to))).unwrap();
        let (unpacker, to) = pipe();
        thread::scope(|scope| {
            let guard = &guard;
            let tapping = scope.spawn(move || tap(Some(from), Some(to), 100, &mut guard.waiter()));
            thread::sleep(std::time::Duration::from_millis(50));
            drop(unpacker);
            assert!(!tapping.join().unwrap().unwrap().bomb);
        });
    }
}

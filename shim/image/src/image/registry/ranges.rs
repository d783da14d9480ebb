//! The later part of a blob by several connections at a time, in order. Owns a task that asks for range after range
//! as it may, and one for each range: they read on while whoever takes the bytes is busy, and end when this
//! is dropped. Decides nothing about when. Called by `download`.
//!
//! ```text
//!             ┌ asks, while there are permits and places ─┐
//!   conductor ┼─► range 3 ─► file ┐                     ▼
//!             ├─► range 4 ─► file ┼─► queue, in order ─► chunk(), which frees the place
//!             └─► range 5 ─► file ┘
//! ```

#![expect(clippy::disallowed_methods, reason = "the handle aborts the task when it is dropped")]

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use reqwest::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::RegistryError;
use super::download::{BlobSource, ByteSpan, TRIES, is_cut};
use super::http_client::ThroughputGuard;
use super::range_limit::{RangePermit, RangeQuota};
use super::range_spool::{RangeSpool, SpoolFile};

/// Bytes asked for at once: long enough that a round trip between two does not count.
pub(super) const RANGE_BYTES: u64 = 4 << 20;
/// What is written or read at a time: enough that handing it to a thread does not count.
const BLOCK: usize = 256 << 10;

/// What the host said to the first question.
type FirstAnswer = Arc<OnceLock<Result<(), RegistryError>>>;
/// How many bytes of the range are there.
type StoredBytes = mpsc::UnboundedReceiver<Result<u64, RegistryError>>;

/// All of a blob from one place on.
#[derive(Debug)]
pub(super) struct RangeDownload {
    start: u64,
    first_answer: FirstAnswer,
    queue: mpsc::UnboundedReceiver<Result<BlobRange, RegistryError>>,
    now: Option<BlobRange>,
    /// Bytes at the beginning that came by another way.
    duplicate_bytes: u64,
    _conductor: AbortOnDrop,
}

/// One range, here or on its way.
#[derive(Debug)]
struct BlobRange {
    stored: StoredBytes,
    file: SpoolFile,
    url: String,
    wanted: u64,
    available: u64,
    delivered: u64,
    _permit: OwnedSemaphorePermit,
    _task: AbortOnDrop,
}

/// Ended when it is dropped.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RangeDownload {
    /// Asks for all from `start` on. `known`: the host serves ranges, so that several may be asked for at once.
    pub(super) fn begin(
        source: &Arc<BlobSource>,
        quota: RangeQuota,
        spool: RangeSpool,
        start: u64,
        known: bool,
    ) -> Self {
        let (send, queue) = mpsc::unbounded_channel();
        let opened = FirstAnswer::default();
        if known {
            // Nobody else has it yet.
            let _ = opened.set(Ok(()));
        }
        let conductor = request_ranges(Arc::clone(source), quota, spool, start, Arc::clone(&opened), send);
        Self {
            start,
            first_answer: opened,
            queue,
            now: None,
            duplicate_bytes: 0,
            _conductor: AbortOnDrop::spawn(conductor),
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// What the host says; None: nothing yet.
    pub(super) fn answer(&self) -> Option<&Result<(), RegistryError>> {
        self.first_answer.get()
    }

    /// Leaves out what lies before `at`.
    pub(super) fn skip_to(&mut self, at: u64) {
        self.duplicate_bytes = at.saturating_sub(self.start);
    }

    /// The next bytes; None behind the last.
    ///
    /// # Errors
    /// Those of the range whose turn it is.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let Some(range) = self.now.as_mut() else {
                match self.queue.recv().await {
                    Some(range) => self.now = Some(range?),
                    None => return Ok(None),
                }
                continue;
            };
            let doubled = self.duplicate_bytes.min(range.available - range.delivered);
            (self.duplicate_bytes, range.delivered) =
                (self.duplicate_bytes - doubled, range.delivered + doubled);
            if range.delivered == range.wanted {
                self.now = None;
                continue;
            }
            if range.delivered == range.available {
                match range.stored.recv().await {
                    Some(there) => range.available = there?,
                    None => return Err(range.short()),
                }
                continue;
            }
            let length =
                usize::try_from(range.available - range.delivered).map_or(BLOCK, |ready| ready.min(BLOCK));
            let chunk = range.file.read(range.delivered, length).await?;
            range.delivered += chunk.len() as u64;
            return Ok(Some(chunk));
        }
    }
}

impl BlobRange {
    /// `open`: its answer, where it has come already.
    fn begin(
        source: &Arc<BlobSource>,
        span: ByteSpan,
        open: Option<Response>,
        permit: RangePermit,
        (file, place): (SpoolFile, OwnedSemaphorePermit),
    ) -> Self {
        let (send, stored) = mpsc::unbounded_channel();
        let block =
            RangeBuffer { file: file.clone(), bytes: Vec::with_capacity(2 * BLOCK), stored: 0, to: send };
        let task = AbortOnDrop::spawn(fetch(Arc::clone(source), span, open, permit, block));
        let (url, wanted) = (source.url().to_owned(), span.to - span.from);
        Self { stored, file, url, wanted, available: 0, delivered: 0, _permit: place, _task: task }
    }

    fn short(&self) -> RegistryError {
        RegistryError::Size { url: self.url.clone(), wanted: self.wanted, found: self.available }
    }
}

/// What has come of a range and is not on the spool yet.
struct RangeBuffer {
    file: SpoolFile,
    bytes: Vec<u8>,
    stored: u64,
    to: mpsc::UnboundedSender<Result<u64, RegistryError>>,
}

impl RangeBuffer {
    async fn append(&mut self, chunk: &[u8]) -> Result<(), RegistryError> {
        self.bytes.extend_from_slice(chunk);
        if self.bytes.len() >= BLOCK { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), RegistryError> {
        self.bytes = self.file.write(self.stored, std::mem::take(&mut self.bytes)).await?;
        self.stored += self.bytes.len() as u64;
        self.bytes.clear();
        // Whoever does not listen any more ends this task.
        let _ = self.to.send(Ok(self.stored));
        Ok(())
    }
}

/// Asks for one range after the other. Each has its place before it is asked for, and none waits for whoever takes the
/// bytes once it is: so the permits of one download never wait for another's reader.
async fn request_ranges(
    source: Arc<BlobSource>,
    quota: RangeQuota,
    spool: RangeSpool,
    start: u64,
    opened: FirstAnswer,
    queue: mpsc::UnboundedSender<Result<BlobRange, RegistryError>>,
) {
    let places = Arc::new(Semaphore::new(spool.capacity()));
    let mut asked = start;
    while asked < source.size() {
        let span = ByteSpan { from: asked, to: source.size().min(asked + RANGE_BYTES) };
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let permit = quota.acquire().await;
        let file = match spool.create_file().await {
            Ok(file) => file,
            Err(error) => {
                // Before the first question it is the answer to it.
                let _ = opened.set(Err(error.clone()));
                let _ = queue.send(Err(error));
                return;
            }
        };
        let open = match opened.get() {
            Some(_) => None,
            None => {
                let answer = source.open_range(span).await;
                let said = answer.as_ref().map(|_| ()).map_err(RegistryError::clone);
                source.record_range_support(&said);
                // Nobody but this task sets it.
                let _ = opened.set(said);
                match answer {
                    Ok(response) => Some(response),
                    Err(_) => return,
                }
            }
        };
        if queue.send(Ok(BlobRange::begin(&source, span, open, permit, (file, place)))).is_err() {
            return;
        }
        asked = span.to;
    }
}

/// One range, asked for again from where it was cut.
async fn fetch(
    source: Arc<BlobSource>,
    span: ByteSpan,
    mut open: Option<Response>,
    _permit: RangePermit,
    mut block: RangeBuffer,
) {
    let (mut at, mut tries) = (span.from, 0);
    let done = loop {
        if at == span.to {
            break block.flush().await;
        }
        match read(&source, ByteSpan { from: at, ..span }, open.take(), &mut at, &mut block).await {
            Ok(()) => {}
            Err(error) if is_cut(&error) && tries < TRIES => tries += 1,
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = done {
        let _ = block.to.send(Err(error));
    }
}

async fn read(
    source: &BlobSource,
    span: ByteSpan,
    open: Option<Response>,
    at: &mut u64,
    block: &mut RangeBuffer,
) -> Result<(), RegistryError> {
    let mut response = match open {
        Some(response) => response,
        None => source.open_range(span).await?,
    };
    let mut throughput = ThroughputGuard::new(source.limits());
    let wanted = span.to - span.from;
    let mut found = 0;
    while let Some(chunk) = throughput.chunk(&mut response, source.url()).await? {
        found += chunk.len() as u64;
        if found > wanted {
            return Err(RegistryError::Range { url: source.url().to_owned() });
        }
        *at += chunk.len() as u64;
        block.append(&chunk).await?;
    }
    // An answer without a length that ends with its connection looks whole.
    if found < wanted { Err(source.size_error(wanted, found)) } else { Ok(()) }
}

//! The later part of a blob by several connections at a time, in order. Owns a task that asks for piece after piece
//! as it may, and one for each piece: they read on while whoever takes the bytes is busy, and end when this
//! is dropped. Decides nothing about when. Called by `download`.
//!
//! ```text
//!             ┌ asks, while there are lanes and places ─┐
//!   conductor ┼─► piece 3 ─► file ┐                     ▼
//!             ├─► piece 4 ─► file ┼─► queue, in order ─► chunk(), which frees the place
//!             └─► piece 5 ─► file ┘
//! ```

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use reqwest::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::RegistryError;
use super::download::{Source, Span, TRIES, is_cut};
use super::http_client::Pace;
use super::lanes::{Lane, Seat};
use super::shelf::{Shelf, Shelved};

/// Bytes asked for at once: long enough that a round trip between two does not count.
pub(super) const PIECE: u64 = 4 << 20;
/// What is written or read at a time: enough that handing it to a thread does not count.
const BLOCK: usize = 256 << 10;

/// What the host said to the first question.
type Opened = Arc<OnceLock<Result<(), RegistryError>>>;
/// How many bytes of the piece are there.
type Stored = mpsc::UnboundedReceiver<Result<u64, RegistryError>>;

/// All of a blob from one place on.
#[derive(Debug)]
pub(super) struct Pieces {
    start: u64,
    opened: Opened,
    queue: mpsc::UnboundedReceiver<Result<Piece, RegistryError>>,
    now: Option<Piece>,
    /// Bytes at the beginning that came by another way.
    doubled: u64,
    _conductor: Task,
}

/// One piece, here or on its way.
#[derive(Debug)]
struct Piece {
    stored: Stored,
    file: Shelved,
    url: String,
    wanted: u64,
    there: u64,
    handed_on: u64,
    _place: OwnedSemaphorePermit,
    _task: Task,
}

/// Ended when it is dropped.
#[derive(Debug)]
struct Task(AbortHandle);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pieces {
    /// Asks for all from `start` on. `known`: the host serves pieces, so that several may be asked for at once.
    pub(super) fn begin(source: &Arc<Source>, seat: Seat, shelf: Shelf, start: u64, known: bool) -> Self {
        let (send, queue) = mpsc::unbounded_channel();
        let opened = Opened::default();
        if known {
            // Nobody else has it yet.
            let _ = opened.set(Ok(()));
        }
        let conductor = conduct(Arc::clone(source), seat, shelf, start, Arc::clone(&opened), send);
        Self { start, opened, queue, now: None, doubled: 0, _conductor: Task::spawn(conductor) }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// What the host says; None: nothing yet.
    pub(super) fn answer(&self) -> Option<&Result<(), RegistryError>> {
        self.opened.get()
    }

    /// Leaves out what lies before `at`.
    pub(super) fn skip_to(&mut self, at: u64) {
        self.doubled = at.saturating_sub(self.start);
    }

    /// The next bytes; None behind the last.
    ///
    /// # Errors
    /// Those of the piece whose turn it is.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let Some(piece) = self.now.as_mut() else {
                match self.queue.recv().await {
                    Some(piece) => self.now = Some(piece?),
                    None => return Ok(None),
                }
                continue;
            };
            let doubled = self.doubled.min(piece.there - piece.handed_on);
            (self.doubled, piece.handed_on) = (self.doubled - doubled, piece.handed_on + doubled);
            if piece.handed_on == piece.wanted {
                self.now = None;
                continue;
            }
            if piece.handed_on == piece.there {
                match piece.stored.recv().await {
                    Some(there) => piece.there = there?,
                    None => return Err(piece.short()),
                }
                continue;
            }
            let length =
                usize::try_from(piece.there - piece.handed_on).map_or(BLOCK, |ready| ready.min(BLOCK));
            let chunk = piece.file.get(piece.handed_on, length).await?;
            piece.handed_on += chunk.len() as u64;
            return Ok(Some(chunk));
        }
    }
}

impl Piece {
    /// `open`: its answer, where it has come already.
    fn begin(
        source: &Arc<Source>,
        span: Span,
        open: Option<Response>,
        lane: Lane,
        (file, place): (Shelved, OwnedSemaphorePermit),
    ) -> Self {
        let (send, stored) = mpsc::unbounded_channel();
        let block = Block { file: file.clone(), bytes: Vec::with_capacity(2 * BLOCK), stored: 0, to: send };
        let task = Task::spawn(fetch(Arc::clone(source), span, open, lane, block));
        let (url, wanted) = (source.url().to_owned(), span.to - span.from);
        Self { stored, file, url, wanted, there: 0, handed_on: 0, _place: place, _task: task }
    }

    fn short(&self) -> RegistryError {
        RegistryError::Size { url: self.url.clone(), wanted: self.wanted, found: self.there }
    }
}

/// What has come of a piece and is not on the shelf yet.
struct Block {
    file: Shelved,
    bytes: Vec<u8>,
    stored: u64,
    to: mpsc::UnboundedSender<Result<u64, RegistryError>>,
}

impl Block {
    async fn take(&mut self, chunk: &[u8]) -> Result<(), RegistryError> {
        self.bytes.extend_from_slice(chunk);
        if self.bytes.len() >= BLOCK { self.put().await } else { Ok(()) }
    }

    async fn put(&mut self) -> Result<(), RegistryError> {
        self.bytes = self.file.put(self.stored, std::mem::take(&mut self.bytes)).await?;
        self.stored += self.bytes.len() as u64;
        self.bytes.clear();
        // Whoever does not listen any more ends this task.
        let _ = self.to.send(Ok(self.stored));
        Ok(())
    }
}

/// Asks for one piece after the other. Each has its place before it is asked for, and none waits for whoever takes the
/// bytes once it is: so the lanes of one download never wait for another's reader.
async fn conduct(
    source: Arc<Source>,
    seat: Seat,
    shelf: Shelf,
    start: u64,
    opened: Opened,
    queue: mpsc::UnboundedSender<Result<Piece, RegistryError>>,
) {
    let places = Arc::new(Semaphore::new(shelf.places()));
    let mut asked = start;
    while asked < source.size() {
        let span = Span { from: asked, to: source.size().min(asked + PIECE) };
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let lane = seat.lane().await;
        let file = match shelf.file().await {
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
                let answer = source.span(span).await;
                let said = answer.as_ref().map(|_| ()).map_err(RegistryError::clone);
                source.learn(&said);
                // Nobody but this task sets it.
                let _ = opened.set(said);
                match answer {
                    Ok(response) => Some(response),
                    Err(_) => return,
                }
            }
        };
        if queue.send(Ok(Piece::begin(&source, span, open, lane, (file, place)))).is_err() {
            return;
        }
        asked = span.to;
    }
}

/// One piece, asked for again from where it was cut.
async fn fetch(source: Arc<Source>, span: Span, mut open: Option<Response>, _lane: Lane, mut block: Block) {
    let (mut at, mut tries) = (span.from, 0);
    let done = loop {
        if at == span.to {
            break block.put().await;
        }
        match read(&source, Span { from: at, ..span }, open.take(), &mut at, &mut block).await {
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
    source: &Source,
    span: Span,
    open: Option<Response>,
    at: &mut u64,
    block: &mut Block,
) -> Result<(), RegistryError> {
    let mut response = match open {
        Some(response) => response,
        None => source.span(span).await?,
    };
    let mut pace = Pace::new(source.patience());
    let wanted = span.to - span.from;
    let mut found = 0;
    while let Some(chunk) = pace.chunk(&mut response, source.url()).await? {
        found += chunk.len() as u64;
        if found > wanted {
            return Err(RegistryError::Range { url: source.url().to_owned() });
        }
        *at += chunk.len() as u64;
        block.take(&chunk).await?;
    }
    // An answer without a length that ends with its connection looks whole.
    if found < wanted { Err(source.short(wanted, found)) } else { Ok(()) }
}

//! The later part of a blob by several connections at a time, in order. Owns a task that asks for piece after piece
//! as room comes free, and one for each piece: they read on while whoever takes the bytes is busy, and end when this
//! is dropped. Decides nothing about when. Called by `download`.
//!
//! ```text
//!             ┌ asks, while there is room ─┐
//!   conductor ┼─► piece 3 ─► chunks ┐      ▼
//!             ├─► piece 4 ─► chunks ┼─► queue, in order ─► chunk(), which gives the room back
//!             └─► piece 5 ─► chunks ┘
//! ```

use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::RegistryError;
use super::download::{Source, Span, TRIES, is_cut};
use super::http_client::Pace;
use super::rooms::{PIECE, Room, Seat};

/// What the host said to the first question.
type Opened = Arc<OnceLock<Result<(), RegistryError>>>;
type Chunks = mpsc::UnboundedReceiver<Result<Bytes, RegistryError>>;

/// All of a blob from one place on.
#[derive(Debug)]
pub(super) struct Pieces {
    start: u64,
    opened: Opened,
    queue: mpsc::UnboundedReceiver<Piece>,
    now: Option<Piece>,
    /// Bytes at the beginning that came by another way.
    doubled: u64,
    _conductor: Task,
}

/// One piece, here or on its way.
#[derive(Debug)]
struct Piece {
    /// Bounded by the room.
    chunks: Chunks,
    url: String,
    wanted: u64,
    left: u64,
    room: Room,
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
    pub(super) fn begin(source: &Arc<Source>, seat: Seat, start: u64, known: bool) -> Self {
        let (send, queue) = mpsc::unbounded_channel();
        let opened = Opened::default();
        if known {
            // Nobody else has it yet.
            let _ = opened.set(Ok(()));
        }
        let conductor = conduct(Arc::clone(source), seat, start, Arc::clone(&opened), send);
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
                    Some(piece) => self.now = Some(piece),
                    None => return Ok(None),
                }
                continue;
            };
            let Some(chunk) = piece.chunks.recv().await else {
                if piece.left > 0 {
                    return Err(piece.short());
                }
                self.now = None;
                continue;
            };
            let mut chunk = chunk?;
            let length = chunk.len() as u64;
            piece.left = piece.left.saturating_sub(length);
            piece.room.give_back(length);
            let doubled = self.doubled.min(length);
            self.doubled -= doubled;
            chunk.advance(usize::try_from(doubled).unwrap_or(chunk.len()));
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }
}

impl Piece {
    /// `open`: its answer, where it has come already.
    fn begin(source: &Arc<Source>, span: Span, open: Option<Response>, room: Room) -> Self {
        let (send, chunks) = mpsc::unbounded_channel();
        let task = Task::spawn(fetch(Arc::clone(source), span, open, send));
        let wanted = span.to - span.from;
        Self { chunks, url: source.url().to_owned(), wanted, left: wanted, room, _task: task }
    }

    fn short(&self) -> RegistryError {
        RegistryError::Size { url: self.url.clone(), wanted: self.wanted, found: self.wanted - self.left }
    }
}

/// Asks for one piece after the other. Each has its room before it is asked for, and so the one that is handed on
/// next never waits for room that those behind it hold.
async fn conduct(
    source: Arc<Source>,
    seat: Seat,
    start: u64,
    opened: Opened,
    queue: mpsc::UnboundedSender<Piece>,
) {
    let mut asked = start;
    while asked < source.size() {
        let span = Span { from: asked, to: source.size().min(asked + PIECE) };
        let room = seat.room(span.to - span.from).await;
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
        if queue.send(Piece::begin(&source, span, open, room)).is_err() {
            return;
        }
        asked = span.to;
    }
}

/// One piece, asked for again from where it was cut.
async fn fetch(
    source: Arc<Source>,
    span: Span,
    mut open: Option<Response>,
    to: mpsc::UnboundedSender<Result<Bytes, RegistryError>>,
) {
    let (mut at, mut tries) = (span.from, 0);
    while at < span.to {
        let rest = Span { from: at, ..span };
        let done = read(&source, rest, open.take(), |chunk| {
            at += chunk.len() as u64;
            // A part of a connection's buffer keeps all of it, which may be several times as much, for as long as it
            // waits for its turn. Whoever does not listen any more ends this task.
            let _ = to.send(Ok(Bytes::copy_from_slice(&chunk)));
        });
        match done.await {
            Ok(()) => {}
            Err(error) if is_cut(&error) && tries < TRIES => tries += 1,
            Err(error) => {
                let _ = to.send(Err(error));
                return;
            }
        }
    }
}

async fn read(
    source: &Source,
    span: Span,
    open: Option<Response>,
    mut take: impl FnMut(Bytes),
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
        take(chunk);
    }
    // An answer without a length that ends with its connection looks whole.
    if found < wanted { Err(source.short(wanted, found)) } else { Ok(()) }
}

//! A blob on its way: one answer after the other, or pieces of it by several connections at a time, in order.
//! Owns when a large blob is asked for in pieces, and what is asked again after a cut; counts and hashes
//! nothing. Called by `registry`.
//!
//! ```text
//! one answer ──slow, and large──▶ pieces, several at a time
//!     │  └──cut──▶ the rest of it     │   └──cut──▶ the rest of the piece
//!     ▼              └──not to be had─┼─▶ the error
//!    end                              └──refused──▶ one answer with the rest of all
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesOrdered, StreamExt};
use http::StatusCode;
use http::header::CONTENT_RANGE;
use reqwest::Response;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::http_client::{Pace, shown};
use super::patience::{Since, patiently};
use super::{Endpoint, RegistryError};
use crate::image::manifest::Blob;

/// Bytes asked for at once: long enough that a round trip between two does not count.
pub(super) const PIECE: u64 = 4 << 20;
/// Pieces of all layers together that are on their way or wait for their turn: 28 MiB.
pub(super) const PIECES: usize = 7;
/// After so many bytes it is seen what the download waits for.
const LOOK: u64 = 2 << 20;
/// Cuts in a row, without a piece in between, after which a registry is given up.
const TRIES: u32 = 3;
/// A blob on its way: bytes neither counted nor hashed yet.
pub(crate) struct Download<'a> {
    endpoint: &'a Endpoint,
    blob: &'a Blob,
    url: String,
    /// None: in pieces from here on.
    response: Option<(Response, Pace)>,
    /// Handed out.
    at: u64,
    waited: Duration,
    /// When the next look is due; None: pieces are not to be had.
    look: Option<u64>,
    tries: u32,
    pieces: FuturesOrdered<BoxFuture<'a, Result<Piece, RegistryError>>>,
    /// Asked for up to here.
    asked: u64,
    ready: Option<Piece>,
}

/// A piece that is here.
struct Piece {
    chunks: VecDeque<Bytes>,
    _room: OwnedSemaphorePermit,
}

/// What one part of a blob is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) from: u64,
    /// Behind the last byte.
    pub(super) to: u64,
}

impl<'a> Download<'a> {
    pub(super) fn new(endpoint: &'a Endpoint, blob: &'a Blob, url: String, response: Response) -> Self {
        let pace = Pace::new(endpoint.http.patience());
        Self {
            endpoint,
            blob,
            url,
            response: Some((response, pace)),
            at: 0,
            waited: Duration::ZERO,
            look: endpoint.http.in_pieces().then_some(LOOK),
            tries: 0,
            pieces: FuturesOrdered::new(),
            asked: 0,
            ready: None,
        }
    }

    /// What an error about these bytes should name.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The next bytes; None at the end of the answer, which need not be that of the blob.
    ///
    /// # Errors
    /// `Stalled`, `Slow`, `Lost`.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let began = Instant::now();
        let chunk = loop {
            let next = match &mut self.response {
                Some((response, pace)) => pace.chunk(response, &self.url).await,
                None => self.piece().await,
            };
            match next {
                Err(error) if self.response.is_none() => self.give_up_pieces(error).await?,
                Err(error) if is_cut(&error) => self.resume(error).await?,
                other => break other?,
            }
        };
        self.waited += began.elapsed();
        let Some(chunk) = chunk else { return Ok(None) };
        self.at += chunk.len() as u64;
        if self.look.is_some_and(|look| self.at >= look) && self.response.is_some() {
            self.consider().await;
        }
        Ok(Some(chunk))
    }

    /// Asks for what is missing after a cut, at the same place.
    async fn resume(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        self.tries += 1;
        if self.tries > TRIES || self.at == 0 {
            return Err(error);
        }
        let rest = Span { from: self.at, to: self.blob.size };
        // Whoever has no ranges, or is gone, has failed by what came first.
        let Ok(Some(response)) = self.rest(rest).await else { return Err(error) };
        tracing::info!(url = self.url, at = self.at, "a download goes on after a cut");
        self.response = Some((response, Pace::new(self.endpoint.http.patience())));
        Ok(())
    }

    /// Not of `&self`: pieces under way can't be shared between threads.
    fn rest(&self, rest: Span) -> impl Future<Output = Result<Option<Response>, RegistryError>> + use<'a> {
        let (endpoint, blob) = (self.endpoint, self.blob);
        async move { patiently(Since::Bytes, || endpoint.span(blob, rest)).await }
    }

    /// Goes on by one connection: many at a time, and short questions, are just what a registry may limit that gives
    /// the whole of a blob to anybody.
    async fn give_up_pieces(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        tracing::info!(url = self.url, at = self.at, "no more pieces: {}", crate::error::chain(&error));
        self.look = None;
        self.asked = self.blob.size;
        // Their connections close and their rooms are free.
        self.pieces = FuturesOrdered::new();
        let rest = Span { from: self.at, to: self.blob.size };
        // Something else than before answers where there is none: that does not get better by asking again.
        if let Ok(Some(response)) = self.rest(rest).await {
            self.response = Some((response, Pace::new(self.endpoint.http.patience())));
            return Ok(());
        }
        Err(error)
    }

    /// Goes on in pieces if one connection is slow, the node waits for it and the registry can.
    async fn consider(&mut self) {
        self.tries = 0;
        // Where the disk is slower than the network there is little to wait for.
        let rate = self.at as f64 / self.waited.as_secs_f64();
        if rate >= self.endpoint.http.patience().slow || self.blob.size < self.at + 2 * PIECE {
            self.look = Some(self.at + LOOK);
            return;
        }
        let Ok(room) = self.endpoint.http.pieces().try_acquire_owned() else {
            self.look = Some(self.at + LOOK);
            return;
        };
        let span = Span { from: self.at, to: self.at + PIECE };
        let Ok(Some(response)) = self.endpoint.span(self.blob, span).await else {
            self.look = None;
            return;
        };
        self.response = None;
        self.asked = span.to;
        let (endpoint, blob) = (self.endpoint, self.blob);
        self.pieces.push_back(fetch(endpoint, blob, span, Some(response), room).boxed());
    }

    /// The next bytes of the pieces.
    async fn piece(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            if let Some(chunk) = self.ready.as_mut().and_then(|piece| piece.chunks.pop_front()) {
                return Ok(Some(chunk));
            }
            // Its room is another's now.
            self.ready = None;
            self.ask().await;
            match self.pieces.next().await {
                Some(piece) => self.ready = Some(piece?),
                None => return Ok(None),
            }
        }
    }

    /// Asks for as many pieces as there is room for; for one at least.
    async fn ask(&mut self) {
        while self.asked < self.blob.size {
            let free = self.endpoint.http.pieces();
            let room = match free.clone().try_acquire_owned() {
                Ok(room) => room,
                Err(_) if !self.pieces.is_empty() => return,
                // Never closed.
                Err(_) => match free.acquire_owned().await {
                    Ok(room) => room,
                    Err(_) => return,
                },
            };
            let span = Span { from: self.asked, to: self.blob.size.min(self.asked + PIECE) };
            self.asked = span.to;
            let (endpoint, blob) = (self.endpoint, self.blob);
            self.pieces.push_back(fetch(endpoint, blob, span, None, room).boxed());
        }
    }
}

/// One piece, asked for again from where it was cut.
async fn fetch(
    endpoint: &Endpoint,
    blob: &Blob,
    span: Span,
    mut open: Option<Response>,
    room: OwnedSemaphorePermit,
) -> Result<Piece, RegistryError> {
    let url = shown(&endpoint.url("blobs", &blob.digest.to_string())?);
    let (mut chunks, mut at, mut tries) = (VecDeque::new(), span.from, 0);
    loop {
        let done = rest(endpoint, blob, Span { from: at, ..span }, open.take(), &url, |chunk| {
            at += chunk.len() as u64;
            chunks.push_back(chunk);
        });
        match done.await {
            Ok(()) if at == span.to => return Ok(Piece { chunks, _room: room }),
            Ok(()) => {
                return Err(RegistryError::Size { url, wanted: span.to - span.from, found: at - span.from });
            }
            Err(error) if is_cut(&error) && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

async fn rest(
    endpoint: &Endpoint,
    blob: &Blob,
    span: Span,
    open: Option<Response>,
    url: &str,
    mut take: impl FnMut(Bytes),
) -> Result<(), RegistryError> {
    let mut response = match open {
        Some(response) => response,
        None => {
            let found = endpoint.span(blob, span).await?;
            found.ok_or_else(|| RegistryError::Range { url: url.to_owned() })?
        }
    };
    let mut pace = Pace::new(endpoint.http.patience());
    let mut left = span.to - span.from;
    while let Some(chunk) = pace.chunk(&mut response, url).await? {
        left = left
            .checked_sub(chunk.len() as u64)
            .ok_or_else(|| RegistryError::Range { url: url.to_owned() })?;
        take(chunk);
    }
    Ok(())
}

/// Whether the answer is what was asked for: `Content-Range: bytes FROM-LAST/SIZE`.
pub(super) fn is_span(response: &Response, span: Span, size: u64) -> bool {
    let header = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let wanted = format!("{}-{}/", span.from, span.to.saturating_sub(1));
    let found = header.and_then(|text| text.strip_prefix("bytes ")?.trim().strip_prefix(&wanted));
    response.status() == StatusCode::PARTIAL_CONTENT
        && found.is_some_and(|whole| whole == "*" || whole.parse() == Ok(size))
}

fn is_cut(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Lost { .. } | RegistryError::Stalled { .. })
}

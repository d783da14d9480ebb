//! A blob on its way: one answer, and ranges of what lies behind it by several connections where one is slow. Owns
//! when a large blob is asked for in ranges, and what is asked again after a cut; counts and hashes nothing. Called by
//! `registry`.
//!
//! ```text
//! one answer ──slow, and large──▶ one answer up to where the ranges begin ──▶ ranges
//!   ▲ │  └──cut, or short──▶ the rest of it                                    │  └──cut──▶ the rest of the range
//!   │ ▼                          └──not to be had──▶ the error                 │
//!   │ end         one answer with the rest of all ◀──refused, or given up──────┘
//!   └────refused──┘
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_RANGE;
use reqwest::{Response, Url};
use tokio::time::Instant;

use super::host_cache::{Origin, RangeSupport};
use super::http_client::{ThroughputGuard, TransferLimits};
use super::ranges::{RANGE_BYTES, RangeDownload};
use super::retry_policy::{TransferState, retry};
use super::{Endpoint, RegistryError, same_origin};
use crate::image::manifest::Blob;

/// After each so many bytes it is seen what the download waited for.
const LOOK: u64 = 1 << 20;
/// Slow looks in a row after which ranges are asked for.
const SLOW: u32 = 2;
/// Cuts in a row, without so many bytes in between, after which a registry is given up.
pub(super) const TRIES: u32 = 3;

/// A blob on its way: bytes neither counted nor hashed yet.
pub(crate) struct Download {
    source: Arc<BlobSource>,
    /// None: in ranges from here on.
    answer: Option<OpenResponse>,
    ranges: Option<RangeDownload>,
    /// Handed out.
    at: u64,
    /// Since the last look, by a node that had nothing else to do.
    waited: Duration,
    /// When the next look is due; None: ranges are not to be had.
    next_look: Option<u64>,
    /// Looks in a row that found it slow.
    slow_looks: u32,
    /// How far before the ranges the answer may be: what it brings while the host is asked for the first.
    lead: u64,
    tries: u32,
    cut_at: u64,
}

struct OpenResponse {
    response: Response,
    throughput: ThroughputGuard,
}

/// Where a blob comes from.
pub(super) struct BlobSource {
    endpoint: Arc<Endpoint>,
    blob: Blob,
    url: String,
    /// Of the host that serves it, which need not be the registry.
    origin: Origin,
    /// Where the registry's redirects led, if it was another host: parts are asked for there. Such addresses are good
    /// for minutes, and hold signatures.
    address: Mutex<Option<Url>>,
}

/// What one part of a blob is.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteSpan {
    pub(super) from: u64,
    /// Behind the last byte.
    pub(super) to: u64,
}

impl Download {
    pub(super) fn new(endpoint: Arc<Endpoint>, blob: Blob, url: String, response: Response) -> Self {
        let origin = Origin::of(response.url());
        let in_ranges = endpoint.http.spool().is_some();
        let support = endpoint.http.host_cache().get(&origin).filter(|_| in_ranges);
        let source = BlobSource { endpoint, blob, url, origin, address: Mutex::default() };
        source.note_address(&response);
        let source = Arc::new(source);
        let mut own = Self {
            answer: Some(source.answer(response)),
            source,
            ranges: None,
            at: 0,
            waited: Duration::ZERO,
            next_look: (in_ranges && support != Some(RangeSupport::WholeBlob)).then_some(LOOK),
            slow_looks: 0,
            lead: RANGE_BYTES,
            tries: 0,
            cut_at: 0,
        };
        if support == Some(RangeSupport::Ranges) {
            own.start_ranges(true);
        }
        own
    }

    /// What an error about these bytes should name.
    pub(crate) fn url(&self) -> &str {
        self.source.url()
    }

    /// The next bytes; None at the end of the answer, which need not be that of the blob. `hungry`: there is nothing
    /// else to be done.
    ///
    /// # Errors
    /// `Stalled`, `Slow`, `Lost`, `Size`, what the host says.
    pub(crate) async fn chunk(&mut self, hungry: impl Fn() -> bool) -> Result<Option<Bytes>, RegistryError> {
        loop {
            self.switch_source();
            let next = match (&mut self.answer, &mut self.ranges) {
                (Some(OpenResponse { response, throughput }), _) => {
                    let began = Instant::now();
                    let next = throughput.chunk(response, self.source.url()).await;
                    // Asked when they are there: whoever takes them may have come to its end meanwhile.
                    if hungry() {
                        self.waited += began.elapsed();
                    }
                    next
                }
                (None, Some(ranges)) => ranges.chunk().await,
                (None, None) => Ok(None),
            };
            let error = match next {
                Ok(Some(chunk)) => {
                    self.at += chunk.len() as u64;
                    return Ok(Some(chunk));
                }
                Ok(None) if self.at >= self.end() => match self.end() == self.source.size() {
                    true => return Ok(None),
                    false => continue,
                },
                // Where no length is announced, a connection that is lost looks like the end.
                Ok(None) => self.source.size_error(self.source.size(), self.at),
                Err(error) => error,
            };
            match self.answer {
                Some(_) => self.resume(error).await?,
                None => self.fall_back_to_whole(error).await?,
            }
        }
    }

    /// What is to be had by the answer: all, or what lies before the ranges.
    fn end(&self) -> u64 {
        match &self.ranges {
            Some(ranges) if self.answer.is_some() && matches!(ranges.answer(), Some(Ok(()))) => {
                ranges.start()
            }
            _ => self.source.size(),
        }
    }

    /// From the answer to the ranges, or back, or not yet.
    fn switch_source(&mut self) {
        if self.answer.is_none() {
            return;
        }
        let Some(ranges) = &mut self.ranges else {
            self.consider_ranges();
            return;
        };
        match ranges.answer() {
            Some(Ok(())) if self.at >= ranges.start() => {
                ranges.skip_to(self.at);
                self.answer = None;
            }
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::info!(
                    url = self.source.url(),
                    "downloading without range requests: {}",
                    gantry_base::error::chain(error)
                );
                (self.ranges, self.next_look) = (None, None);
            }
            // Farther away than the answer is slow. Whatever it sends would come a second time.
            None if self.at >= ranges.start() + RANGE_BYTES => {
                self.ranges = None;
                self.lead *= 4;
            }
            None => {}
        }
    }

    /// Begins ranges if one connection is slow, the node waits for it and the host may serve them.
    fn consider_ranges(&mut self) {
        let Some(look) = self.next_look.filter(|look| self.at >= *look) else { return };
        let (bytes, waited) = (LOOK + self.at - look, std::mem::take(&mut self.waited));
        self.next_look = Some(self.at + LOOK);
        // A connection begins slowly, and so does a node with many of them.
        if look == LOOK {
            return;
        }
        // Where the disk is slower than the network there is nothing to wait for.
        let rate = bytes as f64 / waited.as_secs_f64();
        self.slow_looks = if rate <= self.source.limits().slow { self.slow_looks + 1 } else { 0 };
        // On a node with much to do, the registry's beside it included, one MiB alone says little.
        if self.slow_looks >= SLOW {
            self.start_ranges(false);
        }
    }

    fn start_ranges(&mut self, known: bool) {
        let start = self.at + self.lead;
        if self.source.size() < start + RANGE_BYTES {
            return;
        }
        let http = &self.source.endpoint.http;
        if let Some(spool) = http.spool()
            && let Some(quota) = http.range_limit().try_quota()
        {
            self.ranges = Some(RangeDownload::begin(&self.source, quota, spool.clone(), start, known));
        }
    }

    /// Asks for what is missing after a cut, at the same place.
    async fn resume(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if self.at >= self.cut_at + LOOK {
            self.tries = 0;
        }
        (self.tries, self.cut_at) = (self.tries + 1, self.at);
        let rest = ByteSpan { from: self.at, to: self.end() };
        if !is_cut(&error) || self.tries > TRIES || self.at == 0 || rest.from >= rest.to {
            return Err(error);
        }
        // Whoever has no ranges, or is gone, has failed by what came first.
        let Ok(response) = self.source.reopen_rest(rest).await else { return Err(error) };
        tracing::info!(url = self.source.url(), at = self.at, "a download goes on after a cut");
        self.answer = Some(self.source.answer(response));
        Ok(())
    }

    /// Goes on by one connection: many at a time, and short questions, are just what a registry may limit that gives
    /// the whole of a blob to anybody.
    async fn fall_back_to_whole(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        tracing::info!(
            url = self.source.url(),
            at = self.at,
            "the download continues without range requests: {}",
            gantry_base::error::chain(&error)
        );
        if self.ranges.take().is_none() {
            return Err(error);
        }
        self.next_look = None;
        let refused = Err(error);
        self.source.record_range_support(&refused);
        // Something else than before answers where there is none: that does not get better by asking again.
        match self.source.reopen_rest(ByteSpan { from: self.at, to: self.source.size() }).await {
            Ok(response) => self.answer = Some(self.source.answer(response)),
            Err(_) => return refused,
        }
        Ok(())
    }
}

impl BlobSource {
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn size(&self) -> u64 {
        self.blob.size
    }

    pub(super) fn limits(&self) -> TransferLimits {
        self.endpoint.http.limits()
    }

    /// Opens a part of the blob.
    ///
    /// # Errors
    /// `Range` when the answer is another one than was asked for.
    pub(super) async fn open_range(&self, span: ByteSpan) -> Result<Response, RegistryError> {
        if let Some(address) = self.address()
            && let Ok(Some(response)) = self.endpoint.open_range(&self.blob, span, Some(address)).await
        {
            return Ok(response);
        }
        // It is the registry's to say no, or to say where else.
        let found = self.endpoint.open_range(&self.blob, span, None).await?;
        found.inspect(|response| self.note_address(response)).ok_or_else(|| self.range_error())
    }

    fn range_error(&self) -> RegistryError {
        RegistryError::Range { url: self.url.clone() }
    }

    fn address(&self) -> Option<Url> {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_address(&self, response: &Response) {
        let elsewhere = !same_origin(response.url(), &self.endpoint.base);
        let address = elsewhere.then(|| response.url().clone());
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// The same with retries: bytes have come from there.
    async fn reopen_rest(&self, rest: ByteSpan) -> Result<Response, RegistryError> {
        retry(TransferState::Started, || self.open_range(rest)).await
    }

    /// Remembers what came of a question for ranges, where that says something about the host.
    pub(super) fn record_range_support(&self, said: &Result<(), RegistryError>) {
        let support = match said {
            Ok(()) => RangeSupport::Ranges,
            // The network's fault, or this node's.
            Err(
                RegistryError::Spool { .. }
                | RegistryError::Connect { .. }
                | RegistryError::Slow { .. }
                | RegistryError::Lost { .. }
                | RegistryError::Stalled { .. },
            ) => return,
            Err(_) => RangeSupport::WholeBlob,
        };
        self.endpoint.http.host_cache().record(&self.origin, support);
    }

    pub(super) fn size_error(&self, wanted: u64, found: u64) -> RegistryError {
        RegistryError::Size { url: self.url.clone(), wanted, found }
    }

    fn answer(&self, response: Response) -> OpenResponse {
        OpenResponse { response, throughput: ThroughputGuard::new(self.limits()) }
    }
}

/// Whether the answer is what was asked for: `Content-Range: bytes FROM-LAST/SIZE`.
pub(super) fn is_requested_range(response: &Response, span: ByteSpan, size: u64) -> bool {
    let header = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let wanted = format!("{}-{}/", span.from, span.to.saturating_sub(1));
    let found = header.and_then(|text| text.strip_prefix("bytes ")?.trim().strip_prefix(&wanted));
    response.status() == StatusCode::PARTIAL_CONTENT
        && found.is_some_and(|whole| whole == "*" || whole.parse() == Ok(size))
}

/// Whether the rest may still be had.
pub(super) fn is_cut(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Lost { .. } | RegistryError::Stalled { .. } | RegistryError::Size { .. })
}

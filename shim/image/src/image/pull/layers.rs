//! The layers of one pull: each from whoever brings it first, the largest first, each to its folder. Owns how one
//! layer is fetched, by flights that pulls share; decides neither how many are at work (`unpack_slots`) nor what good
//! bytes are (`layer`). Called by `pull`.
//!
//! ```text
//! here already ───────────────────────────────────────────────▶ present
//! nobody brings it ──▶ own flight ──▶ slot ──▶ place after place ──▶ folder, known
//! another pull does ─▶ joined ──fails──▶ from the top
//!                         └──slow, from another registry──▶ own flight beside it; the first to end counts for all
//! ```

use std::cmp::Reverse;
use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::LayerResult;
use crate::image::hold::Hold;
use crate::image::layer::{self, Chunk, ExpectedLayer, LayerError};
use crate::image::registry::Repository;
use crate::image::single_flight::Flight;
use crate::image::store::record::{LayerRecord, weigh};
use crate::image::unpack_slots::PullQuota;
use crate::image::{Error, ImagesInner, Optimisation};
use gantry_base::timeline::{Recorder, Span, unix_nanos};
use gantry_unpack::escape;

/// Layers of one image that are at work, wait for a slot, or for another pull.
const AT_ONCE: usize = 64;
/// Of a layer's directories that only paths of files imply, by `weigh`: 20,000 of them with 40 bytes each.
/// Usual layers have a few dozen. Each pull holds them in memory and in /run until they are on disk.
const MOST_IMPLIED: u64 = 2 << 20;
/// Of all layers of an image: what its fix-up layer is planned from.
const MOST_IMPLIED_OF_IMAGE: u64 = 8 << 20;

/// Fetches the layers of one pull.
#[derive(Clone)]
struct LayerFetcher {
    inner: Arc<ImagesInner>,
    repository: Arc<Repository>,
    quota: PullQuota,
}

/// Who brings a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlightRole {
    /// The flight that others join.
    First,
    /// The hedged request: one beside it, which is slow.
    Hedge,
}

/// Brings all layers that are not here.
///
/// # Errors
/// Of the first that can't be had; the others stop then.
pub(super) async fn fetch_layers(
    inner: &Arc<ImagesInner>,
    repository: &Arc<Repository>,
    name: &str,
    expected_layers: Vec<ExpectedLayer>,
    spans: &Recorder,
) -> Result<(), Error> {
    let mut seen = HashSet::new();
    let mut expected_layers: Vec<(usize, ExpectedLayer)> = expected_layers
        .into_iter()
        .enumerate()
        .filter(|(_, expected)| seen.insert(expected.diff_id))
        .collect();
    let keys: Vec<String> =
        expected_layers.iter().map(|(_, expected)| expected.diff_id.to_string()).collect();
    if inner.switches.has(Optimisation::LargestFirst) {
        // What takes longest ends last wherever it begins: beginning with it ends soonest.
        expected_layers.sort_by_key(|(_, expected)| Reverse(expected.layer.blob.size));
    }
    let fetcher = LayerFetcher {
        inner: Arc::clone(inner),
        repository: Arc::clone(repository),
        quota: inner.unpack_slots.pull_quota(),
    };
    let (fetcher, keys) = (&fetcher, &keys);
    stream::iter(expected_layers)
        .map(|(index, expected)| async move {
            let digest = expected.layer.blob.digest;
            let done = fetcher.ensure_layer(&expected).await.map_err(|source| Error::Layer {
                reference: name.to_owned(),
                digest,
                source: source.into(),
            })?;
            check_implied_weight(inner, name, keys)?;
            for span in done.iter() {
                let span = Span { name: format!("layer.{index}.{}", span.name), ..span.clone() };
                spans.add(span);
            }
            Ok(())
        })
        .buffer_unordered(if inner.switches.has(Optimisation::SideBySide) { AT_ONCE } else { 1 })
        .try_collect()
        .await
}

impl LayerFetcher {
    /// A layer by whoever brings it first. Another pull's failure is not ours: its registry or its
    /// credentials may be worse.
    async fn ensure_layer(&self, expected: &ExpectedLayer) -> LayerResult {
        let (inner, key) = (&self.inner, expected.diff_id.to_string());
        loop {
            let hedge_won = inner.hedge_won.notified();
            tokio::pin!(hedge_won);
            // A hedge that ends between the look and the wait counts.
            hedge_won.as_mut().enable();
            if inner.store.layer(&key).is_some() {
                inner.under_way.layer(expected).set_present();
                let now = unix_nanos();
                let span = Span { name: "present".to_owned(), start: now, end: now, detail: String::new() };
                return Ok(Arc::new(vec![span]));
            }
            let flight =
                inner.layers.join(&expected.diff_id, || self.start_flight(expected, FlightRole::First));
            let joined = flight.joined;
            let waiting = self.wait_or_hedge(expected, flight);
            tokio::pin!(waiting);
            let done = loop {
                // Neither is dropped before the loop ends: a notice is often another layer's.
                tokio::select! {
                    done = &mut waiting => break Some(done),
                    () = &mut hedge_won => {
                        hedge_won.set(inner.hedge_won.notified());
                        hedge_won.as_mut().enable();
                        if inner.store.layer(&key).is_some() {
                            break None;
                        }
                    }
                }
            };
            match done {
                Some(Err(_)) if joined => {}
                Some(done) => return done,
                None => {}
            }
        }
    }

    fn start_flight(
        &self,
        expected: &ExpectedLayer,
        role: FlightRole,
    ) -> Pin<Box<dyn Future<Output = LayerResult> + Send>> {
        let (fetcher, expected) = (self.clone(), expected.clone());
        Box::pin(async move {
            let done = fetcher.fetch(&expected, role).await.map(Arc::new);
            match (role, &done) {
                (FlightRole::First, _) => {}
                // Whoever still waits for the slow one leaves it, and so ends it.
                (FlightRole::Hedge, Ok(_)) => fetcher.inner.hedge_won.notify_waiters(),
                // What is shown is the slow one's again.
                (FlightRole::Hedge, Err(_)) => fetcher.inner.under_way.layer(&expected).restart(),
            }
            done
        })
    }

    /// Waits for a flight; if it is another pull's, from another registry, and slow, not for it alone.
    async fn wait_or_hedge(&self, expected: &ExpectedLayer, flight: Flight<LayerResult>) -> LayerResult {
        let mut first = flight.work;
        if !flight.joined {
            return first.await;
        }
        // Both go on when they are dropped here: others hold the flight, and watching changes nothing.
        tokio::select! {
            done = &mut first => return done,
            () = self.wait_until_slow(expected) => {}
        }
        let domain = self.repository.domain().to_owned();
        tracing::info!(layer = %expected.diff_id, domain, "another pull brings this layer slowly: asking here as well");
        let hedge = self
            .inner
            .hedges
            .join(&(expected.diff_id, domain), || self.start_flight(expected, FlightRole::Hedge));
        match select(first, hedge.work).await {
            Either::Left((Ok(done), _)) | Either::Right((Ok(done), _)) => Ok(done),
            Either::Left((Err(_), hedge)) => hedge.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// Returns when the layer has come slowly for a while, and not from where this pull would get it.
    async fn wait_until_slow(&self, expected: &ExpectedLayer) {
        let (progress, limits) = (self.inner.under_way.layer(expected), self.inner.http.limits());
        let least = limits.brisk * limits.hedge_after.as_secs_f64();
        let mut before = progress.downloaded_bytes();
        loop {
            tokio::time::sleep(limits.hedge_after).await;
            let now = progress.downloaded_bytes();
            let elsewhere = progress.registry() != self.repository.domain();
            if elsewhere && !progress.is_here() && (now.saturating_sub(before) as f64) < least {
                return;
            }
            before = now;
        }
    }

    /// A layer from the first place whose bytes are good: a mirror may lie or break, and the registry
    /// itself still have it.
    async fn fetch(&self, expected: &ExpectedLayer, role: FlightRole) -> Result<Vec<Span>, LayerError> {
        if role == FlightRole::First {
            self.inner.under_way.layer(expected).set_registry(self.repository.domain());
        }
        let _slot = self.quota.acquire(expected.layer.blob.size).await;
        let mut place = 0;
        loop {
            let own = Recorder::default();
            let mut asked = place;
            match self.fetch_from(expected, role, &mut asked, &own).await {
                Ok(()) => return Ok(own.spans()),
                Err(error) if error.is_transfer() && self.repository.has_another(asked) => {
                    let layer = expected.layer.blob.digest;
                    tracing::warn!(%layer, error = gantry_base::error::chain(&error), "downloading the layer from the next host");
                    place = asked + 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One try, from `place` on; `place` is then the one that answered.
    async fn fetch_from(
        &self,
        expected: &ExpectedLayer,
        role: FlightRole,
        place: &mut usize,
        own: &Recorder,
    ) -> Result<(), LayerError> {
        let (inner, blob) = (&self.inner, &expected.layer.blob);
        let download = |source| LayerError::Download { source };
        let progress = inner.under_way.layer(expected);
        if role == FlightRole::First {
            progress.restart();
        }
        let mut downloading = own.stage("download");
        downloading.detail(format!("{} bytes", blob.size));
        let (source, answered) = match self.repository.blob(blob, *place).await {
            Ok(found) => found,
            Err(source) => {
                // All have been asked.
                *place = usize::MAX - 1;
                return Err(download(source));
            }
        };
        *place = answered;
        let (send, chunks) = layer::pipe();
        // The thread's own: whoever wanted the layer may be gone when it is done.
        let hold = Hold::new(Arc::clone(inner), vec![expected.diff_id.to_string()]);
        let (owned, recorder, owned_expected) = (Arc::clone(inner), own.clone(), expected.clone());
        let thread = tokio::task::spawn_blocking(move || {
            let _hold = hold;
            unpack_and_store(&owned, &owned_expected, chunks, &recorder)
        });
        let fed = layer::feed(source, blob.size, send, &progress).await;
        drop(downloading);
        let unpacked = thread.await.map_err(|_| LayerError::Thread)?;
        // The thread's verdict counts unless the network kept it from having one.
        match (fed, unpacked) {
            (Err(source), Err(LayerError::GivenUp) | Ok(())) => Err(download(source)),
            (_, Err(error)) => Err(error),
            (Ok(_), Ok(())) => {
                progress.set_done();
                Ok(())
            }
        }
    }
}

/// Looked at with each layer that comes: the next one may be refused before it fills anything.
pub(in crate::image) fn check_implied_weight(
    inner: &ImagesInner,
    name: &str,
    keys: &[String],
) -> Result<(), Error> {
    check_weights(
        name,
        keys.iter().filter_map(|key| inner.store.layer(key)).map(|layer| layer.implied_weight),
    )
}

fn check_weights(name: &str, weights: impl Iterator<Item = u64>) -> Result<(), Error> {
    match weights.sum() {
        weight if weight > MOST_IMPLIED_OF_IMAGE => {
            Err(Error::Implied { reference: name.to_owned(), weight, limit: MOST_IMPLIED_OF_IMAGE })
        }
        _ => Ok(()),
    }
}

/// Unpacks what comes and makes it known. Blocks.
pub(in crate::image) fn unpack_and_store(
    inner: &ImagesInner,
    expected: &ExpectedLayer,
    chunks: mpsc::Receiver<Chunk>,
    recorder: &Recorder,
) -> Result<(), LayerError> {
    let mut stage = recorder.stage("unpack");
    let begun = inner.store.loss_mark();
    let unpacked = layer::receive(chunks, expected, inner.store.ingest_dir(), &inner.unpack_options)?;
    stage.detail(format!("{} bytes, {} entries", unpacked.report.bytes, unpacked.report.entries));
    let (implied, implied_weight) = escape_implied(&unpacked.report.implied)?;
    let record = LayerRecord {
        folder: expected.diff_id.short(),
        blob: expected.layer.blob.digest.to_string(),
        compressed: expected.layer.blob.size,
        unpacked: unpacked.report.bytes,
        implied,
        implied_weight,
        empty: unpacked.report.entries == 0,
        opaque_root: unpacked.report.opaque_root,
        exact: !unpacked.report.replaced,
    };
    let added = inner.store.add_layer(&expected.diff_id.to_string(), record, unpacked.ingest, &begun);
    added
        .and_then(|()| inner.store.flush_if_heavy())
        .map_err(|source| LayerError::Store { source: Box::new(source) })
}

/// What is remembered of directories that a layer only implies, and its weight.
fn escape_implied(paths: &[Vec<u8>]) -> Result<(Vec<String>, u64), LayerError> {
    let implied: Vec<String> = paths.iter().map(|path| escape(path)).collect();
    match weigh(&implied) {
        weight if weight > MOST_IMPLIED => {
            Err(LayerError::Implied { count: implied.len(), weight, limit: MOST_IMPLIED })
        }
        weight => Ok((implied, weight)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::digest::Digest;

    /// 60 MB of them, from a layer of a few KB on the wire, went to memory and to /run for each layer of an
    /// image.
    #[test]
    fn a_layer_that_implies_too_many_directories_is_refused_and_says_what_to_do() {
        let paths = |count: usize| vec![vec![b'd'; 40]; count];
        assert_eq!(escape_implied(&paths(20_000)).unwrap().1, 20_000 * 104);
        let refused = escape_implied(&paths(21_000)).unwrap_err();
        assert!(refused.to_string().contains("21000 of its directories"), "{refused}");
        assert!(escape_implied(&[vec![b'd'; 3 << 20]]).is_err(), "few, and long");
        let refused =
            Error::Layer { reference: "r".to_owned(), digest: Digest::of(b""), source: Box::new(refused) };
        assert_eq!(refused.class(), crate::image::Class::Invalid);
    }

    #[test]
    fn layers_that_imply_too_many_directories_together_are_refused() {
        assert!(check_weights("r", [MOST_IMPLIED; 4].into_iter()).is_ok());
        let refused = check_weights("r", [MOST_IMPLIED; 5].into_iter()).unwrap_err();
        assert!(matches!(refused, Error::Implied { .. }), "{refused}");
        assert_eq!(refused.class(), crate::image::Class::Invalid);
    }
}

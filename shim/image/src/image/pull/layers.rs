//! The layers of one pull: each from whoever brings it first, the largest first, each to its folder. Owns the way of
//! one layer, by flights that pulls share; decides neither how many are at work (`desks`) nor what good bytes are
//! (`layer`). Called by `pull`.
//!
//! ```text
//! here already ───────────────────────────────────────────────▶ present
//! nobody brings it ──▶ own flight ──▶ desk ──▶ place after place ──▶ folder, known
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
use crate::image::desks::Team;
use crate::image::flight::Seat;
use crate::image::hold::Hold;
use crate::image::layer::{self, LayerError, Piece, Promise};
use crate::image::registry::Repository;
use crate::image::store::record::{LayerRecord, weigh};
use crate::image::{Error, Inner, Optimisation};
use gantry_base::timeline::{Recorder, Span, unix_nanos};
use gantry_unpack::escape;

/// Layers of one image that are at work, wait for a desk, or for another pull.
const AT_ONCE: usize = 64;
/// Of a layer's directories that only paths of files imply, by `weigh`: 20,000 of them with 40 bytes each.
/// Usual layers have a few dozen. Each pull holds them in memory and in /run until they are on disk.
const MOST_IMPLIED: u64 = 2 << 20;
/// Of all layers of an image: what its fix-up layer is planned from.
const MOST_IMPLIED_OF_IMAGE: u64 = 8 << 20;

/// One pull on its way to layers.
#[derive(Clone)]
struct Way {
    inner: Arc<Inner>,
    repository: Arc<Repository>,
    team: Team,
}

/// Who brings a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The flight that others join.
    First,
    /// One beside it, which is slow.
    Rival,
}

/// Brings all layers that are not here.
///
/// # Errors
/// Of the first that can't be had; the others stop then.
pub(super) async fn bring(
    inner: &Arc<Inner>,
    repository: &Arc<Repository>,
    name: &str,
    promises: Vec<Promise>,
    spans: &Recorder,
) -> Result<(), Error> {
    let mut seen = HashSet::new();
    let mut promises: Vec<(usize, Promise)> =
        promises.into_iter().enumerate().filter(|(_, promise)| seen.insert(promise.diff_id)).collect();
    let keys: Vec<String> = promises.iter().map(|(_, promise)| promise.diff_id.to_string()).collect();
    if inner.switches.has(Optimisation::LargestFirst) {
        // What takes longest ends last wherever it begins: beginning with it ends soonest.
        promises.sort_by_key(|(_, promise)| Reverse(promise.layer.blob.size));
    }
    let way = Way { inner: Arc::clone(inner), repository: Arc::clone(repository), team: inner.desks.team() };
    let (way, keys) = (&way, &keys);
    stream::iter(promises)
        .map(|(index, promise)| async move {
            let digest = promise.layer.blob.digest;
            let done = way.one(&promise).await.map_err(|source| Error::Layer {
                reference: name.to_owned(),
                digest,
                source: source.into(),
            })?;
            bear(inner, name, keys)?;
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

impl Way {
    /// A layer by whoever brings it first. Another pull's failure is not ours: its registry or its
    /// credentials may be worse.
    async fn one(&self, promise: &Promise) -> LayerResult {
        let (inner, key) = (&self.inner, promise.diff_id.to_string());
        loop {
            let overtaken = inner.overtaken.notified();
            tokio::pin!(overtaken);
            // A rival that ends between the look and the wait counts.
            overtaken.as_mut().enable();
            if inner.store.layer(&key).is_some() {
                inner.under_way.layer(promise).present();
                let now = unix_nanos();
                let span = Span { name: "present".to_owned(), start: now, end: now, detail: String::new() };
                return Ok(Arc::new(vec![span]));
            }
            let seat = inner.layers.board(&promise.diff_id, || self.flight(promise, Role::First));
            let joined = seat.joined;
            let flying = self.wait(promise, seat);
            tokio::pin!(flying);
            let done = loop {
                // Neither is dropped before the loop ends: a notice is often another layer's.
                tokio::select! {
                    done = &mut flying => break Some(done),
                    () = &mut overtaken => {
                        overtaken.set(inner.overtaken.notified());
                        overtaken.as_mut().enable();
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

    fn flight(&self, promise: &Promise, role: Role) -> Pin<Box<dyn Future<Output = LayerResult> + Send>> {
        let (way, promise) = (self.clone(), promise.clone());
        Box::pin(async move {
            let done = way.fetch(&promise, role).await.map(Arc::new);
            match (role, &done) {
                (Role::First, _) => {}
                // Whoever still waits for the slow one leaves it, and so ends it.
                (Role::Rival, Ok(_)) => way.inner.overtaken.notify_waiters(),
                // What is shown is the slow one's again.
                (Role::Rival, Err(_)) => way.inner.under_way.layer(&promise).begin(),
            }
            done
        })
    }

    /// Waits for a flight; if it is another pull's, from another registry, and slow, not for it alone.
    async fn wait(&self, promise: &Promise, seat: Seat<LayerResult>) -> LayerResult {
        let mut first = seat.work;
        if !seat.joined {
            return first.await;
        }
        // Both go on when they are dropped here: others hold the flight, and watching changes nothing.
        tokio::select! {
            done = &mut first => return done,
            () = self.slow(promise) => {}
        }
        let domain = self.repository.domain().to_owned();
        tracing::info!(layer = %promise.diff_id, domain, "another pull brings this layer slowly: asking here as well");
        let rival = self.inner.rivals.board(&(promise.diff_id, domain), || self.flight(promise, Role::Rival));
        match select(first, rival.work).await {
            Either::Left((Ok(done), _)) | Either::Right((Ok(done), _)) => Ok(done),
            Either::Left((Err(_), rival)) => rival.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// Returns when the layer has come slowly for a while, and not from where this pull would get it.
    async fn slow(&self, promise: &Promise) {
        let (progress, patience) = (self.inner.under_way.layer(promise), self.inner.http.patience());
        let least = patience.brisk * patience.overtake.as_secs_f64();
        let mut before = progress.come();
        loop {
            tokio::time::sleep(patience.overtake).await;
            let now = progress.come();
            let elsewhere = progress.from() != self.repository.domain();
            if elsewhere && !progress.is_here() && (now.saturating_sub(before) as f64) < least {
                return;
            }
            before = now;
        }
    }

    /// A layer from the first place whose bytes are good: a mirror may lie or break, and the registry
    /// itself still have it.
    async fn fetch(&self, promise: &Promise, role: Role) -> Result<Vec<Span>, LayerError> {
        if role == Role::First {
            self.inner.under_way.layer(promise).belong(self.repository.domain());
        }
        let _desk = self.team.desk(promise.layer.blob.size).await;
        let mut place = 0;
        loop {
            let own = Recorder::default();
            let mut asked = place;
            match self.fetch_from(promise, role, &mut asked, &own).await {
                Ok(()) => return Ok(own.spans()),
                Err(error) if error.is_transfer() && self.repository.has_another(asked) => {
                    let layer = promise.layer.blob.digest;
                    tracing::warn!(%layer, error = gantry_base::error::chain(&error), "asking the next place");
                    place = asked + 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One try, from `place` on; `place` is then the one that answered.
    async fn fetch_from(
        &self,
        promise: &Promise,
        role: Role,
        place: &mut usize,
        own: &Recorder,
    ) -> Result<(), LayerError> {
        let (inner, blob) = (&self.inner, &promise.layer.blob);
        let download = |source| LayerError::Download { source };
        let progress = inner.under_way.layer(promise);
        if role == Role::First {
            progress.begin();
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
        let (send, pieces) = layer::pipe();
        // The thread's own: whoever wanted the layer may be gone when it is done.
        let hold = Hold::new(Arc::clone(inner), vec![promise.diff_id.to_string()]);
        let (owned, recorder, promised) = (Arc::clone(inner), own.clone(), promise.clone());
        let thread = tokio::task::spawn_blocking(move || {
            let _hold = hold;
            keep(&owned, &promised, pieces, &recorder)
        });
        let fed = layer::feed(source, blob.size, send, &progress).await;
        drop(downloading);
        let unpacked = thread.await.map_err(|_| LayerError::Thread)?;
        // The thread's verdict counts unless the network kept it from having one.
        match (fed, unpacked) {
            (Err(source), Err(LayerError::GivenUp) | Ok(())) => Err(download(source)),
            (_, Err(error)) => Err(error),
            (Ok(_), Ok(())) => {
                progress.done();
                Ok(())
            }
        }
    }
}

/// Looked at with each layer that comes: the next one may be refused before it fills anything.
pub(in crate::image) fn bear(inner: &Inner, name: &str, keys: &[String]) -> Result<(), Error> {
    bearable(name, keys.iter().filter_map(|key| inner.store.layer(key)).map(|layer| layer.implied_weight))
}

fn bearable(name: &str, weights: impl Iterator<Item = u64>) -> Result<(), Error> {
    match weights.sum() {
        weight if weight > MOST_IMPLIED_OF_IMAGE => {
            Err(Error::Implied { reference: name.to_owned(), weight, limit: MOST_IMPLIED_OF_IMAGE })
        }
        _ => Ok(()),
    }
}

/// Unpacks what comes and makes it known. Blocks.
pub(in crate::image) fn keep(
    inner: &Inner,
    promise: &Promise,
    pieces: mpsc::Receiver<Piece>,
    recorder: &Recorder,
) -> Result<(), LayerError> {
    let mut stage = recorder.stage("unpack");
    let begun = inner.store.begin();
    let unpacked = layer::receive(pieces, promise, inner.store.ingest_dir(), &inner.means)?;
    stage.detail(format!("{} bytes, {} entries", unpacked.report.bytes, unpacked.report.entries));
    let (implied, implied_weight) = implied(&unpacked.report.implied)?;
    let record = LayerRecord {
        folder: promise.diff_id.short(),
        blob: promise.layer.blob.digest.to_string(),
        compressed: promise.layer.blob.size,
        unpacked: unpacked.report.bytes,
        implied,
        implied_weight,
        empty: unpacked.report.entries == 0,
        opaque_root: unpacked.report.opaque_root,
    };
    let added = inner.store.add_layer(&promise.diff_id.to_string(), record, unpacked.ingest, &begun);
    added
        .and_then(|()| inner.store.relieve())
        .map_err(|source| LayerError::Store { source: Box::new(source) })
}

/// What is remembered of directories that a layer only implies, and its weight.
fn implied(paths: &[Vec<u8>]) -> Result<(Vec<String>, u64), LayerError> {
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
        assert_eq!(implied(&paths(20_000)).unwrap().1, 20_000 * 104);
        let refused = implied(&paths(21_000)).unwrap_err();
        assert!(refused.to_string().contains("21000 of its directories"), "{refused}");
        assert!(implied(&[vec![b'd'; 3 << 20]]).is_err(), "few, and long");
        let refused =
            Error::Layer { reference: "r".to_owned(), digest: Digest::of(b""), source: Box::new(refused) };
        assert_eq!(refused.class(), crate::image::Class::Invalid);
    }

    #[test]
    fn layers_that_imply_too_many_directories_together_are_refused() {
        assert!(bearable("r", [MOST_IMPLIED; 4].into_iter()).is_ok());
        let refused = bearable("r", [MOST_IMPLIED; 5].into_iter()).unwrap_err();
        assert!(matches!(refused, Error::Implied { .. }), "{refused}");
        assert_eq!(refused.class(), crate::image::Class::Invalid);
    }
}

//! Looks at pulls while there are any. Owns when to look and what is remembered between two looks; never
//! pulls. A pull is found by its repository: containerd writes it into the manifest's labels before it
//! fetches a layer. Two pulls of one repository at once show the layers of both. Writes [`Pulls`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tonic::Status;

use super::content::{ContentStore, Manifest, PATIENCE};
use super::layers::{ImageSource, Promise, join};
use crate::runtime_ext::pulls::progress::{Layer, LayerState, Progress};
use crate::runtime_ext::pulls::{PullEntry, Pulls, State};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// After one that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Manifests that are remembered.
const MOST_MANIFESTS: usize = 128;

/// For ever; asks nothing while nothing is pulled.
pub(super) async fn follow(content: ContentStore, pulls: Pulls) {
    let mut board = pulls.watch();
    let mut known = BTreeMap::new();
    loop {
        let open: Vec<PullEntry> = match board.wait_for(|board| board.open().next().is_some()).await {
            Ok(board) => board.open().cloned().collect(),
            // Nobody pulls any more.
            Err(_) => return,
        };
        let looked = tokio::time::timeout(PATIENCE, look(&content, &open, &mut known)).await;
        let looked = looked.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
        let pause = if looked.is_ok() { EVERY } else { AFTER_FAILURE };
        let seen = looked.unwrap_or_else(|status| {
            tracing::debug!(%status, "containerd does not tell how far pulls have come");
            open.iter().map(|entry| entry.layers.clone()).collect()
        });
        for (entry, layers) in open.into_iter().zip(seen) {
            tell(&pulls, &entry, layers);
        }
        // Both arms are cancel-safe: a change stays marked.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = board.changed() => {}
        }
    }
}

fn tell(pulls: &Pulls, entry: &PullEntry, layers: Vec<Layer>) {
    if layers != entry.layers {
        let progress = Progress::new(&entry.image, entry.began, &layers).words();
        tracing::debug!(image = entry.image, progress, "pulling");
    }
    pulls.tell(entry.number, layers, entry.state == State::Ended);
}

/// The layers of each of these pulls.
async fn look(
    content: &ContentStore,
    open: &[PullEntry],
    known: &mut BTreeMap<String, Vec<Promise>>,
) -> Result<Vec<Vec<Layer>>, Status> {
    let sources: Vec<ImageSource> = open.iter().map(|entry| ImageSource::of(&entry.image)).collect();
    let manifests = content.manifests(&sources.iter().map(|source| source.host.as_str()).collect()).await?;
    let mut promised = Vec::new();
    for (entry, source) in open.iter().zip(&sources) {
        let mut promises = Vec::new();
        for manifest in manifests.iter().filter(|manifest| is_of(manifest, source, entry.began)) {
            let more = of(content, &manifest.digest, known).await?;
            promises
                .extend(more.into_iter().filter(|promise| !promises.contains(promise)).collect::<Vec<_>>());
        }
        promised.push(promises);
    }
    let is_over = |entry: &PullEntry, digest: &str| {
        let layer = entry.layers.iter().find(|layer| layer.digest == digest);
        layer.is_some_and(|l| matches!(l.state, LayerState::Downloaded { .. } | LayerState::Present))
    };
    let awaited: BTreeSet<&str> = open
        .iter()
        .zip(&promised)
        .flat_map(|(entry, promises)| {
            let digests = promises.iter().map(|promise| promise.digest.as_str());
            digests.filter(|digest| !is_over(entry, digest))
        })
        .collect();
    let here = content.here(&awaited).await?;
    let ingests = if awaited.is_empty() { Vec::new() } else { content.ingests().await? };
    let layers = open.iter().zip(&promised);
    Ok(layers.map(|(entry, promises)| join(&entry.layers, promises, &here, &ingests, entry.began)).collect())
}

/// Whether a pull of this source that began then has touched the manifest.
fn is_of(manifest: &Manifest, source: &ImageSource, began: i64) -> bool {
    let repositories = manifest.sources.get(&source.host);
    manifest.touched >= began && repositories.is_some_and(|list| list.contains(&source.repository))
}

async fn of(
    content: &ContentStore,
    digest: &str,
    known: &mut BTreeMap<String, Vec<Promise>>,
) -> Result<Vec<Promise>, Status> {
    if let Some(promises) = known.get(digest) {
        return Ok(promises.clone());
    }
    let promises = content.promises(digest).await?.unwrap_or_default();
    // Each is read within one pull or a few: what is forgotten is read again.
    if known.len() >= MOST_MANIFESTS {
        known.clear();
    }
    known.insert(digest.to_owned(), promises.clone());
    Ok(promises)
}

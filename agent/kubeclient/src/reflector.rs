//! A local copy of a part of the API: list once, then watch, for as long as somebody looks. Owns the
//! connection's loop (resume, bookmarks, 410, back-off); never says what the objects mean. Called by
//! `pod_source`, `registration` and whoever follows objects of the API.
//!
//! client-go's reflector is the model: the first list takes any version (`resourceVersion=0`), a
//! later one nothing older than what was seen, and only when the server has no such version the
//! newest, in pages. A watch that ends is resumed where it was.

#![expect(clippy::disallowed_methods, reason = "the reflector ends with its last receiver")]

mod parse;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use gantry_model::random;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::backoff::Backoff;
use parse::{Unreadable, WatchLine};
use wire::Refusal;

/// As client-go's reflector.
const FIRST_WAIT: Duration = Duration::from_millis(800);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The server ends a watch after this, and up to twice as long.
const WATCH_SECONDS: f64 = 300.0;
/// Bookmarks come every minute: a connection that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// A request that takes longer is given up and made again.
const PATIENCE: Duration = Duration::from_secs(60);
/// A watch that ends sooner and has told nothing is a failure, not an end.
const SHORT: Duration = Duration::from_secs(1);

/// Which objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Of the collection: `/api/v1/pods`, `/api/v1/namespaces/NAMESPACE/secrets`.
    pub path: String,
    /// `metadata.name=web`; all when empty.
    pub field_selector: String,
}

/// What is known of them.
#[derive(Debug)]
pub struct Reflected<K> {
    /// Whether a list is in of which every object could be read: before, what is not here may well be there.
    pub synced: bool,
    /// By UID, without managedFields. An object that has not changed stays the same `Arc`.
    pub items: BTreeMap<String, Arc<K>>,
    /// Why the last try to list failed, or which object of it cannot be read; what is known otherwise may be old.
    pub failure: Option<Arc<str>>,
}

impl<K> Default for Reflected<K> {
    fn default() -> Self {
        Self { synced: false, items: BTreeMap::new(), failure: None }
    }
}

impl<K> Clone for Reflected<K> {
    fn clone(&self) -> Self {
        Self { synced: self.synced, items: self.items.clone(), failure: self.failure.clone() }
    }
}

/// What can be followed.
pub trait Object:
    Metadata<Ty = ObjectMeta> + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Metadata<Ty = ObjectMeta> + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
}

/// Begins to follow. It ends when the receiver and all its copies are gone.
#[must_use]
pub fn reflect<K: Object>(client: Client, query: Query) -> watch::Receiver<Reflected<K>> {
    reflect_soon(client, query, FIRST_WAIT)
}

/// The same, but a first failure is tried again after `first`: for what a pod's start waits for.
#[must_use]
pub fn reflect_soon<K: Object>(
    client: Client,
    query: Query,
    first: Duration,
) -> watch::Receiver<Reflected<K>> {
    let (sender, receiver) = watch::channel(Reflected::default());
    let reflector = Reflector {
        client,
        query,
        out: sender,
        cursor: None,
        unread: BTreeSet::new(),
        backoff: Backoff::new(first, LONGEST_WAIT),
        born: Instant::now(),
    };
    tokio::spawn(reflector.run());
    receiver
}

struct Reflector<K> {
    client: Client,
    query: Query,
    out: watch::Sender<Reflected<K>>,
    /// The version up to which everything was seen.
    cursor: Option<String>,
    /// UIDs of what the last list had and nobody could ever read: as long as one is there, what is known is not all.
    unread: BTreeSet<String>,
    backoff: Backoff,
    born: Instant,
}

/// How a watch came to its end.
enum WatchEnd {
    /// The server ends it from time to time.
    Over,
    /// The version is too old: list again.
    Expired,
    /// Try again later, from the same version.
    Failed(String),
}

impl<K: Object> Reflector<K> {
    async fn run(mut self) {
        let listeners = self.out.clone();
        tokio::select! {
            // A dropped request is none; nobody is there who could miss anything.
            () = self.follow() => {}
            () = listeners.closed() => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            if let Err(refusal) = self.list().await {
                tracing::warn!(path = self.query.path, error = %refusal, "cannot list");
                self.out.send_modify(|known| known.failure = Some(refusal.to_string().into()));
                self.rest().await;
                continue;
            }
            loop {
                match self.watch().await {
                    WatchEnd::Over => {}
                    WatchEnd::Expired => break,
                    WatchEnd::Failed(error) => {
                        tracing::warn!(path = self.query.path, error, "the watch ends");
                        self.rest().await;
                    }
                }
            }
        }
    }

    async fn rest(&mut self) {
        let pause = self.backoff.next(self.born.elapsed(), random::fraction());
        tokio::time::sleep(pause).await;
    }

    /// Everything there is now.
    async fn list(&mut self) -> Result<(), Refusal> {
        let version = self.cursor.clone().unwrap_or_else(|| "0".to_owned());
        let listed = match wire::list::<K>(&self.client, &self.query, Some(&version), PATIENCE).await {
            Err(refusal) if refusal.version_unknown() => {
                wire::list::<K>(&self.client, &self.query, None, PATIENCE).await
            }
            other => other,
        };
        let (version, items) = listed?;
        self.cursor = Some(version);
        let Self { query, unread, out, .. } = self;
        unread.clear();
        out.send_modify(|known| {
            let old = std::mem::take(&mut known.items);
            known.failure = None;
            for item in items {
                match item {
                    Ok(item) => {
                        let same = old.get(uid(&item)).filter(|old| version_of(&***old) == version_of(&item));
                        let kept = same.cloned().unwrap_or_else(|| Arc::new(item));
                        known.items.insert(uid(&*kept).to_owned(), kept);
                    }
                    Err(unreadable) => {
                        tracing::error!(path = query.path, %unreadable, "an object cannot be read, and is passed over");
                        // It is there: what was known of it stays.
                        if let Some(before) = old.get(&unreadable.uid) {
                            known.items.insert(unreadable.uid.clone(), before.clone());
                        } else {
                            known.failure = Some(unreadable.to_string().into());
                            unread.insert(unreadable.uid);
                        }
                    }
                }
            }
            known.synced |= unread.is_empty();
        });
        Ok(())
    }

    /// Changes, one by one.
    async fn watch(&mut self) -> WatchEnd {
        let began = Instant::now();
        let cursor = self.cursor.clone().unwrap_or_default();
        let seconds = WATCH_SECONDS * (1.0 + random::fraction());
        let asked = wire::watch::<K>(&self.client, &self.query, &cursor, seconds);
        let stream = match timeout(PATIENCE, asked).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(refusal)) if refusal.version_unknown() => return WatchEnd::Expired,
            Ok(Err(refusal)) => return WatchEnd::Failed(refusal.to_string()),
            Err(_) => return WatchEnd::Failed("no answer".to_owned()),
        };
        let mut stream = std::pin::pin!(stream);
        let mut told = false;
        loop {
            match timeout(SILENCE, stream.next()).await {
                Ok(Some(Ok(WatchLine::Event(WatchEvent::Error(status))))) => {
                    let refusal = Refusal::from(kube::Error::Api(status));
                    return if refusal.version_unknown() {
                        WatchEnd::Expired
                    } else {
                        WatchEnd::Failed(refusal.to_string())
                    };
                }
                Ok(Some(Ok(change))) => {
                    told = true;
                    self.backoff.reset();
                    match change {
                        WatchLine::Event(event) => self.take(event),
                        WatchLine::Unreadable(unreadable, is_there) => self.pass_over(&unreadable, is_there),
                    }
                }
                Ok(Some(Err(error))) => {
                    let refusal = Refusal::from(error);
                    return if refusal.version_unknown() {
                        WatchEnd::Expired
                    } else {
                        WatchEnd::Failed(refusal.to_string())
                    };
                }
                Ok(None) if !told && began.elapsed() < SHORT => {
                    return WatchEnd::Failed("it ended at once".to_owned());
                }
                Ok(None) => return WatchEnd::Over,
                Err(_) => {
                    tracing::debug!(path = self.query.path, "the watch is silent: asking anew");
                    return WatchEnd::Over;
                }
            }
        }
    }

    /// What comes after it is not to be missed. What was known of one that is there stays.
    fn pass_over(&mut self, unreadable: &Unreadable, is_there: bool) {
        tracing::error!(path = self.query.path, %unreadable, "an object cannot be read, and is passed over");
        if !unreadable.version.is_empty() {
            self.cursor = Some(unreadable.version.clone());
        }
        if !is_there {
            self.out.send_modify(|known| drop(known.items.remove(&unreadable.uid)));
            self.settle(&unreadable.uid);
        }
    }

    /// That object has gone, or can be read now.
    fn settle(&mut self, uid: &str) {
        if self.unread.remove(uid) && self.unread.is_empty() {
            self.out.send_modify(|known| {
                known.synced = true;
                known.failure = None;
            });
        }
    }

    fn take(&mut self, event: WatchEvent<K>) {
        let (mut object, there) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
            WatchEvent::Deleted(object) => (object, false),
            WatchEvent::Bookmark(bookmark) => {
                self.cursor = Some(bookmark.metadata.resource_version);
                return;
            }
            // Handled before.
            WatchEvent::Error(_) => return,
        };
        object.metadata_mut().managed_fields = None;
        if let Some(version) = version_of(&object) {
            self.cursor = Some(version.to_owned());
        }
        let key = uid(&object).to_owned();
        self.out.send_modify(|known| match there {
            true => {
                known.items.insert(key.clone(), Arc::new(object));
            }
            false => {
                known.items.remove(&key);
            }
        });
        self.settle(&key);
    }
}

fn uid(object: &impl Metadata<Ty = ObjectMeta>) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}

fn version_of(object: &impl Metadata<Ty = ObjectMeta>) -> Option<&str> {
    object.metadata().resource_version.as_deref()
}

#[cfg(test)]
mod tests;

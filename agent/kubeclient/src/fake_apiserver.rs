//! An API server for tests: real objects, versions, watches, preconditions and patches, in memory.
//! Owns its objects and what was asked of it; never checks what a real one validates. Called by
//! tests of everything that speaks to the API.
//!
//! [`FakeApiServer::client`] speaks to it without a socket, so that paused time works;
//! [`FakeApiServer::router`] can be served on loopback.

mod serve;
mod store;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

use store::Store;

/// One request, as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRequest {
    /// GET, PATCH …
    pub method: String,
    /// Without the query.
    pub path: String,
    /// As it was sent.
    pub query: String,
    /// JSON; null when there was none.
    pub body: Value,
}

/// What goes wrong.
#[derive(Debug, Clone)]
pub struct InjectedFault {
    /// GET, PATCH …; any when empty.
    pub method: String,
    /// Found in the path.
    pub path: String,
    /// What happens instead.
    pub what: Wrong,
    /// How often.
    pub times: usize,
}

/// How a request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// Answered with this code and reason.
    Refused(u16, &'static str),
    /// Carried out, and the answer is lost.
    Lost,
    /// Never answered.
    Hangs,
}

/// See the module. Copies are the same server.
#[derive(Debug, Clone)]
pub struct FakeApiServer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Ticks with every change, so that watches look.
    tick: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    store: Store,
    asked: Vec<RecordedRequest>,
    faults: Vec<InjectedFault>,
    down: bool,
    /// Watches that began before the last cut end.
    cuts: u64,
    /// What it takes as now when it gives tokens, in Unix seconds.
    now: i64,
    tokens: u64,
}

impl Default for FakeApiServer {
    fn default() -> Self {
        let (tick, _) = watch::channel(0);
        Self { shared: Arc::new(Shared { inner: Mutex::default(), tick }) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        self.tick.send_modify(|count| *count += 1);
    }
}

impl FakeApiServer {
    /// The time from which the life of the tokens it gives is counted, in Unix seconds.
    pub fn set_now(&self, now: i64) {
        self.shared.lock().now = now;
    }

    /// Speaks to it within the process.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(serve::InProcess::new(self), "default")
    }

    /// To be served.
    pub fn router(&self) -> axum::Router {
        serve::router(self.shared.clone())
    }

    /// Creates or replaces an object as its owner would, with a new version; a UID is made up when it
    /// has none.
    pub fn put(&self, path: &str, object: Value) -> Value {
        let made = self.shared.lock().store.put(path, object);
        self.shared.tick();
        made
    }

    /// Changes an object in place.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) -> Option<Value> {
        let mut object = self.get(path)?;
        change(&mut object);
        Some(self.put(path, object))
    }

    /// As it is now.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.shared.lock().store.get(path).cloned()
    }

    /// Every object of a collection, `/api/v1/pods` or that of a namespace.
    #[must_use]
    pub fn all(&self, collection: &str) -> Vec<Value> {
        self.shared.lock().store.collection(collection)
    }

    /// Takes an object away, without any grace.
    pub fn remove(&self, path: &str) {
        self.shared.lock().store.remove(path);
        self.shared.tick();
    }

    /// Everything asked since the last call.
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.shared.lock().asked)
    }

    /// Lets something go wrong.
    pub fn fault(&self, fault: InjectedFault) {
        self.shared.lock().faults.push(fault);
    }

    /// While it is down every connection fails, watches included.
    pub fn set_down(&self, down: bool) {
        let mut inner = self.shared.lock();
        inner.down = down;
        inner.cuts += u64::from(down);
        drop(inner);
        self.shared.tick();
    }

    /// Ends all watches.
    pub fn cut(&self) {
        self.shared.lock().cuts += 1;
        self.shared.tick();
    }

    /// Forgets all versions before the present one: watches from there are answered with 410.
    pub fn compact(&self) {
        self.shared.lock().store.compact();
    }

    /// Tells all watches the present version.
    pub fn bookmark(&self) {
        self.shared.lock().store.bookmark();
        self.shared.tick();
    }

    /// Waits until `test` holds of the server.
    ///
    /// # Panics
    /// When it does not within three minutes of tokio's time: a watch that was down for long may wait one before it asks.
    #[expect(clippy::panic, reason = "for tests: what never happens is a failure")]
    pub async fn until<T>(&self, what: &str, mut test: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(180);
        loop {
            if let Some(found) = test(self) {
                return found;
            }
            if tokio::time::Instant::now() > deadline {
                panic!("never: {what}; last asked: {:#?}", self.shared.lock().asked.last());
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

#[cfg(test)]
mod tests;

//! What pulls under way need: while a layer is held it stays, whether an image has it or not. Owns
//! the taking and the letting go, and on which thread; what then goes is the store's to decide.
//! Called by `pull`.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::ImagesInner;

/// Layers held by one piece of work. Dropping it may delete folders and so blocks; async code has a
/// [`Lease`] instead.
#[derive(Debug)]
pub(crate) struct Hold {
    inner: Arc<ImagesInner>,
    keys: Vec<String>,
}

impl Hold {
    /// Takes hold of layers, here or yet to come. To be taken before looking whether they are here:
    /// what was seen before may go until then.
    pub(crate) fn new(inner: Arc<ImagesInner>, keys: Vec<String>) -> Self {
        inner.store.hold(&keys);
        Self { inner, keys }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.inner.store.release(&self.keys) > 0 {
            self.inner.wake(); // The disk may know of them.
        }
    }
}

/// A [`Hold`] in async code: let go on a blocking thread, also when the future around it is dropped.
#[derive(Debug)]
pub(crate) struct Lease(Option<Hold>);

impl Lease {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(Some(hold))
    }

    /// Lets go, and returns when what has to go is gone.
    pub(crate) async fn end(mut self) {
        if let Some(hold) = self.0.take()
            && spawn_blocking(move || drop(hold)).await.is_err()
        {
            tracing::error!("letting go of a pull's layers died: they stay until the next start");
        }
    }

    /// Takes the hold along to a blocking thread.
    pub(crate) fn into_hold(mut self) -> Option<Hold> {
        self.0.take()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(hold) = self.0.take() else { return };
        // A runtime that shuts down drops the closure unrun, and the hold with it.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(hold))),
            Err(_) => drop(hold),
        }
    }
}

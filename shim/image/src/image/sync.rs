//! The thread that makes images durable behind their users' backs. Owns when, not how (that is
//! `ImageStore::flush`). Called by `Images`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gantry_failpoint::failpoint;

use super::store::ImageStore;

/// After a failure: a full disk may be emptied.
const AGAIN: Duration = Duration::from_secs(30);

/// Ends, after a last flush, when dropped.
#[derive(Debug)]
pub(crate) struct Syncer {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// # Errors
    /// No thread could be made.
    pub(crate) fn start(store: Arc<ImageStore>) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let thread =
            thread::Builder::new().name("image-sync".to_owned()).spawn(move || run(&store, &woken))?;
        let syncer = Self { wake: Some(wake), thread: Some(thread) };
        syncer.wake(); // What the last process left in the journal.
        Ok(syncer)
    }

    /// Asks for a flush soon; many calls may share one.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // Full: the thread has yet to see an earlier call. Closed: it is gone with the store.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the image sync thread died: images of this run may have to be pulled again");
        }
    }
}

fn run(store: &ImageStore, woken: &Receiver<()>) {
    let mut failed = false;
    loop {
        let next = if failed {
            woken.recv_timeout(AGAIN)
        } else {
            woken.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        failpoint!("task.image-sync");
        failed = match store.flush() {
            Ok(()) => false,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "images are not durable yet");
                true
            }
        };
        if next == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

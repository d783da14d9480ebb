//! A drain token: one side starts the drain, every loop that holds the other side ends. Owns the token; never
//! what ends, nor in which order. Made by the process for the kubelet, and by the server of 10250 for its listeners.

use tokio::sync::watch;

/// A token whose drain has not started.
#[must_use]
pub fn token() -> (DrainTrigger, DrainWatcher) {
    let (trigger, watcher) = watch::channel(false);
    (DrainTrigger(trigger), DrainWatcher(watcher))
}

/// Starts the drain. Dropping it starts the drain, too: nobody else could.
#[derive(Debug)]
pub struct DrainTrigger(watch::Sender<bool>);

impl DrainTrigger {
    /// Every watcher learns it, those of later as well.
    pub fn start(&self) {
        self.0.send_replace(true);
    }

    /// One more side that ends.
    #[must_use]
    pub fn watcher(&self) -> DrainWatcher {
        DrainWatcher(self.0.subscribe())
    }
}

/// Learns of the drain.
#[derive(Debug, Clone)]
pub struct DrainWatcher(watch::Receiver<bool>);

impl DrainWatcher {
    /// Resolves once the drain has started. Cancel-safe: a drain that has started stays so.
    pub async fn wait_started(&mut self) {
        // An error: the trigger is gone, and so the drain has started.
        let _ = self.0.wait_for(|started| *started).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    async fn has_started(watcher: &mut DrainWatcher) -> bool {
        let mut started = pin!(watcher.wait_started());
        std::future::poll_fn(|context| Poll::Ready(started.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn a_drain_reaches_every_watcher_and_those_of_later() {
        let (trigger, mut first) = token();
        let mut second = first.clone();
        assert!(!has_started(&mut first).await && !has_started(&mut second).await);
        trigger.start();
        assert!(has_started(&mut first).await && has_started(&mut second).await);
        assert!(has_started(&mut first).await, "it stays so");
        assert!(has_started(&mut trigger.watcher()).await);
    }

    #[tokio::test]
    async fn a_trigger_that_is_gone_has_started_the_drain() {
        let (trigger, mut watcher) = token();
        drop(trigger);
        assert!(has_started(&mut watcher).await);
    }
}

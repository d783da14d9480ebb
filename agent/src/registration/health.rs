//! Whether the runtime can take pods: asked for every few seconds, and told in upstream's words.
//! Owns the asking; never decides what becomes of the node. Called by [`super`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::runtime::about::{About, Health, Version};

/// As upstream's updateRuntimeUp; sooner until it is up for the first time.
const EVERY: Duration = Duration::from_secs(5);
const AT_FIRST: Duration = Duration::from_millis(100);
/// A runtime that was not well for so long is down.
const DOWN_AFTER: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of the runtime.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulse {
    pub(super) version: Option<Version>,
    /// Of the last answer.
    pub(super) health: Option<Health>,
    /// When it was last ready.
    pub(super) ready_at: Option<Instant>,
}

impl Pulse {
    /// Why pods cannot run, in upstream's words; nothing when they can.
    pub(super) fn troubles(&self, now: Instant) -> Vec<String> {
        let mut troubles = Vec::new();
        match self.ready_at {
            None => troubles.push("container runtime status check may not have completed yet".to_owned()),
            Some(at) if now.duration_since(at) >= DOWN_AFTER => {
                troubles.push("container runtime is down".to_owned());
            }
            Some(_) => {}
        }
        let Some(health) = &self.health else {
            troubles.push("network state unknown".to_owned());
            return troubles;
        };
        let of = |what: &str, condition: &Option<_>| match condition {
            None => format!("{what} not ready: <nil>"),
            Some(condition) => format!("{what} not ready: {condition}"),
        };
        if !health.runtime.as_ref().is_some_and(|condition| condition.holds) {
            troubles.push(of("container runtime", &health.runtime));
        }
        if !health.network.as_ref().is_some_and(|condition| condition.holds) {
            troubles.push(of("container runtime network", &health.network));
        }
        troubles
    }

    fn well(&self) -> bool {
        let holds = |health: &Health| {
            [&health.runtime, &health.network].into_iter().all(|c| c.as_ref().is_some_and(|c| c.holds))
        };
        self.health.as_ref().is_some_and(holds)
    }
}

/// Asks until nobody listens.
pub(super) fn follow(about: Arc<dyn About>) -> watch::Receiver<Pulse> {
    let (sender, receiver) = watch::channel(Pulse::default());
    tokio::spawn(async move {
        let mut was_well = false;
        loop {
            let before = sender.borrow().clone();
            let pulse = ask(&*about, before).await;
            was_well |= pulse.well();
            sender.send_replace(pulse);
            let pause = if was_well { EVERY } else { AT_FIRST };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

async fn ask(about: &dyn About, mut pulse: Pulse) -> Pulse {
    match timeout(PATIENCE, about.health()).await {
        Ok(Ok(health)) => {
            if health.runtime.as_ref().is_some_and(|condition| condition.holds) {
                pulse.ready_at = Some(Instant::now());
            }
            pulse.health = Some(health);
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, detail = error.detail(), "the runtime does not tell how it is");
        }
        Err(_) => tracing::warn!("the runtime does not tell how it is: no answer"),
    }
    if let Ok(Ok(version)) = timeout(PATIENCE, about.version()).await {
        pulse.version = Some(version);
    }
    pulse
}

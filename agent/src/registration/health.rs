//! Whether the runtime can take pods: asked for every few seconds, and told in upstream's words.
//! Owns the asking; never decides what becomes of the node or a pod. Started by the kubelet's wiring.

#![expect(clippy::disallowed_methods, reason = "the runtime is asked as long as the kubelet lives")]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::runtime::about::{About, Condition, Health, Version};

/// As upstream's updateRuntimeUp; sooner until it is up for the first time.
const EVERY: Duration = Duration::from_secs(5);
const AT_FIRST: Duration = Duration::from_millis(100);
/// As upstream's nodeReadyGracePeriod: a network that is still missing then takes its time.
const SOON: Duration = Duration::from_secs(120);
/// A runtime that was not well for so long is down.
const DOWN_AFTER: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of the runtime.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse {
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
        troubles.extend(trouble("container runtime", health.runtime.as_ref()));
        troubles.extend(self.network_trouble());
        troubles
    }

    /// Why pods get no network, when the runtime says that they get none.
    fn network_trouble(&self) -> Option<String> {
        trouble("container runtime network", self.health.as_ref()?.network.as_ref())
    }

    fn well(&self) -> bool {
        let holds = |health: &Health| {
            [&health.runtime, &health.network].into_iter().all(|c| c.as_ref().is_some_and(|c| c.holds))
        };
        self.health.as_ref().is_some_and(holds)
    }
}

fn trouble(what: &str, condition: Option<&Condition>) -> Option<String> {
    match condition {
        None => Some(format!("{what} not ready: <nil>")),
        Some(condition) if !condition.holds => Some(format!("{what} not ready: {condition}")),
        Some(_) => None,
    }
}

/// What keeps pods from getting a network; none when nothing does, or nobody knows. Ends when nobody
/// listens.
#[must_use]
pub(crate) fn network(mut pulse: watch::Receiver<Pulse>) -> watch::Receiver<Option<String>> {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        loop {
            let now = pulse.borrow_and_update().network_trouble();
            sender.send_if_modified(|known| {
                let new = *known != now;
                *known = now;
                new
            });
            tokio::select! {
                // A change stays marked until it was looked at.
                changed = pulse.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

/// Asks until nobody listens.
#[must_use]
pub(crate) fn follow(about: Arc<dyn About>) -> watch::Receiver<Pulse> {
    let (sender, receiver) = watch::channel(Pulse::default());
    tokio::spawn(async move {
        let (begun, mut was_well) = (Instant::now(), false);
        let mut named = None::<Instant>;
        loop {
            let before = sender.borrow().clone();
            let mut pulse = ask(&*about, before).await;
            // It may be replaced while we run, though not every tenth of a second.
            if named.is_none_or(|at| at.elapsed() >= EVERY)
                && let Ok(Ok(version)) = timeout(PATIENCE, about.version()).await
            {
                (pulse.version, named) = (Some(version), Some(Instant::now()));
            }
            was_well |= pulse.well();
            sender.send_replace(pulse);
            let pause = if was_well || begun.elapsed() >= SOON { EVERY } else { AT_FIRST };
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
            tracing::warn!(%error, detail = error.detail(), "the runtime does not report its status");
        }
        Err(_) => tracing::warn!("the runtime does not report its status: no answer"),
    }
    pulse
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::runtime::Effect;
    use crate::runtime::about::StoredImage;

    #[tokio::test(start_paused = true)]
    async fn a_network_that_is_not_ready_is_told_in_upstreams_words_and_so_is_the_end_of_it() {
        let (pulse_in, pulse) = watch::channel(Pulse::default());
        let mut network = network(pulse);
        let says = |condition: Option<(bool, &str)>| {
            let kind = "NetworkReady".to_owned();
            let of = |(holds, reason): (bool, &str)| Condition {
                kind,
                holds,
                reason: reason.to_owned(),
                message: "cni config uninitialized".to_owned(),
            };
            let health = Health { network: condition.map(of), ..Health::default() };
            pulse_in.send_replace(Pulse { health: Some(health), ..Pulse::default() });
        };
        says(Some((false, "NetworkPluginNotReady")));
        let wanted = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni config uninitialized";
        network.wait_for(|why| why.as_deref() == Some(wanted)).await.unwrap();
        says(Some((true, "")));
        network.wait_for(Option::is_none).await.unwrap();
        says(None);
        let wanted = "container runtime network not ready: <nil>";
        network.wait_for(|why| why.as_deref() == Some(wanted)).await.unwrap();
        // A runtime that does not answer says nothing of its network.
        pulse_in.send_replace(Pulse::default());
        network.wait_for(Option::is_none).await.unwrap();
    }

    /// Without a network.
    #[derive(Debug, Default)]
    struct Waiting {
        health: AtomicU32,
        version: AtomicU32,
    }

    impl About for Waiting {
        fn version(&self) -> Effect<'_, Version> {
            self.version.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(Version { name: "containerd".into(), version: "v2".into() }) })
        }

        fn health(&self) -> Effect<'_, Health> {
            self.health.fetch_add(1, Ordering::SeqCst);
            let condition = |kind: &str, holds| {
                Some(Condition { kind: kind.into(), holds, reason: String::new(), message: String::new() })
            };
            let (runtime, network) = (condition("RuntimeReady", true), condition("NetworkReady", false));
            Box::pin(async { Ok(Health { runtime, network, handlers: Vec::new(), features: None }) })
        }

        fn images(&self) -> Effect<'_, Vec<StoredImage>> {
            unreachable!()
        }

        fn set_pod_cidr<'a>(&'a self, _: &'a str) -> Effect<'a, ()> {
            unreachable!()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_that_does_not_come_is_not_asked_for_ten_times_a_second_for_ever() {
        let about = Arc::new(Waiting::default());
        let pulse = follow(about.clone());
        tokio::time::sleep(SOON + Duration::from_secs(3600)).await;
        let (health, version) = (about.health.load(Ordering::SeqCst), about.version.load(Ordering::SeqCst));
        assert!((1_900..2_000).contains(&health), "{health}");
        assert!((700..800).contains(&version), "{version}");
        assert!(pulse.borrow().version.is_some());
    }
}

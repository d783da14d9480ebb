//! Follows what a driver tells of the health of its devices (DRAResourceHealth v1alpha1), for as long as its connection
//! lasts. Owns the order: connect, take in, forget; how long a word counts is [`super::health`]'s. Part of
//! [`super::DraManager`].

use std::collections::BTreeSet;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_proto::dra_health as wire;
use gantry_proto::dra_health::dra_resource_health_client::DraResourceHealthClient;
use tokio::runtime::Handle;
use tonic::Streaming;
use tonic::transport::Channel;

use super::health::{DeviceKey, reports};
use super::{DraManager, HEALTH};

/// After a stream has ended, or a driver has none. As upstream.
const AGAIN: Duration = Duration::from_secs(5);

/// A stream. What it told counts no more when it goes, by whatever end.
struct Follower {
    manager: DraManager,
    driver: String,
}

impl Drop for Follower {
    fn drop(&mut self) {
        let changed = self.manager.0.lock().book.clear(&self.driver);
        self.manager.note(&self.driver, &changed);
        // Without a runtime the whole process ends; what the file says is stale by then.
        if let (false, Ok(runtime)) = (changed.is_empty(), Handle::try_current()) {
            let manager = self.manager.clone();
            runtime.spawn(async move { manager.save_health().await });
        }
    }
}

/// Never ends.
pub(super) async fn follow(manager: DraManager, driver: String, channel: Channel) {
    loop {
        let mut client = DraResourceHealthClient::new(channel.clone());
        match client.node_watch_resources(wire::NodeWatchResourcesRequest {}).await {
            Ok(stream) => {
                tracing::debug!(driver, "a DRA driver tells the health of its devices");
                let follower = Follower { manager: manager.clone(), driver: driver.clone() };
                let why = follower.take_in(stream.into_inner()).await;
                tracing::info!(driver, why, "a DRA driver tells the health of its devices no more");
            }
            // Not every driver has it.
            Err(status) => {
                tracing::debug!(driver, %status, "a DRA driver does not tell the health of its devices");
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Follower {
    /// Until the stream ends; why.
    async fn take_in(&self, mut stream: Streaming<wire::NodeWatchResourcesResponse>) -> String {
        let (manager, driver) = (&self.manager, self.driver.as_str());
        loop {
            let now = manager.0.clock.wall_nanos();
            let rest = manager.0.lock().book.rest(driver, now);
            let expiry = async {
                match rest {
                    // A moment more: at the very end it still counts.
                    Some(rest) => tokio::time::sleep(rest.saturating_add(Duration::from_millis(1))).await,
                    None => std::future::pending().await,
                }
            };
            // Both arms are cancel-safe: a message stays in its stream, a timer has no state worth keeping.
            let changed = tokio::select! {
                message = stream.message() => match message {
                    Ok(Some(answer)) => {
                        let now = manager.0.clock.wall_nanos();
                        manager.0.lock().book.update(driver, reports(answer), now)
                    }
                    Ok(None) => return "it ended its stream".to_owned(),
                    Err(status) => return status.to_string(),
                },
                () = expiry => manager.0.lock().book.expire(driver, manager.0.clock.wall_nanos()),
            };
            if !changed.is_empty() {
                manager.note(driver, &changed);
                manager.save_health().await;
            }
        }
    }
}

impl DraManager {
    /// Pods that have one of these devices are looked at again.
    fn note(&self, driver: &str, changed: &BTreeSet<DeviceKey>) {
        if self.0.lock().claims.has_any(driver, changed) {
            self.0.health.send_modify(|count| *count += 1);
        }
    }

    async fn save_health(&self) {
        let written = self.write(HEALTH, |shared| shared.book.encode().map_err(|error| chain(&error))).await;
        if let Err(error) = written {
            tracing::error!(
                error,
                "a restart would not know the health of devices until their drivers tell it"
            );
        }
    }
}

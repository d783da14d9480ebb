//! How many volumes a node takes, once more after its driver has registered: each `nodeAllocatableUpdatePeriodSeconds` of
//! the CSIDriver, and at once when an attacher has found the node full. Owns when a driver is asked again; what the cluster
//! is told is [`super::node_info`]'s. Started by the assembly, called by [`super::owner`].
//!
//! ```text
//! registers, its CSIDriver has a period ──▶ asked ──period──▶ asked ──period──▶ … ──▶ goes, or its period does
//!                                             ▲                                   │
//!                                             └────────── another period ◀────────┘
//! ```

#![expect(clippy::disallowed_methods, reason = "each driver has a task, which ends with the list of them")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::drivers::{Drivers, RegisteredDriver};
use super::node_info::NodeInfo;
use crate::api::Api;

/// Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Allocatable {
    api: Arc<dyn Api>,
    drivers: Drivers,
    cluster: NodeInfo,
}

/// A driver that is asked again and again, until this is dropped.
struct Asked {
    /// Who, and how often.
    of: (RegisteredDriver, Duration),
    task: AbortHandle,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Allocatable {
    /// Of the drivers of that list, which `cluster` knows.
    pub(crate) fn new(api: Arc<dyn Api>, drivers: Drivers, cluster: NodeInfo) -> Self {
        Self { api, drivers, cluster }
    }

    /// Until the process ends. Nobody's CSIDriver is read before the first driver is here.
    pub(crate) async fn run(self) {
        let mut registered = self.drivers.follow();
        if registered.wait_for(|list| !list.is_empty()).await.is_err() {
            return;
        }
        let mut changes = self.api.allocatable_periods();
        let mut periods = BTreeMap::new();
        let mut asked: BTreeMap<String, Asked> = BTreeMap::new();
        loop {
            tokio::select! {
                Some(now) = changes.next() => periods = now,
                Ok(()) = registered.changed() => {}
                else => return,
            }
            let wanted =
                |name: &String, driver: &RegisteredDriver| Some((driver.clone(), *periods.get(name)?));
            let list = registered.borrow_and_update().clone();
            // Whoever is asked otherwise from now on begins anew, as upstream.
            asked.retain(|name, old| {
                list.get(name).and_then(|driver| wanted(name, driver)) == Some(old.of.clone())
            });
            for (name, driver) in list {
                let Some(of) = wanted(&name, &driver).filter(|_| !asked.contains_key(&name)) else {
                    continue;
                };
                let task = tokio::spawn(self.clone().ask(name.clone(), of.1)).abort_handle();
                asked.insert(name, Asked { of, task });
            }
        }
    }

    /// Each period, for the first time after one; one that is late is not made up for.
    async fn ask(self, driver: String, period: Duration) {
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.update_or_tell(&driver).await;
        }
    }

    /// Asks the driver and tells the cluster; what fails is logged.
    pub(crate) async fn update_or_tell(&self, driver: &str) {
        if let Err(why) = self.update(driver).await {
            tracing::error!(
                driver,
                why,
                "the CSINode may not say how many volumes of a driver the node takes"
            );
        }
    }

    async fn update(&self, driver: &str) -> Result<(), String> {
        let client = self.drivers.get(driver)?;
        let facts = client
            .node_facts()
            .await
            .map_err(|error| format!("failed to get NodeGetInfo from driver {driver:?}: {}", error.why()))?;
        let updated = self.cluster.update(driver, &facts, || self.drivers.is_here(&client)).await;
        updated.map_err(|why| format!("failed to update driver {driver:?}: {why}"))
    }
}

#[cfg(test)]
mod tests;

//! Garbage collection of images: by the disk's fill and by age, with a word on what was freed and why
//! something was not. Owns when an image was seen and last used; never removes one that is in use or
//! pinned. Started by the kubelet.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Keeper;
use crate::clock::Clock;
use crate::runtime::Failure;
pub use plan::Disk;
use plan::{Kept, Plan, Records};

/// How often it is looked, as upstream.
const EVERY: Duration = Duration::from_secs(5 * 60);

/// As in KubeletConfiguration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// imageGCHighThresholdPercent: from which fill on images go; 100 turns it off.
    pub high_percent: u8,
    /// imageGCLowThresholdPercent: how far.
    pub low_percent: u8,
    /// imageMinimumGCAge: younger ones stay.
    pub min_age: Duration,
    /// imageMaximumGCAge: unused ones go after this, whatever the disk; zero turns it off.
    pub max_age: Duration,
}

/// What the node's owner should hear, as an event of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// `ImageGCFailed`, `FreeDiskSpaceFailed` or `InvalidDiskCapacity`.
    pub reason: &'static str,
    /// In upstream's words.
    pub message: String,
}

/// What one round did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Names or IDs of what was removed, with its bytes.
    pub freed: Vec<(String, u64)>,
    /// IDs of what is still there, when something was freed.
    pub left: Vec<String>,
    /// Those that went for their age alone.
    pub for_age: usize,
    /// For the node's owner.
    pub warnings: Vec<Warning>,
}

/// The collector.
#[derive(Debug)]
pub struct Collector {
    settings: Settings,
    keeper: Arc<dyn Keeper>,
    clock: Arc<dyn Clock>,
    records: Records,
    began: Duration,
}

impl Collector {
    /// Knows nothing yet: every image counts as seen when it is first met.
    #[must_use]
    pub fn new(settings: Settings, keeper: Arc<dyn Keeper>, clock: Arc<dyn Clock>) -> Self {
        let began = clock.mono();
        Self { settings, keeper, clock, records: Records::default(), began }
    }

    /// Collects for ever, until told to stop; `tell` gets what each round did.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>, mut tell: impl FnMut(Outcome)) {
        loop {
            tell(self.round(disk_of).await);
            tokio::select! {
                // Nobody can stop it any more: as good as stopped.
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// One look, and what follows. `disk` tells a folder's file system.
    pub async fn round(&mut self, disk: impl FnOnce(&str) -> std::io::Result<Disk>) -> Outcome {
        let mut outcome = Outcome::default();
        if let Err(message) = self.collect(disk, &mut outcome).await {
            tracing::error!(message, "image garbage collection failed");
            if outcome.warnings.is_empty() {
                outcome.warnings.push(Warning { reason: "ImageGCFailed", message });
            }
        }
        outcome
    }

    async fn collect(
        &mut self,
        disk: impl FnOnce(&str) -> std::io::Result<Disk>,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let failed = |error: Failure| error.to_string();
        let images = self.keeper.images().await.map_err(failed)?;
        let used = self.keeper.images_in_use().await.map_err(failed)?;
        let now = self.clock.mono();
        self.records.learn(&images, &used, now);
        let folder = self.keeper.image_folder().await.map_err(failed)?;
        let disk = disk(&folder).map_err(|error| format!("failed to get image stats: {folder}: {error}"))?;
        if disk.capacity == 0 {
            let message = "invalid capacity 0 on image filesystem".to_owned();
            outcome.warnings.push(Warning { reason: "InvalidDiskCapacity", message: message.clone() });
            return Err(message);
        }
        let plan = self.records.plan(&self.settings, disk, now, now.saturating_sub(self.began));
        let done = self.free(plan, disk, outcome).await;
        if !outcome.freed.is_empty() {
            let stays = |id: &String| self.records.knows(id);
            outcome.left = images.into_iter().map(|image| image.id).filter(stays).collect();
        }
        done
    }

    async fn free(&mut self, plan: Plan, disk: Disk, outcome: &mut Outcome) -> Result<(), String> {
        let Plan { by_age, by_space, goal, kept } = plan;
        let (mut freed, mut errors) = (0_u64, Vec::new());
        for (image, age) in by_age
            .into_iter()
            .map(|image| (image, true))
            .chain(by_space.into_iter().map(|image| (image, false)))
        {
            // What age freed counts towards the goal: the disk was measured before.
            if !age && freed >= goal {
                break;
            }
            match self.keeper.remove_image(&image.id).await {
                Ok(()) => {
                    tracing::info!(image = image.shown(), bytes = image.size, age, "removed an unused image");
                    self.records.forget(&image.id);
                    freed = freed.saturating_add(image.size);
                    outcome.for_age += usize::from(age);
                    outcome.freed.push((image.shown(), image.size));
                }
                Err(error) => errors.push(format!("{}: {error}", image.shown())),
            }
        }
        for Kept { image, why } in &kept {
            if goal > 0 {
                tracing::info!(image, why, "an image is kept");
            }
        }
        if !errors.is_empty() {
            return Err(format!(
                "wanted to free {goal} bytes, but freed {freed} bytes space with errors in image deletion: [{}]",
                errors.join(", ")
            ));
        }
        if freed < goal {
            let message = plan::insufficient(disk, freed, &kept);
            outcome.warnings.push(Warning { reason: "FreeDiskSpaceFailed", message: message.clone() });
            return Err(message);
        }
        Ok(())
    }
}

fn disk_of(folder: &str) -> std::io::Result<Disk> {
    let found = rustix::fs::statvfs(folder)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Disk { capacity: bytes(found.f_blocks), available: bytes(found.f_bavail) })
}

#[cfg(test)]
mod tests;

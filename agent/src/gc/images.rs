//! Garbage collection of images: by the disk's fill and by age, with a word on what was freed and why
//! something was not. Owns when an image was seen and last used; never removes one that is in use or
//! pinned. Started by the kubelet.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use gantry_model::clock::Clock;
use gantry_model::failure::Failure;
use gantry_trace::current;
use gantry_trace::span::Tracer;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Keeper;
use gantry_model::drain::DrainWatcher;
pub(crate) use plan::Disk;
use plan::{CollectionPlan, Record, Records, RetainedImage};

/// How often it is looked, as upstream.
const EVERY: Duration = Duration::from_secs(5 * 60);

/// As in KubeletConfiguration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
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
pub(crate) struct Warning {
    /// `ImageGCFailed`, `FreeDiskSpaceFailed` or `InvalidDiskCapacity`.
    pub reason: &'static str,
    /// In upstream's words.
    pub message: String,
}

/// What one round did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CollectionOutcome {
    /// Names or IDs of what was removed, with its bytes.
    pub freed: Vec<(String, u64)>,
    /// IDs of what is still there, when something was freed.
    pub left: Vec<String>,
    /// Those that went for their age alone.
    pub for_age: usize,
    /// For the node's owner.
    pub warnings: Vec<Warning>,
}

/// Asks the collector to free what it can, whatever the disk's fill. Cheap to copy.
#[derive(Debug, Clone)]
pub(crate) struct Reclaimer(mpsc::Sender<Request>);

/// Answered when it was tried.
type Request = oneshot::Sender<Result<(), String>>;

impl Reclaimer {
    /// Removes all unused images but those that were pulled just now; waits until that was tried.
    ///
    /// # Errors
    /// When one could not be removed, or nobody collects.
    pub(crate) async fn remove_unused(&self) -> Result<(), String> {
        let nobody = || "image garbage collection has ended".to_owned();
        let (request, answer) = oneshot::channel();
        self.0.send(request).await.map_err(|_| nobody())?;
        answer.await.map_err(|_| nobody())?
    }
}

/// The collector.
#[derive(Debug)]
pub(crate) struct Collector {
    settings: Settings,
    keeper: Arc<dyn Keeper>,
    clock: Arc<dyn Clock>,
    records: Records,
    began: Duration,
    /// The last round.
    failed: bool,
    tracer: Option<Tracer>,
    requests: (mpsc::Sender<Request>, mpsc::Receiver<Request>),
}

impl Collector {
    /// Knows nothing yet: every image counts as seen when it is first met.
    #[must_use]
    pub(crate) fn new(settings: Settings, keeper: Arc<dyn Keeper>, clock: Arc<dyn Clock>) -> Self {
        let began = clock.mono();
        let requests = mpsc::channel(1);
        let records = Records::default();
        Self { settings, keeper, clock, records, began, failed: false, tracer: None, requests }
    }

    /// The same, with a span for each round.
    #[must_use]
    pub(crate) fn with_tracer(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// For whoever needs room at once.
    #[must_use]
    pub(crate) fn reclaimer(&self) -> Reclaimer {
        Reclaimer(self.requests.0.clone())
    }

    /// Collects for ever, until the drain; `tell` gets what each round did.
    pub(crate) async fn run(mut self, mut drain: DrainWatcher, mut tell: impl FnMut(CollectionOutcome)) {
        let is_off = self.settings.high_percent == 100 && self.settings.max_age.is_zero();
        if is_off {
            tracing::info!(
                "ImageGCHighThresholdPercent is set 100 and ImageMaximumGCAge is 0, Disable image GC"
            );
        }
        let mut next = Instant::now();
        loop {
            // All arms are cancel-safe: a request stays in the queue until it is taken.
            tokio::select! {
                () = drain.wait_started() => return,
                () = tokio::time::sleep_until(next) => {
                    // Whoever asks one day must know since when an image is there.
                    match is_off {
                        false => {
                            let tracer = self.tracer.clone();
                            let round = self.round(disk_of);
                            tell(current::root(tracer.as_ref(), "Images/GarbageCollect", round).await);
                        }
                        true => if let Err(error) = self.learn().await {
                            tracing::warn!(error, "the runtime does not list its images");
                        },
                    }
                    next = Instant::now() + EVERY;
                }
                Some(request) = self.requests.1.recv() => {
                    let (outcome, result) = self.remove_unused().await;
                    tell(outcome);
                    // Who asked may not wait any more.
                    drop(request.send(result));
                }
            }
        }
    }

    /// All that no container stands on, whatever the disk's fill.
    async fn remove_unused(&mut self) -> (CollectionOutcome, Result<(), String>) {
        let (mut outcome, mut errors) = (CollectionOutcome::default(), Vec::new());
        if let Err(error) = self.learn().await {
            return (outcome, Err(error));
        }
        for image in self.records.list_unused(&self.settings, self.clock.mono()) {
            self.remove(&image, &mut outcome, &mut errors).await;
        }
        if !outcome.freed.is_empty() {
            outcome.left = self.records.ids();
        }
        let result = match errors.is_empty() {
            true => Ok(()),
            false => Err(format!("errors in image deletion: [{}]", errors.join(", "))),
        };
        (outcome, result)
    }

    /// What there is now, and who uses it.
    async fn learn(&mut self) -> Result<(), String> {
        let failed = |error: Failure| error.to_string();
        let images = self.keeper.images().await.map_err(failed)?;
        let used = self.keeper.images_in_use().await.map_err(failed)?;
        self.records.learn(&images, &used, self.clock.mono());
        Ok(())
    }

    /// One look, and what follows. `disk` tells a folder's file system.
    pub(crate) async fn round(
        &mut self,
        disk: impl FnOnce(&str) -> std::io::Result<Disk>,
    ) -> CollectionOutcome {
        let mut outcome = CollectionOutcome::default();
        let result = self.collect(disk, &mut outcome).await;
        if !outcome.freed.is_empty() {
            outcome.left = self.records.ids();
        }
        let again = std::mem::replace(&mut self.failed, result.is_err());
        if let Err(message) = result {
            tracing::error!(message, again, "image garbage collection failed");
            // As upstream: a runtime that is only just starting is not worth an event.
            if again {
                outcome.warnings.push(Warning { reason: "ImageGCFailed", message });
            }
        }
        outcome
    }

    async fn collect(
        &mut self,
        disk: impl FnOnce(&str) -> std::io::Result<Disk>,
        outcome: &mut CollectionOutcome,
    ) -> Result<(), String> {
        let failed = |error: Failure| error.to_string();
        self.learn().await?;
        let now = self.clock.mono();
        // Before the disk is looked at: age is no matter of room, and what it frees is not wanted twice.
        let aged = self.records.plan_by_age(&self.settings, now, now.saturating_sub(self.began));
        let mut errors = Vec::new();
        for image in aged {
            outcome.for_age += usize::from(self.remove(&image, outcome, &mut errors).await);
        }
        if !errors.is_empty() {
            return Err(format!("errors in image deletion: [{}]", errors.join(", ")));
        }
        let folder = self.keeper.image_folder().await.map_err(failed)?;
        let disk = disk(&folder).map_err(|error| format!("failed to get image stats: {folder}: {error}"))?;
        if disk.capacity == 0 {
            let message = "invalid capacity 0 on image filesystem".to_owned();
            outcome.warnings.push(Warning { reason: "InvalidDiskCapacity", message: message.clone() });
            return Err(message);
        }
        let plan = self.records.plan(&self.settings, disk, now);
        self.free(plan, disk, outcome).await
    }

    /// Whether it went.
    async fn remove(
        &mut self,
        image: &Record,
        outcome: &mut CollectionOutcome,
        errors: &mut Vec<String>,
    ) -> bool {
        match self.keeper.remove_image(&image.id).await {
            Ok(()) => {
                tracing::info!(image = image.display_name(), bytes = image.size, "removed an unused image");
                self.records.forget(&image.id);
                outcome.freed.push((image.display_name(), image.size));
                true
            }
            Err(error) => {
                errors.push(format!("{}: {error}", image.display_name()));
                false
            }
        }
    }

    async fn free(
        &mut self,
        plan: CollectionPlan,
        disk: Disk,
        outcome: &mut CollectionOutcome,
    ) -> Result<(), String> {
        let CollectionPlan { by_space, goal, kept } = plan;
        let (mut freed, mut errors) = (0_u64, Vec::new());
        if goal > 0 {
            // Upstream's words: runbooks look for them.
            tracing::info!(
                usage = disk.used_percent(),
                high_threshold = self.settings.high_percent,
                amount_to_free = goal,
                low_threshold = self.settings.low_percent,
                "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
            );
        }
        for image in by_space {
            if freed >= goal {
                break;
            }
            if self.remove(&image, outcome, &mut errors).await {
                freed = freed.saturating_add(image.size);
            }
        }
        for RetainedImage { image, why, by } in &kept {
            if goal > 0 {
                tracing::info!(image, why, container = by.as_deref(), "an image is kept");
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

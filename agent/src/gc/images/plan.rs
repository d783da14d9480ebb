//! Which images go, in which order, and why the others stay. Pure: times are arguments. Called by
//! [`super`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::{ImageUse, StoredImage};
use super::Settings;

/// A file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    /// All of it.
    pub capacity: u64,
    /// Free for users without privileges.
    pub available: u64,
}

impl Disk {
    /// Of a hundred, rounded up as upstream.
    pub(super) fn used_percent(self) -> u64 {
        let available = self.available.min(self.capacity);
        100_u64.saturating_sub(
            u64::try_from(u128::from(available) * 100 / u128::from(self.capacity.max(1))).unwrap_or(0),
        )
    }
}

/// One image, as remembered. Times are monotonic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) names: Vec<String>,
    pub(super) size: u64,
    pinned: bool,
    seen: Duration,
    /// None when it was in use at no look.
    used: Option<Duration>,
    /// A container that needs it now.
    by: Option<String>,
}

impl Record {
    /// For people.
    pub(super) fn display_name(&self) -> String {
        self.names.first().unwrap_or(&self.id).clone()
    }
}

/// An image that stays although space is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetainedImage {
    pub(super) image: String,
    pub(super) why: &'static str,
    /// Which container, when that is why; there may be more.
    pub(super) by: Option<String>,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CollectionPlan {
    /// In this order, until enough is free.
    pub(super) by_space: Vec<Record>,
    /// Bytes; zero when the disk has room.
    pub(super) goal: u64,
    pub(super) kept: Vec<RetainedImage>,
}

/// All images that were there at the last look.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<String, Record>);

impl Records {
    /// Takes in what there is now.
    pub(super) fn learn(&mut self, images: &[StoredImage], used: &[ImageUse], now: Duration) {
        let used: BTreeMap<&str, &str> =
            used.iter().map(|used| (used.image.as_str(), used.container.as_str())).collect();
        let there: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.0.retain(|id, _| there.contains(id.as_str()));
        for image in images {
            let by = used.get(image.id.as_str()).map(|&by| by.to_owned());
            let record = self.0.entry(image.id.clone()).or_insert_with(|| Record {
                id: image.id.clone(),
                names: Vec::new(),
                size: 0,
                pinned: false,
                seen: now,
                used: None,
                by: None,
            });
            if by.is_some() {
                record.used = Some(now);
            }
            (record.size, record.pinned, record.by) = (image.size, image.pinned, by);
            record.names.clone_from(&image.names);
        }
    }

    pub(super) fn ids(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// Unused for too long, whatever the disk. `running` is for how long the collector has been at
    /// work: it cannot know of use before that.
    pub(super) fn plan_by_age(&self, settings: &Settings, now: Duration, running: Duration) -> Vec<Record> {
        if settings.max_age == Duration::ZERO || running <= settings.max_age {
            return Vec::new();
        }
        let old = |record: &&Record| {
            let idle = now.saturating_sub(record.used.unwrap_or_default());
            record.by.is_none() && !record.pinned && idle > settings.max_age
        };
        let mut aged: Vec<Record> = self.0.values().filter(old).cloned().collect();
        aged.sort_by_key(|record| (record.used, record.seen));
        aged
    }

    /// All that may go, the longest unused first.
    pub(super) fn list_unused(&self, settings: &Settings, now: Duration) -> Vec<Record> {
        let may = |record: &&Record| {
            record.by.is_none() && !record.pinned && now.saturating_sub(record.seen) >= settings.min_age
        };
        let mut unused: Vec<Record> = self.0.values().filter(may).cloned().collect();
        unused.sort_by_key(|record| (record.used, record.seen));
        unused
    }

    /// What goes for want of room.
    pub(super) fn plan(&self, settings: &Settings, disk: Disk, now: Duration) -> CollectionPlan {
        let mut plan = CollectionPlan::default();
        let full = disk.used_percent() >= u64::from(settings.high_percent);
        if full && settings.high_percent < 100 {
            let free = u128::from(disk.capacity) * u128::from(100 - settings.low_percent.min(100)) / 100;
            plan.goal = u64::try_from(free).unwrap_or(u64::MAX).saturating_sub(disk.available);
        }
        let mut unused: Vec<&Record> = Vec::new();
        for record in self.0.values() {
            match record {
                Record { by: Some(_), .. } => plan.keep(record, "a container uses it"),
                Record { pinned: true, .. } => plan.keep(record, "it is pinned"),
                _ => unused.push(record),
            }
        }
        unused.sort_by_key(|record| (record.used, record.seen));
        for record in unused {
            if now.saturating_sub(record.seen) < settings.min_age {
                plan.keep(record, "it was pulled too recently");
            } else if plan.goal > 0 {
                plan.by_space.push(record.clone());
            }
        }
        plan
    }
}

impl CollectionPlan {
    fn keep(&mut self, record: &Record, why: &'static str) {
        self.kept.push(RetainedImage { image: record.display_name(), why, by: record.by.clone() });
    }
}

/// Upstream's words, and what stands in the way.
pub(super) fn insufficient(disk: Disk, freed: u64, kept: &[RetainedImage]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for RetainedImage { why, .. } in kept {
        *reasons.entry(why).or_default() += 1;
    }
    let reasons: Vec<String> = reasons.iter().map(|(why, count)| format!("{count} because {why}")).collect();
    let images =
        if reasons.is_empty() { String::new() } else { format!(" Images kept: {}.", reasons.join(", ")) };
    format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.{images}",
        disk.used_percent(),
        size(disk.capacity)
    )
}

fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = units[0];
    for next in &units[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const SETTINGS: Settings = Settings {
        high_percent: 85,
        low_percent: 80,
        min_age: Duration::from_secs(120),
        max_age: Duration::ZERO,
    };
    const FULL: Disk = Disk { capacity: 1000, available: 100 };

    fn image(id: &str, size: u64, pinned: bool) -> StoredImage {
        StoredImage { id: id.into(), names: vec![format!("{id}:1")], size, pinned }
    }

    fn uses(images: &[&str]) -> Vec<ImageUse> {
        let needs =
            |image: &&str| ImageUse { image: (*image).into(), container: format!("default/web/{image}") };
        images.iter().map(needs).collect()
    }

    fn ids(records: &[Record]) -> Vec<&str> {
        records.iter().map(|record| record.id.as_str()).collect()
    }

    #[test]
    fn the_longest_unused_go_first_and_what_is_used_pinned_or_new_stays() {
        let mut records = Records::default();
        let all = ["a", "b", "c", "d"].map(|id| image(id, 50, id == "d"));
        records.learn(&all, &uses(&["b", "c"]), MINUTE);
        records.learn(&all, &uses(&["c"]), 3 * MINUTE);
        let mut more = all.to_vec();
        more.push(image("new", 50, false));
        records.learn(&more, &uses(&["c"]), 4 * MINUTE);
        let plan = records.plan(&SETTINGS, FULL, 5 * MINUTE);
        assert_eq!(plan.goal, 100);
        assert_eq!(ids(&plan.by_space), ["a", "b"]);
        let kept: Vec<_> =
            plan.kept.iter().map(|kept| (kept.image.as_str(), kept.why, kept.by.as_deref())).collect();
        assert_eq!(
            kept,
            [
                ("c:1", "a container uses it", Some("default/web/c")),
                ("d:1", "it is pinned", None),
                ("new:1", "it was pulled too recently", None)
            ]
        );
        // With room on the disk nothing goes.
        let roomy = Disk { capacity: 1000, available: 160 };
        assert_eq!(ids(&records.plan(&SETTINGS, roomy, 5 * MINUTE).by_space), [""; 0]);
        let off = Settings { high_percent: 100, low_percent: 99, ..SETTINGS };
        assert_eq!(records.plan(&off, Disk { capacity: 1000, available: 0 }, 5 * MINUTE).goal, 0);
    }

    #[test]
    fn age_counts_only_once_the_collector_has_watched_that_long() {
        let settings = Settings { max_age: 10 * MINUTE, ..SETTINGS };
        let mut records = Records::default();
        records.learn(&[image("a", 1, false), image("b", 1, true)], &[], 100 * MINUTE);
        assert!(records.plan_by_age(&settings, 105 * MINUTE, 5 * MINUTE).is_empty());
        assert_eq!(ids(&records.plan_by_age(&settings, 111 * MINUTE, 11 * MINUTE)), ["a"]);
        records.learn(&[image("a", 1, false)], &uses(&["a"]), 111 * MINUTE);
        records.learn(&[image("a", 1, false)], &[], 112 * MINUTE);
        assert!(records.plan_by_age(&settings, 120 * MINUTE, 20 * MINUTE).is_empty());
    }

    #[test]
    fn a_disk_that_stays_full_is_told_in_upstreams_words_and_with_the_cause() {
        let kept = [("a", "it is pinned"), ("b", "it is pinned"), ("c", "a container uses it")];
        let kept = kept.map(|(image, why)| RetainedImage { image: image.into(), why, by: None });
        let text = insufficient(Disk { capacity: 10 << 30, available: 1 << 30 }, 5, &kept);
        assert!(text.starts_with(
            "Insufficient free disk space on the node's image filesystem (90% of 10.0 GiB used). "
        ));
        assert!(
            text.ends_with(" Images kept: 1 because a container uses it, 2 because it is pinned."),
            "{text}"
        );
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
    }
}

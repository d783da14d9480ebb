//! How far a pull has come, for a pod's events. Pure: owns when a pull is worth a word, and the words; never asks a
//! runtime. Used by [`super`]'s callers while they wait for a pull.

use std::time::Duration;

use serde::Deserialize;

/// A pull that is over before is told of by its end alone.
const FIRST: Duration = Duration::from_secs(30);
/// Between two words at the most, so that an hour's pull is no flood of events.
const LONGEST: Duration = Duration::from_secs(300);

/// What a runtime says of a pull under way: Gantry's own does, in the verbose `info["pull"]` of ImageStatus.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Base first; empty while the image is looked up.
    pub layers: Vec<Layer>,
}

/// One layer of it.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Layer {
    /// Compressed bytes.
    pub total: u64,
    /// Of these, so far.
    pub downloaded: u64,
    /// `done`, `downloaded` and `exists` are there.
    pub stage: String,
}

/// How long to wait before the next word, after so many.
#[must_use]
pub fn pause(told: u32) -> Duration {
    FIRST.saturating_mul(2_u32.saturating_pow(told)).min(LONGEST)
}

impl Progress {
    /// As an event says it; None where there is nothing to be said yet.
    #[must_use]
    pub fn words(&self, image: &str) -> Option<String> {
        let is_there = |layer: &&Layer| matches!(layer.stage.as_str(), "done" | "downloaded" | "exists");
        let here = self.layers.iter().filter(is_there).count();
        // One that was here before is no part of what is waited for.
        let wanted = || self.layers.iter().filter(|layer| layer.stage != "exists");
        // Sizes are a manifest's to say, and whoever wrote that may lie.
        let total = wanted().map(|layer| layer.total).fold(0, u64::saturating_add);
        let come = wanted().map(|layer| layer.downloaded.min(layer.total)).fold(0, u64::saturating_add);
        (!self.layers.is_empty()).then(|| {
            format!(
                "Pulling image {image:?}: {} of {} MB, {here} of {} layers",
                megabytes(come),
                megabytes(total),
                self.layers.len()
            )
        })
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{}", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_what_is_waited_for() {
        let text = r#"{"image":"r/web:v1","startedAt":5,"stage":"layers","layers":[
            {"digest":"sha256:1","total":3600000,"downloaded":0,"stage":"exists"},
            {"digest":"sha256:2","total":1000000,"downloaded":1000000,"stage":"done"},
            {"digest":"sha256:3","total":64400000,"downloaded":12345678,"stage":"downloading"}]}"#;
        let progress: Progress = serde_json::from_str(text).unwrap();
        let words = progress.words("web:v1").unwrap();
        assert_eq!(words, r#"Pulling image "web:v1": 13.3 of 65.4 MB, 2 of 3 layers"#);
        assert_eq!(Progress::default().words("web:v1"), None, "it is being resolved");
        let lie = Layer { total: u64::MAX, downloaded: u64::MAX, stage: "downloading".to_owned() };
        let words = Progress { layers: vec![lie.clone(), lie] }.words("web:v1").unwrap();
        assert!(words.ends_with("MB, 0 of 2 layers"), "{words}");
    }

    #[test]
    fn pauses_grow_to_five_minutes() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 4, 40].map(|told| pause(told).as_secs()).to_vec();
        assert_eq!(seconds, [30, 60, 120, 240, 300, 300]);
    }
}

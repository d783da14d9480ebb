//! How far one pull has come, in the form in which Gantry's own runtime says it in ImageStatus's verbose
//! `info["pull"]`, and as stages once it has ended. Pure: owns form and wording, for events, for the operator API
//! and for the command line; never looks.

use serde::{Deserialize, Serialize};

use crate::timeline::Span;
use crate::timeline::render::size;

/// A layer as it was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Of the compressed blob.
    pub digest: String,
    /// Compressed bytes.
    pub size: u64,
    /// How it goes.
    pub state: LayerState,
}

/// ```text
/// Waiting ──▶ Downloading ──▶ Downloaded        Present: it was here before the pull
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Nothing of it has come.
    Waiting,
    /// Bytes come.
    Downloading {
        /// Unix nanoseconds.
        since: i64,
        /// So far.
        bytes: u64,
    },
    /// All of them are here.
    Downloaded {
        /// Unix nanoseconds; none when nobody looked while they came.
        since: Option<i64>,
        /// Unix nanoseconds.
        at: i64,
    },
    /// Nothing is to come.
    Present,
}

impl Layer {
    fn downloaded(&self) -> u64 {
        match self.state {
            LayerState::Waiting => 0,
            LayerState::Downloading { bytes, .. } => bytes.min(self.size),
            LayerState::Downloaded { .. } | LayerState::Present => self.size,
        }
    }

    fn is_here(&self) -> bool {
        matches!(self.state, LayerState::Downloaded { .. } | LayerState::Present)
    }

    fn word(&self) -> &'static str {
        match self.state {
            LayerState::Waiting => "waiting",
            LayerState::Downloading { .. } => "downloading",
            LayerState::Downloaded { .. } => "downloaded",
            LayerState::Present => "exists",
        }
    }
}

/// A pull under way. Read from a runtime, whatever it leaves out is empty.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// By its full name.
    pub image: String,
    /// Unix nanoseconds.
    pub started_at: i64,
    /// `resolving`, `layers`, then `unpacking` or, by our own runtime, `committing`.
    pub stage: String,
    /// In the image's order, base first; empty while the image is resolved.
    pub layers: Vec<LayerProgress>,
}

/// A layer of it.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerProgress {
    /// Of the compressed blob.
    pub digest: String,
    /// Compressed bytes.
    pub total: u64,
    /// Of these, so far.
    pub downloaded: u64,
    /// `waiting`, `downloading`, then `downloaded`, or by our own runtime `unpacking` and `done`; `exists` is one
    /// that was here before.
    pub stage: String,
}

impl Progress {
    /// Of what was seen last.
    #[must_use]
    pub fn new(image: &str, started_at: i64, layers: &[Layer]) -> Self {
        let stage = match layers {
            [] => "resolving",
            layers if layers.iter().all(Layer::is_here) => "unpacking",
            _ => "layers",
        };
        let show = |layer: &Layer| LayerProgress {
            digest: layer.digest.clone(),
            total: layer.size,
            downloaded: layer.downloaded(),
            stage: layer.word().to_owned(),
        };
        let layers = layers.iter().map(show).collect();
        Self { image: image.to_owned(), started_at, stage: stage.to_owned(), layers }
    }

    /// Bytes so far, and in all, of what is waited for: a layer that was here before is no part of it.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let wanted = || self.layers.iter().filter(|layer| layer.stage != "exists");
        // Sizes are a manifest's to say, and whoever wrote that may lie.
        let come = wanted().map(|layer| layer.downloaded.min(layer.total)).fold(0, u64::saturating_add);
        (come, wanted().map(|layer| layer.total).fold(0, u64::saturating_add))
    }

    /// `2 of 5 layers, 1.2MB of 3.4MB`; the stage while no layer is known.
    #[must_use]
    pub fn words(&self) -> String {
        if self.layers.is_empty() {
            return self.stage.clone();
        }
        let is_there =
            |layer: &&LayerProgress| matches!(layer.stage.as_str(), "done" | "downloaded" | "exists");
        let here = self.layers.iter().filter(is_there).count();
        let (come, total) = self.bytes();
        format!("{here} of {} layers, {} of {}", self.layers.len(), size(come), size(total))
    }
}

/// What took the time, once it is over. A download that nobody saw is a moment: its end is known.
pub(super) fn stages(began: i64, layers: &[Layer]) -> Vec<Span> {
    let stage = |(index, layer): (usize, &Layer)| {
        let (name, start, end, detail) = match layer.state {
            LayerState::Waiting | LayerState::Downloading { .. } => return None,
            LayerState::Downloaded { since, at } => {
                ("download", since.unwrap_or(at).min(at), at, format!("{} bytes", layer.size))
            }
            LayerState::Present => ("present", began, began, String::new()),
        };
        // What another pull had begun is this one's from its own beginning.
        let (start, end) = (start.max(began), end.max(began));
        let name = format!("layer.{index}.{name}");
        Some(Span { name, container: String::new(), start, end, detail })
    };
    layers.iter().enumerate().filter_map(stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(digest: &str, size: u64, state: LayerState) -> Layer {
        Layer { digest: digest.into(), size, state }
    }

    #[test]
    fn a_pull_is_told_in_the_words_of_our_own_runtime() {
        let layers = [
            layer("sha256:a", 10, LayerState::Present),
            layer("sha256:b", 20, LayerState::Downloaded { since: None, at: 8 }),
            // A store may say more than the manifest promised.
            layer("sha256:c", 30, LayerState::Downloading { since: 5, bytes: 99 }),
            layer("sha256:d", 40, LayerState::Waiting),
        ];
        let progress = Progress::new("reg/a:1", 3, &layers);
        let text = serde_json::to_string(&progress).unwrap();
        assert!(
            text.starts_with(r#"{"image":"reg/a:1","startedAt":3,"stage":"layers","layers":[{"digest":"#)
        );
        let shown: Vec<_> =
            progress.layers.iter().map(|l| (l.downloaded, l.total, l.stage.as_str())).collect();
        let expected =
            [(10, 10, "exists"), (20, 20, "downloaded"), (30, 30, "downloading"), (0, 40, "waiting")];
        assert_eq!(shown, expected);
        assert_eq!(progress.words(), "2 of 4 layers, 50B of 90B");
        assert_eq!(Progress::new("a", 0, &[]).words(), "resolving");
        let all_here = Progress::new("a", 0, layers.get(..2).unwrap());
        assert_eq!(
            (all_here.stage.as_str(), all_here.words().as_str()),
            ("unpacking", "2 of 2 layers, 20B of 20B")
        );
    }

    #[test]
    fn words_count_what_is_waited_for_and_believe_no_size() {
        let text = r#"{"image":"r/web:v1","startedAt":5,"stage":"layers","layers":[
            {"digest":"sha256:1","total":3600000,"downloaded":0,"stage":"exists"},
            {"digest":"sha256:2","total":1000000,"downloaded":1000000,"stage":"done"},
            {"digest":"sha256:3","total":64400000,"downloaded":12345678,"stage":"downloading"}]}"#;
        let progress: Progress = serde_json::from_str(text).unwrap();
        assert_eq!(progress.words(), "2 of 3 layers, 13.3MB of 65.4MB");
        assert_eq!(Progress::default().words(), "", "a runtime may say nothing at all");
        let lie = LayerProgress { total: u64::MAX, downloaded: u64::MAX, ..LayerProgress::default() };
        let words = Progress { layers: vec![lie.clone(), lie], ..Progress::default() }.words();
        assert!(words.starts_with("0 of 2 layers, "), "{words}");
    }

    #[test]
    fn what_is_over_becomes_stages_within_the_pull() {
        let layers = [
            layer("sha256:a", 10, LayerState::Present),
            layer("sha256:b", 20, LayerState::Downloaded { since: Some(120), at: 150 }),
            layer("sha256:c", 30, LayerState::Downloaded { since: None, at: 160 }),
            layer("sha256:d", 40, LayerState::Downloaded { since: Some(50), at: 130 }),
            layer("sha256:e", 50, LayerState::Waiting),
        ];
        let spans = stages(100, &layers);
        let told: Vec<_> =
            spans.iter().map(|s| (s.name.as_str(), s.start, s.end, s.detail.as_str())).collect();
        assert_eq!(
            told,
            [
                ("layer.0.present", 100, 100, ""),
                ("layer.1.download", 120, 150, "20 bytes"),
                ("layer.2.download", 160, 160, "30 bytes"),
                ("layer.3.download", 100, 130, "40 bytes"),
            ]
        );
    }
}

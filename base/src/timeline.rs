//! Named spans of a sandbox's, container's or image's making. Owns the span type and a recorder;
//! never decides anything. RPC handlers fill it, status RPCs show it as verbose `info["timeline"]`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One stage. Times are unix nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Dotted: a stage within a stage names its parent first, as in `cni.bridge`.
    pub name: String,
    /// When the stage began.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Bytes, an address, an image name; empty when there is nothing to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Collects spans from any task or thread; clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    spans: Arc<Mutex<Vec<Span>>>,
}

/// A stage under way; ends, and is recorded, when dropped.
#[derive(Debug)]
pub struct Stage {
    recorder: Recorder,
    name: String,
    detail: String,
    start: i64,
}

/// Nanoseconds since 1970 by the wall clock; 0 when the clock stands before that.
#[must_use]
pub fn unix_nanos() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|elapsed| i64::try_from(elapsed.as_nanos()).ok())
        .unwrap_or(0)
}

impl Recorder {
    /// Begins a stage.
    #[must_use]
    pub fn stage(&self, name: impl Into<String>) -> Stage {
        Stage { recorder: self.clone(), name: name.into(), detail: String::new(), start: unix_nanos() }
    }

    /// Adds a stage that was measured elsewhere.
    pub fn add(&self, span: Span) {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }

    /// All stages ended so far, by start.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
        spans.sort_by_key(|span| (span.start, span.end));
        spans
    }
}

impl Stage {
    /// Says something about the stage.
    pub fn detail(&mut self, detail: impl Into<String>) {
        self.detail = detail.into();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let span = Span {
            name: std::mem::take(&mut self.name),
            start: self.start,
            end: unix_nanos(),
            detail: std::mem::take(&mut self.detail),
        };
        self.recorder.add(span);
    }
}

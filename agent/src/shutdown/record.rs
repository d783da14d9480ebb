//! When the last shutdown began and ended, for the metrics of the kubelet after it. Owns the file, which has upstream's
//! name and form; never decides when that is. Called by [`super::run`].

use std::io;
use std::path::{Path, PathBuf};

use gantry_base::error::chain;
use gantry_base::files;
use gantry_metrics::Metrics;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// In the kubelet's root folder.
pub(super) const FILE: &str = "graceful_node_shutdown_state";
/// How Go writes no time at all.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{} {}", verb, path.display())]
    File {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read {} as JSON", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// As it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Times {
    start_time: Timestamp,
    end_time: Timestamp,
}

/// Both times of a shutdown; the second one is not there while it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShutdownSpan {
    pub(super) begin: Timestamp,
    pub(super) end: Option<Timestamp>,
}

/// The metrics as a kubelet before this one left them.
pub(super) fn recall(folder: &Path, metrics: &Metrics) {
    match read(&folder.join(FILE)) {
        Ok(None) => {}
        Ok(Some(Times { start_time, end_time })) => {
            for (time, metric) in
                [(start_time, &metrics.graceful_shutdown_start), (end_time, &metrics.graceful_shutdown_end)]
            {
                if time != never() {
                    metric.set([], seconds(time));
                }
            }
        }
        Err(error) => tracing::error!(err = chain(&error), "Failed to load graceful shutdown state"),
    }
}

/// Keeps it and counts it.
pub(super) async fn keep(folder: PathBuf, span: ShutdownSpan, metrics: &Metrics) {
    metrics.graceful_shutdown_start.set([], seconds(span.begin));
    metrics.graceful_shutdown_end.set([], span.end.map_or(0.0, seconds));
    let times = Times { start_time: span.begin, end_time: span.end.unwrap_or_else(never) };
    // It waits for the disk.
    match tokio::task::spawn_blocking(move || write(&folder.join(FILE), &times)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(err = chain(&error), "Failed to store graceful shutdown state"),
        Err(error) => tracing::error!(err = %error, "Failed to store graceful shutdown state"),
    }
}

fn never() -> Timestamp {
    NEVER.parse().unwrap_or(Timestamp::MIN)
}

#[expect(clippy::cast_precision_loss, reason = "Unix time in seconds")]
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

fn read(path: &Path) -> Result<Option<Times>, Error> {
    match std::fs::read(path) {
        Ok(text) => {
            let json = |source| Error::Json { path: path.to_owned(), source };
            serde_json::from_slice(&text).map(Some).map_err(json)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { verb: "read", path: path.to_owned(), source }),
    }
}

fn write(path: &Path, times: &Times) -> Result<(), Error> {
    let json = |source| Error::Json { path: path.to_owned(), source };
    let text = serde_json::to_vec(times).map_err(json)?;
    let wrap = |source| Error::File { verb: "write", path: path.to_owned(), source };
    files::replace(path, &text, 0o644).map_err(wrap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(metrics: &Metrics) -> (Option<f64>, Option<f64>) {
        (metrics.graceful_shutdown_start.get([]), metrics.graceful_shutdown_end.get([]))
    }

    #[tokio::test]
    async fn the_file_has_upstreams_form_and_the_next_kubelet_counts_it() {
        let folder = tempfile::tempdir().unwrap();
        let (begin, end) = (Timestamp::from_second(1000).unwrap(), Timestamp::from_second(1060).unwrap());
        let metrics = Metrics::default();
        keep(folder.path().to_owned(), ShutdownSpan { begin, end: None }, &metrics).await;
        let text = || std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert_eq!(text(), r#"{"startTime":"1970-01-01T00:16:40Z","endTime":"0001-01-01T00:00:00Z"}"#);
        assert_eq!(times(&metrics), (Some(1000.0), Some(0.0)));
        keep(folder.path().to_owned(), ShutdownSpan { begin, end: Some(end) }, &metrics).await;
        assert_eq!(text(), r#"{"startTime":"1970-01-01T00:16:40Z","endTime":"1970-01-01T00:17:40Z"}"#);
        let next = Metrics::default();
        recall(folder.path(), &next);
        assert_eq!(times(&next), (Some(1000.0), Some(1060.0)));
    }

    #[test]
    fn what_upstream_wrote_in_a_zone_of_its_own_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"startTime":"2026-11-28T12:00:00.123456789+01:00","endTime":"0001-01-01T00:00:00Z"}"#;
        std::fs::write(folder.path().join(FILE), text).unwrap();
        let metrics = Metrics::default();
        recall(folder.path(), &metrics);
        assert_eq!(times(&metrics), (Some(1_795_863_600.0), Some(0.0)));
        let none = Metrics::default();
        recall(&folder.path().join("nothing"), &none);
        assert_eq!(times(&none), (Some(0.0), Some(0.0)));
    }
}

//! Whether pods are still being observed: a runtime may say that it is well and not list its pods.
//! Owns the look for it and upstream's words; never looks at a pod. Its findings keep the node from
//! being ready (trap 14). Started by the kubelet's wiring.

#![expect(clippy::disallowed_methods, reason = "the watch over stalls lives as long as the kubelet")]

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gantry_metrics::Metrics;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::runtime::Runtime;

const EVERY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// As upstream's relistThreshold.
const THRESHOLD: Duration = Duration::from_secs(180);

/// What keeps pods from running; empty when nothing does. Ends when nobody listens.
#[must_use]
pub(crate) fn follow(runtime: Arc<dyn Runtime>, metrics: Arc<Metrics>) -> watch::Receiver<Vec<String>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let (mut active, mut last) = (Instant::now(), None::<Instant>);
        loop {
            let begun = Instant::now();
            if let Some(last) = last.replace(begun) {
                metrics.pleg_relist_interval.took([], begun.duration_since(last));
            }
            let looked = timeout(PATIENCE, runtime.pods()).await;
            metrics.pleg_relist_duration.took([], begun.elapsed());
            match looked {
                Ok(Ok(_)) => {
                    active = Instant::now();
                    metrics.pleg_last_seen.set([], now_in_seconds());
                }
                Ok(Err(error)) => tracing::warn!(%error, detail = error.detail(), "pods cannot be observed"),
                Err(_) => tracing::warn!("pods cannot be observed: no answer"),
            }
            let now = trouble(active.elapsed());
            sender.send_if_modified(|known| {
                let new = *known != now;
                *known = now;
                new
            });
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

/// Of Unix time, without parts.
fn now_in_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs_f64().trunc()
}

fn trouble(silent: Duration) -> Vec<String> {
    if silent < THRESHOLD {
        return Vec::new();
    }
    let (silent, most) = (go(silent), go(THRESHOLD));
    vec![format!("PLEG is not healthy: pleg was last seen active {silent} ago; threshold is {most}")]
}

/// As Go prints a duration, to the second.
fn go(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::failure::FailureKind;

    use super::*;
    use crate::runtime::fake::{Call, FakeRuntime};

    #[tokio::test(start_paused = true)]
    async fn trap_14_a_runtime_that_does_not_list_its_pods_is_told_and_so_is_the_end_of_it() {
        let runtime = FakeRuntime::new(&[]);
        runtime.fail(Call::Observe, 30, FailureKind::TimedOut, "context deadline exceeded");
        let metrics = Arc::new(Metrics::default());
        let mut troubles = follow(Arc::new(runtime), metrics.clone());
        let began = Instant::now();
        troubles.wait_for(|troubles| !troubles.is_empty()).await.unwrap();
        assert!(began.elapsed() >= THRESHOLD, "{:?}", began.elapsed());
        assert_eq!(metrics.pleg_last_seen.get([]), Some(0.0), "it was never seen");
        troubles.wait_for(Vec::is_empty).await.unwrap();
        assert!(metrics.pleg_last_seen.get([]).unwrap() > 1_600_000_000.0);
        let (looks, pauses) =
            (metrics.pleg_relist_duration.count([]), metrics.pleg_relist_interval.count([]));
        assert_eq!((looks, pauses), (31, 30));
    }

    #[test]
    fn three_minutes_of_silence_are_told_in_upstreams_words() {
        assert_eq!(trouble(Duration::from_secs(179)), Vec::<String>::new());
        assert_eq!(
            trouble(Duration::from_secs(3725)),
            ["PLEG is not healthy: pleg was last seen active 1h2m5s ago; threshold is 3m0s"]
        );
    }
}

//! Whether pods are still being observed: a runtime may say that it is well and not list its pods.
//! Owns the look for it and upstream's words; never looks at a pod. Its findings keep the node from
//! being ready (trap 14). Started by the kubelet's wiring.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::runtime::Runtime;

const EVERY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// As upstream's relistThreshold.
const THRESHOLD: Duration = Duration::from_secs(180);

/// What keeps pods from running; empty when nothing does. Ends when nobody listens.
#[must_use]
pub fn follow(runtime: Arc<dyn Runtime>) -> watch::Receiver<Vec<String>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let mut active = Instant::now();
        loop {
            match timeout(PATIENCE, runtime.pods()).await {
                Ok(Ok(_)) => active = Instant::now(),
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
    use super::*;
    use crate::runtime::FailureKind;
    use crate::runtime::fake::{Call, FakeRuntime, Script};

    #[test]
    fn three_minutes_of_silence_are_told_in_upstreams_words() {
        assert_eq!(trouble(Duration::from_secs(179)), Vec::<String>::new());
        assert_eq!(
            trouble(Duration::from_secs(3725)),
            ["PLEG is not healthy: pleg was last seen active 1h2m5s ago; threshold is 3m0s"]
        );
    }
}

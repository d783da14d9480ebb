//! A subscription that is opened again whenever it ends. Owns the back-off in between; what happens while there is none is
//! not told. Called by the listeners.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

/// Before a new subscription: doubled each time that the one before did not last.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Until nobody listens.
pub(super) async fn subscribe_forever<T, F: Future<Output = Result<(), Status>>>(
    told: &watch::Sender<T>,
    subscribe: impl Fn() -> F,
) {
    let mut pause = FIRST;
    loop {
        let begun = Instant::now();
        // All arms are cancel-safe: an event that is lost is one more that is not told.
        tokio::select! {
            ended = subscribe() => match ended {
                Ok(()) => tracing::debug!("the runtime's events end"),
                Err(status) => tracing::debug!(%status, "the runtime's events break off"),
            },
            () = told.closed() => return,
        }
        pause = if begun.elapsed() >= LONGEST { FIRST } else { pause };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = told.closed() => return,
        }
        pause = (pause * 2).min(LONGEST);
    }
}

//! Asking again: what a registry says no to for the moment only. Owns how often and after which pauses. Called by
//! `Repository` and `Download`.

use std::time::Duration;

use super::RegistryError;

/// Before each further question.
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// Whoever wants to be left alone for longer is asked again by the kubelet, in its own time.
const LONGEST: Duration = Duration::from_secs(30);

/// What has begun already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferState {
    /// Nothing: a registry that is not there at all is said to be so at once.
    NotStarted,
    /// Bytes have come, so it was there a moment ago.
    Started,
}

/// Asks, and asks again where that may help. The first error is told: later ones follow from it.
///
/// # Errors
/// What `ask` says.
pub(super) async fn retry<T, F: Future<Output = Result<T, RegistryError>>>(
    since: TransferState,
    ask: impl Fn() -> F,
) -> Result<T, RegistryError> {
    let mut first = None;
    for own in PAUSES.map(Some).into_iter().chain([None]) {
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let pause = own.and_then(|own| retry_pause(&error, since, own));
        let error = first.get_or_insert(error);
        let Some(pause) = pause else { break };
        tracing::info!(?pause, "asking again: {}", gantry_base::error::chain(&*error));
        tokio::time::sleep(pause).await;
    }
    Err(first.unwrap_or(RegistryError::NoPlace))
}

/// How long to wait before asking again; None where that does not help.
fn retry_pause(error: &RegistryError, since: TransferState, own: Duration) -> Option<Duration> {
    match error {
        // The places before it have failed, too.
        RegistryError::Mirrors { source, .. } => retry_pause(source, since, own),
        RegistryError::Status { status: 408 | 429 | 500 | 502..=504, after, .. } => {
            Some(after.unwrap_or(own)).filter(|pause| *pause <= LONGEST)
        }
        RegistryError::Lost { .. } => Some(own),
        RegistryError::Connect { .. } | RegistryError::Stalled { .. } if since == TransferState::Started => {
            Some(own)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn status(status: u16, after: Option<u64>) -> RegistryError {
        let after = after.map(Duration::from_secs);
        RegistryError::Status { url: "r".into(), status, detail: status.to_string(), after }
    }

    /// Seconds that it took to give up, how often was asked, and what was told.
    async fn given_up(errors: impl Fn(u32) -> RegistryError) -> (f64, u32, String) {
        let (began, asked) = (tokio::time::Instant::now(), Cell::new(0));
        let told = retry(TransferState::NotStarted, || async {
            asked.set(asked.get() + 1);
            Err::<(), _>(errors(asked.get()))
        });
        let told = told.await.unwrap_err().to_string();
        (began.elapsed().as_secs_f64(), asked.get(), told)
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_asked_again_and_what_does_not_is_told_at_once() {
        assert_eq!(given_up(|_| status(503, None)).await, (3.5, 4, "r answered 503: 503".into()));
        assert_eq!(given_up(|_| status(429, Some(10))).await.0, 30.0);
        assert_eq!(given_up(|_| status(429, Some(31))).await.1, 1, "too long to wait for");
        for lasting in [400, 405, 501, 505] {
            assert_eq!(given_up(|_| status(lasting, None)).await.1, 1, "{lasting}");
        }
        let missing = |_| RegistryError::NotFound { url: "r".into(), detail: String::new() };
        assert_eq!(given_up(missing).await.1, 1);
        let first = given_up(|asked| status(if asked == 1 { 429 } else { 502 }, None)).await;
        assert!(first.2.contains("429"), "{first:?}");
        let mirrors =
            |_| RegistryError::Mirrors { failures: String::new(), source: Box::new(status(502, None)) };
        assert_eq!(given_up(mirrors).await.1, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stalls_is_asked_again_only_where_bytes_have_come() {
        for (since, times) in [(TransferState::NotStarted, 1), (TransferState::Started, 4)] {
            let asked = Cell::new(0);
            let told = retry(since, || async {
                asked.set(asked.get() + 1);
                Err::<(), _>(RegistryError::Stalled { url: "r".into(), seconds: 1 })
            });
            assert!(told.await.is_err());
            assert_eq!(asked.get(), times);
        }
        let asked = Cell::new(0);
        let answer = retry(TransferState::NotStarted, || async {
            asked.set(asked.get() + 1);
            if asked.get() < 3 { Err(status(500, None)) } else { Ok(asked.get()) }
        });
        assert_eq!(answer.await.unwrap(), 3);
    }
}

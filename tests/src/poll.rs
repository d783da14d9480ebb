//! Waiting: the only place in the harness that sleeps. Owns the rhythm and the message of a wait
//! that ran out; never decides what is waited for. Called by everything that watches a process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const RHYTHM: Duration = Duration::from_millis(20);

/// Calls `step` until it answers `Ok`; its last `Err` is the status shown when `deadline` passes.
///
/// # Errors
/// When the deadline passes: names what was waited for and the last status.
pub fn poll<T>(what: &str, deadline: Duration, step: impl FnMut() -> Result<T, String>) -> Result<T> {
    poll_every(RHYTHM, what, deadline, step)
}

/// As [`poll`], for a step that is dear: `rhythm` passes between two.
///
/// # Errors
/// As [`poll`].
pub fn poll_every<T>(
    rhythm: Duration,
    what: &str,
    deadline: Duration,
    mut step: impl FnMut() -> Result<T, String>,
) -> Result<T> {
    let deadline = bound(deadline);
    let end = Instant::now() + deadline;
    loop {
        match step() {
            Ok(value) => return Ok(value),
            Err(status) if Instant::now() >= end => {
                bail!("waited {} s for {what}; last seen: {status}", deadline.as_secs())
            }
            Err(_) => std::thread::sleep(rhythm),
        }
    }
}

/// How much longer than usual a wait may be on this machine: a number, set by `cargo xtask test`.
pub const FACTOR: &str = "GANTRY_WAIT_FACTOR";

/// How long a wait of `usual` may take on this machine, for waits that are no polls.
#[must_use]
pub fn bound(usual: Duration) -> Duration {
    usual.mul_f64(factor())
}

fn factor() -> f64 {
    static FACTOR_READ: OnceLock<f64> = OnceLock::new();
    *FACTOR_READ.get_or_init(|| {
        let told = std::env::var(FACTOR).ok().and_then(|text| text.parse().ok());
        told.filter(|factor: &f64| factor.is_finite()).unwrap_or(1.0).clamp(1.0, MOST)
    })
}

/// A factor is this at most: a wait for what never comes should end some day.
pub const MOST: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_as_soon_as_the_step_does() {
        let mut calls = 0;
        let got = poll("a third call", Duration::from_secs(5), || {
            calls += 1;
            if calls == 3 { Ok(calls) } else { Err(format!("call {calls}")) }
        });
        assert_eq!(got.unwrap(), 3);
    }

    #[test]
    fn tells_the_last_status() {
        let error = poll::<()>("rain", Duration::ZERO, || Err("sunny".into())).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for rain; last seen: sunny");
    }
}

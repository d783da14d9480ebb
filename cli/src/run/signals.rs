//! SIGINT and SIGTERM. Owns both streams; never decides what they mean. Called by run and agent.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// timeout(1) and some shells send each signal to the process and to its group: what comes
/// within this time of another is the same request.
const ECHO: Duration = Duration::from_millis(100);

/// Either signal, in the order they come.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    last: Option<Instant>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            last: None,
        })
    }

    /// The next one. Cancel-safe: one that comes meanwhile is kept.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            let echo = self.last.is_some_and(|last| last.elapsed() < ECHO);
            self.last = Some(Instant::now());
            if !echo {
                return;
            }
        }
    }
}

//! SIGINT and SIGTERM, and SIGHUP where it is asked for. Owns the streams; never decides what they mean.
//! Called by run, agent and kubelet.

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
    /// The end of the terminal: none where nobody asked for it, and once it has come.
    hangup: Option<Signal>,
    last: Option<Instant>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            hangup: None,
            last: None,
        })
    }

    /// The end of the terminal counts, too: once, as kernel and shell both tell it. Under nohup(1) it
    /// stays without effect.
    pub(crate) fn with_hangup(self) -> Result<Self> {
        let path = "/proc/self/status";
        let own = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        if ignores_hangup(&own) { Ok(self) } else { self.take_hangup() }
    }

    fn take_hangup(mut self) -> Result<Self> {
        self.hangup = Some(signal(SignalKind::hangup()).context("listen for SIGHUP")?);
        Ok(self)
    }

    /// The next one. Cancel-safe: one that comes meanwhile is kept.
    pub(crate) async fn next(&mut self) {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            // All arms are cancel-safe: each is tokio's Signal::recv, or never ends.
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = hangup => self.hangup = None,
            }
            let echo = self.last.is_some_and(|last| last.elapsed() < ECHO);
            self.last = Some(Instant::now());
            if !echo {
                return;
            }
        }
    }
}

/// Whether a process with this `/proc/PID/status` was started to go on without its terminal.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Signal 1 is the lowest bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_the_terminal_is_one_request() {
        // Not `with_hangup`: the tests may run under nohup(1) themselves.
        let mut signals = Signals::new().unwrap().take_hangup().unwrap();
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::HUP).unwrap();
        signals.next().await;
        assert!(signals.hangup.is_none(), "the shell's own SIGHUP is not a second one");
    }

    #[test]
    fn nohup_is_heeded() {
        assert!(ignores_hangup("Name:\tgantry\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hangup(""));
    }
}

//! A kubectl that goes on while the spec does something else: a watch, a log that is followed, a forwarded port. Owns the
//! process and what it said; killed when dropped. Called by the tiers' specs.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::poll::poll;
use anyhow::{Context, Result};

/// How long it may take to say what is waited for: an image is pulled, a machine is shared.
const PATIENCE: Duration = Duration::from_secs(120);

/// A started one.
#[derive(Debug)]
pub struct Going {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Going {
    /// Starts it; what it says on stdout and stderr is kept.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start kubectl")?;
        let said = Arc::new(Mutex::new(Vec::new()));
        keep(child.stdout.take().context("kubectl's stdout")?, said.clone());
        keep(child.stderr.take().context("kubectl's stderr")?, said.clone());
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, said })
    }

    /// All it said so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Writes to its stdin.
    ///
    /// # Errors
    /// When its stdin is closed.
    pub fn say(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        stdin.write_all(text.as_bytes()).context("write to kubectl")
    }

    /// Ends its stdin.
    pub fn hush(&mut self) {
        self.stdin = None;
    }

    /// Waits until what it said is as wanted. An end of kubectl before that is told at once.
    ///
    /// # Errors
    /// After two minutes, or when it ends before: with what it said.
    pub fn await_said<T>(&mut self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
        poll(what, PATIENCE, || {
            // Before the text: what it says at its end is in.
            let ended = self.child.try_wait().ok().flatten();
            match (wanted(&self.text()), ended) {
                (Some(value), _) => Ok(Ok(value)),
                (None, None) => Err(self.text()),
                // Its readers have a moment to come to the end, too.
                (None, Some(status)) => {
                    let last = poll(what, Duration::from_secs(1), || {
                        wanted(&self.text()).ok_or_else(|| self.text())
                    });
                    Ok(last.with_context(|| format!("kubectl ended with {status}")))
                }
            }
        })?
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// After two minutes.
    pub fn await_end(&mut self) -> Result<ExitStatus> {
        self.hush();
        poll("kubectl to end", PATIENCE, || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err(self.text()),
            Err(error) => Err(error.to_string()),
        })
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn keep(mut from: impl Read + Send + 'static, said: Arc<Mutex<Vec<u8>>>) {
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            said.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
        }
    });
}

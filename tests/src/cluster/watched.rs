//! A watch on a namespace's pods that goes on beside a spec: every event, in order. Owns kubectl's process and what it
//! told; judges nothing (`lives` does). Called by the tier disruption.

use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Deserializer, Value};

use super::kubectl::Kubectl;
use crate::poll::poll;

/// A watch; killed when dropped.
#[derive(Debug)]
pub struct Watched {
    child: Child,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Watched {
    /// Starts it, and waits until it has told of so many pods that are there.
    ///
    /// # Errors
    /// When kubectl cannot be started, or doesn't tell of them.
    pub fn start(kubectl: &Kubectl, namespace: &str, pods: usize) -> Result<Self> {
        let args = ["get", "pods", "-n", namespace, "-w", "--output-watch-events", "-o", "json"];
        let mut command = kubectl.command(&args);
        let mut child = command.stdout(Stdio::piped()).spawn().context("start kubectl")?;
        let stdout = child.stdout.take().context("kubectl's stdout")?;
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = events.clone();
        std::thread::spawn(move || {
            let told = Deserializer::from_reader(std::io::BufReader::new(stdout)).into_iter::<Value>();
            // What is no JSON is its end.
            for event in told.map_while(Result::ok) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            }
        });
        let watched = Self { child, events };
        poll("the watch to tell of all pods", Duration::from_secs(30), || match watched.events().len() {
            told if told >= pods => Ok(()),
            told => Err(format!("{told} of {pods}")),
        })?;
        Ok(watched)
    }

    /// All it told so far: objects with `type` and `object`.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// Then.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the watch ended with {status}"),
            None => Ok(()),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

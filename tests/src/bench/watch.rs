//! A watch of a namespace's pods, with the time at which each line came. Owns kubectl's process and what it told; judges
//! nothing. Called by `bench::pods` and `bench::claims`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::kubectl::Kubectl;

/// For all of what is waited for.
pub(super) const DEADLINE: Duration = Duration::from_secs(300);

/// The watch; ended on drop.
pub(super) struct Watch {
    child: Child,
    events: Receiver<(Instant, Value)>,
}

impl Watch {
    pub(super) fn start(kubectl: &Kubectl, namespace: &str) -> Result<Self> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
        let mut child = kubectl.command(&["get", "--raw", &path]).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("kubectl's stdout")?;
        let (to, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let at = Instant::now();
                // Its end is told by the channel's.
                let Ok(event) = serde_json::from_str(&line) else { return };
                if to.send((at, event)).is_err() {
                    return;
                }
            }
        });
        let watch = Self { child, events };
        // It says so once it has told all that there was.
        let (_, first) = watch.next(Instant::now() + DEADLINE)?;
        ensure!(first["type"] == "BOOKMARK", "the watch began with {first}");
        Ok(watch)
    }

    fn next(&self, deadline: Instant) -> Result<(Instant, Value)> {
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => bail!("the watch tells nothing any more"),
            Err(RecvTimeoutError::Disconnected) => bail!("the watch has ended"),
        }
    }

    /// When each pod was first so, from `begun` on, until so many were.
    pub(super) fn until_all(
        &self,
        pods: usize,
        begun: Instant,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Duration>> {
        let mut found: BTreeMap<String, Duration> = BTreeMap::new();
        while found.len() < pods {
            let next = self.next(begun + DEADLINE);
            let (at, event) = next.with_context(|| format!("{} of {pods} pods are {what}", found.len()))?;
            if is_so(&event) {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                found.entry(name.to_owned()).or_insert(at.saturating_duration_since(begun));
            }
        }
        Ok(found.into_values().collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

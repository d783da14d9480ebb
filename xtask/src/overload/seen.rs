//! What the API server told of pods and node, look by look. Owns what is kept of it; never says whether that is good (that is
//! `judge`). Called by `overload`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::guest::Told;
use super::load::KEEPER;

const FILE: &str = "seen.json";

/// Conditions that a signal makes true.
const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// A whole run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Overload {
    /// By name and UID.
    pub(super) pods: BTreeMap<String, PodSeen>,
    pub(super) ready: bool,
    pub(super) not_ready_seconds: u64,
    /// Seconds of each.
    pub(super) pressures: BTreeMap<String, u64>,
    pub(super) guest: Told,
}

/// One pod.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct PodSeen {
    pub(super) class: String,
    pub(super) keeper: bool,
    /// The newest ones.
    pub(super) phase: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) ready: bool,
    pub(super) restarts: u64,
    /// Restarts before which a container ended so.
    pub(super) oom_killed: BTreeSet<u64>,
    /// It is in the last list.
    pub(super) there: bool,
}

impl PodSeen {
    /// What the node lacked when it evicted it.
    pub(super) fn signal(&self) -> Option<&str> {
        let (_, signal) = self.message.split_once("low on resource: ")?;
        (self.reason == "Evicted").then(|| signal.split('.').next().unwrap_or(signal))
    }

    fn look(&mut self, pod: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = &pod["status"];
        self.class = text(&status["qosClass"]);
        self.keeper = pod["metadata"]["labels"]["overload"] == KEEPER;
        (self.phase, self.reason, self.message) =
            (text(&status["phase"]), text(&status["reason"]), text(&status["message"]));
        self.ready = condition(status, "Ready") == Some("True");
        for container in status["containerStatuses"].as_array().into_iter().flatten() {
            let restarts = container["restartCount"].as_u64().unwrap_or_default();
            self.restarts = self.restarts.max(restarts);
            let killed = |state: &str| container[state]["terminated"]["reason"] == "OOMKilled";
            if killed("state") {
                self.oom_killed.insert(restarts);
            }
            if killed("lastState") {
                self.oom_killed.insert(restarts.saturating_sub(1));
            }
        }
        self.there = true;
    }
}

fn condition<'a>(status: &'a Value, name: &str) -> Option<&'a str> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == name)?["status"].as_str()
}

impl Overload {
    /// Takes in what both are now, `since` the last look.
    pub(super) fn look(&mut self, pods: &Value, node: &Value, since: Duration) {
        for pod in self.pods.values_mut() {
            pod.there = false;
        }
        for pod in pods["items"].as_array().into_iter().flatten() {
            let name = &pod["metadata"];
            let key =
                format!("{} {}", name["name"].as_str().unwrap_or("?"), name["uid"].as_str().unwrap_or("?"));
            self.pods.entry(key).or_default().look(pod);
        }
        let seconds = since.as_secs_f64().round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole seconds, not negative"
        )]
        let seconds = seconds as u64;
        let status = &node["status"];
        self.ready = condition(status, "Ready") == Some("True");
        if !self.ready {
            self.not_ready_seconds += seconds;
        }
        for name in PRESSURES {
            if condition(status, name) == Some("True") {
                *self.pressures.entry(name.to_owned()).or_default() += seconds.max(1);
            }
        }
    }

    /// In short, now.
    pub(super) fn line(&self) -> String {
        let count = |is: &dyn Fn(&PodSeen) -> bool| self.pods.values().filter(|pod| is(pod)).count();
        format!(
            "Ready {}, {} pods run, {} evicted, {} pending; {:?}",
            self.ready,
            count(&|pod| pod.there && pod.phase == "Running"),
            count(&|pod| pod.reason == "Evicted"),
            count(&|pod| pod.there && pod.phase == "Pending"),
            self.pressures
        )
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        std::fs::write(folder.join(FILE), serde_json::to_vec_pretty(self)?).context("write what was seen")
    }

    /// What [`Overload::write`] wrote.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &Value) -> Value {
        json!({ "items": [{ "metadata": { "name": "a", "uid": "1", "labels": { "overload": "keeper" } }, "status": status }] })
    }

    fn node(ready: &str, memory: &str) -> Value {
        json!({ "status": { "conditions": [
            { "type": "Ready", "status": ready }, { "type": "MemoryPressure", "status": memory },
        ] } })
    }

    #[test]
    fn a_killed_container_counts_once_and_an_evicted_pod_names_its_signal() {
        let mut seen = Overload::default();
        let killed = |restarts: u64, state: &str| {
            let mut container = json!({ "restartCount": restarts });
            container[state] = json!({ "terminated": { "reason": "OOMKilled" } });
            json!({ "qosClass": "Burstable", "phase": "Running", "containerStatuses": [container] })
        };
        let five = Duration::from_secs(5);
        for status in
            [killed(0, "state"), killed(1, "lastState"), killed(1, "lastState"), killed(2, "lastState")]
        {
            seen.look(&pod(&status), &node("True", "True"), five);
        }
        let one = &seen.pods["a 1"];
        assert_eq!((one.restarts, one.oom_killed.len(), one.keeper), (2, 2, true));
        let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 4Ki. ";
        let evicted =
            json!({ "qosClass": "Burstable", "phase": "Failed", "reason": "Evicted", "message": message });
        seen.look(&pod(&evicted), &node("Unknown", "False"), five);
        assert_eq!(seen.pods["a 1"].signal(), Some("memory"));
        assert_eq!((seen.ready, seen.not_ready_seconds), (false, 5));
        assert_eq!(seen.pressures, [("MemoryPressure".to_owned(), 20)].into());
        seen.look(&json!({}), &node("True", "False"), five);
        assert!(!seen.pods["a 1"].there);
    }
}

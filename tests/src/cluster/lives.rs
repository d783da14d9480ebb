//! The lives of pods' containers, as a watch tells them. Owns what a disturbed one is; never looks at the node. Called by
//! the tier disruption.
//!
//! A pod says by the label [`MAY`] what may become of it: without it nothing may.
//! ```text
//! nothing ─ once Ready always Ready; a container that runs, runs on; never deleted
//! crash ─── as above, but its container `crashes` ends by itself, with its own code, and starts anew
//! go ────── as the first, until somebody deletes it
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The label; its values are `crash` and `go`.
pub const MAY: &str = "gantry-may";
/// The container that may end in a pod that may crash, and what it ends with.
pub const CRASHES: (&str, i64) = ("crashes", 3);

/// One life of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerLife {
    pub id: String,
    pub started_at: String,
    pub restarts: u64,
}

/// Of a pod's containers that run, by name.
#[must_use]
pub fn lives(pod: &Value) -> BTreeMap<String, ContainerLife> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let life = |status: &Value| {
        let started_at = status["state"]["running"]["startedAt"].as_str()?.to_owned();
        let restarts = status["restartCount"].as_u64().unwrap_or_default();
        Some((
            text(&status["name"]),
            ContainerLife { id: text(&status["containerID"]), started_at, restarts },
        ))
    };
    statuses(pod).filter_map(life).collect()
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .filter_map(|field| pod["status"][field].as_array())
        .flatten()
}

/// Whether a pod's condition Ready is True.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// One pod, as far as the watch has come.
#[derive(Debug, Default)]
struct WatchedPod {
    name: String,
    ready: bool,
    going: bool,
    lives: BTreeMap<String, ContainerLife>,
}

/// What happened to pods that was not to happen, each thing once.
#[must_use]
pub fn find_disturbed(events: &[Value]) -> BTreeSet<String> {
    let mut wrongs = BTreeSet::new();
    let mut known: BTreeMap<String, WatchedPod> = BTreeMap::new();
    for event in events {
        let pod = &event["object"];
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let one = known.entry(uid.to_owned()).or_default();
        one.name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        look(one, event, &mut wrongs);
    }
    wrongs
}

fn look(known: &mut WatchedPod, event: &Value, wrongs: &mut BTreeSet<String>) {
    let pod = &event["object"];
    let may = pod["metadata"]["labels"][MAY].as_str().unwrap_or_default();
    let name = &known.name;
    known.going |= event["type"] == "DELETED" || pod["metadata"]["deletionTimestamp"].is_string();
    if known.going {
        if may != "go" {
            wrongs.insert(format!("{name} was deleted"));
        }
        return;
    }
    if may == "crash" {
        wrongs.extend(others_ends(pod));
    } else if is_ready(pod) {
        known.ready = true;
    } else if known.ready {
        let conditions = &pod["status"]["conditions"];
        let ready = conditions.as_array().into_iter().flatten().find(|one| one["type"] == "Ready");
        wrongs.insert(format!("{name} was Ready and no longer is: {}", ready.unwrap_or(&Value::Null)));
        // Each flip once.
        known.ready = false;
    }
    let now = lives(pod);
    for (container, life) in &known.lives {
        if may == "crash" && container == CRASHES.0 {
            continue;
        }
        match now.get(container) {
            Some(same) if same == life => {}
            Some(other) => {
                wrongs.insert(format!("{name}/{container}: from {life:?} to {other:?}"));
            }
            None => {
                let status = statuses(pod).find(|status| status["name"] == **container);
                let state = status.map_or(&Value::Null, |status| &status["state"]);
                wrongs.insert(format!("{name}/{container}: {life:?} runs no longer: {state}"));
            }
        }
    }
    known.lives.extend(now);
}

/// What a container ends with that containerd was starting while its client was killed: it never ran.
pub const CUT_SHORT: &str = "StartError";

/// The ends of what crashes that were not its own.
fn others_ends(pod: &Value) -> Vec<String> {
    let name = &pod["metadata"]["name"];
    let crashes = statuses(pod).filter(|status| status["name"] == CRASHES.0);
    let ends = crashes.flat_map(|status| {
        [&status["state"]["terminated"], &status["lastState"]["terminated"]].map(Value::clone)
    });
    ends.filter(|end| end.is_object() && end["exitCode"] != CRASHES.1 && end["reason"] != CUT_SHORT)
        .map(|end| format!("{name} did not end by itself: {end}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(kind: &str, may: &str, ready: bool, id: &str, state: &Value) -> Value {
        json!({ "type": kind, "object": {
            "metadata": { "uid": "u", "name": "p", "labels": { MAY: may } },
            "status": {
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
                "containerStatuses": [
                    { "name": "main", "containerID": id, "restartCount": 0, "state": state },
                    { "name": "crashes", "lastState": { "terminated": { "exitCode": 3 } } },
                ],
            },
        }})
    }

    fn runs(kind: &str, may: &str, ready: bool, id: &str) -> Value {
        told(kind, may, ready, id, &json!({ "running": { "startedAt": "now" } }))
    }

    #[test]
    fn a_pod_that_comes_up_and_stays_is_undisturbed() {
        let first = told("ADDED", "", false, "", &json!({ "waiting": {} }));
        let events = [first, runs("MODIFIED", "", false, "a"), runs("MODIFIED", "", true, "a")];
        assert!(find_disturbed(&events).is_empty());
    }

    #[test]
    fn a_flip_another_life_an_end_and_a_deletion_are_told() {
        let was = runs("ADDED", "", true, "a");
        let found =
            |next: Value| find_disturbed(&[was.clone(), next]).into_iter().collect::<Vec<_>>().join("\n");
        assert!(found(runs("MODIFIED", "", false, "a")).contains("no longer is"));
        assert!(found(runs("MODIFIED", "", true, "b")).contains("from ContainerLife"));
        assert!(found(told("MODIFIED", "", true, "a", &json!({ "terminated": {} }))).contains("no longer"));
        assert_eq!(found(runs("DELETED", "", true, "a")), "p was deleted");
        let mut going = runs("MODIFIED", "", true, "a");
        going["object"]["metadata"]["deletionTimestamp"] = json!("now");
        assert_eq!(found(going), "p was deleted");
    }

    #[test]
    fn what_may_go_may_be_unready_then_and_not_before() {
        let was = runs("ADDED", "go", true, "a");
        assert!(find_disturbed(&[was.clone(), runs("DELETED", "go", false, "a")]).is_empty());
        assert_eq!(find_disturbed(&[was, runs("MODIFIED", "go", false, "a")]).len(), 1);
    }

    #[test]
    fn what_may_crash_does_so_with_its_own_code_alone() {
        let was = runs("ADDED", "crash", true, "a");
        assert!(find_disturbed(&[was.clone(), runs("MODIFIED", "crash", false, "a")]).is_empty());
        let mut killed = runs("MODIFIED", "crash", false, "a");
        killed["object"]["status"]["containerStatuses"][1]["state"] =
            json!({ "terminated": { "exitCode": 137 } });
        assert_eq!(find_disturbed(&[was.clone(), killed]).len(), 1);
        assert_eq!(find_disturbed(&[was, runs("MODIFIED", "crash", false, "b")]).len(), 1);
    }
}

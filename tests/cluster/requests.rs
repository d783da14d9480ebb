//! What a pod costs the API server, against a number: more than that is a fault that no other spec sees.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::audit;
use serde_json::json;

use crate::spec::{Spec, pod};

/// Of a pod that starts and ends within half a second each: its token, a status for its start and one for its end, its
/// deletion, and the events Pulled, Created, Started, Killing. One more is the room for a machine that is busy.
const MOST: usize = 8 + 1;

/// The cheapest of so many pods counts: a start that takes long is told of meanwhile.
const TRIES: usize = 4;

/// Ends the moment it is told to; `spec::IDLE` sleeps up to a second more.
const AWAKE: &str = "trap 'exit 0' TERM; sleep 600 & wait";

pub(crate) fn few(spec: &Spec<'_>) -> Result<()> {
    let mut costs = Vec::new();
    for number in 0..TRIES {
        let name = format!("cheap-{number}");
        let from = audit::end(&spec.audit_log())?;
        let mut cheap = pod(&name, AWAKE);
        // A pull is an event more.
        cheap["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        spec.start_pod(cheap)?;
        spec.kubectl(&["delete", "pod", &name, "--timeout=60s"])?;
        spec.await_event(&name, "Killing", "Stopping container")?;
        let asked = audit::requests(&spec.audit_log(), from, &format!("system:node:{}", spec.node()))?;
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        // What the namespace's first pod begins to watch serves all that follow.
        for request in asked.iter().filter(|it| it.namespace == spec.namespace && it.resource != "configmaps")
        {
            *kinds.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
        }
        costs.push(kinds);
    }
    let least =
        costs.iter().map(|kinds| kinds.values().sum::<usize>()).min().context("no pod was counted")?;
    ensure!(least > 0, "the audit log shows no request of the node");
    ensure!(least <= MOST, "the cheapest pod of {TRIES} cost {least} requests, {MOST} at most: {costs:?}");
    Ok(())
}

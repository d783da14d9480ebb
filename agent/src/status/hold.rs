//! How long a status waits for the next one of its pod, which would replace it at once. Pure. Called by
//! [`super::patcher`].

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::pod::{Life, StopStep};

/// A container is made, then started; containers end, then their sandbox. What is told between two such steps costs the API
/// server as much as what is told after both. Upstream's kubelet looks at its containers once a second; but it tells at
/// once that a pod begins.
const MOMENT: Duration = Duration::from_millis(500);

/// Of a pod that runs one container has ended that is started again, and no back-off has begun: that takes tens of
/// milliseconds, and who is told of it in between sees a pod that is not ready any more and yet is.
fn has_restart(target: &Pod) -> bool {
    let policy = target.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
    let statuses = target.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default().iter().any(|container| is_started_again(container, policy))
}

fn is_started_again(container: &ContainerStatus, policy: &str) -> bool {
    let Some(state) = &container.state else { return false };
    if let Some(ended) = &state.terminated {
        return policy == "Always" || (policy == "OnFailure" && ended.exit_code != 0);
    }
    let reason = state.waiting.as_ref().map(|waiting| waiting.reason.as_deref().unwrap_or_default());
    matches!(reason, Some("" | "ContainerCreating" | "PodInitializing"))
}

/// None for what must be told at once: a pod that has become ready, or of which nothing runs any more.
pub(super) fn hold(life: Life, target: &Pod) -> Option<Duration> {
    let is_deleted = target.metadata.deletion_timestamp.is_some();
    let is_between = match life {
        Life::Starting => true,
        Life::Running => is_deleted || has_restart(target),
        Life::Stopping { step: StopStep::Containers | StopStep::Sandbox, .. } => is_deleted,
        Life::Waiting | Life::Stopping { .. } | Life::Stopped | Life::Gone => false,
    };
    is_between.then_some(MOMENT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(state: &serde_json::Value) -> Pod {
        of_policy("Always", state)
    }

    fn of_policy(policy: &str, state: &serde_json::Value) -> Pod {
        let container = json!({ "name": "web", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": state });
        serde_json::from_value(json!({
            "spec": { "containers": [], "restartPolicy": policy },
            "status": { "containerStatuses": [container] },
        }))
        .unwrap()
    }

    #[test]
    fn a_restart_of_a_moment_is_told_with_its_end_and_a_back_off_at_once() {
        let ended = json!({ "terminated": { "exitCode": 0 } });
        let made = json!({ "waiting": { "reason": "ContainerCreating" } });
        for state in [ended, made] {
            assert_eq!(hold(Life::Running, &pod(&state)), Some(MOMENT), "{state}");
        }
        let waits = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let runs = json!({ "running": { "startedAt": "2026-11-29T00:00:00Z" } });
        for state in [waits, runs] {
            assert_eq!(hold(Life::Running, &pod(&state)), None, "{state}");
        }
        let ended = |code: i32| json!({ "terminated": { "exitCode": code } });
        for (policy, code, waits) in [("Never", 1, false), ("OnFailure", 0, false), ("OnFailure", 1, true)] {
            let held = hold(Life::Running, &of_policy(policy, &ended(code))).is_some();
            assert_eq!(held, waits, "{policy} {code}");
        }
        assert_eq!(hold(Life::Stopped, &pod(&json!({ "terminated": { "exitCode": 0 } }))), None);
    }
}

//! How long a status waits for the next one of its pod, which would replace it at once. Pure. Called by
//! [`super::patcher`].

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::pod::{Life, StopStep};

/// A container is made, then started; containers end, then their sandbox. What is told between two such steps costs the API
/// server as much as what is told after both. Upstream's kubelet looks at its containers once a second; but it tells at
/// once that a pod begins.
const MOMENT: Duration = Duration::from_millis(500);

fn statuses(target: &Pod) -> &[ContainerStatus] {
    target.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default()
}

/// Of a pod that runs one container has ended, and no back-off has begun: a restart takes tens of milliseconds, and who
/// is told of it in between sees a pod that is not ready any more and yet is.
fn is_started_again(container: &ContainerStatus) -> bool {
    let Some(state) = &container.state else { return false };
    let waits =
        |reason: Option<&str>| matches!(reason, None | Some("" | "ContainerCreating" | "PodInitializing"));
    state.terminated.is_some()
        || state.waiting.as_ref().is_some_and(|waiting| waits(waiting.reason.as_deref()))
}

/// None for what must be told at once: a pod that has become ready, or of which nothing runs any more.
pub(super) fn hold(life: Life, target: &Pod) -> Option<Duration> {
    let is_deleted = target.metadata.deletion_timestamp.is_some();
    let is_between = match life {
        Life::Starting => true,
        Life::Running => is_deleted || statuses(target).iter().any(is_started_again),
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
        let container = json!({ "name": "web", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": state });
        serde_json::from_value(json!({ "status": { "containerStatuses": [container] } })).unwrap()
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
        assert_eq!(hold(Life::Stopped, &pod(&json!({ "terminated": { "exitCode": 0 } }))), None);
    }
}

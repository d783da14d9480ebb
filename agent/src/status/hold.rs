//! How long a status waits for the next one of its pod, which would replace it at once. Pure. Called by
//! [`super::patcher`].

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::{Life, StopStep};

/// A container is made, then started; containers end, then their sandbox. What is told between two such steps costs the API
/// server as much as what is told after both. Upstream's kubelet looks at its containers once a second; but it tells at
/// once that a pod begins.
const MOMENT: Duration = Duration::from_millis(500);

/// None for what must be told at once: a pod that has become ready, or of which nothing runs any more.
pub(super) fn hold(life: Life, target: &Pod) -> Option<Duration> {
    let is_deleted = target.metadata.deletion_timestamp.is_some();
    let is_between = match life {
        Life::Starting => true,
        Life::Running | Life::Stopping { step: StopStep::Containers | StopStep::Sandbox, .. } => is_deleted,
        Life::Waiting | Life::Stopping { .. } | Life::Stopped | Life::Gone => false,
    };
    is_between.then_some(MOMENT)
}

//! How long a status waits for the next one of its pod, which would replace it at once. Pure. Called by
//! [`super::patcher`].

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::merge::terminal;
use crate::pod::Life;

/// A container is made, then started; a container ends, then its sandbox, then the pod. What is told between two such steps costs the API
/// server as much as what is told after both. Upstream's kubelet looks at its containers once a second, so nothing is told
/// later than it would.
const MOMENT: Duration = Duration::from_millis(500);

/// None for what must be told at once: a pod that has become ready or that has ended.
pub(super) fn hold(life: Life, status: &PodStatus, target: &Pod) -> Option<Duration> {
    let is_deleted = target.metadata.deletion_timestamp.is_some();
    let is_between = life == Life::Starting || (is_deleted && !terminal(status));
    is_between.then_some(MOMENT)
}

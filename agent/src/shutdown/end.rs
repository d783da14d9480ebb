//! Ends the pods of a machine that goes down, group by group. Owns the order and the waiting; never decides who is in
//! which group ([`super::decide`]). Called by [`super::run`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::decide::{self, Group};
use super::words;
use crate::config::shutdown::ShutdownPeriod;
use crate::pod::Life;
use crate::pod::status::PodStatus;
use crate::pod::worker::PodHandle;
use crate::pod_source::ApiPods;
use crate::status;

/// How long the API server may take to learn of it, within the group's period: one that is itself among these pods never
/// does.
const TELLING: Duration = Duration::from_secs(10);

/// Every pod gets the time of its group; a group without pods takes none. `seen` is what the API server has.
pub(super) async fn end_pods(
    periods: &[ShutdownPeriod],
    pods: &Arc<[PodHandle]>,
    seen: Option<&watch::Receiver<ApiPods>>,
) {
    // Those that were ending already have volumes, too (PR 139660).
    let left = pods.iter().filter(|handle| !is_gone(&handle.status.borrow())).cloned();
    let priority = |handle: &PodHandle| handle.pod.placement.priority.unwrap_or_default();
    for group in decide::groups(periods, left, priority) {
        if !group.pods.is_empty() {
            end_group(&group, seen.cloned()).await;
        }
    }
}

/// Nothing of it takes room any more.
fn is_gone(status: &PodStatus) -> bool {
    matches!(status.life, Life::Stopped | Life::Gone)
}

async fn end_group(group: &Group<PodHandle>, seen: Option<watch::Receiver<ApiPods>>) {
    let period = group.period.duration();
    let deadline = Instant::now() + period;
    for handle in group.pods.iter().filter(|handle| handle.is_active()) {
        let grace = decide::grace(handle.pod.grace, period);
        tracing::info!(pod = handle.pod.full_name(), ?grace, "Shutdown manager killing pod with gracePeriod");
        handle.evict(words::verdict(), Some(grace));
    }
    // Not before their volumes are back: who serves these may be in the next group (#115148).
    let gone = |handle: &PodHandle| {
        let handle = handle.clone();
        async move { handle.wait(is_gone).await }
    };
    let priority = group.period.priority;
    if timeout_at(deadline, join_all(group.pods.iter().map(gone))).await.is_err() {
        tracing::warn!(?period, priority, "Shutdown manager pod killing time out");
        return;
    }
    tracing::info!(?period, priority, "Done waiting for all pods in group to terminate");
    if let Some(mut seen) = seen {
        // The kubelet is stopped once the lock is released: what is not told by then is told by nobody (#112443).
        let told = seen.wait_for(|api| group.pods.iter().all(|handle| status::is_end_told(api, &handle.pod)));
        if !matches!(timeout_at(deadline.min(Instant::now() + TELLING), told).await, Ok(Ok(_))) {
            tracing::warn!(priority, "the API server has not taken in the end of all pods of this group");
        }
    }
}

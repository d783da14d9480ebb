//! The claims of a pod to devices of DRA drivers. Owns the texts of their failures. Called by [`super::effect`].

use super::{Output, Task, WaitReason, wait_reason};
use crate::events::Kind::Warning;

/// Upstream's reason of the event.
const FAILED: &str = "FailedPrepareDynamicResources";

pub(super) async fn prepare(task: Task<'_>) -> Result<Output, WaitReason> {
    match task.deps.dra.prepare(task.pod).await {
        Ok(()) => Ok(Output::Done),
        Err(why) => {
            let message = format!("Failed to prepare dynamic resources: {why}");
            task.tell(Warning, FAILED, message.as_str()).await;
            Err(wait_reason(FAILED, message))
        }
    }
}

/// Upstream tells no event of it: the pod's end waits, and the log says why.
pub(super) async fn unprepare(task: Task<'_>) -> Result<Output, WaitReason> {
    let done = task.deps.dra.unprepare(&task.pod.uid).await;
    done.map_err(|why| wait_reason("FailedUnprepareDynamicResources", why))?;
    Ok(Output::Done)
}

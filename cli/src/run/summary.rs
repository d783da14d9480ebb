//! The table at the end of `gantry run`. Pure: statuses in, text out. Called by run.

use gantry_agent::pod::status::{ContainerState, PodStatus};
use gantry_agent::pod::worker::PodHandle;

use crate::output;

/// One row for each container.
pub(super) fn table(pods: &[(PodHandle, PodStatus)]) -> String {
    let header = ["POD", "PHASE", "CONTAINER", "EXIT CODE", "REASON", "RESTARTS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (handle, status) in pods {
        for container in &status.containers {
            let (code, reason) = match &container.state {
                ContainerState::Terminated(exit) => (exit.code.to_string(), exit.reason.clone()),
                ContainerState::Waiting { reason, .. } => ("-".to_owned(), reason.clone()),
                ContainerState::Running { .. } => ("-".to_owned(), "still running".to_owned()),
            };
            rows.push(vec![
                handle.pod.full_name(),
                status.phase.as_str().to_owned(),
                container.name.clone(),
                code,
                reason,
                container.restart_count.to_string(),
            ]);
        }
    }
    output::table(&rows).trim_end().to_owned()
}

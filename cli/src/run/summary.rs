//! The table at the end of `gantry run`. Pure: statuses in, text out. Called by run.

use gantry_agent::pod::status::{ContainerState, PodStatus};

use crate::output;

/// One row for each container, in the order they start.
pub(super) fn table<'a>(pods: impl Iterator<Item = (String, &'a PodStatus)>) -> String {
    let header = ["POD", "PHASE", "CONTAINER", "EXIT CODE", "REASON", "RESTARTS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (name, status) in pods {
        for container in status.all_containers() {
            let (code, reason) = match &container.state {
                ContainerState::Terminated(exit) => (exit.code.to_string(), exit.reason.clone()),
                ContainerState::Waiting { reason, .. } => ("-".to_owned(), reason.clone()),
                ContainerState::Running { .. } => ("-".to_owned(), "still running".to_owned()),
            };
            rows.push(vec![
                name.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_agent::pod::status::{ContainerStatus, Phase};
    use gantry_agent::runtime::Exit;

    #[test]
    fn the_init_container_that_failed_is_in_the_table() {
        let exit =
            Exit { code: 3, reason: "Error".into(), message: String::new(), started_at: 1, finished_at: 2 };
        let init = ContainerStatus {
            name: "prep".into(),
            state: ContainerState::Terminated(exit),
            restart_count: 2,
            ..ContainerStatus::default()
        };
        let state = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
        let status = PodStatus {
            phase: Phase::Failed,
            init_containers: vec![init],
            containers: vec![ContainerStatus { name: "web".into(), state, ..ContainerStatus::default() }],
            ..PodStatus::default()
        };
        let want = "\
POD           PHASE    CONTAINER   EXIT CODE   REASON            RESTARTS
default/web   Failed   prep        3           Error             2
default/web   Failed   web         -           PodInitializing   0";
        assert_eq!(table([("default/web".to_owned(), &status)].into_iter()), want);
    }
}

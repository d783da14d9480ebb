//! Termination messages: what an ended container wrote is read once, before their record or their folder goes. Pure.
//! Called by [`super::plan`] and by [`crate::pod::teardown`].

use super::{Action, Draft, PlanInputs};
use crate::runtime::Exit;

/// A program that could not be started has no log.
const NEVER_RAN: [&str; 2] = ["ContainerCannotRun", "StartError"];

/// Reads what was not read yet; whether anything is still to be waited for.
pub(in crate::pod) fn read(facts: PlanInputs<'_>, draft: &mut Draft) -> bool {
    let mut waiting = false;
    for instance in &facts.observed.containers {
        let Some(exit) = instance.exit() else { continue };
        let Some(container) = facts.pod.container(&instance.name) else { continue };
        if facts.history.containers.words.contains_key(&instance.id) {
            continue;
        }
        waiting = true;
        let wanted = container.termination_message.fallback_to_logs && may_have_logged(exit);
        draft.act(
            facts,
            Action::ReadLastWords {
                container: instance.name.clone(),
                id: instance.id.clone(),
                attempt: instance.attempt,
                file: instance.words.clone(),
                log: Some(instance.log_path.clone()).filter(|path| wanted && !path.is_empty()),
            },
        );
    }
    waiting
}

fn may_have_logged(exit: &Exit) -> bool {
    exit.code != 0 && !NEVER_RAN.contains(&exit.reason.as_str())
}

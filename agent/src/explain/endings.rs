//! Why a container ended. Pure: its exit and its description in, a cause and a remedy out. Called by
//! [`super::decide`].

use gantry_model::pod::Container;

use crate::runtime::Exit;

/// Cause and remedy; `asked`: the agent had told it to end, `logs`: the command that shows its log.
pub(super) fn explain(
    container: Option<&Container>,
    exit: &Exit,
    asked: bool,
    logs: &str,
) -> (String, String) {
    match (exit.reason.as_str(), exit.code) {
        ("OOMKilled", _) => oom(container),
        ("StartError" | "ContainerCannotRun", _) => start_error(container, exit),
        ("ContainerStatusUnknown", _) => (
            "the runtime lost the container: the machine or its monitor went away while it ran".to_owned(),
            "nothing, if it runs again; else look at the machine's log".to_owned(),
        ),
        (_, 137) => explain_sigkill(asked),
        (_, code) => by_code(container, code, logs),
    }
}

fn oom(container: Option<&Container>) -> (String, String) {
    match container.and_then(|c| c.resources.memory_limit) {
        Some(limit) => (
            format!("it used more memory than its limit of {} allows, and the kernel killed it", mebi(limit)),
            format!(
                "raise resources.limits.memory above {}, or make the program use less; `gantry stats` shows what it uses",
                mebi(limit)
            ),
        ),
        None => (
            "the kernel killed it for memory, though it has no limit of its own: the pod's or the machine's is used up".to_owned(),
            "give the pod less to do, the machine more memory, or other pods limits".to_owned(),
        ),
    }
}

/// The same of one that goes on.
pub(super) fn survived_oom(container: Option<&Container>) -> (String, String) {
    let (cause, remedy) = oom(container);
    (cause.replace("killed it", "may have killed a part of it"), remedy)
}

fn start_error(container: Option<&Container>, exit: &Exit) -> (String, String) {
    let program = program(container);
    let text = exit.message.to_lowercase();
    if text.contains("no such file") {
        return (
            format!("{program} is not in the image, or the interpreter its first line names is not"),
            "check command and the image's entrypoint; an image without a shell has no sh".to_owned(),
        );
    }
    if text.contains("permission denied") {
        return (
            format!("{program} may not be executed by the container's user"),
            "chmod +x it in the image, or set securityContext.runAsUser".to_owned(),
        );
    }
    if text.contains("exec format") {
        return (
            format!("{program} is not a program for this machine, or a script without a #! line"),
            "build the image for linux/amd64".to_owned(),
        );
    }
    (format!("{program} could not be started"), "the runtime's words are below".to_owned())
}

/// SIGKILL, though memory was not why.
fn explain_sigkill(asked: bool) -> (String, String) {
    if asked {
        return (
            "it was told to end, did not within its grace period, and was killed (SIGKILL)".to_owned(),
            "the event Killing says why; a program that ignores SIGTERM needs a handler or a longer terminationGracePeriodSeconds".to_owned(),
        );
    }
    (
        "it was killed (SIGKILL), not for memory, and no event says that Gantry told it to end: somebody's `kill -9`, or a process within the container".to_owned(),
        "find out who did: the machine's log, an audit rule for kill, or what the program does with its children".to_owned(),
    )
}

fn by_code(container: Option<&Container>, code: i32, logs: &str) -> (String, String) {
    let see_log = format!("its last lines are below; `{logs}` shows all of them");
    match code {
        0 => (
            "it ends by itself with success, and its restart policy starts it again".to_owned(),
            "give it something that keeps running, or set restartPolicy: OnFailure or Never".to_owned(),
        ),
        126 => (
            "a shell found the command but could not execute it (126)".to_owned(),
            "check its permissions and its #! line".to_owned(),
        ),
        127 => (
            "a shell did not find the command (127)".to_owned(),
            "check the spelling and that the image holds it".to_owned(),
        ),
        134 => ("it aborted itself (SIGABRT)".to_owned(), see_log),
        139 => ("it crashed (SIGSEGV)".to_owned(), see_log),
        143 => (
            "it was asked to end (SIGTERM) and did".to_owned(),
            "look for Killing and Unhealthy among the events".to_owned(),
        ),
        code if code > 128 => (format!("signal {} ended it", code - 128), see_log),
        code => (format!("{} ends with exit code {code}", program(container)), see_log),
    }
}

fn program(container: Option<&Container>) -> String {
    match container.and_then(|c| c.command.first()) {
        Some(program) => program.clone(),
        None => "the image's entrypoint".to_owned(),
    }
}

fn mebi(bytes: i64) -> String {
    format!("{} MiB", bytes / (1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::container;

    fn exit(code: i32, reason: &str, message: &str) -> Exit {
        Exit { code, reason: reason.into(), message: message.into(), started_at: 1, finished_at: 2 }
    }

    #[test]
    fn an_oom_kill_names_the_limit_and_137_alone_is_none() {
        let mut spec = container("web");
        spec.resources.memory_limit = Some(64 << 20);
        assert!(explain(Some(&spec), &exit(137, "OOMKilled", ""), false, "").0.contains("64 MiB"));
        assert!(explain(Some(&spec), &exit(137, "Error", ""), false, "").0.contains("not for memory"));
    }

    #[test]
    fn a_start_error_names_the_program() {
        let spec = container("web");
        let (cause, _) =
            explain(Some(&spec), &exit(128, "StartError", "exec: No such file or directory"), false, "");
        assert!(cause.starts_with("/bin/serve is not in the image"), "{cause}");
        assert!(explain(None, &exit(3, "Error", ""), false, "").0.contains("exit code 3"));
    }
}

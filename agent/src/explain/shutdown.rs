//! Why a pod has ended, or never began, when the machine went down. Pure: what is said of the pod in, a finding out.
//! Called by [`super::decide`].

use super::Finding;
use crate::admission::NODE_SHUTDOWN;
use crate::pod::status::PodStatus;
use crate::shutdown::words;

/// None when it was something else.
pub(super) fn explain(status: &PodStatus, evidence: Vec<String>) -> Option<Finding> {
    let ended = status.api_reason == words::REASON && status.api_message == words::MESSAGE;
    let (cause, remedy) = match status.api_reason.as_str() {
        _ if ended => (
            "the machine was shut down, and the kubelet ended the pod before",
            "nothing where a controller owns it: another pod is in its place; else make it again. It has as long to end as terminationGracePeriodSeconds and the kubelet's shutdownGracePeriod allow",
        ),
        NODE_SHUTDOWN => (
            "the machine was being shut down when the pod came: the node took none any more",
            "make it again when the node is Ready, or where nodeName is set take another node",
        ),
        _ => return None,
    };
    Some(Finding {
        container: String::new(),
        state: status.api_reason.clone(),
        cause: cause.to_owned(),
        remedy: remedy.to_owned(),
        evidence,
    })
}

#[cfg(test)]
mod tests {
    use gantry_model::shutdown::Shutdown;

    use super::*;
    use crate::admission;

    #[test]
    fn a_pod_that_a_shutdown_ended_or_kept_out_is_told_what_to_do() {
        let cause = |reason: &str, message: &str| {
            let status = PodStatus {
                api_reason: reason.to_owned(),
                api_message: message.to_owned(),
                ..PodStatus::default()
            };
            explain(&status, vec!["event".to_owned()]).map(|found| found.cause)
        };
        assert!(cause(words::REASON, words::MESSAGE).unwrap().contains("was shut down"));
        let kept_out = admission::while_up(Shutdown::Ending).unwrap_err();
        assert!(cause(&kept_out.reason, &kept_out.message).unwrap().contains("was being shut down"));
        // Others end pods for that reason, too.
        assert_eq!(cause(words::REASON, "by hand"), None);
        assert_eq!(cause("", ""), None);
    }
}

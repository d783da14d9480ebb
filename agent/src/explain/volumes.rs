//! Cause and remedy of a pod that waits for its volumes. Pure. Called by [`super::decide`].

use super::Finding;
use super::decide::{line, newest};
use super::look::ExplainInputs;
use crate::timeline::render::millis;
use crate::volumes::VolumeWait;

/// A volume that is not there keeps every container waiting.
pub(super) fn explain(facts: &ExplainInputs<'_>) -> Vec<Finding> {
    if facts.status.spans.iter().any(|span| span.name == "volumes" && span.end != 0) {
        return Vec::new();
    }
    if !facts.waits.is_empty() {
        return facts.waits.iter().map(of_driver).collect();
    }
    let failed =
        newest(facts, "FailedMount").or_else(|| newest(facts, "FailedMapVolume")).map(|event| Finding {
            container: String::new(),
            state: "ContainerCreating".to_owned(),
            cause: "a volume cannot be made".to_owned(),
            remedy: "mend what the message below names: the path, the ConfigMap, the Secret".to_owned(),
            evidence: vec![line(event)],
        });
    failed.into_iter().collect()
}

/// One that a driver is to mount: which step, of which driver, since when, and what came of it last.
fn of_driver(wait: &VolumeWait) -> Finding {
    let VolumeWait { volume, driver, step, why, since } = wait;
    let has = |words: &str| why.contains(words);
    let (what, remedy) = match *step {
        "VerifyControllerAttachedVolume" | "MountVolume.WaitForAttach" | "MapVolume.WaitForAttach" => (
            "is not attached to this node",
            "the cluster's controllers attach it: `kubectl describe volumeattachment` and the log of the driver's attacher say how far they are",
        ),
        _ if has("list of registered CSI drivers") => (
            "waits for its driver, which is not registered on this node",
            "see whether the driver's pod runs here; `kubectl get csinode` shows which drivers the node has",
        ),
        _ if has("ReadWriteOncePod") => {
            ("is for one pod, and another has it", "delete the other pod, or use a claim of ReadWriteOnce")
        }
        _ if has("DeadlineExceeded") => (
            "waits for its driver, which does not answer",
            "the driver's log may say why it hangs; a restart of its pod ends the call",
        ),
        "MountVolume.MountDevice" | "MapVolume.SetUpDevice" => {
            ("is not staged", "the driver's words are below; its log says more")
        }
        "MapVolume.MapBlockVolume" => (
            "is there, and its device cannot be mapped for the pod",
            "the words below say which step: `losetup` of util-linux must be on the node, and a loop device free",
        ),
        _ => ("is not published", "the driver's words are below; its log says more"),
    };
    let nanos = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    Finding {
        container: String::new(),
        state: "ContainerCreating".to_owned(),
        cause: format!(
            "volume {volume:?} of the CSI driver {driver} {what}, for {} so far ({step})",
            millis(nanos)
        ),
        remedy: remedy.to_owned(),
        evidence: vec![why.clone()],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pod_that_waits_for_a_volume_is_told_step_driver_and_time() {
        let wait = |step, why: &str| VolumeWait {
            volume: "pvc-1".to_owned(),
            driver: "d.example".to_owned(),
            step,
            why: why.to_owned(),
            since: Duration::from_secs(61),
        };
        for (step, why, cause, remedy) in [
            ("VerifyControllerAttachedVolume", "Volume not attached", "is not attached", "volumeattachment"),
            (
                "MountVolume.SetUp",
                "driver name d not found in the list of registered CSI drivers",
                "not registered",
                "csinode",
            ),
            ("MountVolume.MountDevice", "rpc error: code = DeadlineExceeded", "does not answer", "restart"),
            ("MountVolume.MountDevice", "rpc error: code = Internal", "is not staged", "words are below"),
            ("MountVolume.SetUp", "rpc error: code = Internal", "is not published", "words are below"),
            ("MapVolume.WaitForAttach", "not attached", "is not attached", "volumeattachment"),
            ("MapVolume.SetUpDevice", "rpc error: code = Internal", "is not staged", "words are below"),
            ("MapVolume.MapPodDevice", "rpc error: code = Internal", "is not published", "words are below"),
            ("MapVolume.MapBlockVolume", "losetup -f failed", "cannot be mapped", "losetup"),
            (
                "MountVolume.SetUp",
                "volume uses the ReadWriteOncePod access mode",
                "another has it",
                "ReadWriteOnce",
            ),
        ] {
            let found = of_driver(&wait(step, why));
            let begins = "volume \"pvc-1\" of the CSI driver d.example ";
            assert!(found.cause.starts_with(begins) && found.cause.contains(cause), "{}", found.cause);
            assert!(found.cause.ends_with(&format!("for 61.000 s so far ({step})")), "{}", found.cause);
            assert!(found.remedy.contains(remedy), "{}", found.remedy);
            assert_eq!(found.evidence, [why]);
        }
    }
}

//! Cause and remedy of a pod that waits for its volumes. Pure. Called by [`super::decide`].

use super::Finding;
use super::decide::{line, newest};
use super::look::ExplainInputs;
use crate::pod::status::PodStatus;
use crate::timeline::render::millis;
use crate::volumes::{NO_ISCSIADM, NO_NFS_HELPER, VOLUME_LIMIT, VolumeOrigin, VolumeWait};

/// A volume that is not there keeps every container waiting.
pub(super) fn explain(facts: &ExplainInputs<'_>) -> Vec<Finding> {
    if facts.status.spans.iter().any(|span| span.name == "volumes" && span.end != 0) {
        return Vec::new();
    }
    if !facts.waits.is_empty() {
        return facts.waits.iter().map(of_wait).collect();
    }
    let event = newest(facts, "FailedMount").or_else(|| newest(facts, "FailedMapVolume"));
    let failed = event.map(|event| {
        let (cause, remedy) = cause_of(&event.note.message);
        waiting(cause.to_owned(), remedy, line(event))
    });
    failed.into_iter().collect()
}

/// It was refused, since one of its volumes finds no room on the node.
pub(super) fn explain_refusal(status: &PodStatus, evidence: Vec<String>) -> Option<Finding> {
    (status.api_reason == VOLUME_LIMIT).then(|| Finding {
        container: String::new(),
        state: VOLUME_LIMIT.to_owned(),
        cause: status.api_message.clone(),
        remedy: "make the pod again, unless its controller does: the scheduler sends it where there is room. `kubectl get csinode` has how many volumes of a driver each node takes".to_owned(),
        evidence,
    })
}

/// Cause and remedy of an event.
fn cause_of(message: &str) -> (&'static str, &'static str) {
    if message.contains("which this node does not mount") {
        return (
            "its PersistentVolume is of a kind that this node does not mount",
            "use a PersistentVolume of the kind hostPath, local, nfs, iscsi or csi",
        );
    }
    ("a volume cannot be made", "mend what the message below names: the path, the ConfigMap, the Secret")
}

fn waiting(cause: String, remedy: &str, evidence: String) -> Finding {
    Finding {
        container: String::new(),
        state: "ContainerCreating".to_owned(),
        cause,
        remedy: remedy.to_owned(),
        evidence: vec![evidence],
    }
}

fn of_wait(wait: &VolumeWait) -> Finding {
    let VolumeWait { volume, from, step, why, since } = wait;
    let (whose, (what, remedy)) = match from {
        VolumeOrigin::Driver(driver) => (format!("the CSI driver {driver}"), of_driver(step, why)),
        VolumeOrigin::Export(source) => (format!("the NFS server at {source}"), of_server(why)),
        VolumeOrigin::Target(target) => (format!("the iSCSI target {target}"), of_target(step, why)),
    };
    let nanos = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    let cause = format!("volume {volume:?} of {whose} {what}, for {} so far ({step})", millis(nanos));
    waiting(cause, remedy, why.clone())
}

/// What mount.nfs says, in short, and what to do.
fn of_server(why: &str) -> (&'static str, &'static str) {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&[NO_NFS_HELPER]) {
        return (
            "cannot be mounted: this node has no mount.nfs",
            "install nfs-common (Debian, Ubuntu) or nfs-utils (other distributions) on this node",
        );
    }
    if has(&["access denied", "Permission denied", "Operation not permitted"]) {
        return (
            "is refused by its server",
            "let this node in: the server's /etc/exports, then `exportfs -ra` there",
        );
    }
    if has(&["No such file or directory"]) {
        return (
            "is not exported by its server",
            "`showmount -e SERVER`, or the server's /etc/exports, says what is",
        );
    }
    if has(&["resolve", "Name or service not known"]) {
        return (
            "has a server whose name this node does not know",
            "mend the name, or this node's resolver: pods' DNS is not asked",
        );
    }
    (
        "is not mounted",
        "see whether the server runs and this node reaches its port 2049 (NFS 3: 111 and mountd's, too)",
    )
}

/// What iscsiadm and the programs of file systems say, in short, and what to do.
fn of_target(step: &str, why: &str) -> (&'static str, &'static str) {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&[NO_ISCSIADM]) {
        return (
            "cannot be reached: this node has no iscsiadm",
            "install open-iscsi (Debian, Ubuntu) or iscsi-initiator-utils (other distributions) on this node",
        );
    }
    if has(&["authorization failure", "authentication failure", "couldn't get secret"]) {
        return (
            "is refused by its target",
            "see the Secret with the names and passwords of CHAP, and whom the target lets in",
        );
    }
    if has(&["Timed out waiting for device"]) {
        return (
            "has no device on this node",
            "see whether the target has that LUN for this initiator, and whether udev runs here",
        );
    }
    match step {
        "VerifyControllerAttachedVolume" => (
            "is not attached to this node",
            "the cluster's controller manager attaches it: `kubectl get node NODE -o jsonpath={.status.volumesAttached}`",
        ),
        "MountVolume.MountDevice" => (
            "cannot be mounted",
            "the words below say which program failed: blkid, fsck, mkfs or mount; no disk with something on it is made anew",
        ),
        "MountVolume.WaitForAttach" | "MapVolume.WaitForAttach" => (
            "cannot be reached",
            "see whether the target runs, this node reaches its portal, and iscsid runs here",
        ),
        _ => ("is not there", "the words below say why"),
    }
}

/// One that a driver is to mount: which step, and what came of it last.
fn of_driver(step: &str, why: &str) -> (&'static str, &'static str) {
    let has = |words: &str| why.contains(words);
    match step {
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
            from: VolumeOrigin::Driver("d.example".to_owned()),
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
            let found = of_wait(&wait(step, why));
            let begins = "volume \"pvc-1\" of the CSI driver d.example ";
            assert!(found.cause.starts_with(begins) && found.cause.contains(cause), "{}", found.cause);
            assert!(found.cause.ends_with(&format!("for 61.000 s so far ({step})")), "{}", found.cause);
            assert!(found.remedy.contains(remedy), "{}", found.remedy);
            assert_eq!(found.evidence, [why]);
        }
    }

    #[test]
    fn a_pod_that_waits_for_a_target_is_told_which_and_what_to_do() {
        let wait = |step, why: &str| VolumeWait {
            volume: "data".to_owned(),
            from: VolumeOrigin::Target("10.0.0.1:3260 iqn.2003-01.io.k8s:a".to_owned()),
            step,
            why: why.to_owned(),
            since: Duration::from_secs(61),
        };
        let (attach, mount) = ("MountVolume.WaitForAttach", "MountVolume.MountDevice");
        for (step, why, cause, remedy) in [
            (attach, NO_ISCSIADM, "has no iscsiadm", "open-iscsi"),
            (attach, "iSCSI login failed due to authorization failure", "is refused", "CHAP"),
            (
                attach,
                "Timed out waiting for device at path /dev/disk/by-path/x after 30s",
                "no device",
                "LUN",
            ),
            (attach, "iscsiadm: No portals found", "cannot be reached", "iscsid"),
            (mount, "'fsck' found errors on device", "cannot be mounted", "made anew"),
            ("VerifyControllerAttachedVolume", "Volume not attached", "is not attached", "volumesAttached"),
            ("MountVolume.SetUp", "mount failed", "is not there", "below"),
        ] {
            let found = of_wait(&wait(step, why));
            let begins = "volume \"data\" of the iSCSI target 10.0.0.1:3260 iqn.2003-01.io.k8s:a ";
            assert!(found.cause.starts_with(begins) && found.cause.contains(cause), "{}", found.cause);
            assert!(found.remedy.contains(remedy), "{}", found.remedy);
        }
    }

    #[test]
    fn a_pod_that_waits_for_a_server_is_told_which() {
        let wait = |why: &str| VolumeWait {
            volume: "data".to_owned(),
            from: VolumeOrigin::Export("10.0.0.1:/e".to_owned()),
            step: "MountVolume.SetUp",
            why: why.to_owned(),
            since: Duration::from_secs(61),
        };
        for (why, cause, remedy) in [
            (NO_NFS_HELPER, "has no mount.nfs", "nfs-common"),
            ("mount.nfs: access denied by server while mounting 10.0.0.1:/e", "is refused", "/etc/exports"),
            (
                "mount.nfs: mounting 10.0.0.1:/e failed, reason given by server: No such file or directory",
                "is not exported",
                "showmount",
            ),
            (
                "mount.nfs: Failed to resolve server nas: Name or service not known",
                "does not know",
                "resolver",
            ),
            ("mount.nfs: Connection timed out", "is not mounted", "2049"),
            ("mount has not ended yet", "is not mounted", "2049"),
        ] {
            let found = of_wait(&wait(why));
            let begins = "volume \"data\" of the NFS server at 10.0.0.1:/e ";
            assert!(found.cause.starts_with(begins) && found.cause.contains(cause), "{}", found.cause);
            assert!(found.remedy.contains(remedy), "{}", found.remedy);
            assert_eq!(found.evidence, [why]);
        }
    }

    #[test]
    fn a_pod_whose_volume_found_no_room_is_told_where_there_is() {
        let of = |reason: &str| {
            let (api_reason, api_message) = (reason.to_owned(), "Pod was rejected: full".to_owned());
            let status = PodStatus { api_reason, api_message, ..PodStatus::default() };
            explain_refusal(&status, vec!["event".to_owned()])
        };
        let found = of("VolumeAttachmentLimitExceeded").unwrap();
        assert_eq!(found.cause, "Pod was rejected: full");
        assert!(found.remedy.contains("csinode"), "{}", found.remedy);
        assert_eq!((found.evidence, of("Evicted")), (vec!["event".to_owned()], None));
    }

    #[test]
    fn a_kind_that_the_node_does_not_mount_is_no_fault_of_a_path() {
        let (cause, remedy) =
            cause_of("PV \"pv\" is of kind iscsi, which this node does not mount: use another");
        assert!(cause.contains("of a kind that this node does not mount") && remedy.contains("nfs"));
        assert_eq!(cause_of("mkdir /x: no").0, "a volume cannot be made");
    }
}

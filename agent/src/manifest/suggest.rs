//! "Did you mean": the known field nearest to a mistyped one. Pure: owns a list of the
//! names people type; never decides whether a field is known (the API types do). Called
//! when a field is unknown.

const FIELDS: &[&str] = &[
    "activeDeadlineSeconds",
    "add",
    "affinity",
    "allowPrivilegeEscalation",
    "annotations",
    "apiVersion",
    "args",
    "automountServiceAccountToken",
    "binaryData",
    "capabilities",
    "command",
    "configMap",
    "configMapKeyRef",
    "configMapRef",
    "containerName",
    "containerPort",
    "containers",
    "cpu",
    "data",
    "default",
    "defaultMode",
    "divisor",
    "dnsConfig",
    "dnsPolicy",
    "downwardAPI",
    "drop",
    "emptyDir",
    "enableServiceLinks",
    "env",
    "envFrom",
    "exec",
    "failureThreshold",
    "fieldPath",
    "fieldRef",
    "fsGroup",
    "fsGroupChangePolicy",
    "grpc",
    "host",
    "hostAliases",
    "hostIP",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPath",
    "hostPort",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "hostnames",
    "httpGet",
    "httpHeaders",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "immutable",
    "initContainers",
    "initialDelaySeconds",
    "ip",
    "items",
    "key",
    "kind",
    "labels",
    "lifecycle",
    "limits",
    "livenessProbe",
    "localhostProfile",
    "medium",
    "memory",
    "metadata",
    "mode",
    "mountPath",
    "mountPropagation",
    "name",
    "nameservers",
    "namespace",
    "nodeName",
    "nodeSelector",
    "optional",
    "options",
    "path",
    "periodSeconds",
    "port",
    "ports",
    "postStart",
    "preStop",
    "prefix",
    "priority",
    "priorityClassName",
    "privileged",
    "procMount",
    "projected",
    "protocol",
    "readOnly",
    "readOnlyRootFilesystem",
    "readinessProbe",
    "recursiveReadOnly",
    "requests",
    "resource",
    "resourceFieldRef",
    "resources",
    "restartPolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "schedulerName",
    "scheme",
    "searches",
    "seccompProfile",
    "seconds",
    "secret",
    "secretKeyRef",
    "secretName",
    "secretRef",
    "securityContext",
    "service",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "sizeLimit",
    "sleep",
    "sources",
    "spec",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "stopSignal",
    "stringData",
    "subPath",
    "subPathExpr",
    "subdomain",
    "successThreshold",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
    "tcpSocket",
    "terminationGracePeriodSeconds",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "timeoutSeconds",
    "tolerations",
    "tty",
    "type",
    "uid",
    "value",
    "valueFrom",
    "volumeMounts",
    "volumes",
    "workingDir",
];

/// ` (did you mean "image"?)`, or nothing when no name is near.
pub(super) fn hint(key: &str) -> String {
    let wanted = key.to_ascii_lowercase();
    let limit = (wanted.chars().count() / 3).min(3);
    FIELDS
        .iter()
        .map(|field| (distance(&wanted, &field.to_ascii_lowercase()), field))
        .min()
        .filter(|(edits, _)| *edits <= limit)
        .map(|(_, field)| format!(" (did you mean {field:?}?)"))
        .unwrap_or_default()
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((cb, diagonal), above) in b.iter().zip(&row).zip(row.iter().skip(1)) {
            let left = next.last().copied().unwrap_or_default();
            next.push((diagonal + usize::from(ca != *cb)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered_and_far_ones_are_not() {
        assert_eq!(hint("imagee"), " (did you mean \"image\"?)");
        assert_eq!(hint("Containers"), " (did you mean \"containers\"?)");
        assert_eq!(hint("restartPolcy"), " (did you mean \"restartPolicy\"?)");
        assert_eq!(hint("flavour"), "");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

//! Kubernetes' Pod to ours. Pure: owns the ledger of what is honoured, inert or refused at
//! pod level, by destructuring without `..`, so that a new API field does not compile
//! until someone decides. Never fills in what was not asked for. Called by
//! [`super::parse_text`].

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{self as api};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::container::{self, PodDefaults};
use super::names;
use super::quantity::QuantityError;
use crate::pod::spec::{Dns, Namespaces, Origin, Pod, PodSecurity, PodUid, RestartPolicy, Shown};

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
pub enum FieldError {
    /// Nobody knows this field.
    #[error("{field}: unknown field{hint}")]
    Unknown {
        /// Path from the document's root.
        field: String,
        /// May be empty.
        hint: String,
    },
    /// The value is of another type.
    #[error("{field}: wrong type")]
    Type {
        /// Path from the document's root.
        field: String,
        /// What was expected.
        #[source]
        source: serde_json::Error,
    },
    /// A known field that would not be honoured.
    #[error("{field} is not supported yet: remove it")]
    Unsupported {
        /// Path from the document's root.
        field: String,
    },
    /// Only some values of the field are honoured.
    #[error("{field}: {value:?} is not supported, only {allowed}")]
    Value {
        /// Path from the document's root.
        field: String,
        /// As written.
        value: String,
        /// What may stand there.
        allowed: &'static str,
    },
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// Path from the document's root.
        field: String,
    },
    /// The value breaks a rule.
    #[error("{field}: {value:?} is not {rule}")]
    Invalid {
        /// Path from the document's root.
        field: String,
        /// As written.
        value: String,
        /// What it should be.
        rule: &'static str,
    },
    /// A resource quantity is wrong.
    #[error("{field}")]
    Quantity {
        /// Path from the document's root.
        field: String,
        /// Why.
        #[source]
        source: QuantityError,
    },
}

/// Converts one pod, checking names and refusing what would not be honoured.
pub(super) fn pod(pod: api::Pod) -> Result<Pod, FieldError> {
    let digest = content_uid(&pod);
    let api::Pod { metadata, spec, status: _ } = pod;
    let meta = metadata_of(metadata)?;
    let spec = spec.ok_or_else(|| FieldError::Missing { field: "spec".to_owned() })?;
    let uid = match meta.uid {
        Some(uid) => uid,
        None => PodUid::parse(&digest).ok_or(FieldError::Invalid {
            field: "metadata.uid".to_owned(),
            value: digest,
            rule: "a UID",
        })?,
    };
    let shell = Pod {
        namespace: meta.namespace,
        name: meta.name,
        uid,
        labels: meta.labels,
        annotations: meta.annotations,
        hostname: String::new(),
        restart_policy: RestartPolicy::Always,
        grace: Duration::from_secs(30),
        namespaces: Namespaces::default(),
        origin: Origin::Run,
        active_deadline: None,
        init_containers: Vec::new(),
        containers: Vec::new(),
        volumes: Vec::new(),
        security: PodSecurity::default(),
        dns: Dns::default(),
        host_aliases: Vec::new(),
        subdomain: String::new(),
        fqdn: false,
        pull_secrets: Vec::new(),
        shown: Shown::default(),
    };
    with_spec(shell, spec)
}

struct Meta {
    namespace: String,
    name: String,
    uid: Option<PodUid>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn metadata_of(metadata: ObjectMeta) -> Result<Meta, FieldError> {
    let ObjectMeta {
        annotations,
        labels,
        name,
        namespace,
        uid,
        // Written by an API server; `kubectl get -o yaml` shows them. Without one they say nothing.
        creation_timestamp: _,
        generation: _,
        managed_fields: _,
        resource_version: _,
        self_link: _,
        owner_references: _,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
    } = metadata;
    refuse_set("metadata.deletionTimestamp", deletion_timestamp.is_some())?;
    refuse_set("metadata.deletionGracePeriodSeconds", deletion_grace_period_seconds.is_some())?;
    refuse_set("metadata.finalizers", finalizers.is_some_and(|f| !f.is_empty()))?;
    refuse_set("metadata.generateName", generate_name.is_some())?;
    let name = name.ok_or_else(|| FieldError::Missing { field: "metadata.name".to_owned() })?;
    check("metadata.name", &name, names::is_dns_subdomain, "a lower-case RFC 1123 subdomain")?;
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    check("metadata.namespace", &namespace, names::is_dns_label, "a lower-case RFC 1123 label")?;
    let uid = match uid {
        Some(text) => Some(PodUid::parse(&text).ok_or(FieldError::Invalid {
            field: "metadata.uid".to_owned(),
            value: text,
            rule: "a UID of letters, digits and dashes",
        })?),
        None => None,
    };
    let labels = labels.unwrap_or_default();
    for (key, value) in &labels {
        check("metadata.labels", key, names::is_qualified_key, "a label key")?;
        check(&format!("metadata.labels.{key}"), value, names::is_label_value, "a label value")?;
    }
    let annotations = annotations.unwrap_or_default();
    for key in annotations.keys() {
        check("metadata.annotations", key, names::is_qualified_key, "an annotation key")?;
    }
    Ok(Meta { namespace, name, uid, labels, annotations })
}

// Longer than functions should be: the ledger of PodSpec has a line for each field of the API.
fn with_spec(shell: Pod, spec: api::PodSpec) -> Result<Pod, FieldError> {
    let api::PodSpec {
        // Honoured.
        containers,
        restart_policy,
        termination_grace_period_seconds,
        hostname,
        host_network,
        host_pid,
        host_ipc,
        share_process_namespace,
        security_context,
        // ClusterFirst needs a cluster's DNS, which is not here: both mean the node's.
        dns_policy,
        // Inert: there is no service, no service account and one node.
        automount_service_account_token: _,
        enable_service_links: _,
        node_name: _,
        scheduler_name: _,
        preemption_policy: _,
        service_account,
        service_account_name,
        // Refused when set.
        active_deadline_seconds,
        affinity,
        dns_config,
        ephemeral_containers,
        host_aliases,
        host_users,
        hostname_override,
        image_pull_secrets,
        init_containers,
        node_selector,
        os,
        overhead,
        priority,
        priority_class_name,
        readiness_gates,
        resource_claims,
        resources,
        runtime_class_name,
        scheduling_gates,
        scheduling_group,
        set_hostname_as_fqdn,
        subdomain,
        tolerations,
        topology_spread_constraints,
        volumes,
    } = spec;
    let full = |list: bool| !list;
    for (field, set) in [
        ("activeDeadlineSeconds", active_deadline_seconds.is_some()),
        ("affinity", affinity.is_some()),
        ("dnsConfig", dns_config.is_some()),
        ("ephemeralContainers", full(ephemeral_containers.is_none_or(|l| l.is_empty()))),
        ("hostAliases", full(host_aliases.is_none_or(|l| l.is_empty()))),
        ("hostUsers", host_users == Some(false)),
        ("hostnameOverride", hostname_override.is_some()),
        ("imagePullSecrets", full(image_pull_secrets.is_none_or(|l| l.is_empty()))),
        ("initContainers", full(init_containers.is_none_or(|l| l.is_empty()))),
        ("nodeSelector", full(node_selector.is_none_or(|l| l.is_empty()))),
        ("os", os.is_some_and(|os| os.name != "linux")),
        ("overhead", overhead.is_some()),
        ("priority", priority.is_some_and(|p| p != 0)),
        ("priorityClassName", priority_class_name.is_some_and(|n| !n.is_empty())),
        ("readinessGates", full(readiness_gates.is_none_or(|l| l.is_empty()))),
        ("resourceClaims", full(resource_claims.is_none_or(|l| l.is_empty()))),
        ("resources", resources.is_some()),
        ("runtimeClassName", runtime_class_name.is_some()),
        ("schedulingGates", full(scheduling_gates.is_none_or(|l| l.is_empty()))),
        ("schedulingGroup", scheduling_group.is_some()),
        ("serviceAccount", service_account.is_some_and(|n| n != "default")),
        ("serviceAccountName", service_account_name.is_some_and(|n| n != "default")),
        ("setHostnameAsFQDN", set_hostname_as_fqdn == Some(true)),
        ("subdomain", subdomain.is_some()),
        ("tolerations", full(tolerations.is_none_or(|l| l.is_empty()))),
        ("topologySpreadConstraints", full(topology_spread_constraints.is_none_or(|l| l.is_empty()))),
        ("volumes", full(volumes.is_none_or(|l| l.is_empty()))),
    ] {
        refuse_set(&format!("spec.{field}"), set)?;
    }
    let host_network = host_network.unwrap_or(false);
    let share_process = share_process_namespace.unwrap_or(false);
    let host_pid = host_pid.unwrap_or(false);
    if host_pid && share_process {
        return Err(FieldError::Invalid {
            field: "spec.shareProcessNamespace".to_owned(),
            value: "true".to_owned(),
            rule: "possible together with hostPID",
        });
    }
    dns_policy_of(dns_policy.as_deref())?;
    let defaults = PodDefaults {
        restart_policy: restart_policy_of(restart_policy.as_deref())?,
        ..pod_security(security_context)?
    };
    Ok(Pod {
        hostname: if host_network { String::new() } else { hostname_of(hostname, &shell.name)? },
        restart_policy: defaults.restart_policy,
        grace: grace_of(termination_grace_period_seconds)?,
        namespaces: Namespaces { host_network, host_pid, host_ipc: host_ipc.unwrap_or(false), share_process },
        containers: container::all(containers, &defaults)?,
        ..shell
    })
}

fn pod_security(context: Option<api::PodSecurityContext>) -> Result<PodDefaults, FieldError> {
    let Some(context) = context else {
        return Ok(PodDefaults::default());
    };
    let api::PodSecurityContext {
        run_as_user,
        run_as_group,
        app_armor_profile,
        fs_group,
        fs_group_change_policy,
        run_as_non_root,
        se_linux_change_policy,
        se_linux_options,
        seccomp_profile,
        supplemental_groups,
        supplemental_groups_policy,
        sysctls,
        windows_options,
    } = context;
    for (field, set) in [
        ("appArmorProfile", app_armor_profile.is_some()),
        ("fsGroup", fs_group.is_some()),
        ("fsGroupChangePolicy", fs_group_change_policy.is_some()),
        ("runAsNonRoot", run_as_non_root == Some(true)),
        ("seLinuxChangePolicy", se_linux_change_policy.is_some()),
        ("seLinuxOptions", se_linux_options.is_some()),
        ("seccompProfile", seccomp_profile.is_some()),
        ("supplementalGroups", supplemental_groups.is_some_and(|g| !g.is_empty())),
        ("supplementalGroupsPolicy", supplemental_groups_policy.is_some()),
        ("sysctls", sysctls.is_some_and(|s| !s.is_empty())),
        ("windowsOptions", windows_options.is_some()),
    ] {
        refuse_set(&format!("spec.securityContext.{field}"), set)?;
    }
    let id = |field: &str, id| container::id_of(&format!("spec.securityContext.{field}"), id);
    Ok(PodDefaults {
        run_as_user: id("runAsUser", run_as_user)?,
        run_as_group: id("runAsGroup", run_as_group)?,
        ..PodDefaults::default()
    })
}

fn restart_policy_of(text: Option<&str>) -> Result<RestartPolicy, FieldError> {
    match text {
        None | Some("Always") => Ok(RestartPolicy::Always),
        Some("OnFailure") => Ok(RestartPolicy::OnFailure),
        Some("Never") => Ok(RestartPolicy::Never),
        Some(other) => Err(FieldError::Value {
            field: "spec.restartPolicy".to_owned(),
            value: other.to_owned(),
            allowed: "Always, OnFailure and Never",
        }),
    }
}

fn dns_policy_of(text: Option<&str>) -> Result<(), FieldError> {
    match text {
        None | Some("Default" | "ClusterFirst" | "ClusterFirstWithHostNet") => Ok(()),
        Some(other) => Err(FieldError::Value {
            field: "spec.dnsPolicy".to_owned(),
            value: other.to_owned(),
            allowed: "Default and ClusterFirst (which is treated as Default: there is no cluster DNS here)",
        }),
    }
}

/// At least one second, as the kubelet grants.
fn grace_of(seconds: Option<i64>) -> Result<Duration, FieldError> {
    let seconds = seconds.unwrap_or(30);
    let whole =
        u64::try_from(seconds).ok().filter(|s| *s <= 10 * 365 * 86_400).ok_or(FieldError::Invalid {
            field: "spec.terminationGracePeriodSeconds".to_owned(),
            value: seconds.to_string(),
            rule: "a number of seconds from 0 to ten years",
        })?;
    Ok(Duration::from_secs(whole.max(1)))
}

/// The pod's name cut to what a host name may hold, unless one is given.
fn hostname_of(given: Option<String>, pod_name: &str) -> Result<String, FieldError> {
    if let Some(hostname) = given.filter(|h| !h.is_empty()) {
        check("spec.hostname", &hostname, names::is_dns_label, "a lower-case RFC 1123 label")?;
        return Ok(hostname);
    }
    Ok(pod_name.get(..63).unwrap_or(pod_name).trim_end_matches(['-', '.']).to_owned())
}

pub(super) fn refuse_set(field: &str, set: bool) -> Result<(), FieldError> {
    if set { Err(FieldError::Unsupported { field: field.to_owned() }) } else { Ok(()) }
}

pub(super) fn check(
    field: &str,
    value: &str,
    rule: impl Fn(&str) -> bool,
    text: &'static str,
) -> Result<(), FieldError> {
    if rule(value) {
        return Ok(());
    }
    Err(FieldError::Invalid { field: field.to_owned(), value: value.to_owned(), rule: text })
}

/// The same content gives the same UID, so that a new run adopts what an earlier one
/// started. FNV-1a over the canonical form: no secret hangs on it.
fn content_uid(pod: &api::Pod) -> String {
    let metadata = ObjectMeta {
        annotations: pod.metadata.annotations.clone(),
        labels: pod.metadata.labels.clone(),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        ..ObjectMeta::default()
    };
    let canonical = api::Pod { metadata, spec: pod.spec.clone(), status: None };
    let json = serde_json::to_vec(&canonical).unwrap_or_default();
    let hash = format!("{:032x}", fnv1a_128(&json));
    let part = |range: std::ops::Range<usize>| hash.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

fn fnv1a_128(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

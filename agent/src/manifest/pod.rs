//! Kubernetes' Pod to ours. Pure: owns the ledger of what is honoured, inert or refused at
//! pod level, by destructuring without `..`, so that a new API field does not compile
//! until someone decides. Never fills in what was not asked for. Called by [`super`].

use std::time::Duration;

use gantry_model::names;
use gantry_model::pod::claim::ResourceClaims;
use gantry_model::pod::placement::Placement;
use gantry_model::pod::{Namespaces, Origin, Pod, PodUid, RestartPolicy, Shown};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::claim;
use super::container::{self, Around, RESTART_POLICIES};
use super::env::object_name;
use super::field::{
    DNS_LABEL, DNS_SUBDOMAIN, ManifestSource, Result, check, forbidden, invalid, invalid_plain, not_negative,
    one_of, refuse_set, required,
};
use super::meta::{Meta, meta};
use super::{network, placement, resources, security, volume};

/// Converts one pod, checking names and refusing what would not be honoured.
pub(super) fn pod(pod: api::Pod, source: ManifestSource) -> Result<Pod> {
    let described = source.is_file().then(|| without_server_fields(&pod));
    let digest = described.as_deref().map_or_else(String::new, content_uid);
    let api::Pod { metadata, spec, status } = pod;
    let meta = meta(metadata, source)?;
    let uid = match meta.uid.clone() {
        Some(uid) => uid,
        None => PodUid::parse(&digest).ok_or_else(|| invalid("metadata.uid", &digest, "is no UID"))?,
    };
    let mut spec = spec.ok_or_else(|| required("spec"))?;
    let listed = spec.resource_claims.take().unwrap_or_default();
    let resource_claims = claim::claims(listed, status.as_ref(), source)?;
    let described = described.map(Into::into);
    Ok(Pod { described, resource_claims, ..with_spec(meta, uid, spec, source)? })
}

// Longer than functions should be: the ledger of PodSpec has a line for each field of the API.
fn with_spec(meta: Meta, uid: PodUid, spec: api::PodSpec, source: ManifestSource) -> Result<Pod> {
    let api::PodSpec {
        // Honoured.
        active_deadline_seconds,
        affinity,
        containers,
        dns_config,
        dns_policy,
        enable_service_links,
        ephemeral_containers,
        host_aliases,
        host_ipc,
        host_network,
        host_pid,
        host_users,
        hostname,
        hostname_override,
        image_pull_secrets,
        init_containers,
        node_selector,
        os,
        overhead,
        priority,
        readiness_gates,
        resources,
        restart_policy,
        runtime_class_name,
        security_context,
        set_hostname_as_fqdn,
        share_process_namespace,
        subdomain,
        termination_grace_period_seconds,
        tolerations,
        volumes,
        // Shown by the downward API, and otherwise inert: tokens are volumes, and the node is this one.
        node_name,
        service_account,
        service_account_name,
        // Only for whom the kernel kills last.
        priority_class_name,
        // Inert: they speak to the API server and the scheduler.
        automount_service_account_token: _,
        preemption_policy: _,
        scheduler_name: _,
        topology_spread_constraints: _,
        // Honoured with what the status says of them.
        resource_claims: _,
        // Refused in files; an API server has settled them before a node sees the pod.
        scheduling_gates,
        scheduling_group,
    } = spec;
    let os = os.map(|os| os.name).unwrap_or_default();
    if source.is_file() {
        for (field, set) in [
            ("ephemeralContainers", ephemeral_containers.as_ref().is_some_and(|l| !l.is_empty())),
            ("os.name", !matches!(os.as_str(), "" | "linux")),
            ("overhead", overhead.as_ref().is_some_and(|l| !l.is_empty())),
            ("readinessGates", readiness_gates.as_ref().is_some_and(|l| !l.is_empty())),
            ("runtimeClassName", runtime_class_name.as_ref().is_some_and(|n| !n.is_empty())),
            ("schedulingGates", scheduling_gates.is_some_and(|l| !l.is_empty())),
            ("schedulingGroup", scheduling_group.is_some()),
        ] {
            refuse_set(format!("spec.{field}"), set)?;
        }
    }
    let own_users = host_users == Some(false);
    let namespaces = namespaces_of(host_network, host_pid, host_ipc, share_process_namespace, own_users)?;
    let grace = grace_of(termination_grace_period_seconds, source)?;
    let restart_policy = match restart_policy.as_deref() {
        None | Some("") => RestartPolicy::Always,
        Some(text) => one_of("spec.restartPolicy", text, &RESTART_POLICIES)?,
    };
    let (pod_security, inherited) = security::pod(security_context, &meta.annotations, namespaces, source)?;
    let volumes = volume::volumes(volumes.unwrap_or_default(), &meta.namespace, source)?;
    let around = Around { source, security: inherited, restart_policy, grace, namespaces, volumes: &volumes };
    let (init_containers, containers) =
        container::all(init_containers.unwrap_or_default(), containers, &around)?;
    let ephemeral_containers = container::ephemeral(ephemeral_containers.unwrap_or_default(), &around)?;
    let fqdn = set_hostname_as_fqdn.unwrap_or(false);
    let (hostname, subdomain) =
        hostname_of(&meta.name, hostname, hostname_override, subdomain, fqdn, namespaces.host_network)?;
    Ok(Pod {
        hostname,
        restart_policy,
        grace,
        namespaces,
        origin: if source.is_file() { Origin::Run } else { Origin::Api },
        active_deadline: deadline_of(active_deadline_seconds)?,
        init_containers,
        containers,
        ephemeral_containers,
        security: pod_security,
        dns: network::dns(dns_policy.as_deref(), dns_config)?,
        host_aliases: network::host_aliases(host_aliases.unwrap_or_default())?,
        subdomain,
        fqdn,
        pull_secrets: pull_secrets_of(image_pull_secrets.unwrap_or_default())?,
        shown: Shown {
            priority_class: priority_class_name.unwrap_or_default(),
            ..shown_of(service_account_name, service_account, node_name)?
        },
        placement: Placement {
            node_selector: node_selector.unwrap_or_default(),
            affinity: placement::affinity(affinity)?,
            tolerations: placement::tolerations(tolerations.unwrap_or_default()),
            os,
            priority,
        },
        readiness_gates: readiness_gates
            .unwrap_or_default()
            .into_iter()
            .map(|api::PodReadinessGate { condition_type }| condition_type)
            .collect(),
        resources: resources
            .map(|all| resources::written("spec.resources", Some(all), source))
            .transpose()?,
        overhead: resources::texts(overhead),
        resource_claims: ResourceClaims::default(),
        runtime_class: runtime_class_name.unwrap_or_default(),
        service_links: enable_service_links.unwrap_or(true),
        resize_pending: None,
        described: None,
        volumes,
        generation: meta.generation,
        created_at: meta.created_at,
        namespace: meta.namespace,
        name: meta.name,
        uid,
        labels: meta.labels,
        annotations: meta.annotations,
    })
}

fn namespaces_of(
    network: Option<bool>,
    pid: Option<bool>,
    ipc: Option<bool>,
    share: Option<bool>,
    own_users: bool,
) -> Result<Namespaces> {
    let yes = |flag: Option<bool>| flag.unwrap_or(false);
    let namespaces = Namespaces {
        host_network: yes(network),
        host_pid: yes(pid),
        host_ipc: yes(ipc),
        share_process: yes(share),
        own_users,
    };
    if namespaces.host_pid && namespaces.share_process {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        return Err(invalid_plain("spec.shareProcessNamespace", true, why));
    }
    for (field, shared) in [
        ("hostNetwork", namespaces.host_network),
        ("hostPID", namespaces.host_pid),
        ("hostIPC", namespaces.host_ipc),
    ] {
        if own_users && shared {
            let field = format!("spec.{field}");
            return Err(forbidden(field, "when `hostUsers` is false it cannot be set"));
        }
    }
    Ok(namespaces)
}

/// Zero seconds are one, as the API server makes it.
fn grace_of(seconds: Option<i64>, source: ManifestSource) -> Result<Duration> {
    const LONGEST: u64 = 10 * 365 * 86_400;
    let field = "spec.terminationGracePeriodSeconds";
    let seconds = seconds.unwrap_or(30);
    if !source.is_file() {
        return Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0).clamp(1, LONGEST)));
    }
    let seconds = not_negative(field, seconds)?;
    if seconds > LONGEST {
        return Err(invalid_plain(field, seconds, "must be at most ten years"));
    }
    Ok(Duration::from_secs(seconds.max(1)))
}

fn deadline_of(seconds: Option<i64>) -> Result<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) => match u64::try_from(seconds) {
            Ok(whole) if (1..=u64::from(u32::MAX >> 1)).contains(&whole) => {
                Ok(Some(Duration::from_secs(whole)))
            }
            _ => Err(invalid_plain(
                "spec.activeDeadlineSeconds",
                seconds,
                "must be between 1 and 2147483647, inclusive",
            )),
        },
    }
}

/// The name inside and the subdomain; both empty on the host's network, where the node's count.
fn hostname_of(
    pod_name: &str,
    hostname: Option<String>,
    given: Option<String>,
    subdomain: Option<String>,
    fqdn: bool,
    host_network: bool,
) -> Result<(String, String)> {
    let subdomain = subdomain.unwrap_or_default();
    if !subdomain.is_empty() {
        check("spec.subdomain", &subdomain, names::is_dns_label, DNS_LABEL)?;
    }
    if let Some(name) = given {
        if fqdn {
            return Err(forbidden(
                "spec.hostnameOverride",
                "setHostnameAsFQDN and hostnameOverride can not be used at the same time",
            ));
        }
        if host_network {
            return Err(forbidden("spec.hostnameOverride", "cannot be specified when hostNetwork is true"));
        }
        check("spec.hostnameOverride", &name, names::is_dns_subdomain, DNS_SUBDOMAIN)?;
        return Ok((network::cut(&name), String::new()));
    }
    let hostname = network::hostname(hostname, pod_name)?;
    Ok((if host_network { String::new() } else { hostname }, subdomain))
}

fn pull_secrets_of(list: Vec<api::LocalObjectReference>) -> Result<Vec<String>> {
    let mut names = Vec::with_capacity(list.len());
    for (index, api::LocalObjectReference { name }) in list.into_iter().enumerate() {
        // Upstream passes over entries without a name.
        if !name.is_empty() {
            object_name(&format!("spec.imagePullSecrets[{index}].name"), &name)?;
            names.push(name);
        }
    }
    Ok(names)
}

fn shown_of(name: Option<String>, old_name: Option<String>, node: Option<String>) -> Result<Shown> {
    let full = |text: Option<String>| text.filter(|t| !t.is_empty());
    let service_account = full(name).or(full(old_name)).unwrap_or_default();
    if !service_account.is_empty() {
        check("spec.serviceAccountName", &service_account, names::is_dns_subdomain, DNS_SUBDOMAIN)?;
    }
    let node_name = full(node).unwrap_or_default();
    if !node_name.is_empty() {
        check("spec.nodeName", &node_name, names::is_dns_subdomain, DNS_SUBDOMAIN)?;
    }
    Ok(Shown { service_account, node_name, priority_class: String::new() })
}

/// The same content gives the same UID, so that a new run adopts what an earlier one
/// started. FNV-1a over the canonical form: no secret hangs on it.
fn content_uid(described: &str) -> String {
    let hash = format!("{:032x}", fnv1a_128(described.as_bytes()));
    let part = |range: std::ops::Range<usize>| hash.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

/// Without what only an API server writes.
fn without_server_fields(pod: &api::Pod) -> String {
    let metadata = ObjectMeta {
        annotations: pod.metadata.annotations.clone(),
        labels: pod.metadata.labels.clone(),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        ..ObjectMeta::default()
    };
    let canonical = api::Pod { metadata, spec: pod.spec.clone(), status: None };
    serde_json::to_string(&canonical).unwrap_or_default()
}

/// Of bytes that are no secret.
#[must_use]
pub(crate) fn fnv1a_128(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

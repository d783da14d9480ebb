//! What upstream refuses in a configuration, in its words and order. Pure: owns the rules; what this
//! kubelet alone refuses stands in [`super::refused`]. Called by [`super`].

use std::collections::BTreeSet;
use std::path::{Component, Path};

use gantry_model::go_duration::Span;
use gantry_model::quantity::parse_milli;
use gantry_numa::cpuset::CpuSet;

use super::defaults::QUOTA_PERIOD;
use super::fields::{KubeletConfiguration, ReservedMemory};
use super::gates::Gates;
use super::{KubeletFlags, refused, shutdown, spans, taint};
use crate::config::image_verification::Policy;

/// What of the host a configuration is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Cgroup v2 alone.
    pub unified: bool,
}

/// Everything that is wrong.
pub(super) fn problems(
    config: &KubeletConfiguration,
    flags: &KubeletFlags,
    gates: &Gates,
    host: Host,
) -> Vec<String> {
    let mut found = gates.list_unsupported(&config.feature_gates);
    let rules = [numbers, node, node_allocatable, images, host_rules, server, logs, spans::problems];
    let broken = rules.iter().flat_map(|rule| rule(config, host)).chain(shutdown::problems(config, gates));
    found.extend(broken.map(|problem| {
        let bare = ["kubelet is configured", "invalid taint: ", "tracing."];
        if bare.iter().any(|words| problem.starts_with(words)) {
            problem
        } else {
            format!("invalid configuration: {problem}")
        }
    }));
    found.extend(refused::problems(config, flags, host));
    found
}

fn quota_period(config: &KubeletConfiguration) -> Option<String> {
    let period = config.cpu_cfs_quota_period.unwrap_or_default();
    let wrong = |why| Some(format!("cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} {why}"));
    match Gates::default().enabled("CustomCPUCFSQuotaPeriod", &config.feature_gates) {
        true if (Span(1_000_000)..=Span::seconds(1)).contains(&period) => None,
        true => wrong("must be between 1ms and 1sec, inclusive"),
        false if period == QUOTA_PERIOD => None,
        false => wrong("requires feature gate CustomCPUCFSQuotaPeriod"),
    }
}

fn between(found: &mut Vec<String>, name: &str, value: i64, low: i64, high: i64) {
    if value < low || value > high {
        found.push(format!("{name} {value} must be between {low} and {high}, inclusive"));
    }
}

fn not_negative(found: &mut Vec<String>, name: &str, value: i64) {
    if value < 0 {
        found.push(format!("{name} {value} must not be a negative number"));
    }
}

fn numbers(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    let mut found = Vec::new();
    let number = |value: Option<i32>| i64::from(value.unwrap_or_default());
    if config.node_lease_duration_seconds <= 0 {
        found.push("nodeLeaseDurationSeconds must be greater than 0".to_owned());
    }
    not_negative(&mut found, "eventBurst (--event-burst)", config.event_burst.into());
    not_negative(&mut found, "eventRecordQPS (--event-qps)", number(config.event_record_qps));
    let healthz = number(config.healthz_port);
    if healthz != 0 {
        between(&mut found, "healthzPort (--healthz-port)", healthz, 1, 65535);
    }
    found.extend(quota_period(config));
    let (high, low) =
        (number(config.image_gc_high_threshold_percent), number(config.image_gc_low_threshold_percent));
    between(&mut found, "imageGCHighThresholdPercent (--image-gc-high-threshold)", high, 0, 100);
    between(&mut found, "imageGCLowThresholdPercent (--image-gc-low-threshold)", low, 0, 100);
    if low >= high {
        found.push(format!(
            "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
             imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
        ));
    }
    between(&mut found, "iptablesDropBit (--iptables-drop-bit)", number(config.iptables_drop_bit), 0, 31);
    let bit = number(config.iptables_masquerade_bit);
    between(&mut found, "iptablesMasqueradeBit (--iptables-masquerade-bit)", bit, 0, 31);
    not_negative(&mut found, "kubeAPIBurst (--kube-api-burst)", config.kube_api_burst.into());
    not_negative(&mut found, "kubeAPIQPS (--kube-api-qps)", number(config.kube_api_qps));
    let images = number(config.node_status_max_images);
    if images < -1 {
        found.push(format!("nodeStatusMaxImages (--node-status-max-images) {images} must be -1 or greater"));
    }
    not_negative(&mut found, "maxOpenFiles (--max-open-files)", config.max_open_files);
    not_negative(&mut found, "maxPods (--max-pods)", config.max_pods.into());
    between(&mut found, "oomScoreAdj (--oom-score-adj)", number(config.oom_score_adj), -1000, 1000);
    not_negative(&mut found, "podsPerCore (--pods-per-core)", config.pods_per_core.into());
    between(&mut found, "port (--port)", config.port.into(), 1, 65535);
    if config.read_only_port != 0 {
        between(&mut found, "readOnlyPort (--read-only-port)", config.read_only_port.into(), 0, 65535);
    }
    not_negative(&mut found, "registryBurst (--registry-burst)", config.registry_burst.into());
    not_negative(&mut found, "registryPullQPS (--registry-qps)", number(config.registry_pull_qps));
    found
}

fn node(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    let mut found = Vec::new();
    if !config.system_cgroups.is_empty() && config.cgroup_root.is_empty() {
        found.push(
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"
                .to_owned(),
        );
    }
    if config.run_once {
        found.push(
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set".to_owned(),
        );
    }
    for one in &config.register_with_taints {
        if taint::problem(one).is_some() {
            let added = one.time_added.as_deref().unwrap_or("<nil>");
            found.push(format!("invalid taint: {{{} {} {} {added}}}", one.key, one.value, one.effect));
        }
        if one.time_added.is_some() {
            found.push("taint.TimeAdded is not nil".to_owned());
        }
    }
    let policies = ["none", "best-effort", "restricted", "single-numa-node"];
    let one_of: [(&str, &str, &[&str], &str); 3] = [
        (
            "topologyManagerPolicy (--topology-manager-policy)",
            &config.topology_manager_policy,
            &policies,
            "[\"none\" \"best-effort\" \"restricted\" \"single-numa-node\"]",
        ),
        (
            "topologyManagerScope (--topology-manager-scope)",
            &config.topology_manager_scope,
            &["container", "pod"],
            "\"container\", or \"pod\"",
        ),
        (
            "memorySwap.swapBehavior",
            &config.memory_swap.swap_behavior,
            &["", "LimitedSwap", "NoSwap"],
            "\"\", \"LimitedSwap\" or \"NoSwap\"",
        ),
    ];
    for (name, value, _, told) in one_of.iter().filter(|(_, value, of, _)| !of.contains(value)) {
        found.push(format!("{name} {value:?} must be one of: {told}"));
    }
    if !matches!(config.hairpin_mode.as_str(), "none" | "hairpin-veth" | "promiscuous-bridge") {
        found.push(format!(
            "option {:?} specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \
             \"promiscuous-bridge\"",
            config.hairpin_mode
        ));
    }
    match config.crash_loop_back_off.max_container_restart_period {
        Some(most) if !(Span::seconds(1)..=Span::seconds(300)).contains(&most) => found.push(format!(
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and 300s",
            most.duration().as_secs_f64()
        )),
        _ => {}
    }
    if config.container_runtime_endpoint.is_empty() {
        found.push("the containerRuntimeEndpoint was not specified or empty".to_owned());
    }
    found
}

fn node_allocatable(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    const VALID: &str = "Valid options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \
                         \"kube-reserved\", \"kube-reserved-compressible\" or \"none\"";
    let mut found = Vec::new();
    let levels = config.enforce_node_allocatable.as_deref().unwrap_or_default();
    let has = |level: String| levels.contains(&level);
    for whose in ["system", "kube"] {
        if has(format!("{whose}-reserved")) && has(format!("{whose}-reserved-compressible")) {
            found.push(format!(
                "both \"{whose}-reserved\" and \"{whose}-reserved-compressible\" cannot be specified together in \
                 enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
        }
    }
    reserved_cpus(&mut found, config);
    reserved_memory(&mut found, config);
    let mut seen = BTreeSet::new();
    for level in levels {
        if !seen.insert(level) {
            found.push(format!(
                "duplicated enforcements {level:?} in enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
            continue;
        }
        match level.as_str() {
            "none" if levels.len() > 1 => found.push(
                "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when \
                 \"none\" is specified"
                    .to_owned(),
            ),
            "system-reserved" | "system-reserved-compressible" if config.system_reserved_cgroup.is_empty() => {
                found.push(needs_cgroup("system"));
            }
            "kube-reserved" | "kube-reserved-compressible" if config.kube_reserved_cgroup.is_empty() => {
                found.push(needs_cgroup("kube"));
            }
            "pods" | "none" | "system-reserved" | "system-reserved-compressible" | "kube-reserved"
            | "kube-reserved-compressible" => {}
            _ => found.push(format!(
                "option {level:?} specified for enforceNodeAllocatable (--enforce-node-allocatable). {VALID}"
            )),
        }
    }
    found
}

fn reserved_cpus(found: &mut Vec<String>, config: &KubeletConfiguration) {
    let text = &config.reserved_system_cpus;
    let has_cgroups =
        [&config.system_reserved_cgroup, &config.kube_reserved_cgroup].iter().any(|name| !name.is_empty());
    if !text.is_empty() && has_cgroups {
        found.push(
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or \
             kubeReservedCgroup (--kube-reserved-cgroup)"
                .to_owned(),
        );
    }
    if let Err(error) = text.parse::<CpuSet>() {
        found.push(format!("unable to parse reservedSystemCPUs (--reserved-cpus) {text}, error: {error}"));
    }
}

fn reserved_memory(found: &mut Vec<String>, config: &KubeletConfiguration) {
    let mut seen = BTreeSet::new();
    for ReservedMemory { numa_node, limits } in &config.reserved_memory {
        for (resource, amount) in limits {
            if resource != "memory" && !resource.starts_with("hugepages-") {
                found.push(format!(
                    "the limit type {resource:?} for NUMA node {numa_node} is not supported, only [memory \
                     hugepages-<HugePageSize>] is accepted"
                ));
            }
            if parse_milli(amount) == Ok(0) {
                found.push(format!(
                    "reserved memory may not be zero for NUMA node {numa_node} and resource {resource:?}"
                ));
            }
            if !seen.insert((numa_node, resource)) {
                found.push(format!(
                    "the reserved memory has a duplicate value for NUMA node {numa_node} and resource {resource:?}"
                ));
            }
        }
    }
}

fn needs_cgroup(whose: &str) -> String {
    format!(
        "{whose}ReservedCgroup (--{whose}-reserved-cgroup) must be specified when \"{whose}-reserved\" or \
         \"{whose}-reserved-compressible\" included in enforceNodeAllocatable (--enforce-node-allocatable)"
    )
}

fn images(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    let mut found = Vec::new();
    let (least, most) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
    if least < Span::default() {
        found.push(format!("imageMinimumGCAge {least} must not be negative"));
    }
    if most < Span::default() {
        found.push(format!("imageMaximumGCAge {most} must not be negative"));
    }
    if most > Span::default() && most <= least {
        found.push(format!("imageMaximumGCAge {most} must be greater than imageMinimumGCAge {least}"));
    }
    if let Some(pulls) = config.max_parallel_image_pulls {
        if pulls < 1 {
            found.push(format!("maxParallelImagePulls {pulls} must be a positive number"));
        }
        if pulls > 1 && config.serialize_image_pulls == Some(true) {
            found.push(
                "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) \
                 is set to false"
                    .to_owned(),
            );
        }
    }
    let policy = config.image_pull_credentials_verification_policy.as_str();
    let policies =
        ["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"];
    if !policies.contains(&policy) {
        found.push(format!(
            "option {policy:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \
             \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
        ));
    }
    if !config.preloaded_images_verification_allowlist.is_empty() && policy != "NeverVerifyAllowlistedImages"
    {
        found.push(
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \
             \"NeverVerifyAllowlistedImages\""
                .to_owned(),
        );
    } else if let Err(why) =
        Policy::new("NeverVerifyAllowlistedImages", &config.preloaded_images_verification_allowlist)
    {
        found.push(format!("invalid image pattern in `preloadedImagesVerificationAllowlist`: {why}"));
    }
    found
}

fn host_rules(config: &KubeletConfiguration, host: Host) -> Vec<String> {
    let mut found = Vec::new();
    if !host.unified && config.fail_cgroup_v1 != Some(false) {
        found.push(
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will \
             be removed in a future release"
                .to_owned(),
        );
    } else if !host.unified && config.single_process_oom_kill == Some(false) {
        found
            .push("singleProcessOOMKill must not be explicitly set to false when using cgroup v1".to_owned());
    }
    if let Some(ids) = config.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod) {
        if ids < 65536 {
            found.push("userNamespaces.idsPerPod must not be less than 65536".to_owned());
        } else if ids % 65536 != 0 {
            found.push("userNamespaces.idsPerPod must be a multiple of 65536".to_owned());
        } else if ids > i64::from(u32::MAX) {
            found.push(format!("userNamespaces.idsPerPod must not be more than {}", u32::MAX));
        }
    }
    found
}

fn server(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    let mut found = Vec::new();
    if config.enable_system_log_query == Some(true) && config.enable_system_log_handler != Some(true) {
        found.push("enableSystemLogHandler is required for enableSystemLogQuery".to_owned());
    }
    if let Some(factor) = config.memory_throttling_factor
        && (factor <= 0.0 || factor > 1.0)
    {
        found.push(format!(
            "memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0"
        ));
    }
    if !matches!(config.memory_reservation_policy.as_str(), "None" | "TieredReservation") {
        found.push(format!(
            "option {:?} specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\"",
            config.memory_reservation_policy
        ));
    }
    if !matches!(config.authorization.mode.as_str(), "AlwaysAllow" | "Webhook") {
        found.push(format!("authorization.mode {:?} is unknown", config.authorization.mode));
    }
    found
}

fn logs(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    let mut found = Vec::new();
    if config.container_log_max_workers.unwrap_or_default() < 1 {
        found.push("containerLogMaxWorkers must be greater than or equal to 1".to_owned());
    }
    if config.container_log_monitor_interval.unwrap_or_default() < Span::seconds(3) {
        found.push(
            "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s"
                .to_owned(),
        );
    }
    if config.container_log_max_files.unwrap_or_default() <= 1 {
        found.push("containerLogMaxFiles must be greater than 1".to_owned());
    }
    let folder = config.pod_logs_dir.as_str();
    if folder.is_empty() {
        found.push("podLogsDir was not specified".to_owned());
    }
    if !Path::new(folder).is_absolute() {
        found.push(format!("pod logs path {folder:?} must be absolute path"));
    }
    let plain: std::path::PathBuf =
        Path::new(folder).components().filter(|part| !matches!(part, Component::CurDir)).collect();
    let up = Path::new(folder).components().any(|part| part == Component::ParentDir);
    if plain.as_os_str() != folder || up {
        found.push(format!("pod logs path {folder:?} must be normalized"));
    }
    if !folder.is_ascii() {
        found.push(format!("pod logs path {folder:?} mut contains ASCII characters only"));
    }
    if !matches!(config.logging.format.as_str(), "text" | "json") {
        found.push(format!(
            "logging.format: Invalid value: {:?}: Unsupported log format",
            config.logging.format
        ));
    }
    found
}

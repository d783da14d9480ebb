//! KubeletConfiguration v1beta1, field by field, as upstream names and writes it. Pure: owns the
//! shape; never a default or a judgement. Read from files, from flags and by the wiring.

use std::collections::BTreeMap;

use gantry_model::go_duration::Span;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::shutdown::ShutdownPeriod;

/// Whether a field is left out when it is written: Go's `omitempty`, which knows no empty struct.
trait Empty {
    fn is_empty(&self) -> bool;
}

/// For types that are written whenever they are there.
macro_rules! never_empty {
    ($($type:ty)*) => {$(
        impl Empty for $type {
            fn is_empty(&self) -> bool {
                false
            }
        }
    )*};
}

/// For types whose zero is not written.
macro_rules! empty_when_zero {
    ($($type:ty)*) => {$(
        impl Empty for $type {
            fn is_empty(&self) -> bool {
                *self == <$type>::default()
            }
        }
    )*};
}

never_empty!(u32 Span Authentication Authorization X509 WebhookAuthn Anonymous WebhookAuthz Logging LoggingOptions
    FormatOptions MemorySwap CrashLoopBackOff);
empty_when_zero!(String i32 i64 bool);

impl<T> Empty for Option<T> {
    fn is_empty(&self) -> bool {
        self.is_none()
    }
}

impl<T> Empty for Vec<T> {
    fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }
}

impl<K, V> Empty for BTreeMap<K, V> {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A struct whose fields have upstream's JSON names, and may each be missing.
macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $json:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $(#[serde(rename = $json, skip_serializing_if = "Empty::is_empty")] pub $field: $type,)*
        }
    };
}

type Texts = BTreeMap<String, String>;

fields!(
    /// An `Option` is a field whose absence differs from its zero. After the defaults none of those
    /// that have one is missing.
    KubeletConfiguration {
    enable_server: Option<bool> = "enableServer",
    static_pod_path: String = "staticPodPath",
    pod_logs_dir: String = "podLogsDir",
    sync_frequency: Span = "syncFrequency",
    file_check_frequency: Span = "fileCheckFrequency",
    http_check_frequency: Span = "httpCheckFrequency",
    static_pod_url: String = "staticPodURL",
    static_pod_url_header: BTreeMap<String, Vec<String>> = "staticPodURLHeader",
    address: String = "address",
    port: i32 = "port",
    read_only_port: i32 = "readOnlyPort",
    tls_cert_file: String = "tlsCertFile",
    tls_private_key_file: String = "tlsPrivateKeyFile",
    tls_cipher_suites: Vec<String> = "tlsCipherSuites",
    tls_curve_preferences: Vec<i32> = "tlsCurvePreferences",
    tls_min_version: String = "tlsMinVersion",
    rotate_certificates: bool = "rotateCertificates",
    server_tls_bootstrap: bool = "serverTLSBootstrap",
    authentication: Authentication = "authentication",
    authorization: Authorization = "authorization",
    registry_pull_qps: Option<i32> = "registryPullQPS",
    registry_burst: i32 = "registryBurst",
    image_pull_credentials_verification_policy: String = "imagePullCredentialsVerificationPolicy",
    preloaded_images_verification_allowlist: Vec<String> = "preloadedImagesVerificationAllowlist",
    event_record_qps: Option<i32> = "eventRecordQPS",
    event_burst: i32 = "eventBurst",
    enable_debugging_handlers: Option<bool> = "enableDebuggingHandlers",
    enable_contention_profiling: bool = "enableContentionProfiling",
    healthz_port: Option<i32> = "healthzPort",
    healthz_bind_address: String = "healthzBindAddress",
    oom_score_adj: Option<i32> = "oomScoreAdj",
    cluster_domain: String = "clusterDomain",
    cluster_dns: Vec<String> = "clusterDNS",
    streaming_connection_idle_timeout: Span = "streamingConnectionIdleTimeout",
    node_status_update_frequency: Span = "nodeStatusUpdateFrequency",
    node_status_report_frequency: Span = "nodeStatusReportFrequency",
    node_lease_duration_seconds: i32 = "nodeLeaseDurationSeconds",
    image_minimum_gc_age: Span = "imageMinimumGCAge",
    image_maximum_gc_age: Span = "imageMaximumGCAge",
    image_gc_high_threshold_percent: Option<i32> = "imageGCHighThresholdPercent",
    image_gc_low_threshold_percent: Option<i32> = "imageGCLowThresholdPercent",
    volume_stats_agg_period: Span = "volumeStatsAggPeriod",
    kubelet_cgroups: String = "kubeletCgroups",
    system_cgroups: String = "systemCgroups",
    cgroup_root: String = "cgroupRoot",
    cgroups_per_qos: Option<bool> = "cgroupsPerQOS",
    cgroup_driver: String = "cgroupDriver",
    cpu_manager_policy: String = "cpuManagerPolicy",
    single_process_oom_kill: Option<bool> = "singleProcessOOMKill",
    cpu_manager_policy_options: Texts = "cpuManagerPolicyOptions",
    cpu_manager_reconcile_period: Span = "cpuManagerReconcilePeriod",
    memory_manager_policy: String = "memoryManagerPolicy",
    topology_manager_policy: String = "topologyManagerPolicy",
    topology_manager_scope: String = "topologyManagerScope",
    topology_manager_policy_options: Texts = "topologyManagerPolicyOptions",
    qos_reserved: Texts = "qosReserved",
    runtime_request_timeout: Span = "runtimeRequestTimeout",
    hairpin_mode: String = "hairpinMode",
    max_pods: i32 = "maxPods",
    pod_cidr: String = "podCIDR",
    pod_pids_limit: Option<i64> = "podPidsLimit",
    resolv_conf: Option<String> = "resolvConf",
    run_once: bool = "runOnce",
    cpu_cfs_quota: Option<bool> = "cpuCFSQuota",
    cpu_cfs_quota_period: Option<Span> = "cpuCFSQuotaPeriod",
    node_status_max_images: Option<i32> = "nodeStatusMaxImages",
    max_open_files: i64 = "maxOpenFiles",
    content_type: String = "contentType",
    kube_api_qps: Option<i32> = "kubeAPIQPS",
    kube_api_burst: i32 = "kubeAPIBurst",
    serialize_image_pulls: Option<bool> = "serializeImagePulls",
    max_parallel_image_pulls: Option<i32> = "maxParallelImagePulls",
    eviction_hard: Texts = "evictionHard",
    eviction_soft: Texts = "evictionSoft",
    eviction_soft_grace_period: Texts = "evictionSoftGracePeriod",
    eviction_pressure_transition_period: Span = "evictionPressureTransitionPeriod",
    eviction_max_pod_grace_period: i32 = "evictionMaxPodGracePeriod",
    eviction_minimum_reclaim: Texts = "evictionMinimumReclaim",
    merge_default_eviction_settings: Option<bool> = "mergeDefaultEvictionSettings",
    pods_per_core: i32 = "podsPerCore",
    enable_controller_attach_detach: Option<bool> = "enableControllerAttachDetach",
    protect_kernel_defaults: bool = "protectKernelDefaults",
    make_iptables_util_chains: Option<bool> = "makeIPTablesUtilChains",
    iptables_masquerade_bit: Option<i32> = "iptablesMasqueradeBit",
    iptables_drop_bit: Option<i32> = "iptablesDropBit",
    feature_gates: BTreeMap<String, bool> = "featureGates",
    fail_swap_on: Option<bool> = "failSwapOn",
    memory_swap: MemorySwap = "memorySwap",
    container_log_max_size: String = "containerLogMaxSize",
    container_log_max_files: Option<i32> = "containerLogMaxFiles",
    container_log_max_workers: Option<i32> = "containerLogMaxWorkers",
    container_log_monitor_interval: Option<Span> = "containerLogMonitorInterval",
    config_map_and_secret_change_detection_strategy: String = "configMapAndSecretChangeDetectionStrategy",
    system_reserved: Texts = "systemReserved",
    kube_reserved: Texts = "kubeReserved",
    reserved_system_cpus: String = "reservedSystemCPUs",
    show_hidden_metrics_for_version: String = "showHiddenMetricsForVersion",
    system_reserved_cgroup: String = "systemReservedCgroup",
    kube_reserved_cgroup: String = "kubeReservedCgroup",
    enforce_node_allocatable: Option<Vec<String>> = "enforceNodeAllocatable",
    allowed_unsafe_sysctls: Vec<String> = "allowedUnsafeSysctls",
    volume_plugin_dir: String = "volumePluginDir",
    provider_id: String = "providerID",
    kernel_memcg_notification: bool = "kernelMemcgNotification",
    logging: Logging = "logging",
    enable_system_log_handler: Option<bool> = "enableSystemLogHandler",
    enable_system_log_query: Option<bool> = "enableSystemLogQuery",
    shutdown_grace_period: Span = "shutdownGracePeriod",
    shutdown_grace_period_critical_pods: Span = "shutdownGracePeriodCriticalPods",
    shutdown_grace_period_by_pod_priority: Vec<ShutdownPeriod> = "shutdownGracePeriodByPodPriority",
    crash_loop_back_off: CrashLoopBackOff = "crashLoopBackOff",
    reserved_memory: Vec<ReservedMemory> = "reservedMemory",
    enable_profiling_handler: Option<bool> = "enableProfilingHandler",
    enable_debug_flags_handler: Option<bool> = "enableDebugFlagsHandler",
    seccomp_default: Option<bool> = "seccompDefault",
    memory_throttling_factor: Option<f64> = "memoryThrottlingFactor",
    memory_reservation_policy: String = "memoryReservationPolicy",
    register_with_taints: Vec<Taint> = "registerWithTaints",
    register_node: Option<bool> = "registerNode",
    tracing: Option<Tracing> = "tracing",
    local_storage_capacity_isolation: Option<bool> = "localStorageCapacityIsolation",
    container_runtime_endpoint: String = "containerRuntimeEndpoint",
    image_service_endpoint: String = "imageServiceEndpoint",
    fail_cgroup_v1: Option<bool> = "failCgroupV1",
    user_namespaces: Option<UserNamespaces> = "userNamespaces",
});

fields!(
    /// Who may ask the kubelet's own API.
    Authentication {
    x509: X509 = "x509",
    webhook: WebhookAuthn = "webhook",
    anonymous: Anonymous = "anonymous",
});

fields!(
    /// By client certificate.
    X509 { client_ca_file: String = "clientCAFile", });

fields!(
    /// By asking the API server about a token.
    WebhookAuthn { enabled: Option<bool> = "enabled", cache_ttl: Span = "cacheTTL", });

fields!(
    /// Not at all.
    Anonymous { enabled: Option<bool> = "enabled", });

fields!(
    /// What they may do.
    Authorization { mode: String = "mode", webhook: WebhookAuthz = "webhook", });

fields!(
    /// By asking the API server.
    WebhookAuthz {
    cache_authorized_ttl: Span = "cacheAuthorizedTTL",
    cache_unauthorized_ttl: Span = "cacheUnauthorizedTTL",
});

fields!(
    /// What pods may take of the node's swap.
    MemorySwap { swap_behavior: String = "swapBehavior", });

fields!(
    /// How long a container that crashes may wait.
    CrashLoopBackOff { max_container_restart_period: Option<Span> = "maxContainerRestartPeriod", });

fields!(
    /// How many ids a pod's user namespace has.
    UserNamespaces { ids_per_pod: Option<i64> = "idsPerPod", });

fields!(
    /// Where spans go, and of how many traces.
    Tracing {
    endpoint: Option<String> = "endpoint",
    sampling_rate_per_million: Option<i32> = "samplingRatePerMillion",
});

fields!(
    /// One taint of a node.
    Taint {
    key: String = "key",
    value: String = "value",
    effect: String = "effect",
    time_added: Option<String> = "timeAdded",
});

/// Of one NUMA node, what pods get none of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReservedMemory {
    pub numa_node: i32,
    /// `memory` and `hugepages-SIZE`, as written.
    #[serde(deserialize_with = "amounts")]
    pub limits: BTreeMap<String, String>,
}

/// Amounts may be written as numbers.
fn amounts<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let written = Option::<BTreeMap<String, Value>>::deserialize(from)?.unwrap_or_default();
    let text = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        Value::Number(number) => Ok((name, number.to_string())),
        _ => Err(D::Error::custom(format!("the amount of {name:?} is no quantity"))),
    };
    written.into_iter().map(text).collect()
}

fields!(
    /// What is logged, and how.
    Logging {
    format: String = "format",
    flush_frequency: Option<Value> = "flushFrequency",
    verbosity: u32 = "verbosity",
    vmodule: Vec<Value> = "vmodule",
    options: LoggingOptions = "options",
});

fields!(
    /// For each format.
    LoggingOptions { text: FormatOptions = "text", json: FormatOptions = "json", });

fields!(
    /// Of one format.
    FormatOptions { split_stream: bool = "splitStream", info_buffer_size: Option<Value> = "infoBufferSize", });

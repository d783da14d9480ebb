//! What the agent counts, under the kubelet's own names. Owns the families; the parts of the agent
//! that do the counting hold an `Arc` of [`Metrics`]. Never collects by itself: what is read at
//! scrape time (the machine, containers, volumes) is the server's. Called by everyone who counts and
//! by the server, which writes it all out.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod family;
#[cfg(test)]
mod ledger;
pub mod process;
pub mod text;

pub use family::{Counter, Gauge, GaugeFunc, Histogram};
use family::{Family, exponential};
use text::Text;

/// client_golang's own.
fn usual() -> Vec<f64> {
    vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
}

fn of_a_start() -> Vec<f64> {
    let mut bounds = vec![0.5];
    bounds.extend([1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480].map(f64::from));
    bounds.extend([600, 900, 1200, 1800, 2700, 3600].map(f64::from));
    bounds
}

fn of_a_pull() -> Vec<f64> {
    let bounds = [1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600];
    bounds.map(f64::from).to_vec()
}

fn of_a_status() -> Vec<f64> {
    vec![0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0]
}

fn of_a_request() -> Vec<f64> {
    vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]
}

fn of_the_runtime() -> Vec<f64> {
    exponential(0.005, 2.5, 14)
}

/// From a rotation that comes too soon to one that comes too late.
fn of_a_certificate() -> Vec<f64> {
    let (minute, hour, day, year) = (60.0, 3600.0, 86_400.0, 31_104_000.0);
    vec![minute, hour, 4.0 * hour, day, 7.0 * day, 30.0 * day, 90.0 * day, 180.0 * day, year, 4.0 * year]
}

fn of_storage() -> Vec<f64> {
    vec![0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0]
}

/// By ExponentialBucketsRange(0.1, 40, 15).
fn of_dra() -> Vec<f64> {
    let factor = (40.0_f64 / 0.1).powf(1.0 / 14.0);
    (0_u8..15).map(|at| 0.1 * factor.powf(f64::from(at))).collect()
}

/// Milliseconds.
fn of_a_resize() -> Vec<f64> {
    let bounds =
        [10, 50, 100, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000];
    bounds.map(f64::from).to_vec()
}

/// Milliseconds.
fn of_an_admission() -> Vec<f64> {
    exponential(0.05, 2.0, 15)
}

fn of_containers() -> Vec<f64> {
    exponential(1.0, 2.0, 5)
}

/// The label of `kubelet_image_pull_duration_seconds` for an image of so many bytes.
#[must_use]
pub fn image_size_bucket(bytes: u64) -> &'static str {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        ..=10_485_759 => "0-10MB",
        size if size < 100 * MIB => "10MB-100MB",
        size if size < 500 * MIB => "100MB-500MB",
        size if size < GIB => "500MB-1GB",
        size if size < 5 * GIB => "1GB-5GB",
        size if size < 10 * GIB => "5GB-10GB",
        size if size < 20 * GIB => "10GB-20GB",
        size if size < 30 * GIB => "20GB-30GB",
        size if size < 40 * GIB => "30GB-40GB",
        size if size < 60 * GIB => "40GB-60GB",
        size if size < 100 * GIB => "60GB-100GB",
        _ => "GT100GB",
    }
}

/// Declares a group of families: its fields, how they begin, the order they are written in.
macro_rules! families {
    ($(#[$doc:meta])* $group:ident { $($field:ident: $type:ty = $name:literal, $labels:expr, $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $group {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: <$type>::make($name, $help, $labels),)* }
            }
        }

        impl $group {
            /// All families that have a series.
            pub fn write(&self, text: &mut Text) {
                $(self.$field.write(text);)*
            }

            /// Names, types and labels.
            #[cfg(test)]
            fn heads(&self) -> Vec<family::About> {
                vec![$(self.$field.about(),)*]
            }
        }
    };
}

families! {
/// What `/metrics` shows of the agent's own doings.
Metrics {
    active_pods: Gauge<1> = "kubelet_active_pods", ["static"], "[ALPHA] Pods that count when others are admitted.";
    admission_rejections: Counter<1> = "kubelet_admission_rejections_total", ["reason"], "[ALPHA] Pods that were not admitted, by reason.";
    aligned_compute_resources: Counter<2> = "kubelet_container_aligned_compute_resources_count", ["scope", "boundary"], "[ALPHA] Resources given so that they lie together, by what they lie together in.";
    aligned_compute_resources_failures: Counter<2> = "kubelet_container_aligned_compute_resources_failure_count", ["scope", "boundary"], "[ALPHA] Resources that could not be given so.";
    cgroup_manager_duration: Histogram<1> = "kubelet_cgroup_manager_duration_seconds", (["operation_type"], usual()), "[ALPHA] Seconds that operations on cgroups took.";
    cgroup_version: Gauge = "kubelet_cgroup_version", [], "[ALPHA] Version of the host's cgroups.";
    container_requested_resizes: Counter<3> = "kubelet_container_requested_resizes_total", ["resource", "requirement", "operation"], "[ALPHA] Resizes that were asked for, by container, resource, requests or limits, and what becomes of them.";
    containers_per_pod: Histogram = "kubelet_containers_per_pod_count", ([], of_containers()), "[ALPHA] Containers in each pod.";
    cpu_manager_per_numa: Gauge<1> = "kubelet_cpu_manager_allocation_per_numa", ["numa_node"], "[ALPHA] CPUs that containers have to themselves, by NUMA node.";
    cpu_manager_exclusive: Gauge = "kubelet_cpu_manager_exclusive_cpu_allocation_count", [], "[ALPHA] CPUs that containers have to themselves.";
    cpu_manager_pinning_errors: Counter = "kubelet_cpu_manager_pinning_errors_total", [], "[ALPHA] Containers that could not be given CPUs of their own.";
    cpu_manager_pinning_requests: Counter = "kubelet_cpu_manager_pinning_requests_total", [], "[ALPHA] Containers that asked for CPUs of their own.";
    cpu_manager_shared_pool: Gauge = "kubelet_cpu_manager_shared_pool_size_millicores", [], "[ALPHA] Thousandths of CPUs that no container has to itself and that are not reserved.";
    desired_pods: Gauge<1> = "kubelet_desired_pods", ["static"], "[ALPHA] Pods this node is to run.";
    credential_plugin_config: Gauge<1> = "kubelet_credential_provider_config_info", ["hash"], "[ALPHA] Sum of the configuration of credential plugins; always 1.";
    credential_plugin_duration: Histogram<1> = "kubelet_credential_provider_plugin_duration", (["plugin_name"], usual()), "[ALPHA] Seconds that a credential plugin took.";
    credential_plugin_errors: Counter<1> = "kubelet_credential_provider_plugin_errors_total", ["plugin_name"], "[ALPHA] Credential plugins that failed.";
    device_plugin_alloc_duration: Histogram<1> = "kubelet_device_plugin_alloc_duration_seconds", (["resource_name"], usual()), "[ALPHA] Seconds that a device plugin took to serve an allocation.";
    device_plugin_registrations: Counter<1> = "kubelet_device_plugin_registration_total", ["resource_name"], "[ALPHA] Registrations of device plugins, by resource.";
    dra_grpc_operations_duration: Histogram<3> = "dra_grpc_operations_duration_seconds", (["driver_name", "method_name", "grpc_status_code"], of_dra()), "[ALPHA] Seconds of a call of a DRA driver.";
    dra_operations_duration: Histogram<2> = "dra_operations_duration_seconds", (["operation_name", "is_error"], of_dra()), "[ALPHA] Seconds to have the claims of a pod prepared or unprepared.";
    dra_resource_claims_in_use: Gauge<1> = "dra_resource_claims_in_use", ["driver_name"], "[ALPHA] Claims that are prepared on this node, by driver and of all drivers together.";
    evented_pleg_errors: Counter = "kubelet_evented_pleg_connection_error_count", [], "[ALPHA] Failed attempts to listen to the runtime's events.";
    evented_pleg_connections: Counter = "kubelet_evented_pleg_connection_success_count", [], "[ALPHA] Times the runtime's events were listened to.";
    evictions: Counter<1> = "kubelet_evictions", ["eviction_signal"], "[ALPHA] Pods that were ended for pressure, by signal.";
    eviction_stats_age: Histogram<1> = "kubelet_eviction_stats_age_seconds", (["eviction_signal"], usual()), "[ALPHA] Age of the measurements that pods were ended by.";
    first_network_pod_start_sli: Gauge = "kubelet_first_network_pod_start_sli_duration_seconds", [], "[INTERNAL] The same as kubelet_pod_start_sli_duration_seconds, of the first pod with a network.";
    graceful_shutdown_start: Gauge = "kubelet_graceful_shutdown_start_time_seconds", [], "[ALPHA] When the machine's last shutdown began to end pods, in Unix time.";
    graceful_shutdown_end: Gauge = "kubelet_graceful_shutdown_end_time_seconds", [], "[ALPHA] When the pods of the machine's last shutdown had ended or had their time, in Unix time.";
    http_requests: Counter<4> = "kubelet_http_requests_total", ["method", "path", "server_type", "long_running"], "[ALPHA] HTTP requests received.";
    websocket_streaming_requests: Counter<1> = "kubelet_websocket_streaming_requests_total", ["subresource"], "[ALPHA] WebSockets of exec, attach and port forwarding that the API server did not translate.";
    http_requests_duration: Histogram<4> = "kubelet_http_requests_duration_seconds", (["method", "path", "server_type", "long_running"], usual()), "[ALPHA] Seconds to serve a request.";
    http_inflight_requests: Gauge<4> = "kubelet_http_inflight_requests", ["method", "path", "server_type", "long_running"], "[ALPHA] Requests being served.";
    image_garbage_collected: Counter<1> = "kubelet_image_garbage_collected_total", ["reason"], "[ALPHA] Images removed to make room or for their age.";
    image_ensured: Counter<3> = "kubelet_image_manager_ensure_image_requests_total", ["pull_policy", "present_locally", "pull_required"], "[ALPHA] Images asked for by containers.";
    image_mustpull_checks: Counter<1> = "kubelet_imagemanager_image_mustpull_checks_total", ["result"], "[ALPHA] Decisions about images that were there already, by result.";
    image_pull_intents: Gauge = "kubelet_imagemanager_ondisk_pullintents", [], "[ALPHA] Records of pulls under way.";
    image_pulled_records: Gauge = "kubelet_imagemanager_ondisk_pulledrecords", [], "[ALPHA] Records of pulled images.";
    image_pull_duration: Histogram<1> = "kubelet_image_pull_duration_seconds", (["image_size_in_bytes"], of_a_pull()), "[ALPHA] Seconds to pull an image, by its size.";
    image_pull_stage: Histogram<1> = "gantry_image_pull_stage_duration_seconds", (["stage"], of_the_runtime()), "[ALPHA] Seconds that stages of pulls took: resolve, config, download, unpack and commit by our own runtime.";
    image_volume_requested: Counter = "kubelet_image_volume_requested_total", [], "[BETA] Image volumes asked for.";
    image_volume_mounted: Counter = "kubelet_image_volume_mounted_succeed_total", [], "[BETA] Image volumes mounted.";
    image_volume_errors: Counter = "kubelet_image_volume_mounted_errors_total", [], "[BETA] Image volumes that could not be mounted.";
    lifecycle_http_fallbacks: Counter = "kubelet_lifecycle_handler_http_fallbacks_total", [], "[ALPHA] Hooks over https that were answered over http.";
    lifecycle_sleep_cut: Counter = "kubelet_sleep_action_terminated_early_total", [], "[ALPHA] Sleep hooks that ended before their time.";
    managed_ephemeral_containers: Gauge = "kubelet_managed_ephemeral_containers", [], "[ALPHA] Ephemeral containers in this node's pods.";
    memory_manager_pinning_errors: Counter = "kubelet_memory_manager_pinning_errors_total", [], "[ALPHA] Containers that could not be given memory of NUMA nodes.";
    memory_manager_pinning_requests: Counter = "kubelet_memory_manager_pinning_requests_total", [], "[ALPHA] Containers that asked for memory of NUMA nodes.";
    metrics_provider: Gauge<1> = "kubelet_metrics_provider", ["provider"], "[ALPHA] Where container metrics come from.";
    mirror_pods: Gauge = "kubelet_mirror_pods", [], "[ALPHA] Mirror pods this node keeps.";
    node_name: Gauge<1> = "kubelet_node_name", ["node"], "[ALPHA] The node's name; always 1.";
    node_startup: Gauge = "kubelet_node_startup_duration_seconds", [], "[ALPHA] Seconds of the node's whole start.";
    node_startup_pre_kubelet: Gauge = "kubelet_node_startup_pre_kubelet_duration_seconds", [], "[ALPHA] Seconds before the agent started.";
    node_startup_pre_registration: Gauge = "kubelet_node_startup_pre_registration_duration_seconds", [], "[ALPHA] Seconds before registration.";
    node_startup_registration: Gauge = "kubelet_node_startup_registration_duration_seconds", [], "[ALPHA] Seconds of registration.";
    node_startup_post_registration: Gauge = "kubelet_node_startup_post_registration_duration_seconds", [], "[ALPHA] Seconds from registration to Ready.";
    orphan_pod_cleaned_volumes: Gauge = "kubelet_orphan_pod_cleaned_volumes", [], "[ALPHA] Orphaned pods whose volumes the last sweep cleaned.";
    orphan_pod_cleaned_volumes_errors: Gauge = "kubelet_orphan_pod_cleaned_volumes_errors", [], "[ALPHA] Orphaned pods whose volumes it could not clean.";
    orphaned_runtime_pods: Counter = "kubelet_orphaned_runtime_pods_total", [], "[ALPHA] Pods found in the runtime that nobody had asked for.";
    pleg_last_seen: Gauge = "kubelet_pleg_last_seen_seconds", [], "[ALPHA] When the runtime was last looked at, in Unix time.";
    pleg_pod_relist_duration: Histogram = "kubelet_pleg_pod_relist_duration_seconds", ([], usual()), "[ALPHA] Seconds to look at one pod of the runtime.";
    pleg_relist_duration: Histogram = "kubelet_pleg_relist_duration_seconds", ([], usual()), "[ALPHA] Seconds to look at all pods of the runtime.";
    pleg_relist_interval: Histogram = "kubelet_pleg_relist_interval_seconds", ([], usual()), "[ALPHA] Seconds between two such looks.";
    pod_deferred_accepted_resizes: Counter<1> = "kubelet_pod_deferred_accepted_resizes_total", ["retry_trigger"], "[ALPHA] Resizes that came about after they had been deferred.";
    pod_in_progress_resizes: Gauge = "kubelet_pod_in_progress_resizes", [], "[ALPHA] Pods that are not held to what they were allocated.";
    pod_infeasible_resizes: Counter<1> = "kubelet_pod_infeasible_resizes_total", ["reason_detail"], "[ALPHA] Resizes that the node never does.";
    pod_pending_resizes: Gauge<1> = "kubelet_pod_pending_resizes", ["reason"], "[ALPHA] Resizes that were not taken up.";
    pod_resize_duration: Histogram<1> = "kubelet_pod_resize_duration_milliseconds", (["success"], of_a_resize()), "[ALPHA] Milliseconds that carrying out a resize took.";
    pod_resources_errors_get: Counter<1> = "kubelet_pod_resources_endpoint_errors_get", ["server_api_version"], "[ALPHA] Requests of pod resources for one pod that failed.";
    pod_resources_requests_get: Counter<1> = "kubelet_pod_resources_endpoint_requests_get", ["server_api_version"], "[ALPHA] Requests of pod resources for one pod.";
    pod_resources_requests_get_allocatable: Counter<1> = "kubelet_pod_resources_endpoint_requests_get_allocatable", ["server_api_version"], "[ALPHA] Requests of pod resources for all that the node has.";
    pod_resources_requests_list: Counter<1> = "kubelet_pod_resources_endpoint_requests_list", ["server_api_version"], "[ALPHA] Requests of pod resources for all pods.";
    pod_resources_requests: Counter<1> = "kubelet_pod_resources_endpoint_requests_total", ["server_api_version"], "[ALPHA] Requests of pod resources.";
    pod_start_duration: Histogram = "kubelet_pod_start_duration_seconds", ([], of_a_start()), "[ALPHA] Seconds from the first sight of a pod to its running.";
    pod_start_sli_duration: Histogram = "kubelet_pod_start_sli_duration_seconds", ([], of_a_start()), "[ALPHA] Seconds from creation to running, without pulls and init containers.";
    pod_start_total_duration: Histogram = "kubelet_pod_start_total_duration_seconds", ([], of_a_start()), "[ALPHA] Seconds from creation to running, all told.";
    pod_status_sync_duration: Histogram = "kubelet_pod_status_sync_duration_seconds", ([], of_a_status()), "[ALPHA] Seconds from a change of status to its being in the API.";
    pod_worker_duration: Histogram<1> = "kubelet_pod_worker_duration_seconds", (["operation_type"], usual()), "[ALPHA] Seconds of one round of a pod's worker.";
    pod_worker_start_duration: Histogram = "kubelet_pod_worker_start_duration_seconds", ([], usual()), "[ALPHA] Seconds from the first sight of a pod to its worker.";
    preemptions: Counter<1> = "kubelet_preemptions", ["preemption_signal"], "[ALPHA] Pods that made room for critical ones.";
    restarted_pods: Counter<1> = "kubelet_restarted_pods_total", ["static"], "[ALPHA] Pods that went and came back with the same UID.";
    run_podsandbox_duration: Histogram<1> = "kubelet_run_podsandbox_duration_seconds", (["runtime_handler"], usual()), "[ALPHA] Seconds to make a sandbox.";
    run_podsandbox_errors: Counter<1> = "kubelet_run_podsandbox_errors_total", ["runtime_handler"], "[ALPHA] Sandboxes that could not be made.";
    running_containers: Gauge<1> = "kubelet_running_containers", ["container_state"], "[ALPHA] Containers, by state.";
    running_pods: Gauge = "kubelet_running_pods", [], "[ALPHA] Pods that have a sandbox that runs.";
    runtime_operations: Counter<1> = "kubelet_runtime_operations_total", ["operation_type"], "[ALPHA] Calls to the runtime.";
    runtime_operations_duration: Histogram<1> = "kubelet_runtime_operations_duration_seconds", (["operation_type"], of_the_runtime()), "[ALPHA] Seconds they took.";
    runtime_operations_errors: Counter<1> = "kubelet_runtime_operations_errors_total", ["operation_type"], "[ALPHA] Those that failed.";
    started_containers: Counter<1> = "kubelet_started_containers_total", ["container_type"], "[ALPHA] Containers started.";
    started_containers_errors: Counter<2> = "kubelet_started_containers_errors_total", ["container_type", "code"], "[ALPHA] Containers that could not be started.";
    started_pods: Counter = "kubelet_started_pods_total", [], "[ALPHA] Pods started.";
    started_pods_errors: Counter = "kubelet_started_pods_errors_total", [], "[ALPHA] Pods that could not be started.";
    started_userns_pods: Counter = "kubelet_started_user_namespaced_pods_total", [], "[ALPHA] Pods with a user namespace started.";
    started_userns_pods_errors: Counter = "kubelet_started_user_namespaced_pods_errors_total", [], "[ALPHA] Pods with a user namespace that could not be started.";
    terminated_containers: Counter<3> = "kubelet_terminated_containers_total", ["container_type", "exit_code", "reason"], "[ALPHA] Containers that ended.";
    volume_metric_duration: Histogram<1> = "kubelet_volume_metric_collection_duration_seconds", (["metric_source"], usual()), "[ALPHA] Seconds to measure a volume.";
    topology_manager_duration: Histogram = "kubelet_topology_manager_admission_duration_ms", ([], of_an_admission()), "[ALPHA] Milliseconds to align and give a pod's resources.";
    topology_manager_errors: Counter = "kubelet_topology_manager_admission_errors_total", [], "[ALPHA] Pods whose resources could not be aligned.";
    topology_manager_requests: Counter = "kubelet_topology_manager_admission_requests_total", [], "[ALPHA] Pods whose resources were to be aligned.";
    resource_manager_errors: Counter<2> = "resource_manager_allocation_errors_total", ["resource_name", "source"], "[ALPHA] Failures to give a container something of its own.";
    resource_manager_allocations: Counter<2> = "resource_manager_allocations_total", ["resource_name", "source"], "[ALPHA] Containers that were given something of their own.";
    resource_manager_assignments: Counter<2> = "resource_manager_container_assignments", ["resource_name", "assignment_type"], "[ALPHA] The same, by how it is theirs.";
    working_pods: Gauge<3> = "kubelet_working_pods", ["lifecycle", "config", "static"], "[ALPHA] Pods that have a worker, by where they are in life.";
    certificate_manager_client_expiration: GaugeFunc = "kubelet_certificate_manager_client_ttl_seconds", [], "[ALPHA] Seconds until the client certificate ends.";
    certificate_manager_client_errors: Counter = "kubelet_certificate_manager_client_expiration_renew_errors", [], "[ALPHA] Failed renewals of the client certificate.";
    certificate_manager_server_expiration: GaugeFunc = "kubelet_certificate_manager_server_ttl_seconds", [], "[ALPHA] Seconds until the serving certificate ends.";
    certificate_manager_server_age: Histogram = "kubelet_certificate_manager_server_rotation_seconds", ([], of_a_certificate()), "[ALPHA] Age of the serving certificate when it was replaced.";
    server_expiration_errors: Counter = "kubelet_server_expiration_renew_errors", [], "[ALPHA] Failed renewals of the serving certificate.";
    exec_plugin_calls: Counter<2> = "rest_client_exec_plugin_call_total", ["code", "call_status"], "[ALPHA] Runs of the credential program of the kubeconfig.";
    rest_client_requests: Counter<3> = "rest_client_requests_total", ["code", "method", "host"], "[ALPHA] Requests to the API server.";
    rest_client_duration: Histogram<2> = "rest_client_request_duration_seconds", (["verb", "host"], of_a_request()), "[ALPHA] Seconds they took.";
    feature_enabled: Gauge<2> = "kubernetes_feature_enabled", ["name", "stage"], "[BETA] Feature gates: 1 when on, else 0.";
    csi_operations: Histogram<4> = "csi_operations_seconds", (["driver_name", "grpc_status_code", "method_name", "migrated"], of_storage()), "[ALPHA] Seconds of a call of a CSI driver.";
    storage_operation_duration: Histogram<4> = "storage_operation_duration_seconds", (["volume_plugin", "operation_name", "status", "migrated"], of_storage()), "[ALPHA] Seconds to make a volume or to take it back.";
    plugin_manager_plugins: Gauge<2> = "plugin_manager_total_plugins", ["socket_path", "state"], "[ALPHA] Plugins of the registry by socket: those that are there, and those that are registered.";
    selinux_container_errors: Gauge<1> = "volume_manager_selinux_container_errors_total", ["access_mode"], "[ALPHA] Number of errors when kubelet cannot compute SELinux context for a container. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of containers.";
    selinux_container_warnings: Gauge<1> = "volume_manager_selinux_container_warnings_total", ["access_mode"], "[ALPHA] Number of errors when kubelet cannot compute SELinux context for a container that are ignored. They will become real errors when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.";
    selinux_pod_errors: Gauge<1> = "volume_manager_selinux_pod_context_mismatch_errors_total", ["access_mode"], "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of Pods.";
    selinux_pod_warnings: Gauge<1> = "volume_manager_selinux_pod_context_mismatch_warnings_total", ["access_mode"], "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume. They are not errors yet, but they will become real errors when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.";
    selinux_volume_errors: Gauge<2> = "volume_manager_selinux_volume_context_mismatch_errors_total", ["volume_plugin", "access_mode"], "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than the Pod needs. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of Pods.";
    selinux_volume_warnings: Gauge<2> = "volume_manager_selinux_volume_context_mismatch_warnings_total", ["volume_plugin", "access_mode"], "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than the Pod needs. They are not errors yet, but they will become real errors when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.";
    selinux_volumes_admitted: Gauge<2> = "volume_manager_selinux_volumes_admitted_total", ["volume_plugin", "access_mode"], "[ALPHA] Number of volumes whose SELinux context was fine and will be mounted with mount -o context option.";
    total_volumes: Gauge<2> = "volume_manager_total_volumes", ["plugin_name", "state"], "[ALPHA] Volumes that pods should have, and have.";
    healthcheck: Gauge<2> = "kubernetes_healthcheck", ["name", "type"], "[STABLE] The last result of a health check.";
    healthchecks: Counter<3> = "kubernetes_healthchecks_total", ["name", "type", "status"], "[STABLE] All results of a health check.";
}
}

families! {
/// What `/metrics/probes` shows.
ProbeMetrics {
    results: Counter<6> = "prober_probe_total", ["probe_type", "result", "container", "pod", "namespace", "pod_uid"], "[BETA] Probes, by result.";
    duration: Histogram<4> = "prober_probe_duration_seconds", (["probe_type", "container", "pod", "namespace"], usual()), "[ALPHA] Seconds until a probe was answered.";
}
}

impl Metrics {
    /// Health checks alone, for `/metrics/slis`.
    pub fn write_health(&self, text: &mut Text) {
        self.healthcheck.write(text);
        self.healthchecks.write(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_name_of_its_own() {
        let metrics = Metrics::default();
        metrics.http_requests.inc(["GET", "healthz", "readwrite", "false"]);
        let mut text = Text::new();
        metrics.write(&mut text);
        let text = text.finish();
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(names.len(), unique.len());
        assert!(text.contains("kubelet_started_pods_total 0\n"), "{text}");
    }

    #[test]
    fn images_by_size() {
        assert_eq!(image_size_bucket(0), "0-10MB");
        assert_eq!(image_size_bucket(10 << 20), "10MB-100MB");
        assert_eq!(image_size_bucket(1 << 30), "1GB-5GB");
        assert_eq!(image_size_bucket(u64::MAX), "GT100GB");
    }
}

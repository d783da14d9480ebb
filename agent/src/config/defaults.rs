//! The defaults of KubeletConfiguration v1beta1, and those of a command line without any file. Pure:
//! owns the values; never judges one. Called by [`super`].

use gantry_model::go_duration::Span;
use serde_json::Value;

use super::fields::{Authentication, Authorization, CrashLoopBackOff, KubeletConfiguration, Logging};
use super::gates::Gates;

const MINUTE: Span = Span::seconds(60);
/// The kernel's; the only one without the gate `CustomCPUCFSQuotaPeriod`.
pub(super) const QUOTA_PERIOD: Span = Span(100_000_000);

/// Thresholds that a configuration file without any gets.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

fn text(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

fn some<T>(field: &mut Option<T>, default: T) {
    field.get_or_insert(default);
}

fn unset<T: Default + PartialEq>(field: &mut T, default: T) {
    if *field == T::default() {
        *field = default;
    }
}

impl KubeletConfiguration {
    /// Every field that says nothing gets upstream's default.
    pub fn set_defaults(&mut self, gates: &Gates) {
        self.server_defaults();
        self.node_defaults();
        self.resource_defaults();
        self.image_defaults();
        self.log_defaults();
        if gates.enabled("KubeletCrashLoopBackOffMax", &self.feature_gates) {
            let CrashLoopBackOff { max_container_restart_period } = &mut self.crash_loop_back_off;
            some(max_container_restart_period, Span::seconds(300));
        }
        if gates.enabled("KubeletEnsureSecretPulledImages", &self.feature_gates) {
            text(&mut self.image_pull_credentials_verification_policy, "NeverVerifyPreloadedImages");
        }
    }

    fn server_defaults(&mut self) {
        some(&mut self.enable_server, true);
        text(&mut self.address, "0.0.0.0");
        unset(&mut self.port, 10250);
        let Authentication { x509: _, webhook, anonymous } = &mut self.authentication;
        some(&mut anonymous.enabled, false);
        some(&mut webhook.enabled, true);
        unset(&mut webhook.cache_ttl, Span::seconds(120));
        let Authorization { mode, webhook } = &mut self.authorization;
        text(mode, "Webhook");
        unset(&mut webhook.cache_authorized_ttl, Span::seconds(300));
        unset(&mut webhook.cache_unauthorized_ttl, Span::seconds(30));
        some(&mut self.enable_debugging_handlers, true);
        some(&mut self.enable_system_log_handler, true);
        some(&mut self.enable_system_log_query, false);
        some(&mut self.enable_profiling_handler, true);
        some(&mut self.enable_debug_flags_handler, true);
        some(&mut self.healthz_port, 10248);
        text(&mut self.healthz_bind_address, "127.0.0.1");
        unset(&mut self.streaming_connection_idle_timeout, Span::seconds(4 * 3600));
    }

    fn node_defaults(&mut self) {
        unset(&mut self.sync_frequency, MINUTE);
        unset(&mut self.file_check_frequency, Span::seconds(20));
        unset(&mut self.http_check_frequency, Span::seconds(20));
        some(&mut self.event_record_qps, 50);
        unset(&mut self.event_burst, 100);
        some(&mut self.oom_score_adj, -999);
        // Who sets how often the status is looked at means how often it is sent as well.
        let every = self.node_status_update_frequency;
        unset(
            &mut self.node_status_report_frequency,
            if every == Span::default() { Span::seconds(300) } else { every },
        );
        unset(&mut self.node_status_update_frequency, Span::seconds(10));
        unset(&mut self.node_lease_duration_seconds, 40);
        some(&mut self.node_status_max_images, 50);
        text(&mut self.content_type, "application/vnd.kubernetes.protobuf");
        some(&mut self.kube_api_qps, 50);
        unset(&mut self.kube_api_burst, 100);
        some(&mut self.register_node, true);
        unset(&mut self.max_pods, 110);
        text(&mut self.container_runtime_endpoint, "unix:///run/containerd/containerd.sock");
        unset(&mut self.runtime_request_timeout, Span::seconds(120));
        some(&mut self.fail_cgroup_v1, true);
        some(&mut self.fail_swap_on, true);
        unset(&mut self.max_open_files, 1_000_000);
        text(&mut self.config_map_and_secret_change_detection_strategy, "Watch");
        some(&mut self.enable_controller_attach_detach, true);
        text(&mut self.volume_plugin_dir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/");
        some(&mut self.resolv_conf, "/etc/resolv.conf".to_owned());
        text(&mut self.hairpin_mode, "promiscuous-bridge");
        some(&mut self.make_iptables_util_chains, true);
        some(&mut self.iptables_masquerade_bit, 14);
        some(&mut self.iptables_drop_bit, 15);
    }

    fn resource_defaults(&mut self) {
        some(&mut self.cgroups_per_qos, true);
        text(&mut self.cgroup_driver, "cgroupfs");
        text(&mut self.cpu_manager_policy, "none");
        unset(&mut self.cpu_manager_reconcile_period, Span::seconds(10));
        text(&mut self.memory_manager_policy, "None");
        text(&mut self.topology_manager_policy, "none");
        text(&mut self.topology_manager_scope, "container");
        if self.pod_pids_limit.is_none_or(|limit| limit < 0) {
            self.pod_pids_limit = Some(-1);
        }
        some(&mut self.cpu_cfs_quota, true);
        some(&mut self.cpu_cfs_quota_period, QUOTA_PERIOD);
        unset(&mut self.eviction_pressure_transition_period, Span::seconds(300));
        some(&mut self.merge_default_eviction_settings, false);
        some(&mut self.enforce_node_allocatable, vec!["pods".to_owned()]);
        some(&mut self.seccomp_default, false);
        some(&mut self.memory_throttling_factor, 0.9);
        text(&mut self.memory_reservation_policy, "None");
        some(&mut self.local_storage_capacity_isolation, true);
    }

    fn image_defaults(&mut self) {
        some(&mut self.registry_pull_qps, 5);
        unset(&mut self.registry_burst, 10);
        unset(&mut self.image_minimum_gc_age, Span::seconds(120));
        some(&mut self.image_gc_high_threshold_percent, 85);
        some(&mut self.image_gc_low_threshold_percent, 80);
        unset(&mut self.volume_stats_agg_period, MINUTE);
        // Unlike upstream: one slow pull is no reason for other pods to wait. Who limits pulls to one at
        // a time means just that.
        some(&mut self.serialize_image_pulls, self.max_parallel_image_pulls == Some(1));
    }

    fn log_defaults(&mut self) {
        text(&mut self.pod_logs_dir, "/var/log/pods");
        text(&mut self.container_log_max_size, "10Mi");
        some(&mut self.container_log_max_files, 5);
        some(&mut self.container_log_max_workers, 1);
        some(&mut self.container_log_monitor_interval, Span::seconds(10));
        let Logging { format, flush_frequency, options, .. } = &mut self.logging;
        text(format, "text");
        // kubeadm writes 0 and means nothing by it.
        let zero = |value: &Value| match value {
            Value::String(text) => Span::parse(text) == Ok(Span::default()),
            value => value.as_i64() == Some(0),
        };
        if flush_frequency.as_ref().is_none_or(zero) {
            *flush_frequency = Some("5s".into());
        }
        some(&mut options.text.info_buffer_size, "0".into());
        some(&mut options.json.info_buffer_size, "0".into());
    }

    /// What a configuration file that says nothing about thresholds gets; drop-ins come later and merge
    /// key by key.
    pub(super) fn set_file_defaults(&mut self, thresholds: bool) {
        if !thresholds || self.merge_default_eviction_settings == Some(true) {
            for (signal, threshold) in EVICTION_HARD {
                self.eviction_hard.entry(signal.to_owned()).or_insert_with(|| threshold.to_owned());
            }
        }
    }

    /// A command line alone means what it meant before there were files.
    pub(super) fn set_legacy_defaults(&mut self) {
        self.authentication.anonymous.enabled = Some(true);
        self.authentication.webhook.enabled = Some(false);
        "AlwaysAllow".clone_into(&mut self.authorization.mode);
        self.read_only_port = 10255;
    }
}

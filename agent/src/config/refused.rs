//! What this kubelet does not do. Pure: owns the list, each with what to do instead; never a check
//! that upstream makes as well. Called by [`super`].

use serde_json::Value;

use super::fields::KubeletConfiguration;
use super::flag::{Flag, ParsedFlags};
use super::gates::Gates;
use super::{Host, KubeletFlags, spans, to_json};

/// Fields that must stay at their default, by JSON path, and why. docs/ledger/kubelet-config.md
/// holds the same ones.
pub const FIELDS: [(&str, &str); 12] = [
    ("tlsCurvePreferences", "the key exchange is that of the TLS library"),
    ("cgroupsPerQOS", "pods always get their cgroups by quality of service"),
    ("qosReserved", "nothing is reserved by quality of service"),
    ("enableControllerAttachDetach", "the controller attaches volumes"),
    ("memoryReservationPolicy", "memory is not reserved"),
    ("logging.options.text.splitStream", "all goes to stderr"),
    ("logging.options.json.splitStream", "all goes to stderr"),
    ("logging.options.text.infoBufferSize", "nothing is buffered"),
    ("logging.options.json.infoBufferSize", "nothing is buffered"),
    ("userNamespaces.idsPerPod", "a pod's user namespace has 65536 ids"),
    ("enableContentionProfiling", "there is no such profile"),
    ("imageServiceEndpoint", "images come from the same runtime as containers"),
];

/// Values of [`FIELDS`] that mean the default though they are not it.
const AS_GOOD: [(&str, &str); 1] = [("userNamespaces.idsPerPod", "65536")];

/// Fields that change nothing here, by JSON path, and why; whoever sets one is told once.
pub const INERT: [(&str, &str); 16] = [
    ("kernelMemcgNotification", "memory is looked at every 10 s, and at once after each eviction"),
    ("hairpinMode", "the network's plugins decide"),
    ("makeIPTablesUtilChains", "kube-proxy makes the chains that it needs"),
    ("iptablesMasqueradeBit", "kube-proxy makes the chains that it needs"),
    ("iptablesDropBit", "kube-proxy makes the chains that it needs"),
    ("volumePluginDir", "programs of flexVolumes are not run"),
    ("memoryThrottlingFactor", "memory is not throttled before its limit"),
    ("systemCgroups", "processes of the system are not moved"),
    ("logging.flushFrequency", "nothing is buffered"),
    ("logging.vmodule", "levels are not set by file"),
    ("contentType", "JSON is spoken with the API server"),
    ("configMapAndSecretChangeDetectionStrategy", "objects are always watched"),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    ("syncFrequency", "pods are looked at when something changes; only /healthz counts by it"),
    ("podCIDR", "the API server, or the network's configuration, tells it"),
    ("kubeletCgroups", "the kubelet stays where it was started; its usage is read there"),
];

/// Flags that are no field and must not be given, and why.
pub const FLAGS: [(&str, &str); 1] =
    [("experimental-mounter-path", "volumes are mounted by system calls, without a program")];

const LIBRARY: &str = "of a library that this kubelet does not have";
const DEAD: &str = "containers that have ended stay as long as their pod needs them";

/// Flags that are no field and change nothing here, and why; whoever gives one another value than its
/// default is told once.
pub const INERT_FLAGS: [(&str, &str); 22] = [
    ("application-metrics-count-limit", LIBRARY),
    ("boot-id-file", LIBRARY),
    ("container-hints", LIBRARY),
    ("containerd", LIBRARY),
    ("containerd-namespace", LIBRARY),
    ("enable-load-reader", LIBRARY),
    ("event-storage-age-limit", LIBRARY),
    ("event-storage-event-limit", LIBRARY),
    ("global-housekeeping-interval", LIBRARY),
    ("housekeeping-interval", "usage is read when it is asked for, not collected"),
    ("log-cadvisor-usage", LIBRARY),
    ("machine-id-file", LIBRARY),
    ("maximum-dead-containers", DEAD),
    ("maximum-dead-containers-per-container", DEAD),
    ("minimum-container-ttl-duration", DEAD),
    ("storage-driver-buffer-duration", LIBRARY),
    ("storage-driver-db", LIBRARY),
    ("storage-driver-host", LIBRARY),
    ("storage-driver-password", LIBRARY),
    ("storage-driver-secure", LIBRARY),
    ("storage-driver-table", LIBRARY),
    ("storage-driver-user", LIBRARY),
];

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, name| value.get(name).unwrap_or(&Value::Null))
}

fn defaults() -> Value {
    let mut config = KubeletConfiguration::default();
    config.set_defaults(&Gates::default());
    to_json(&config)
}

/// What is set and cannot be done.
pub(super) fn problems(config: &KubeletConfiguration, flags: &KubeletFlags, host: Host) -> Vec<String> {
    let (now, default) = (to_json(config), defaults());
    let mut found = Vec::new();
    for (path, why) in FIELDS {
        let (value, default) = (at(&now, path), at(&default, path));
        let text = value.to_string();
        let same = path == "imageServiceEndpoint"
            && config.image_service_endpoint == config.container_runtime_endpoint;
        let as_good = same || AS_GOOD.iter().any(|(of, good)| *of == path && *good == text);
        let nothing = value.is_null() || matches!(text.as_str(), "\"0\"" | "0");
        if value != default && !as_good && !(nothing && default.is_null()) {
            found.push(format!(
                "{path} {text} is not supported by this kubelet, {why}; leave it at {default}"
            ));
        }
    }
    // On cgroup v1 there is no other way; on v2 all of a container's processes go together.
    if config.single_process_oom_kill.is_some_and(|single| single == host.unified) {
        found.push(format!(
            "singleProcessOOMKill {} is not supported by this kubelet: leave it out",
            config.single_process_oom_kill == Some(true)
        ));
    }
    found.extend(spans::unsupported(config));
    let given = [&flags.mounter_path];
    for ((flag, why), _) in FLAGS.iter().zip(given).filter(|(_, value)| !value.is_empty()) {
        found.push(format!("--{flag} is not supported by this kubelet, {why}"));
    }
    if !matches!(flags.cloud_provider.as_str(), "" | "external") {
        found.push(format!(
            "--cloud-provider={} is not supported: the cloud's own controller does it, with --cloud-provider=external",
            flags.cloud_provider
        ));
    }
    found
}

/// Flags that are given and change nothing.
pub(super) fn inert_flags(given: &ParsedFlags) -> Vec<String> {
    let moved = |flag: &&'static Flag| given.text(flag.name) != flag.default;
    let told = given.flags().filter(moved).filter_map(|flag| {
        let (name, why) = INERT_FLAGS.iter().find(|(name, _)| *name == flag.name)?;
        Some(format!("--{name} changes nothing: {why}"))
    });
    told.collect()
}

/// What is set and changes nothing, in one line each.
pub(super) fn inert(config: &KubeletConfiguration) -> Vec<String> {
    let (now, default) = (to_json(config), defaults());
    let moved = INERT.iter().filter(|(path, _)| at(&now, path) != at(&default, path));
    moved.map(|(path, why)| format!("{path} changes nothing: {why}")).collect()
}

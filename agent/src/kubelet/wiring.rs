//! What each part is told of the flags and the configuration. Pure but for the names of folders:
//! owns the mapping; never a default of its own. Called by [`super::run`].

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::identity::bootstrap;
use gantry_kube_client::identity::client::{Limits, Pace};
use gantry_metrics::Metrics;
use gantry_model::cgroup::Reserved;
use gantry_model::cgroup::limits::Rules;
use gantry_model::go_duration::Span;
use gantry_model::quantity;
use gantry_model::quantity::QuantityError;
use gantry_model::version;

use crate::admission::{Allowed, ResizeRules};
use crate::config::gates::Gates;
use crate::config::image_verification::Policy;
use crate::config::{KubeletConfiguration, KubeletFlags, eviction, shutdown};
use crate::gc::{images, logs};
use crate::images as pulls;
use crate::images::queue::Settings as Queue;
use crate::manifest::api::NodeSettings;
use crate::node::{self, NodeOverrides, has_app_armor};
use crate::registration;
use crate::registration::WEB_SOCKETS;
use crate::registration::enforce::ReservedCgroup;
use crate::runtime::cri::driver::Driver;
use crate::static_pods::url::Address;
use gantry_server::authn::Authentication;
use gantry_server::authz::Mode;
use gantry_server::client_ca::ClientCa;
use gantry_server::listen::TlsSettings;
use gantry_server::route::Switches;
use gantry_server::{SystemVersion, ciphers, stats};
use k8s_openapi::api::core::v1::Taint;

use super::pod_deps::Tuning;

/// The gate, and the feature that a node declares.
const POD_LEVEL_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";

/// What runs below the kubelet, by its names.
pub(super) fn system_version() -> SystemVersion {
    let (kernel, os_image) = registration::machine::of_system();
    SystemVersion { kernel, os_image }
}

/// A flag or a field that no part can use as it is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("bad --node-ip {text:?}: {reason}")]
    NodeIp { text: String, reason: &'static str },
    #[error("{field} {value:?} is no quantity")]
    Quantity { field: &'static str, value: String },
    #[error("{0}")]
    Eviction(String),
    #[error("allowedUnsafeSysctls: {0}")]
    Sysctls(String),
    #[error("cgroupDriver {0:?} is neither cgroupfs nor systemd")]
    Driver(String),
    #[error("{field}: {value} is no address with a port")]
    Address { field: &'static str, value: String },
    #[error(
        "tlsMinVersion {0:?} is not supported by this kubelet: it speaks nothing older than VersionTLS12, which any \
         client of these days does, too"
    )]
    TlsOld(String),
    #[error("unknown tls version {0:?}")]
    TlsVersion(String),
    #[error("{0}")]
    TlsSuite(String),
    #[error("preloadedImagesVerificationAllowlist: {0}")]
    Pulls(String),
    #[error("{flag} value failed to parse: {reason}")]
    Reserved { flag: &'static str, reason: String },
}

fn on(value: Option<bool>) -> bool {
    value == Some(true)
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn whole<T: TryFrom<i64> + Default>(value: impl Into<i64>) -> T {
    T::try_from(value.into()).unwrap_or_default()
}

fn number<T: TryFrom<i64> + Default>(value: Option<i32>) -> T {
    whole(value.unwrap_or_default())
}

/// Whether all parts can use what they will be told; told before anything is begun.
pub(super) fn judge(flags: &KubeletFlags, config: &KubeletConfiguration) -> Result<(), Error> {
    for ignored in node_ips(&flags.node_ip)?.1 {
        tracing::warn!(ip = ignored, "Could not parse some node IP(s), ignoring them");
    }
    registration(flags, config, "")?;
    admission(config)?;
    logs(config)?;
    pulls(flags, config)?;
    listen(config)?;
    tls(config)?;
    Ok(())
}

/// What the machine is told about itself. Of a cloud's node nobody but the cloud knows the addresses.
pub(super) fn parse_node_overrides(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    name: &str,
) -> Result<NodeOverrides, Error> {
    let (ips, _) = node_ips(&flags.node_ip)?;
    Ok(NodeOverrides {
        no_pod_level: !is_open("PodLevelResources", config),
        limited_swap: config.memory_swap.swap_behavior == "LimitedSwap",
        name: Some(name.to_owned()),
        resolv_conf: config.resolv_conf.as_ref().map(PathBuf::from),
        cluster_domain: Some(config.cluster_domain.clone()),
        cluster_dns: config.cluster_dns.clone(),
        ips: (!ips.is_empty() || flags.cloud_provider == "external").then_some(ips),
        allocatable: None,
    })
}

/// Where pods stand, and what they get that say nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pods {
    pub(super) logs: PathBuf,
    pub(super) cgroup_root: String,
    pub(super) seccomp_default: bool,
}

/// What every pod is run with.
pub(super) fn pods(flags: &KubeletFlags, config: &KubeletConfiguration) -> Pods {
    Pods {
        logs: PathBuf::from(&config.pod_logs_dir),
        cgroup_root: config.cgroup_root.clone(),
        seccomp_default: flags.seccomp_default || on(config.seccomp_default),
    }
}

/// By what pods are held and waited for.
pub(super) fn tuning(config: &KubeletConfiguration) -> Tuning {
    let usual = Tuning::default();
    let period = config.cpu_cfs_quota_period.map(|period| period.0 / 1000);
    let rules = Rules {
        quota: config.cpu_cfs_quota != Some(false),
        period: period.unwrap_or(usual.rules.period),
        pids: config.pod_pids_limit.filter(|limit| *limit > 0),
    };
    let longest = config.crash_loop_back_off.max_container_restart_period;
    Tuning {
        rules,
        request_timeout: config.runtime_request_timeout.duration(),
        longest_wait: longest.map_or(usual.longest_wait, Span::duration),
    }
}

/// Pods from files, looked at that often.
pub(super) fn folder(config: &KubeletConfiguration) -> Option<(PathBuf, Duration)> {
    Some((path(&config.static_pod_path)?, config.file_check_frequency.duration()))
}

/// Pods from a URL.
pub(super) fn address(config: &KubeletConfiguration) -> Option<Address> {
    let url = Some(config.static_pod_url.clone()).filter(|url| !url.is_empty())?;
    let header = config.static_pod_url_header.clone();
    Some(Address { url, header, every: config.http_check_frequency.duration() })
}

/// Who makes the pods' cgroups. What the runtime says was taken over before.
pub(super) fn driver(config: &KubeletConfiguration) -> Result<Driver, Error> {
    Driver::from_name(&config.cgroup_driver).ok_or_else(|| Error::Driver(config.cgroup_driver.clone()))
}

/// Where the kubelet answers; none where it does not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listen {
    pub(super) api: Option<SocketAddr>,
    pub(super) read_only: Option<SocketAddr>,
    pub(super) healthz: Option<SocketAddr>,
}

/// Ports that are 0 are closed.
pub(super) fn listen(config: &KubeletConfiguration) -> Result<Listen, Error> {
    let at = |field, address: &str, port: i32| {
        let wrong = || Error::Address { field, value: format!("{address}:{port}") };
        let port = u16::try_from(port).map_err(|_| wrong())?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        Ok((port > 0).then(|| SocketAddr::new(address, port)))
    };
    let api = on(config.enable_server).then(|| at("address", &config.address, config.port)).transpose()?;
    let healthz = config.healthz_port.unwrap_or_default();
    Ok(Listen {
        api: api.flatten(),
        read_only: at("address", &config.address, config.read_only_port)?,
        healthz: at("healthzBindAddress", &config.healthz_bind_address, healthz)?,
    })
}

/// Whose client certificates are believed.
pub(super) fn client_ca(config: &KubeletConfiguration) -> Option<PathBuf> {
    path(&config.authentication.x509.client_ca_file)
}

/// The way to the API server.
pub(super) fn identity(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    is_api_limit_set: bool,
    name: &str,
    metrics: Arc<Metrics>,
) -> bootstrap::Settings {
    bootstrap::Settings {
        kubeconfig: PathBuf::from(&flags.kubeconfig),
        bootstrap: path(&flags.bootstrap_kubeconfig),
        cert_dir: PathBuf::from(&flags.cert_dir),
        node: name.to_owned(),
        rotate: config.rotate_certificates,
        limits: limits(config, is_api_limit_set),
        metrics,
    }
}

fn limits(config: &KubeletConfiguration, is_api_limit_set: bool) -> Limits {
    let pace = |per_second: Option<i32>, burst: i32| Pace {
        per_second: per_second.unwrap_or_default().into(),
        burst: burst.into(),
    };
    let lease = Duration::from_secs(whole(config.node_lease_duration_seconds));
    Limits {
        pods: pace(config.kube_api_qps, config.kube_api_burst),
        yields: !is_api_limit_set,
        events: pace(config.event_record_qps, config.event_burst),
        lease: lease.min(config.node_status_update_frequency.duration()),
    }
}

/// The Node object.
pub(super) fn registration(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    name: &str,
) -> Result<registration::Settings, Error> {
    let taint = |taint: &crate::config::fields::Taint| Taint {
        effect: taint.effect.clone(),
        key: taint.key.clone(),
        time_added: None,
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
    };
    let kept = eviction::parse(config, flags.allocatable_ignore_eviction).map_err(Error::Eviction)?;
    Ok(registration::Settings {
        node_name: name.to_owned(),
        hostname: name.to_owned(),
        register: on(config.register_node),
        labels: flags.node_labels.clone(),
        taints: config.register_with_taints.iter().map(taint).collect(),
        provider_id: config.provider_id.clone(),
        external_cloud: flags.cloud_provider == "external",
        node_ips: node_ips(&flags.node_ip)?.0,
        attach_detach: on(config.enable_controller_attach_detach),
        max_pods: config.max_pods.into(),
        pods_per_core: config.pods_per_core.into(),
        system_reserved: parse_reserved("--system-reserved", &config.system_reserved)?,
        kube_reserved: parse_reserved("--kube-reserved", &config.kube_reserved)?,
        enforce: config.enforce_node_allocatable.iter().flatten().any(|level| level == "pods"),
        evict_memory: kept.memory,
        evict_storage: kept.storage,
        local_storage: on(config.local_storage_capacity_isolation),
        port: config.port,
        status_every: config.node_status_update_frequency.duration(),
        report_every: config.node_status_report_frequency.duration(),
        lease_seconds: config.node_lease_duration_seconds,
        max_images: config.node_status_max_images.unwrap_or_default(),
        kubelet_version: version::KUBELET.to_owned(),
        declared_features: declared_features(config),
        web_sockets: is_open(WEB_SOCKETS, config),
    })
}

/// The cgroups of daemons that are held to what is reserved, in upstream's order.
pub(super) fn reserved_cgroups(config: &KubeletConfiguration) -> Vec<ReservedCgroup> {
    let levels = config.enforce_node_allocatable.as_deref().unwrap_or_default();
    let system = ("system", &config.system_reserved_cgroup, &config.system_reserved);
    let kube = ("kube", &config.kube_reserved_cgroup, &config.kube_reserved);
    let all = [(system, false), (kube, false), (system, true), (kube, true)];
    let of = |((whose, name, amounts), compressible): ((&'static str, &String, &Amounts), bool)| {
        let level =
            if compressible { format!("{whose}-reserved-compressible") } else { format!("{whose}-reserved") };
        let cpu = amounts.get("cpu").map(|text| saturated(quantity::parse_milli(text)));
        let units = |name: &str| {
            let text = amounts.get(name).filter(|_| !compressible)?;
            Some(saturated(quantity::parse_units(text)))
        };
        let to = Reserved { cpu, memory: units("memory"), pids: units("pid") };
        let to = Some(to).filter(|_| !amounts.is_empty());
        levels.contains(&level).then(|| ReservedCgroup { whose, name: name.clone(), compressible, to })
    };
    all.into_iter().filter_map(of).collect()
}

/// What is no amount was refused before.
fn saturated(amount: Result<i64, QuantityError>) -> i64 {
    amount.unwrap_or_else(|error| if matches!(error, QuantityError::TooLarge { .. }) { i64::MAX } else { 0 })
}

/// When pods are ended for what the node is short of.
pub(super) fn eviction(config: &KubeletConfiguration) -> Result<eviction::Policy, Error> {
    eviction::policy(config).map_err(Error::Eviction)
}

/// Whether the pod resources API has pods that are over in its lists.
pub(super) fn lists_ended_pods(config: &KubeletConfiguration) -> bool {
    !is_open("KubeletPodResourcesListUseActivePods", config)
}

/// How long a shutdown of the machine waits for pods; none where it does not.
pub(super) fn shutdown(config: &KubeletConfiguration) -> Option<shutdown::ShutdownPolicy> {
    shutdown::policy(config, &Gates::default())
}

/// What a scheduler may count on beyond what every 1.36 node does.
fn declared_features(config: &KubeletConfiguration) -> Vec<String> {
    let all =
        [POD_LEVEL_RESIZE, "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"];
    let open = |name: &&str| *name != POD_LEVEL_RESIZE || resizes_pod_level(config);
    all.into_iter().filter(open).map(str::to_owned).collect()
}

/// Whether what pods ask for as a whole can change while they run, and is told in their statuses.
pub(super) fn resizes_pod_level(config: &KubeletConfiguration) -> bool {
    is_open(POD_LEVEL_RESIZE, config)
}

fn is_open(gate: &str, config: &KubeletConfiguration) -> bool {
    Gates::default().enabled(gate, &config.feature_gates)
}

/// Addresses, and the words that are none: upstream passes those over.
fn node_ips(text: &str) -> Result<(Vec<IpAddr>, Vec<&str>), Error> {
    let wrong = |reason| Err(Error::NodeIp { text: text.to_owned(), reason });
    let (mut ips, mut ignored) = (Vec::<IpAddr>::new(), Vec::new());
    for part in text.split(',').filter(|_| !text.is_empty()).map(str::trim) {
        match part.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => ignored.push(part),
        }
    }
    match ips[..] {
        [] | [_] => Ok((ips, ignored)),
        [a, b] if a.is_ipv4() != b.is_ipv4() => {
            if a.is_unspecified() || b.is_unspecified() {
                return wrong("dual-stack node IP cannot include '0.0.0.0' or '::'");
            }
            Ok((ips, ignored))
        }
        _ => wrong("must contain either a single IP or a dual-stack pair of IPs"),
    }
}

type Amounts = std::collections::BTreeMap<String, String>;

fn parse_reserved(flag: &'static str, amounts: &Amounts) -> Result<Amounts, Error> {
    let wrong = |reason: String| Err(Error::Reserved { flag, reason });
    for (resource, value) in amounts {
        if !matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid") {
            return wrong(format!("cannot reserve {resource:?} resource"));
        }
        match quantity::parse_milli(value) {
            Ok(_) | Err(QuantityError::TooLarge { .. }) => {}
            Err(QuantityError::Negative { .. }) => {
                return wrong(format!("resource quantity for {resource:?} cannot be negative: {value}"));
            }
            Err(QuantityError::Syntax { .. }) => {
                let why = quantity::in_go(value);
                return wrong(format!("failed to parse quantity {value:?} for {resource:?} resource: {why}"));
            }
        }
    }
    Ok(amounts.clone())
}

/// What admission needs beside the Node object.
pub(super) fn admission(config: &KubeletConfiguration) -> Result<NodeSettings, Error> {
    Ok(NodeSettings {
        app_armor: has_app_armor(),
        sysctls: Allowed::new(config.allowed_unsafe_sysctls.clone()).map_err(Error::Sysctls)?,
        resizes: ResizeRules {
            static_cpu: config.cpu_manager_policy == "static",
            static_memory: config.memory_manager_policy == "Static",
            limited_swap: config.memory_swap.swap_behavior == "LimitedSwap" && node::can_limit_swap(),
            no_pod_level: !resizes_pod_level(config),
        },
    })
}

/// Logs of containers.
pub(super) fn logs(config: &KubeletConfiguration) -> Result<logs::Settings, Error> {
    let value = &config.container_log_max_size;
    let wrong = || Error::Quantity { field: "containerLogMaxSize", value: value.clone() };
    Ok(logs::Settings {
        max_size: quantity::parse_units(value)
            .ok()
            .and_then(|size| u64::try_from(size).ok())
            .ok_or_else(wrong)?,
        max_files: number(config.container_log_max_files),
        workers: number(config.container_log_max_workers),
        interval: config.container_log_monitor_interval.unwrap_or_default().duration(),
    })
}

/// What pods share of images and their pulls.
pub(super) fn pulls(flags: &KubeletFlags, config: &KubeletConfiguration) -> Result<pulls::Settings, Error> {
    let (file, bin_dir) = (&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir);
    let given = !file.is_empty() || !bin_dir.is_empty();
    let policy = Policy::new(
        &config.image_pull_credentials_verification_policy,
        &config.preloaded_images_verification_allowlist,
    );
    let at_once = match (on(config.serialize_image_pulls), config.max_parallel_image_pulls) {
        (true, _) => Some(1),
        (false, pulls) => pulls.and_then(|pulls| u32::try_from(pulls).ok()),
    };
    Ok(pulls::Settings {
        root_dir: PathBuf::from(&flags.root_dir),
        home: std::env::var_os("HOME").map(PathBuf::from),
        plugins: given.then(|| (PathBuf::from(file), PathBuf::from(bin_dir))),
        policy: policy.map_err(Error::Pulls)?,
        queue: Queue {
            at_once,
            per_second: config.registry_pull_qps.filter(|rate| *rate > 0).map(f64::from),
            burst: whole(config.registry_burst),
        },
    })
}

/// Images that nobody uses.
pub(super) fn images(config: &KubeletConfiguration) -> images::Settings {
    images::Settings {
        high_percent: number(config.image_gc_high_threshold_percent),
        low_percent: number(config.image_gc_low_threshold_percent),
        min_age: config.image_minimum_gc_age.duration(),
        max_age: config.image_maximum_gc_age.duration(),
    }
}

/// The kubelet's own API.
pub(super) fn server(config: &KubeletConfiguration, root_dir: &Path) -> gantry_server::Settings {
    gantry_server::Settings {
        switches: Switches {
            enable_debugging_handlers: on(config.enable_debugging_handlers),
            enable_system_log_handler: on(config.enable_system_log_handler),
            enable_profiling_handler: on(config.enable_profiling_handler),
            enable_debug_flags_handler: on(config.enable_debug_flags_handler),
        },
        stream_idle: config.streaming_connection_idle_timeout.duration(),
        web_sockets: is_open(WEB_SOCKETS, config),
        node_logs: PathBuf::from("/var/log"),
        pod_logs: PathBuf::from(&config.pod_logs_dir),
        checkpoints: root_dir.join("checkpoints"),
        system_log_query: on(config.enable_system_log_query),
        journalctl: PathBuf::from("journalctl"),
    }
}

/// Who may ask it.
pub(super) fn authentication(config: &KubeletConfiguration, client_ca: ClientCa) -> Authentication {
    let webhook = &config.authentication.webhook;
    Authentication {
        client_ca,
        tokens_for: on(webhook.enabled).then(|| webhook.cache_ttl.duration()),
        anonymous: on(config.authentication.anonymous.enabled),
    }
}

/// What they may do.
pub(super) fn authorization(config: &KubeletConfiguration) -> Mode {
    let webhook = &config.authorization.webhook;
    if config.authorization.mode == "AlwaysAllow" {
        return Mode::AlwaysAllow;
    }
    Mode::Webhook {
        allowed_for: webhook.cache_authorized_ttl.duration(),
        denied_for: webhook.cache_unauthorized_ttl.duration(),
    }
}

/// Its TLS.
pub(super) fn tls(config: &KubeletConfiguration) -> Result<TlsSettings, Error> {
    let only_13 = match config.tls_min_version.as_str() {
        "" | "VersionTLS12" => false,
        "VersionTLS13" => true,
        old @ ("VersionTLS10" | "VersionTLS11") => return Err(Error::TlsOld(old.to_owned())),
        other => return Err(Error::TlsVersion(other.to_owned())),
    };
    ciphers::check(&config.tls_cipher_suites).map_err(Error::TlsSuite)?;
    Ok(TlsSettings { only_13, cipher_suites: config.tls_cipher_suites.clone() })
}

/// What is measured.
pub(super) fn stats(flags: &KubeletFlags, config: &KubeletConfiguration) -> Result<stats::Settings, Error> {
    Ok(stats::Settings {
        root_dir: PathBuf::from(&flags.root_dir),
        pod_logs: PathBuf::from(&config.pod_logs_dir),
        cgroup_root: config.cgroup_root.clone(),
        driver: driver(config)?,
        runtime_cgroups: flags.runtime_cgroups.clone(),
        system_cgroups: config.system_cgroups.clone(),
        // A negative number turns it off.
        volume_period: config.volume_stats_agg_period.max(Span::default()).duration(),
    })
}

#[cfg(test)]
mod tests;

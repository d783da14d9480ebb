//! What the runtime is told at its start: folders, names, handlers, defaults. Owns the values that hold where nothing is
//! said. Made by `cli`; checked by `runtime`.

pub mod handlers;

use std::path::PathBuf;

use crate::cdi;
use crate::store::record::OciProgram;
use gantry_image as image;
use handlers::{HandlerConfig, Handlers};

/// Another one after each reboot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The pod's interface in its own network namespace, as every CRI runtime calls it.
pub(crate) const IFNAME: &str = "eth0";

/// Files in a sandbox's folder, and where its containers see them.
pub(crate) const HOST_FILES: [(&str, &str); 3] =
    [("hostname", "/etc/hostname"), ("hosts", "/etc/hosts"), ("resolv.conf", "/etc/resolv.conf")];

/// Folders and names; all of them can be moved, so that several nodes live on one machine.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RuntimeConfig {
    pub root: PathBuf,
    pub state: PathBuf,
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dir: PathBuf,
    pub cni_cache_dir: PathBuf,
    pub cni_data_dir: PathBuf,
    pub netns_dir: PathBuf,
    pub cgroup_root: String,
    /// Pods are scopes of systemd, in slices that clients name.
    pub systemd_cgroup: bool,
    /// Folder of gantry-monitor, gantry-pause and gantry-unpack; beside the running program when not given.
    pub programs_dir: Option<PathBuf>,
    /// Run the programs of `cni_bin_dir` even for plugins that are built in.
    pub prefer_external_cni: bool,
    /// Registries' `HOST/hosts.toml` in containerd's layout; none are read when not given.
    pub registry_hosts_dir: Option<PathBuf>,
    /// Docker's `config.json`; pulls without credentials of their own use what it has.
    pub registry_auth_file: Option<PathBuf>,
    /// Names of images that are told as pinned, as in a pull.
    pub pinned_images: Vec<String>,
    /// Names of images that are pulled at the start, as in a pull, if they are not here.
    pub prepull_images: Vec<String>,
    /// Optimisations of pulls that are left out, to see what they are worth.
    pub pull_without: Vec<image::Optimisation>,
    /// Use the built-in bridge network when `cni_conf_dir` has no configuration.
    pub default_network: bool,
    /// `unconfined`, `runtime/default` or `localhost//path`: of containers and pods that name none.
    pub unset_seccomp_profile: String,
    /// What pods may name as their runtime, besides the default one.
    pub handlers: Handlers,
    /// Devices by name.
    pub cdi: cdi::CdiConfig,
    /// No AppArmor profiles, whatever the node has.
    pub disable_apparmor: bool,
    /// SELinux labels, where the node has SELinux.
    pub enable_selinux: bool,
    /// How many categories there are to tell pods apart.
    pub selinux_category_range: u32,
    /// The collector that is sent spans, as gRPC names a target; none are made when not given.
    pub tracing_endpoint: Option<String>,
    /// Of a million calls that belong to no trace, how many begin one.
    pub tracing_sampling_rate_per_million: u32,
    /// The kernel's, but for tests that play a reboot.
    pub boot_id_file: PathBuf,
}

impl RuntimeConfig {
    /// What a handler has in the place of `unset_seccomp_profile`.
    pub(crate) fn unset_seccomp_of(&self, handler: &str) -> Option<String> {
        match self.handlers.get(handler) {
            Some(HandlerConfig::Gantry { unset_seccomp_profile }) => unset_seccomp_profile.clone(),
            _ => None,
        }
    }

    /// The program behind a handler of that type.
    pub(crate) fn oci(&self, handler: &str) -> Option<OciProgram> {
        let Some(HandlerConfig::Oci { path, root }) = self.handlers.get(handler) else { return None };
        let own = || self.state.join("handlers").join(handler);
        Some(OciProgram { program: path.clone(), root: root.clone().unwrap_or_else(own) })
    }
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            root: "/var/lib/gantry".into(),
            state: "/run/gantry".into(),
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_bin_dir: "/opt/cni/bin".into(),
            cni_cache_dir: "/var/lib/cni/results".into(),
            cni_data_dir: "/var/lib/cni/networks".into(),
            netns_dir: "/run/netns".into(),
            cgroup_root: "/gantry".into(),
            systemd_cgroup: false,
            programs_dir: None,
            prefer_external_cni: false,
            registry_hosts_dir: Some("/etc/containerd/certs.d".into()),
            registry_auth_file: None,
            pinned_images: Vec::new(),
            prepull_images: Vec::new(),
            pull_without: Vec::new(),
            default_network: false,
            unset_seccomp_profile: String::new(),
            handlers: Handlers::new(),
            cdi: cdi::CdiConfig::default(),
            disable_apparmor: false,
            enable_selinux: false,
            selinux_category_range: 1024,
            tracing_endpoint: None,
            tracing_sampling_rate_per_million: 0,
            boot_id_file: BOOT_ID.into(),
        }
    }
}

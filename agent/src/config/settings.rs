//! What only flags say. Pure: owns the names; never a judgement. Called by [`super`].

use super::Texts;
use super::flag::ParsedFlags;

/// The flags that are no field of the configuration, by upstream's names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KubeletFlags {
    pub bootstrap_kubeconfig: String,
    pub cert_dir: String,
    pub cloud_provider: String,
    pub config: String,
    pub config_dir: String,
    pub exit_on_lock_contention: bool,
    pub hostname_override: String,
    pub image_credential_provider_bin_dir: String,
    pub image_credential_provider_config: String,
    pub kubeconfig: String,
    pub lock_file: String,
    pub allocatable_ignore_eviction: bool,
    pub mounter_path: String,
    pub node_ip: String,
    pub node_labels: Texts,
    pub root_dir: String,
    pub runtime_cgroups: String,
    pub seccomp_default: bool,
}

impl KubeletFlags {
    pub(super) fn from_given(given: &ParsedFlags) -> Self {
        let labels = given.value("node-labels").and_then(|v| serde_json::from_value(v).ok());
        Self {
            bootstrap_kubeconfig: given.text("bootstrap-kubeconfig"),
            cert_dir: given.text("cert-dir"),
            cloud_provider: given.text("cloud-provider"),
            config: given.text("config"),
            config_dir: given.text("config-dir"),
            exit_on_lock_contention: given.is_on("exit-on-lock-contention"),
            hostname_override: given.text("hostname-override"),
            image_credential_provider_bin_dir: given.text("image-credential-provider-bin-dir"),
            image_credential_provider_config: given.text("image-credential-provider-config"),
            kubeconfig: given.text("kubeconfig"),
            lock_file: given.text("lock-file"),
            allocatable_ignore_eviction: given.is_on("experimental-allocatable-ignore-eviction"),
            mounter_path: given.text("experimental-mounter-path"),
            node_ip: given.text("node-ip"),
            node_labels: labels.unwrap_or_default(),
            root_dir: given.text("root-dir"),
            runtime_cgroups: given.text("runtime-cgroups"),
            seccomp_default: given.is_on("seccomp-default"),
        }
    }
}

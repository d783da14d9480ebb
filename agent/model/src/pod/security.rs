//! Security contexts as written, the pod's and the container's. Owns the types; never resolves
//! a user (the runtime does). Pure.

/// A container's security context, the pod's defaults filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// The image's when not set.
    pub run_as_user: Option<i64>,
    /// The image's when not set.
    pub run_as_group: Option<i64>,
    /// Refuse to run as user 0.
    pub run_as_non_root: bool,
    /// Capabilities added to the runtime's default set.
    pub add_capabilities: Vec<String>,
    /// Capabilities taken from it.
    pub drop_capabilities: Vec<String>,
    /// All capabilities and devices.
    pub privileged: bool,
    /// No writes to the root file system.
    pub read_only_root: bool,
    /// Set-user-ID programs gain nothing.
    pub no_new_privileges: bool,
    /// procMount: Unmasked.
    pub unmasked_proc: bool,
    /// The node's default when not set.
    pub seccomp: Option<Seccomp>,
    /// The runtime's choice when not set.
    pub app_armor: Option<AppArmor>,
    /// The runtime's choice when not set.
    pub se_linux: Option<SeLinux>,
}

/// As in AppArmorProfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmor {
    /// No profile.
    Unconfined,
    /// The runtime's.
    RuntimeDefault,
    /// One that is loaded on the node, by name.
    Localhost(String),
}

/// As in SELinuxOptions; parts may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeLinux {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

/// As in SeccompProfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seccomp {
    /// No filter.
    Unconfined,
    /// The runtime's.
    RuntimeDefault,
    /// A file below the kubelet's seccomp folder.
    Localhost(String),
}

/// What a pod's security context says for all its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSecurity {
    /// Owner group of volumes.
    pub fs_group: Option<i64>,
    /// Change only volumes whose root does not fit.
    pub fs_group_on_root_mismatch: bool,
    /// No volume is mounted with its label: the runtime changes those of all files.
    pub se_linux_recursive: bool,
    /// Groups of every process.
    pub supplemental_groups: Vec<i64>,
    /// Only these, not those of the image's /etc/group.
    pub strict_groups: bool,
    /// Name and value, in order.
    pub sysctls: Vec<(String, String)>,
    /// For the sandbox.
    pub run_as_user: Option<i64>,
    /// For the sandbox.
    pub run_as_group: Option<i64>,
    /// For the sandbox.
    pub se_linux: Option<SeLinux>,
    /// The pod needs a node that has AppArmor, whatever its containers say.
    pub app_armor: bool,
    /// The node's default when not set.
    pub seccomp: Option<Seccomp>,
}

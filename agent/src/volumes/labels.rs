//! SELinux labels of volumes: with which one a pod wants a volume, and which mounts the runtime is asked to label. Owns the
//! choice, which is upstream's; who mounts with a label is [`crate::csi::owner`], who changes those of files the runtime.
//! Called by [`super::host`].

use std::collections::BTreeSet;
use std::path::Path;

use gantry_base::selinux::{SelinuxContext, SelinuxPolicy, is_on, random_level};
use gantry_model::pod::Pod;
use gantry_model::pod::security::SeLinux;
use gantry_model::pod::volume::VolumeSource;

use super::claim::VolumeBacking;

/// As opencontainers/selinux has it where nobody says otherwise.
const CATEGORIES: u32 = 1024;

/// What this node knows of labels, where it has SELinux.
#[derive(Debug, Clone)]
pub(super) struct LabelPolicy {
    policy: SelinuxPolicy,
}

/// Why a volume has no label of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LabelError {
    /// The policy has something else for containers.
    Unknown(String),
    /// Containers that mount the volume have different ones.
    Several(String),
}

impl LabelError {
    /// In upstream's words.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Unknown(why) | Self::Several(why) => why,
        }
    }
}

impl LabelPolicy {
    /// None where SELinux is off.
    pub(super) fn find() -> Option<Self> {
        is_on().then(|| Self { policy: SelinuxPolicy::find(Path::new("/")) })
    }

    /// The label that the containers with that volume have their files labelled with; empty when none says one, or the pod
    /// opts out.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn of(&self, pod: &Pod, volume: &str) -> Result<String, LabelError> {
        let mounting = pod.every_container().flat_map(|container| {
            let mounts = container.mounts.iter().filter(|mount| mount.volume == volume);
            mounts.filter_map(|_| container.security.se_linux.as_ref())
        });
        let labels: BTreeSet<String> =
            mounting.map(|options| self.file(options)).collect::<Result<_, LabelError>>()?;
        if labels.len() > 1 {
            let all: Vec<String> = labels.into_iter().collect();
            return Err(LabelError::Several(format!("multiple SELinux labels found: {}", all.join(","))));
        }
        let label = labels.into_iter().next().unwrap_or_default();
        Ok(if pod.security.se_linux_recursive { String::new() } else { label })
    }

    /// Of files, for a process with these options. What they leave out is the policy's, and a level that nobody else has.
    fn file(&self, options: &SeLinux) -> Result<String, LabelError> {
        if *options == SeLinux::default() {
            return Ok(String::new());
        }
        let SeLinux { user, role, kind, level } = options.clone();
        if !self.policy.is_valid() {
            let text = format!("&SELinuxOptions{{User:{user},Role:{role},Type:{kind},Level:{level},}}");
            return Err(LabelError::Unknown(format!(
                "failed to construct SELinux label from context {text:?}: invalid Label"
            )));
        }
        Ok(self.policy.labels(&SelinuxContext { user, role, kind, level }, || random_level(CATEGORIES)).1)
    }

    /// With what a usual policy has.
    #[cfg(test)]
    pub(super) fn of_test() -> Self {
        let [process, file] =
            ["system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0"].map(str::to_owned);
        Self { policy: SelinuxPolicy { process, file } }
    }
}

/// What is the kubelet's to manage (`Managed` and `SELinuxRelabel` of each plugin's attributes): never what others
/// may have in use as well. What is mounted with a label is not asked about.
pub(super) fn are_given(source: &VolumeSource, place: Option<&VolumeBacking>) -> bool {
    match source {
        VolumeSource::EmptyDir { .. } | VolumeSource::Projected { .. } => true,
        VolumeSource::Claim { read_only, .. } => {
            !read_only
                && matches!(
                    place,
                    Some(VolumeBacking::Local(_) | VolumeBacking::Csi(_) | VolumeBacking::Iscsi(_))
                )
        }
        VolumeSource::Csi(of) => !of.read_only,
        VolumeSource::Iscsi(of) => !of.read_only,
        VolumeSource::Migrated(_) => true,
        VolumeSource::HostPath { .. } | VolumeSource::Nfs(_) | VolumeSource::Image { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Container;
    use gantry_model::pod::security::Security;
    use gantry_model::pod::volume::{Propagation, RecursiveReadOnly, SubPath, VolumeMount};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn of(kind: &str, level: &str) -> Option<SeLinux> {
        Some(SeLinux { kind: kind.into(), level: level.into(), ..SeLinux::default() })
    }

    /// A container that mounts the volume `data`.
    fn mounting(name: &str, se_linux: Option<SeLinux>) -> Container {
        let mount = VolumeMount {
            volume: "data".into(),
            path: "/data".into(),
            sub_path: SubPath::Whole,
            read_only: false,
            recursive_read_only: RecursiveReadOnly::Disabled,
            propagation: Propagation::None,
        };
        let own = container(name);
        Container { mounts: vec![mount], security: Security { se_linux, ..own.security.clone() }, ..own }
    }

    fn label(containers: Vec<Container>) -> Result<String, LabelError> {
        LabelPolicy::of_test().of(&Pod { containers, ..pod() }, "data")
    }

    #[test]
    fn a_volume_has_the_label_that_its_containers_files_have() {
        let two = |one, other| label(vec![mounting("a", one), mounting("b", other)]);
        let want = "system_u:object_r:container_file_t:s0:c1,c2";
        // What a process is, its files are not; a container that says nothing does not count.
        assert_eq!(two(of("spc_t", "s0:c1,c2"), of("container_t", "s0:c1,c2")).as_deref(), Ok(want));
        assert_eq!(two(of("", "s0:c1,c2"), None).as_deref(), Ok(want));
        assert_eq!(label(vec![mounting("a", None)]).as_deref(), Ok(""));
        assert_eq!(label(vec![container("other")]).as_deref(), Ok(""));
        let user = SeLinux { user: "me".into(), level: "s0".into(), ..SeLinux::default() };
        assert_eq!(label(vec![mounting("a", Some(user))]).as_deref(), Ok("me:object_r:container_file_t:s0"));
        let why = "multiple SELinux labels found: system_u:object_r:container_file_t:s0:c1,c2,system_u:object_r:container_file_t:s0:c3,c4";
        let several = LabelError::Several(why.to_owned());
        assert_eq!(two(of("", "s0:c1,c2"), of("", "s0:c3,c4")), Err(several));
        // It says that it has none, which is another one.
        assert!(matches!(two(of("", "s0"), of("", "")), Err(LabelError::Several(_))));
    }

    #[test]
    fn what_a_container_leaves_out_is_the_policys_with_a_level_of_its_own() {
        let found = label(vec![mounting("a", of("spc_t", ""))]).unwrap();
        let level = found.strip_prefix("system_u:object_r:container_file_t:s0:c").unwrap();
        let (one, other) = level.split_once(",c").unwrap();
        let [one, other] = [one, other].map(|number| number.parse::<u32>().unwrap());
        assert!(one < other && other < CATEGORIES, "{found}");
    }

    #[test]
    fn a_pod_that_opts_out_wants_no_label_and_a_policy_of_something_else_has_none() {
        let mut opted = Pod { containers: vec![mounting("a", of("", "s0"))], ..pod() };
        opted.security.se_linux_recursive = true;
        assert_eq!(LabelPolicy::of_test().of(&opted, "data").as_deref(), Ok(""));
        let odd = LabelPolicy { policy: SelinuxPolicy { process: "t".into(), file: "u:r:t".into() } };
        let words = "failed to construct SELinux label from context \"&SELinuxOptions{User:,Role:,Type:,Level:s0,}\": invalid Label";
        assert_eq!(odd.of(&opted, "data"), Err(LabelError::Unknown(words.to_owned())));
    }
}

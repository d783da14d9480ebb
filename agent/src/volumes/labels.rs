//! Which mounts the runtime is asked to label for SELinux. Owns the choice, which is upstream's; the labels are the
//! runtime's. Called by [`super::host`].

use gantry_model::pod::volume::VolumeSource;

use super::claim::VolumeBacking;

/// `SELINUX_MAGIC` of linux/magic.h.
const MAGIC: u64 = 0xf97c_ff8c;

/// As opencontainers/selinux has it: its file system is there and writable, and policy has been loaded.
pub(super) fn is_on() -> bool {
    let folder = "/sys/fs/selinux";
    let there = rustix::fs::statfs(folder)
        .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == MAGIC));
    let writable = rustix::fs::statvfs(folder)
        .is_ok_and(|found| !found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    let label = std::fs::read_to_string("/proc/thread-self/attr/current").unwrap_or_default();
    there && writable && label.trim_end_matches('\0') != "kernel"
}

/// What is the kubelet's to manage (`Managed` and `SELinuxRelabel` of each plugin's attributes): never what others
/// may have in use as well.
pub(super) fn are_given(source: &VolumeSource, place: Option<&VolumeBacking>) -> bool {
    match source {
        VolumeSource::EmptyDir { .. } | VolumeSource::Projected { .. } => true,
        VolumeSource::Claim { read_only, .. } => {
            !read_only && matches!(place, Some(VolumeBacking::Local { .. } | VolumeBacking::Csi(_)))
        }
        VolumeSource::Csi(of) => !of.read_only,
        VolumeSource::HostPath { .. } | VolumeSource::Image { .. } => false,
    }
}

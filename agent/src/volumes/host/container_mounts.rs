//! The mounts of one container: its volumes, parts of them, `/etc/hosts` and the file of its last words. Owns which path of
//! the node each one is; what a volume is made of is [`super`]'s. Called by [`super`] before a container is created.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gantry_model::mount::{Mount, MountedImage};
use gantry_model::pod::volume::{
    CsiVolume, IscsiVolume, NfsVolume, Propagation, RecursiveReadOnly, SubPath, Volume, VolumeMount,
    VolumeSource,
};
use gantry_model::pod::{Container, Pod};

use super::super::claim::VolumeBacking;
use super::super::{MountsOf, hosts_file, labels, sub_path};
use super::words::{make_words, words_path};
use super::{HostVolumes, path_of};

const ETC_HOSTS: &str = "/etc/hosts";

impl HostVolumes {
    pub(super) fn mounts_of(&self, of: MountsOf<'_>) -> Result<Vec<Mount>, String> {
        let MountsOf { pod, container, attempt, env, facts, images } = of;
        let folder = self.pod(&pod.uid);
        let mut list = Vec::with_capacity(container.mounts.len() + 2);
        for (index, mount) in container.mounts.iter().enumerate() {
            list.push(self.mount_of(&folder, pod, container, (index, mount), env, images)?);
        }
        let taken = |path: &str| container.mounts.iter().any(|mount| mount.path == path);
        let has_address = !facts.ips.is_empty() || pod.namespaces.host_network;
        if has_address && !taken(ETC_HOSTS) {
            let path = folder.join("etc-hosts");
            self.write_hosts(&path, pod, &facts.ips).map_err(|e| format!("write {}: {e}", path.display()))?;
            list.push(self.plain(path, ETC_HOSTS));
        }
        let words = &container.termination_message.path;
        if !taken(words) {
            let path = words_path(&folder, &container.name, attempt);
            make_words(&path).map_err(|e| format!("create {}: {e}", path.display()))?;
            list.push(self.plain(path, words));
        }
        Ok(list)
    }

    fn mount_of(
        &self,
        folder: &Path,
        pod: &Pod,
        container: &Container,
        (index, mount): (usize, &VolumeMount),
        env: &[(String, String)],
        images: &[(String, String)],
    ) -> Result<Mount, String> {
        let (name, of) = (&mount.volume, &container.name);
        let volume = pod.volumes.iter().find(|volume| volume.name == *name);
        let volume =
            volume.ok_or_else(|| format!("cannot find volume {name:?} to mount into container {of:?}"))?;
        let part = sub_path_of(mount, env)?;
        let place = self.place_of(&pod.uid, name);
        let (host_path, image) = match &volume.source {
            VolumeSource::Image { reference, .. } => {
                let id = images.iter().find(|(volume, _)| volume == name);
                let (_, id) = id.ok_or_else(|| format!("the image of volume {name:?} was not looked up"))?;
                let (id, written) = (id.clone(), reference.clone());
                (PathBuf::new(), Some(MountedImage { id, written, sub_path: part.unwrap_or_default() }))
            }
            _ => {
                let whole = path_of(folder, volume, place.as_ref())?;
                let Some(part) = part else {
                    return self.finish_mount((pod, mount), (volume, place.as_ref()), whole, None);
                };
                let target = sub_path::target(folder, name, of, index);
                sub_path::bind(&whole, &part, &target).map_err(|failure| {
                    // The details would tell the pod's owner about the node's files.
                    let cause = std::error::Error::source(&failure).map(ToString::to_string);
                    tracing::warn!(pod = pod.full_name(), volume = name, cause, "{failure}");
                    format!("{failure} for volumeMount {name:?} of container {of:?}")
                })?;
                (target, None)
            }
        };
        self.finish_mount((pod, mount), (volume, place.as_ref()), host_path, image)
    }

    fn finish_mount(
        &self,
        (pod, mount): (&Pod, &VolumeMount),
        (volume, place): (&Volume, Option<&VolumeBacking>),
        host_path: PathBuf,
        image: Option<MountedImage>,
    ) -> Result<Mount, String> {
        let name = &mount.volume;
        let recursive = match mount.recursive_read_only {
            RecursiveReadOnly::Disabled => false,
            RecursiveReadOnly::IfPossible => self.recursive_read_only,
            RecursiveReadOnly::Enabled if self.recursive_read_only => true,
            RecursiveReadOnly::Enabled => {
                return Err(format!(
                    "failed to resolve recursive read-only mode: volume {name:?} requested recursive read-only mode, but it is not supported by the runtime"
                ));
            }
        };
        Ok(Mount {
            host_path,
            image,
            container_path: mount.path.clone(),
            read_only: mount.read_only
                || matches!(
                    volume.source,
                    VolumeSource::Projected { .. }
                        | VolumeSource::Claim { read_only: true, .. }
                        | VolumeSource::Csi(CsiVolume { read_only: true, .. })
                        | VolumeSource::Iscsi(IscsiVolume { read_only: true, .. })
                        | VolumeSource::Nfs(NfsVolume { read_only: true, .. })
                        | VolumeSource::Image { .. }
                ),
            recursive_read_only: recursive,
            propagation: mount.propagation,
            relabel: self.labels.is_some()
                && labels::are_given(&volume.source, place)
                && !self.is_labelled(pod, place),
        })
    }

    /// Whether it is mounted with its label.
    fn is_labelled(&self, pod: &Pod, place: Option<&VolumeBacking>) -> bool {
        let Some(VolumeBacking::Csi(wanted)) = place else { return false };
        self.csi.as_ref().is_some_and(|csi| csi.is_labelled(&pod.uid, &wanted.name))
    }

    /// A file of the pod's own, without conditions.
    fn plain(&self, host_path: PathBuf, container_path: &str) -> Mount {
        Mount {
            host_path,
            image: None,
            container_path: container_path.to_owned(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::None,
            relabel: self.labels.is_some(),
        }
    }

    pub(super) fn write_hosts(&self, path: &Path, pod: &Pod, ips: &[String]) -> io::Result<()> {
        let text = if pod.namespaces.host_network {
            hosts_file::of_host(pod, &fs::read_to_string(ETC_HOSTS)?)
        } else {
            hosts_file::render_managed(pod, ips, &self.node.cluster_domain)
        };
        // In place: running containers have this very file mounted.
        if holds(path, text.as_bytes()) {
            return Ok(());
        }
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))
    }
}

/// The part of the volume that is mounted, if not all of it.
fn sub_path_of(mount: &VolumeMount, env: &[(String, String)]) -> Result<Option<String>, String> {
    let part = match &mount.sub_path {
        SubPath::Whole => return Ok(None),
        SubPath::Plain(path) => path.clone(),
        SubPath::Expr(expr) => expand_strictly(expr, env)?,
    };
    if part.starts_with('/') {
        return Err(format!("error SubPath `{part}` must not be an absolute path"));
    }
    if part.split('/').any(|step| step == "..") {
        return Err(format!("unable to provision SubPath `{part}`: must not contain '..'"));
    }
    Ok(Some(part).filter(|path| !path.is_empty()))
}

/// A variable that is not there, or empty, would mount another folder than was meant.
fn expand_strictly(expr: &str, env: &[(String, String)]) -> Result<String, String> {
    let full: std::collections::BTreeMap<&str, &str> = env
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let missing = gantry_model::expand::unknown(expr, &full);
    if missing.is_empty() {
        return Ok(gantry_model::expand::expand(expr, &full));
    }
    Err(format!("missing value for {}", missing.into_iter().collect::<Vec<_>>().join(", ")))
}

/// Whether the file is that text. Containers write to it: no more of it than that is ever read.
fn holds(path: &Path, text: &[u8]) -> bool {
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let same_length = |file: &fs::File| file.metadata().is_ok_and(|found| found.len() == length);
    let Some(file) = fs::File::open(path).ok().filter(same_length) else { return false };
    let mut old = Vec::with_capacity(text.len());
    file.take(length.saturating_add(1)).read_to_end(&mut old).is_ok() && old == text
}

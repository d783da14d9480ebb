//! `volumeDevices` of a container. Owns their validation, in upstream's words; whether the volume is a block device is
//! known once its claim is. Called by [`super::container`]. Pure.

use gantry_model::pod::volume::{Volume, VolumeDevice, VolumeMount, VolumeSource};
use k8s_openapi::api::core::v1 as api;

use super::field::{Result, invalid, no_backsteps, not_found, required};

/// `volumes` are the pod's, `mounts` the container's own.
pub(super) fn devices(
    at: &str,
    list: Vec<api::VolumeDevice>,
    volumes: &[Volume],
    mounts: &[VolumeMount],
) -> Result<Vec<VolumeDevice>> {
    let mut devices: Vec<VolumeDevice> = Vec::with_capacity(list.len());
    for (index, api::VolumeDevice { name, device_path }) in list.into_iter().enumerate() {
        let (at_name, at_path) = (format!("{at}[{index}].name"), format!("{at}[{index}].devicePath"));
        if name.is_empty() {
            return Err(required(at_name));
        }
        if devices.iter().any(|known| known.volume == name) {
            return Err(invalid(at_name, &name, "must be unique"));
        }
        match volumes.iter().find(|volume| volume.name == name) {
            None => return Err(not_found(at_name, &name)),
            Some(Volume { source: VolumeSource::Claim { .. }, .. }) => {}
            Some(_) => {
                let why =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                return Err(invalid(at_name, &name, why));
            }
        }
        if device_path.is_empty() {
            return Err(required(at_path));
        }
        if devices.iter().any(|known| known.path == device_path) {
            return Err(invalid(at_path, &device_path, "must be unique"));
        }
        if device_path.split('/').any(|part| part == "..") {
            return Err(invalid(at_path, &device_path, "can not contain backsteps ('..')"));
        }
        // What is left of that is NUL, which no path has.
        no_backsteps(&at_path, &device_path)?;
        if mounts.iter().any(|mount| mount.volume == name) {
            return Err(invalid(at_name, &name, "must not already exist in volumeMounts"));
        }
        if mounts.iter().any(|mount| mount.path == device_path) {
            return Err(invalid(at_path, &device_path, "must not already exist as a path in volumeMounts"));
        }
        devices.push(VolumeDevice { volume: name, path: device_path });
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::volume::{ClaimRef, Medium, Propagation, RecursiveReadOnly, SubPath};

    use super::*;

    #[test]
    fn a_device_is_a_claims_and_has_a_name_and_a_path_of_its_own() {
        let volume = |name: &str, source| Volume { name: name.to_owned(), source };
        let claim = || VolumeSource::Claim { claim: ClaimRef::Named("c".to_owned()), read_only: false };
        let disk = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None };
        let volumes = [volume("a", claim()), volume("b", claim()), volume("c", claim()), volume("e", disk)];
        let mount = VolumeMount {
            volume: "c".to_owned(),
            path: "/c".to_owned(),
            sub_path: SubPath::Whole,
            read_only: false,
            recursive_read_only: RecursiveReadOnly::Disabled,
            propagation: Propagation::None,
        };
        let check = |list: &[(&str, &str)]| {
            let one = |(name, path): &(&str, &str)| api::VolumeDevice {
                name: (*name).to_owned(),
                device_path: (*path).to_owned(),
            };
            let list = list.iter().map(one).collect();
            devices("d", list, &volumes, std::slice::from_ref(&mount)).map_err(|error| error.to_string())
        };
        let of = |volume: &str, path: &str| VolumeDevice { volume: volume.to_owned(), path: path.to_owned() };
        assert_eq!(check(&[("a", "/dev/a"), ("b", "b")]), Ok(vec![of("a", "/dev/a"), of("b", "b")]));
        for (list, told) in [
            (&[("", "/a")][..], "d[0].name: Required value"),
            (&[("a", "")], "d[0].devicePath: Required value"),
            (&[("x", "/a")], "d[0].name: Not found: \"x\""),
            (&[("a", "/a"), ("a", "/b")], "d[1].name: Invalid value: \"a\": must be unique"),
            (&[("a", "/a"), ("b", "/a")], "d[1].devicePath: Invalid value: \"/a\": must be unique"),
            (
                &[("a", "/a/..")],
                "d[0].devicePath: Invalid value: \"/a/..\": can not contain backsteps ('..')",
            ),
            (&[("c", "/d")], "d[0].name: Invalid value: \"c\": must not already exist in volumeMounts"),
            (&[("a", "/c")], "must not already exist as a path in volumeMounts"),
            (
                &[("e", "/e")],
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
        ] {
            let error = check(list).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}

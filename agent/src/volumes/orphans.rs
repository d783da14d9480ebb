//! Orphaned pod folders on disk: read from the kubelet's own folders, whichever
//! kubelet made them. Owns the reading; never removes anything. Called by [`super::host`].

use std::fs;
use std::io;
use std::path::Path;

use gantry_model::pod::PodUid;

use super::removal::Mounts;
use super::{iscsi, nfs};
use crate::block;
use crate::csi::files::FOLDER;

/// Plugins whose volumes are gone when they are unmounted and their folders removed. Others have
/// something elsewhere to be told: a driver, a device.
const OWN: [&str; 9] = [
    "kubernetes.io~configmap",
    "kubernetes.io~downward-api",
    "kubernetes.io~empty-dir",
    "kubernetes.io~host-path",
    iscsi::FOLDER,
    "kubernetes.io~local-volume",
    nfs::FOLDER,
    "kubernetes.io~projected",
    "kubernetes.io~secret",
];

/// The one in whose volumes are devices here without a driver.
const LOCAL: &str = "kubernetes.io~local-volume";

/// Where upstream's plugins mount a device once for all pods; local volumes are in nobody's list.
const DEVICES: &str = "kubernetes.io";
const LOCAL_DEVICES: &str = "kubernetes.io/local-volume";
const CSI_DEVICES: &str = "kubernetes.io/csi";

/// Whether something of a volume that this kubelet does not do is mounted: its device, or anything of
/// a pod that has such a volume (a sub-path holds the whole). By `ROOT/pods` and `ROOT/plugins`; `csi` is whether volumes
/// of CSI have an owner here, who tells of his.
pub(super) fn foreign(pods: &Path, plugins: &Path, mounts: &dyn Mounts, csi: bool) -> Result<bool, String> {
    let below =
        |folder: &Path| mounts.below(folder).map_err(|error| format!("read the mount table: {error}"));
    let own = [LOCAL_DEVICES, iscsi::PLUGIN].map(|plugin| plugins.join(plugin));
    let is_own = |point: &Path| own.iter().any(|folder| point.starts_with(folder));
    let of_csi = plugins.join(CSI_DEVICES);
    let owned = |point: &Path| csi && point.starts_with(&of_csi);
    if below(&plugins.join(DEVICES))?.iter().any(|point| !is_own(point) && !owned(point)) {
        return Ok(true);
    }
    let points = below(pods)?;
    let used = |uid: &PodUid| points.iter().any(|point| point.starts_with(pods.join(uid.as_str())));
    Ok(self::pods(pods)?.iter().any(|uid| used(uid) && check(&pods.join(uid.as_str()), csi).is_err()))
}

/// Names of real folders only: a link leads elsewhere.
fn folders(path: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(entry.file_name().into_string().ok());
        }
    }
    found.sort();
    Ok(found)
}

/// None where there is no such folder.
fn list_entries(path: &Path) -> Result<Vec<String>, String> {
    match folders(path) {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!("list {}: {error}", path.display())),
    }
}

/// By `ROOT/pods`.
pub(super) fn pods(folder: &Path) -> Result<Vec<PodUid>, String> {
    Ok(list_entries(folder)?.iter().filter_map(|name| PodUid::parse(name)).collect())
}

/// Whether all volumes of the pod are of the kinds that a folder says everything about; of CSI `csi` says whether they
/// have an owner here, who asks their drivers.
pub(super) fn check(pod: &Path, csi: bool) -> Result<(), String> {
    let volumes = pod.join("volumes");
    for plugin in list_entries(&volumes)? {
        let ours = OWN.contains(&plugin.as_str()) || (csi && plugin == FOLDER);
        if !ours && let Some(volume) = list_entries(&volumes.join(&plugin))?.first() {
            return Err(format!(
                "volume {volume:?} is of {plugin}, which this kubelet does not do: unmount {} and remove it",
                volumes.join(&plugin).join(volume).display()
            ));
        }
    }
    let devices = pod.join(block::FOLDER);
    for plugin in list_entries(&devices)? {
        let folder = devices.join(&plugin);
        let ours = plugin == LOCAL || plugin == iscsi::FOLDER || (csi && plugin == FOLDER);
        let linked =
            block::entries(&folder).map_err(|error| format!("list {}: {error}", folder.display()))?;
        if !ours && !linked.is_empty() {
            return Err(format!("it has block devices of {plugin}, which this kubelet does not do"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn pods_are_known_by_real_folders_with_their_uid() {
        let root = tempfile::tempdir().unwrap();
        let pods_of = || pods(root.path()).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        for name in ["0b7c", "a1"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("file"), "").unwrap();
        symlink("/", root.path().join("link")).unwrap();
        assert_eq!(pods_of(), ["0b7c", "a1"]);
        assert_eq!(pods(&root.path().join("no/such")), Ok(vec![]));
    }

    #[derive(Default)]
    struct Mounted(Vec<std::path::PathBuf>);

    impl Mounts for Mounted {
        fn below(&self, folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
            Ok(self.0.iter().filter(|point| point.starts_with(folder)).cloned().collect())
        }

        fn detach(&self, _: &Path) -> io::Result<()> {
            unreachable!("it only looks")
        }
    }

    #[test]
    fn mounts_of_volumes_that_this_kubelet_does_not_do_are_seen_and_no_others() {
        let root = tempfile::tempdir().unwrap();
        let (pods, plugins) = (root.path().join("pods"), root.path().join("plugins"));
        let seen_by = |csi: bool, points: &[&str]| {
            let points = points.iter().map(|point| root.path().join(point)).collect();
            foreign(&pods, &plugins, &Mounted(points), csi).unwrap()
        };
        let seen = |points: &[&str]| seen_by(false, points);
        fs::create_dir_all(pods.join("u1/volumes/kubernetes.io~secret/s")).unwrap();
        fs::create_dir_all(pods.join("u2/volumes/kubernetes.io~csi/pv/mount")).unwrap();
        fs::create_dir_all(pods.join("u1/volumes/kubernetes.io~nfs/share")).unwrap();
        assert!(!seen(&["pods/u1/volumes/kubernetes.io~secret/s", "plugins/kubernetes.io/local-volume/x"]));
        assert!(!seen(&["pods/u1/volumes/kubernetes.io~nfs/share"]));
        assert!(!seen(&["plugins/my-driver"]), "what drivers keep for themselves");
        assert!(seen(&["plugins/kubernetes.io/csi/d/0a/globalmount"]));
        assert!(seen(&["pods/u2/volumes/kubernetes.io~csi/pv/mount"]));
        assert!(seen(&["pods/u2/volume-subpaths/pv/web/0"]), "its disk is in use as well");
        for owned in
            ["plugins/kubernetes.io/csi/d/0a/globalmount", "pods/u2/volumes/kubernetes.io~csi/pv/mount"]
        {
            assert!(!seen_by(true, &[owned]), "its owner tells of it");
        }
        let block = "plugins/kubernetes.io/csi/volumeDevices/publish/pv/u2";
        assert!(seen(&[block]) && !seen_by(true, &[block]));
        assert!(seen_by(true, &["plugins/kubernetes.io/fc/volumeDevices/x/u2"]));
        assert!(!seen(&["plugins/kubernetes.io~local-volume/volumeDevices/pv/u2"]));
        assert!(!seen(&[]), "unmounted, though its folder is there");
    }

    #[test]
    fn volumes_that_others_must_take_back_are_kept_and_named() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path();
        assert_eq!(check(pod, false), Ok(()));
        fs::create_dir_all(pod.join("volumes/kubernetes.io~secret/s")).unwrap();
        fs::create_dir_all(pod.join("volumes/kubernetes.io~csi")).unwrap();
        assert_eq!(check(pod, false), Ok(()), "a plugin without volumes has nothing to tell");
        fs::create_dir_all(pod.join("volumes/kubernetes.io~csi/pvc-1/mount")).unwrap();
        let told = check(pod, false).unwrap_err();
        assert_eq!(check(pod, true), Ok(()), "its owner takes it back");
        assert!(told.starts_with("volume \"pvc-1\" is of kubernetes.io~csi"), "{told}");
        fs::remove_dir_all(pod.join("volumes/kubernetes.io~csi")).unwrap();
        for plugin in ["kubernetes.io~csi", "kubernetes.io~local-volume", "kubernetes.io~fc"] {
            fs::create_dir_all(pod.join("volumeDevices").join(plugin)).unwrap();
        }
        symlink("/dev/sda", pod.join("volumeDevices/kubernetes.io~local-volume/pv")).unwrap();
        assert_eq!(check(pod, false), Ok(()), "local ones are unmapped here, and the others have none");
        symlink("/dev/sdb", pod.join("volumeDevices/kubernetes.io~csi/pv")).unwrap();
        assert!(check(pod, false).unwrap_err().contains("block devices of kubernetes.io~csi"));
        assert_eq!(check(pod, true), Ok(()), "its owner takes it back");
        symlink("/dev/sdc", pod.join("volumeDevices/kubernetes.io~fc/pv")).unwrap();
        assert!(check(pod, true).unwrap_err().contains("block devices of kubernetes.io~fc"));
    }
}

//! What pods have left on disk that nobody remembers: read from the kubelet's own folders, whichever
//! kubelet made them. Owns the reading; never removes anything. Called by [`super::host`].

use std::fs;
use std::io;
use std::path::Path;

use crate::pod::spec::PodUid;

/// Plugins whose volumes are gone when they are unmounted and their folders removed. Others have
/// something elsewhere to be told: a driver, a server, a device.
const OWN: [&str; 7] = [
    "kubernetes.io~configmap",
    "kubernetes.io~downward-api",
    "kubernetes.io~empty-dir",
    "kubernetes.io~host-path",
    "kubernetes.io~local-volume",
    "kubernetes.io~projected",
    "kubernetes.io~secret",
];

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
fn listed(path: &Path) -> Result<Vec<String>, String> {
    match folders(path) {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!("list {}: {error}", path.display())),
    }
}

/// By `ROOT/pods`.
pub(super) fn pods(folder: &Path) -> Result<Vec<PodUid>, String> {
    Ok(listed(folder)?.iter().filter_map(|name| PodUid::parse(name)).collect())
}

/// Whether all volumes of the pod are of the kinds that a folder says everything about.
pub(super) fn check(pod: &Path) -> Result<(), String> {
    let volumes = pod.join("volumes");
    for plugin in listed(&volumes)? {
        if !OWN.contains(&plugin.as_str())
            && let Some(volume) = listed(&volumes.join(&plugin))?.first()
        {
            return Err(format!(
                "volume {volume:?} is of {plugin}, which this kubelet does not do: unmount {} and remove it",
                volumes.join(&plugin).join(volume).display()
            ));
        }
    }
    match listed(&pod.join("volumeDevices"))?.first() {
        None => Ok(()),
        Some(plugin) => Err(format!("it has block devices of {plugin}, which this kubelet does not do")),
    }
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

    #[test]
    fn volumes_that_others_must_take_back_are_kept_and_named() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path();
        assert_eq!(check(pod), Ok(()));
        fs::create_dir_all(pod.join("volumes/kubernetes.io~secret/s")).unwrap();
        fs::create_dir_all(pod.join("volumes/kubernetes.io~csi")).unwrap();
        assert_eq!(check(pod), Ok(()), "a plugin without volumes has nothing to tell");
        fs::create_dir_all(pod.join("volumes/kubernetes.io~csi/pvc-1/mount")).unwrap();
        let told = check(pod).unwrap_err();
        assert!(told.starts_with("volume \"pvc-1\" is of kubernetes.io~csi"), "{told}");
        fs::remove_dir_all(pod.join("volumes/kubernetes.io~csi")).unwrap();
        fs::create_dir_all(pod.join("volumeDevices/kubernetes.io~csi")).unwrap();
        assert!(check(pod).unwrap_err().contains("block devices"));
    }
}

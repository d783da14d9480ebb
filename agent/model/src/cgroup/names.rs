//! Where cgroups of pods are, by driver: plain folders, or slices as the kubelet names them for systemd. Pure.
//! Owns the names; never looks for one. Called by `cgroups::tree` and by the statistics.

use std::path::Path;

use gantry_systemd as systemd;

const SLICE: &str = ".slice";

/// Who makes cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// The kubelet and the runtime, in the file system.
    #[default]
    Cgroupfs,
    /// systemd, for both.
    Systemd,
}

impl Driver {
    /// As the configuration names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// By its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Cgroupfs, Self::Systemd].into_iter().find(|driver| driver.name() == name)
    }
}

/// The path of these steps below a root, which is steps itself: `cgroupRoot`.
#[must_use]
pub fn path(driver: Driver, root: &str, steps: &[&str]) -> String {
    let all = root.split('/').chain(steps.iter().copied()).filter(|step| !step.is_empty());
    match driver {
        Driver::Cgroupfs => all.fold(String::new(), |path, step| format!("{path}/{step}")),
        // Escaped steps always are a slice; what a root has of other characters is refused when it is made.
        Driver::Systemd => {
            let (mut path, mut stem) = (String::new(), String::new());
            for step in all {
                stem = if stem.is_empty() {
                    systemd::escape(step)
                } else {
                    format!("{stem}-{}", systemd::escape(step))
                };
                path = format!("{path}/{stem}{SLICE}");
            }
            path
        }
    }
}

/// The steps of a cgroup that a configuration names, as the kubelet reads it: with systemd only its last part counts.
#[must_use]
pub fn steps_of(driver: Driver, name: &str) -> Vec<String> {
    let name = name.trim_matches('/');
    match driver {
        Driver::Cgroupfs => name.split('/').filter(|step| !step.is_empty()).map(str::to_owned).collect(),
        Driver::Systemd => {
            let last = name.rsplit('/').next().unwrap_or_default();
            let stem = last.strip_suffix(SLICE).unwrap_or(last);
            stem.split('-').filter(|step| !step.is_empty()).map(|step| step.replace('_', "-")).collect()
        }
    }
}

/// Steps below a path of either form.
#[must_use]
pub fn below(parent: &str, steps: &[&str]) -> String {
    let mut path = parent.to_owned();
    for step in steps {
        path = match unit(&path).and_then(|unit| unit.strip_suffix(SLICE)) {
            Some(stem) => format!("{path}/{stem}-{}{SLICE}", systemd::escape(step)),
            None => format!("{path}/{step}"),
        };
    }
    path
}

/// The slice that a path is of.
#[must_use]
pub fn unit(path: &str) -> Option<&str> {
    path.rsplit('/').next().filter(|name| name.ends_with(SLICE))
}

/// Whether a folder of a class is a pod's.
#[must_use]
pub fn is_pod(class: &Path, name: &str) -> bool {
    let class = class.file_name().and_then(|class| class.to_str()).unwrap_or_default();
    match class.strip_suffix(SLICE) {
        Some(stem) => name.strip_prefix(stem).is_some_and(|rest| rest.starts_with("-pod")),
        None => name.starts_with("pod"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_cgroup_is_a_path_or_a_slice_by_its_name() {
        let at = |driver, name: &str| {
            let steps = steps_of(driver, name);
            path(driver, "", &steps.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(at(Driver::Cgroupfs, "/system.slice"), "/system.slice");
        assert_eq!(at(Driver::Cgroupfs, "a/b/"), "/a/b");
        assert_eq!(at(Driver::Systemd, "/system.slice"), "/system.slice");
        assert_eq!(at(Driver::Systemd, "/kube.slice/kube-node.slice"), "/kube.slice/kube-node.slice");
        assert_eq!(at(Driver::Systemd, "runtime"), "/runtime.slice");
    }

    #[test]
    fn pods_have_the_names_that_the_kubelet_gives_them() {
        let steps = ["kubepods", "burstable", "pod1234-abcd-5678"];
        assert_eq!(path(Driver::Cgroupfs, "/", &steps), "/kubepods/burstable/pod1234-abcd-5678");
        assert_eq!(path(Driver::Cgroupfs, "/x/y", &["kubepods"]), "/x/y/kubepods");
        assert_eq!(
            path(Driver::Systemd, "/", &steps),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678.slice"
        );
        assert_eq!(path(Driver::Systemd, "/a-b", &["kubepods"]), "/a_b.slice/a_b-kubepods.slice");
        for driver in [Driver::Cgroupfs, Driver::Systemd] {
            let [first, rest @ ..] = steps;
            assert_eq!(below(&path(driver, "/", &[first]), &rest), path(driver, "/", &steps));
            assert_eq!(Driver::from_name(driver.name()), Some(driver));
        }
        assert_eq!(Driver::from_name("other"), None);
    }

    #[test]
    fn classes_are_no_pods() {
        assert!(is_pod(Path::new("kubepods"), "podx") && !is_pod(Path::new("kubepods"), "burstable"));
        let slice = Path::new("kubepods.slice");
        assert!(is_pod(slice, "kubepods-podx.slice") && !is_pod(slice, "kubepods-burstable.slice"));
        assert!(!is_pod(slice, "podx"));
    }
}

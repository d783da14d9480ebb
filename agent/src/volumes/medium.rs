//! What a volume's folder lies on, and how much of it there is. Pure: owns the choice, in upstream's words; never mounts.
//! Called by [`super::host`].

use std::path::Path;

use gantry_model::cgroup::limits::{self, Rules};
use gantry_model::pod::Pod;
use gantry_model::pod::volume::{Medium, VolumeSource};
use gantry_model::quantity::parse_units;

/// Of resources.
const HUGE_PAGES: &str = "hugepages-";

/// What is beneath the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ground {
    /// The pod's own folder.
    Folder,
    /// A tmpfs of at most so many bytes.
    Tmpfs(i64),
    /// A hugetlbfs with pages of so many bytes.
    HugePages(i64),
}

/// What a volume is to lie on, on a node that has `node` bytes of memory for pods.
///
/// # Errors
/// In upstream's words: huge pages of a size that the pod does not ask for.
pub(super) fn ground(pod: &Pod, source: &VolumeSource, node: i64) -> Result<Ground, String> {
    match source {
        VolumeSource::EmptyDir { medium: Medium::Disk, .. } => Ok(Ground::Folder),
        VolumeSource::EmptyDir { medium: Medium::Memory, size_limit } => {
            Ok(Ground::Tmpfs(tmpfs_size(pod, size_limit.as_ref().map(|limit| limit.bytes), node)))
        }
        VolumeSource::EmptyDir { medium: Medium::HugePages(size), .. } => {
            page_size(pod, *size).map(Ground::HugePages)
        }
        VolumeSource::Projected { memory: true, .. } => Ok(Ground::Tmpfs(tmpfs_size(pod, None, node))),
        VolumeSource::Projected { .. }
        | VolumeSource::HostPath { .. }
        | VolumeSource::Claim { .. }
        | VolumeSource::Csi(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Iscsi(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Image { .. } => Ok(Ground::Folder),
    }
}

/// Of what the pod's cgroup holds it to, what pods may have and the volume's own limit the smallest.
fn tmpfs_size(pod: &Pod, own: Option<i64>, node: i64) -> i64 {
    let of_pod = limits::of_pod(pod, &Rules::default()).memory;
    [of_pod, own].into_iter().flatten().filter(|limit| *limit > 0).fold(node, i64::min)
}

/// The one size that the pod or any of its containers asks for; `wanted` must be among them.
fn page_size(pod: &Pod, wanted: Option<i64>) -> Result<i64, String> {
    let medium =
        || wanted.map_or_else(|| "HugePages".to_owned(), |size| format!("HugePages-{}", shown(size)));
    let of_pod = pod.resources.iter().flat_map(|own| own.requests.keys());
    let of_containers = pod.all_containers().flat_map(|container| container.written.requests.keys());
    let mut found: Vec<i64> = of_pod
        .chain(of_containers)
        .filter_map(|name| parse_units(name.strip_prefix(HUGE_PAGES)?).ok())
        .filter(|size| wanted.is_none_or(|wanted| wanted == *size))
        .collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [size] => Ok(*size),
        [] => Err(format!(
            "medium {}: hugePages storage requested, but there is no resource request for huge pages",
            medium()
        )),
        _ => {
            Err(format!("medium: {} can't be used if container requests multiple huge page sizes", medium()))
        }
    }
}

/// In upstream's words: a volume is there with pages of `found` bytes.
pub(super) fn sizes_differ(path: &Path, found: i64, wanted: i64) -> String {
    format!(
        "mounted dir {} pagesize '{}' and requested medium size '{}' differ",
        path.display(),
        shown(found),
        shown(wanted)
    )
}

/// As names of resources have it: `2Mi`.
fn shown(size: i64) -> String {
    limits::huge_page_resource(size >> 10).replace(HUGE_PAGES, "")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gantry_model::pod::volume::SizeLimit;
    use gantry_model::pod::{Container, Requirements, Resources};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn empty_dir(medium: Medium, bytes: Option<i64>) -> VolumeSource {
        let size_limit = bytes.map(|bytes| SizeLimit { bytes, shown: bytes.to_string() });
        VolumeSource::EmptyDir { medium, size_limit }
    }

    #[test]
    fn memory_volumes_are_limited_by_the_smallest() {
        let limited = |limit| {
            let resources = Resources { memory_limit: limit, ..Resources::default() };
            Pod { containers: vec![Container { resources, ..container("web") }], ..pod() }
        };
        let size = |pod: &Pod, own| match ground(pod, &empty_dir(Medium::Memory, own), 1000) {
            Ok(Ground::Tmpfs(size)) => size,
            other => panic!("{other:?}"),
        };
        assert_eq!(size(&limited(None), None), 1000);
        assert_eq!(size(&limited(None), Some(10)), 10);
        assert_eq!(size(&limited(Some(5)), Some(10)), 5);
        assert_eq!(size(&limited(Some(5000)), None), 1000);
        let text = BTreeMap::from([("memory".to_owned(), "70".to_owned())]);
        let whole = Requirements { limits: text.clone(), requests: text };
        assert_eq!(size(&Pod { resources: Some(whole), ..limited(None) }, None), 70);
    }

    fn asking(name: &str, pages: &[&str]) -> Container {
        let requests = pages.iter().map(|page| (format!("hugepages-{page}"), "4Mi".to_owned())).collect();
        Container { written: Requirements { requests, ..Requirements::default() }, ..container(name) }
    }

    #[test]
    fn huge_pages_have_the_size_that_the_pod_asks_for() {
        let of = |pod: &Pod, size| ground(pod, &empty_dir(Medium::HugePages(size), None), 1000);
        let (small, large) = (2 << 20, 1 << 30);
        let one = Pod { containers: vec![container("a"), asking("b", &["2Mi"])], ..pod() };
        assert_eq!(of(&one, None), Ok(Ground::HugePages(small)));
        assert_eq!(of(&one, Some(small)), Ok(Ground::HugePages(small)));
        let early = Pod { init_containers: vec![asking("i", &["1Gi"])], ..one.clone() };
        assert_eq!(of(&early, Some(large)), Ok(Ground::HugePages(large)));
        let requests = BTreeMap::from([("hugepages-1Gi".to_owned(), "1Gi".to_owned())]);
        let own = Requirements { requests, ..Requirements::default() };
        let whole = Pod { containers: vec![container("a")], resources: Some(own), ..pod() };
        assert_eq!(of(&whole, None), Ok(Ground::HugePages(large)));
    }

    #[test]
    fn huge_pages_that_nobody_asks_for_are_refused_in_upstreams_words() {
        let of = |pod: &Pod, size| ground(pod, &empty_dir(Medium::HugePages(size), None), 1000).unwrap_err();
        let both = Pod { containers: vec![asking("a", &["2Mi"]), asking("b", &["1Gi"])], ..pod() };
        assert_eq!(
            of(&both, None),
            "medium: HugePages can't be used if container requests multiple huge page sizes"
        );
        let none = |medium: &str| {
            format!(
                "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
            )
        };
        assert_eq!(of(&both, Some(32 << 20)), none("HugePages-32Mi"));
        assert_eq!(of(&pod(), None), none("HugePages"));
        assert_eq!(
            sizes_differ(Path::new("/v"), 2 << 20, 1 << 30),
            "mounted dir /v pagesize '2Mi' and requested medium size '1Gi' differ"
        );
    }
}

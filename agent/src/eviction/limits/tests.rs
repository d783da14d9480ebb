//! Which limit is exceeded, by what, and what is said.

use std::collections::BTreeMap;

use gantry_model::pod::volume::{SizeLimit, Volume};
use gantry_model::pod::{Requirements, Resources, Role};

use super::*;
use crate::pod::tests::{container, pod};

fn limited(name: &str, limit: &str) -> Container {
    let bytes = quantity::parse_units(limit).unwrap();
    let resources = Resources { ephemeral_limit: Some(bytes), ..Resources::default() };
    let limits = BTreeMap::from([(STORAGE.to_owned(), limit.to_owned())]);
    Container { resources, written: Requirements { limits, ..Requirements::default() }, ..container(name) }
}

fn uses(name: &str, layer: u64, logs: u64) -> ContainerUse {
    let on_disk = |bytes| Some(Used { bytes, inodes: 1 });
    ContainerUse { name: name.into(), layer: on_disk(layer), logs: on_disk(logs), memory: None }
}

fn empty_dir(name: &str, memory: bool, limit: Option<(i64, &str)>) -> Volume {
    let size_limit = limit.map(|(bytes, shown)| SizeLimit { bytes, shown: shown.to_owned() });
    let medium = if memory { Medium::Memory } else { Medium::Disk };
    Volume { name: name.into(), source: VolumeSource::EmptyDir { medium, size_limit } }
}

fn holding(containers: &[ContainerUse], volumes: &[(&str, u64)]) -> PodUse {
    let volumes = volumes.iter().map(|(name, bytes)| ((*name).to_owned(), Used { bytes: *bytes, inodes: 1 }));
    PodUse { containers: containers.to_vec(), volumes: volumes.collect(), ..PodUse::default() }
}

fn said(pod: &Pod, used: &PodUse) -> Option<(&'static str, String)> {
    find_exceeded(pod, used, false).map(|above| (above.signal, above.message))
}

#[test]
fn a_volume_has_its_own_limit() {
    let volumes = vec![empty_dir("free", false, None), empty_dir("scratch", false, Some((1 << 30, "1Gi")))];
    let pod = Pod { volumes, ..pod() };
    assert!(is_limited(&pod));
    assert_eq!(said(&pod, &holding(&[], &[("free", 1 << 40), ("scratch", 1 << 30)])), None);
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Gi\". ".to_owned();
    let above = said(&pod, &holding(&[], &[("scratch", (1 << 30) + 1)]));
    assert_eq!(above, Some(("emptydirfs.limit", message)));
}

#[test]
fn a_container_has_its_own_limit_where_another_of_its_pod_has_room() {
    let pod = Pod { containers: vec![limited("web", "100"), limited("log", "1000M")], ..pod() };
    assert_eq!(said(&pod, &holding(&[uses("web", 50, 50), uses("log", 500, 400)], &[])), None);
    let message = "Container web exceeded its local ephemeral storage limit \"100\". ".to_owned();
    let above = said(&pod, &holding(&[uses("web", 50, 51)], &[]));
    assert_eq!(above, Some(("ephemeralcontainerfs.limit", message)));
    // Its writable layer is elsewhere.
    assert_eq!(find_exceeded(&pod, &holding(&[uses("web", 5000, 50)], &[]), true), None);
    // 0 is none for the container, and counts for the pod.
    let zero = Pod { containers: vec![limited("web", "0")], ..pod.clone() };
    let above = said(&zero, &holding(&[uses("web", 1, 0)], &[]));
    assert_eq!(above.map(|(signal, _)| signal), Some("ephemeralpodfs.limit"));
}

#[test]
fn a_pods_limit_is_the_sum_of_its_containers_and_volumes_on_disk_count() {
    let volumes = vec![empty_dir("disk", false, None), empty_dir("tmpfs", true, None)];
    let pod = Pod {
        containers: vec![limited("web", "1Gi"), limited("log", "512Mi"), container("free")],
        volumes,
        ..pod()
    };
    let used = |disk| {
        let containers = [uses("web", 1 << 29, 1 << 20), uses("free", 1 << 29, 0)];
        holding(&containers, &[("disk", disk), ("tmpfs", 1 << 40)])
    };
    let room = (1 << 29) - (1 << 20);
    assert_eq!(said(&pod, &used(room)), None);
    let hosts_file = Used { bytes: 1, inodes: 1 };
    assert!(said(&pod, &PodUse { hosts_file, ..used(room) }).is_some(), "CVE-2020-8557");
    let message =
        "Pod ephemeral local storage usage exceeds the total limit of containers 1536Mi. ".to_owned();
    assert_eq!(said(&pod, &used(room + 1)), Some(("ephemeralpodfs.limit", message)));
}

#[test]
fn the_peak_of_init_containers_and_the_overhead_count_as_upstream_adds_them() {
    let sidecar = Container { role: Role::Sidecar, ..limited("side", "10") };
    let init = Container { role: Role::Init, ..limited("init", "500") };
    let overhead = BTreeMap::from([(STORAGE.to_owned(), "7".to_owned())]);
    let pod = Pod {
        init_containers: vec![sidecar, init],
        containers: vec![limited("web", "100")],
        overhead,
        ..pod()
    };
    assert_eq!(pod_limit(&pod), Some((517, "517".to_owned())));
    let free = crate::pod::tests::pod();
    assert_eq!(pod_limit(&Pod { containers: vec![container("web")], ..free.clone() }), None);
    assert!(!is_limited(&free));
}

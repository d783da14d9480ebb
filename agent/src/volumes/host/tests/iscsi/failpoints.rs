//! At every durable step of a disk the kubelet ends, or the step fails; then a next one, or the same, goes on. In the end the
//! disk is mounted once, or nothing of it is here (docs/adr/0024-failpoints.md).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::machine::{IscsiFixture, pod_with};
use super::*;

/// Each place, and whether a pod's set-up comes to it; else the end of the last one.
const SITES: [(&str, bool); 6] = [
    ("iscsi.noted", true),
    ("iscsi.attached", true),
    ("iscsi.mounted", true),
    ("iscsi.bound", true),
    ("iscsi.unmounted", false),
    ("iscsi.logged-out", false),
];

/// A kubelet, which ends when it is dropped.
fn kubelet(places: &Path) -> Runtime {
    let folder = places.to_owned();
    Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(move || gantry_failpoint::look_in(folder.clone()))
        .enable_all()
        .build()
        .unwrap()
}

/// What comes of it; none when it died at a place.
fn run<T: Send + 'static>(runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let (send, receive) = std::sync::mpsc::channel();
    runtime.spawn(async move { send.send(work.await) });
    receive.recv_timeout(Duration::from_secs(60)).ok()
}

fn case(site: &str, sets_up: bool, action: &str, is_wanted: bool) {
    let (mut fixture, places) = (IscsiFixture::new(), tempfile::tempdir().unwrap());
    let pod = pod_with("uid-1", 0, false);
    let set_up = |runtime: &Runtime, volumes: &HostVolumes| {
        let (volumes, pod) = (volumes.clone(), pod.clone());
        run(runtime, async move { volumes.set_up(&pod).await })
    };
    let tear_down = |runtime: &Runtime, volumes: &HostVolumes| {
        let (volumes, uid) = (volumes.clone(), pod.uid.clone());
        run(runtime, async move { volumes.tear_down(&uid).await })
    };
    let mut runtime = kubelet(places.path());
    if !sets_up {
        set_up(&runtime, &fixture.place.volumes).unwrap().unwrap();
    }
    fs::write(places.path().join(site), action).unwrap();
    if sets_up {
        assert!(set_up(&runtime, &fixture.place.volumes).is_none_or(|done| done.is_err()));
    } else {
        tear_down(&runtime, &fixture.place.volumes).unwrap().unwrap();
    }
    let reached = places.path().join(format!("{site}.reached"));
    while !reached.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if action == "panic" {
        drop(runtime);
        runtime = kubelet(places.path());
        fixture.place.volumes = fixture.next();
        let next = fixture.place.volumes.clone();
        run(&runtime, async move { next.begin() }).unwrap().unwrap();
    }
    if is_wanted {
        set_up(&runtime, &fixture.place.volumes).unwrap().unwrap();
        assert_eq!(fixture.mounted().len(), 2, "{:?}", fixture.mounted());
    }
    tear_down(&runtime, &fixture.place.volumes).unwrap().unwrap();
    runtime.block_on(fixture.until_gone());
}

#[test]
fn a_disk_is_mounted_once_or_gone_whatever_step_of_it_a_kubelet_did_last() {
    for (site, sets_up) in SITES {
        let can_fail = site != "iscsi.mounted";
        for (action, is_wanted) in [("panic", true), ("panic", false), ("fail", true), ("fail", false)] {
            if action == "panic" || can_fail {
                case(site, sets_up, action, is_wanted);
            }
        }
    }
}

#[test]
fn every_place_of_a_disk_has_a_row() {
    let source = include_str!("../../iscsi.rs");
    // In two words, or this line is a place.
    let places = source.split(concat!("failpoint", "!(\"")).skip(1);
    let found: BTreeSet<&str> = places.filter_map(|place| place.split('"').next()).collect();
    assert_eq!(found, SITES.iter().map(|(site, _)| *site).collect());
}

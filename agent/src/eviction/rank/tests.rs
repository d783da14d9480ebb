//! Who goes first, by what each uses and asked for.

use gantry_model::pod::placement::Placement;
use gantry_model::pod::volume::Volume;
use gantry_model::pod::{Container, PodUid, Resources};

use super::*;
use crate::pod::tests::{container, pod};
use gantry_model::observation::ContainerUse;

fn asking(name: &str, priority: i32, memory: i64, storage: i64) -> Pod {
    let resources =
        Resources { memory_request: Some(memory), ephemeral_request: Some(storage), ..Resources::default() };
    Pod {
        name: name.into(),
        uid: PodUid::parse(name).unwrap(),
        placement: Placement { priority: Some(priority), ..Placement::default() },
        containers: vec![Container { resources, ..container("web") }],
        ..pod()
    }
}

fn order(pods: &[Pod], usage: &Usage, signal: Signal, disks: Disks) -> Vec<String> {
    let mut ranked: Vec<&Pod> = pods.iter().collect();
    rank(&mut ranked, |pod| pod, usage, signal, disks);
    ranked.into_iter().map(|pod| pod.name.clone()).collect()
}

fn of(name: &str, used: PodUse) -> (PodUid, PodUse) {
    (PodUid::parse(name).unwrap(), used)
}

#[test]
fn memory_goes_by_who_is_over_then_priority_then_how_far() {
    let pods = [
        asking("within", 0, 500, 0),
        asking("over-little", 0, 100, 0),
        asking("over-much", 0, 100, 0),
        asking("over-important", 9, 0, 0),
        asking("unknown", 9, 0, 0),
    ];
    let memory = |memory| PodUse { memory, ..PodUse::default() };
    let usage = Usage::from([
        of("within", memory(500)),
        of("over-little", memory(101)),
        of("over-much", memory(300)),
        of("over-important", memory(900)),
    ]);
    let ranked = order(&pods, &usage, Signal::Memory, Disks::default());
    assert_eq!(ranked, ["unknown", "over-much", "over-little", "over-important", "within"]);
}

#[test]
fn process_ids_go_by_priority_then_number() {
    let pods = [asking("few", 0, 0, 0), asking("many", 0, 0, 0), asking("important", 5, 0, 0)];
    let processes = |processes| PodUse { processes, ..PodUse::default() };
    let usage =
        Usage::from([of("few", processes(2)), of("many", processes(50)), of("important", processes(9000))]);
    assert_eq!(order(&pods, &usage, Signal::Pids, Disks::default()), ["many", "few", "important"]);
}

#[test]
fn issues_99280_and_81523_only_what_is_on_the_disk_that_is_short_counts() {
    let scratch = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None };
    let tmpfs = VolumeSource::EmptyDir { medium: Medium::Memory, size_limit: None };
    let volume = |name: &str, source| Volume { name: name.into(), source };
    let with = |name: &str| Pod {
        volumes: vec![volume("scratch", scratch.clone()), volume("tmpfs", tmpfs.clone())],
        ..asking(name, 0, 0, 0)
    };
    let pods = [with("layer"), with("logs"), with("scratch"), with("memory")];
    let used = |layer, logs, scratch: u64, tmpfs| {
        let both = |bytes| Used { bytes, inodes: bytes };
        let one = ContainerUse {
            name: "web".into(),
            memory: None,
            layer: Some(both(layer)),
            logs: Some(both(logs)),
        };
        let volumes = [("scratch", both(scratch)), ("tmpfs", both(tmpfs))];
        let volumes = volumes.into_iter().map(|(name, used)| (name.to_owned(), used)).collect();
        PodUse { containers: vec![one], volumes, ..PodUse::default() }
    };
    let usage = Usage::from([
        of("layer", used(90, 1, 1, 0)),
        of("logs", used(1, 80, 1, 0)),
        of("scratch", used(1, 1, 70, 0)),
        of("memory", used(1, 1, 0, 5000)),
    ]);
    let first = |signal, images_apart, layers_apart| {
        order(&pods, &usage, signal, Disks { images_apart, layers_apart }).remove(0)
    };
    for signal in [Signal::NodeFs, Signal::ImageFs, Signal::NodeFsInodes] {
        assert_eq!(first(signal, false, false), "layer", "{signal}");
    }
    assert_eq!(first(Signal::NodeFs, true, false), "logs");
    assert_eq!(first(Signal::ImageFs, true, false), "layer");
    assert_eq!(first(Signal::ContainerFsInodes, true, false), "layer");
    assert_eq!(first(Signal::NodeFs, true, true), "layer");
    // Memory takes no room of a disk: that pod is the last one.
    assert_eq!(order(&pods, &usage, Signal::NodeFs, Disks::default())[3], "memory");
}

#[test]
fn inodes_are_not_held_against_bytes_that_were_asked_for() {
    let pods = [asking("asks", 0, 0, 1 << 40), asking("asks-nothing", 0, 0, 0)];
    let logs = |inodes| {
        let logs = Some(Used { bytes: 1, inodes });
        let one = ContainerUse { name: "web".into(), logs, ..ContainerUse::default() };
        PodUse { containers: vec![one], ..PodUse::default() }
    };
    let usage = Usage::from([of("asks", logs(1000)), of("asks-nothing", logs(10))]);
    assert_eq!(order(&pods, &usage, Signal::NodeFsInodes, Disks::default()), ["asks", "asks-nothing"]);
    // Room is: who asked for it goes last.
    assert_eq!(order(&pods, &usage, Signal::NodeFs, Disks::default()), ["asks-nothing", "asks"]);
}

#[test]
fn disk_goes_by_who_is_over_then_priority_then_how_far_whatever_the_class() {
    let pods = [
        asking("within", 0, 0, 500),
        // Guaranteed or not, as upstream: nobody looks at the class.
        asking("over-little", 0, 100, 100),
        asking("over-much", 0, 0, 100),
        asking("over-important", 9, 0, 0),
        asking("unknown", 9, 0, 0),
    ];
    let layer = |bytes| {
        let layer = Some(Used { bytes, inodes: bytes });
        let one = ContainerUse { name: "web".into(), layer, ..ContainerUse::default() };
        PodUse { containers: vec![one], ..PodUse::default() }
    };
    let usage = Usage::from([
        of("within", layer(500)),
        of("over-little", layer(101)),
        of("over-much", layer(300)),
        of("over-important", layer(900)),
    ]);
    let order = |signal| order(&pods, &usage, signal, Disks::default());
    let ranked = ["unknown", "over-much", "over-little", "over-important", "within"];
    for signal in [Signal::NodeFs, Signal::ImageFs, Signal::ContainerFs] {
        assert_eq!(order(signal), ranked, "{signal}");
    }
    // All are over what nobody can ask for.
    let ranked = ["unknown", "within", "over-much", "over-little", "over-important"];
    assert_eq!(order(Signal::NodeFsInodes), ranked);
}

#[test]
fn of_process_ids_priority_counts_even_where_nothing_is_known() {
    let pods = [asking("unknown", 0, 0, 0), asking("many", 0, 0, 0), asking("unknown-important", 5, 0, 0)];
    let many = PodUse { processes: 9000, ..PodUse::default() };
    let ranked = order(&pods, &Usage::from([of("many", many)]), Signal::Pids, Disks::default());
    assert_eq!(ranked, ["unknown", "many", "unknown-important"]);
}

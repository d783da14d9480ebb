//! Upstream's words.

use std::time::Duration;

use gantry_model::pod::{Container, Requirements};

use super::*;
use crate::config::eviction::Threshold;
use crate::pod::tests::{container, in_role, pod};
use gantry_model::observation::{Reading, Used};

fn rule(signal: Signal, value: Threshold) -> Rule {
    let written = "100Mi".to_owned();
    Rule { signal, value, written, grace: Duration::ZERO, reclaim: Threshold::None }
}

fn one(signal: Signal, available: i64, capacity: i64) -> Readings {
    Readings::from([(signal, Reading { available, capacity, at: 0 })])
}

fn with(request: (&str, &str), name: &str) -> Container {
    let requests = BTreeMap::from([(request.0.to_owned(), request.1.to_owned())]);
    Container { written: Requirements { requests, ..Requirements::default() }, ..container(name) }
}

#[test]
fn storage_names_each_container_that_is_over_its_request() {
    let pod = Pod {
        init_containers: vec![in_role("side", gantry_model::pod::Role::Sidecar)],
        containers: vec![with(("ephemeral-storage", "1Mi"), "web"), with(("ephemeral-storage", "9Gi"), "db")],
        ..pod()
    };
    let disk = |bytes| Some(Used { bytes, inodes: 1 });
    let uses = |name: &str, layer, logs| ContainerUse { name: name.into(), memory: None, layer, logs };
    let used = PodUse {
        containers: vec![
            uses("web", disk(3 << 20), disk(1 << 20)),
            uses("db", disk(5), disk(5)),
            uses("side", disk(7), disk(0)),
            // Half of it is not known: nobody is blamed.
            uses("stranger", disk(1 << 40), None),
        ],
        ..PodUse::default()
    };
    let rules = [rule(Signal::NodeFs, Threshold::Share(0.1))];
    let (message, annotations) = words(&pod, Some(&used), &rules, &one(Signal::NodeFs, 1000, 10 << 20));
    assert_eq!(
        message,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Mi, available: 1k. Container web was \
         using 4Mi, request is 1Mi, has larger consumption of ephemeral-storage. Container side was using 7, request is \
         0, has larger consumption of ephemeral-storage. "
    );
    assert_eq!(annotations["offending_containers"], "web,side");
    assert_eq!(annotations["offending_containers_usage"], "4Mi,7");
    assert_eq!(annotations["starved_resource"], "ephemeral-storage");
}

#[test]
fn a_pod_with_requests_of_its_own_is_named_too() {
    let requests = BTreeMap::from([("memory".to_owned(), "64Mi".to_owned())]);
    let own = Requirements { requests, ..Requirements::default() };
    let pod = Pod { resources: Some(own), ..pod() };
    let used = PodUse { memory: 128 << 20, ..PodUse::default() };
    let rules = [rule(Signal::AllocatableMemory, Threshold::Bytes(100 << 20))];
    let readings = one(Signal::AllocatableMemory, 50 << 20, 1 << 30);
    let (message, annotations) = words(&pod, Some(&used), &rules, &readings);
    assert_eq!(
        message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Pod web was using 128Mi, \
         request is 64Mi, has larger consumption of memory. "
    );
    assert_eq!((&*annotations["offending_pod"], &*annotations["offending_pod_usage"]), ("web", "128Mi"));
    assert_eq!(annotations["offending_containers"], "");
}

#[test]
fn inodes_and_process_ids_name_no_container_and_what_is_unknown_is_not_said() {
    for (signal, text) in [(Signal::ImageFsInodes, "inodes"), (Signal::Pids, "pids")] {
        let (rules, readings) = ([rule(signal, Threshold::Bytes(5))], one(signal, 2000, 10_000));
        let expected =
            format!("The node was low on resource: {text}. Threshold quantity: 100Mi, available: 2k. ");
        assert_eq!(words(&pod(), Some(&PodUse::default()), &rules, &readings).0, expected);
        let (message, annotations) = words(&pod(), None, &rules, &Readings::new());
        assert_eq!(message, format!("The node was low on resource: {text}. "));
        assert!(annotations.is_empty());
    }
}

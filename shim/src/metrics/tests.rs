//! What is told of a reading, by name.

use std::collections::BTreeMap;

use super::*;
use crate::cgroup::detail::{MemoryDetail, Throttling};
use crate::cgroup::stats::{Pressure, Stall};

fn sheet() -> Sheet {
    let pod = PodName { name: "web".into(), namespace: "default".into(), uid: "u".into(), attempt: 0 };
    Sheet::new(&pod, "main", "abc", "image:1")
}

/// Everything that a full reading gives.
fn filled_sheet() -> Sheet {
    let psi = |seconds| Psi {
        some: Stall { total: seconds * MICROS, ..Stall::default() },
        full: Stall { total: seconds * MICROS / 2, ..Stall::default() },
    };
    let usage = Usage {
        cpu_nanos: Some(3 * NANOS + 1),
        memory: Some(crate::cgroup::stats::MemoryStats {
            usage: 10,
            working_set: 9,
            rss: 8,
            ..Default::default()
        }),
        swap: Some(crate::cgroup::stats::Swap { usage: 7, limit: None }),
        pids: Some(2),
        pressure: Pressure { cpu: Some(psi(4)), memory: Some(psi(6)), io: Some(psi(8)) },
    };
    let transfer = Transfer { bytes: 4096, operations: 1 };
    let detail = Detail {
        cpu_user: Some(2 * NANOS),
        cpu_system: Some(NANOS),
        throttling: Some(Throttling { periods: 5, throttled: 1, nanos: 2 * NANOS }),
        memory: Some(MemoryDetail {
            peak: Some(11),
            failures: Some(0),
            kernel: Some(1),
            ..MemoryDetail::default()
        }),
        oom_kills: Some(1),
        task_limit: Some(64),
        io: BTreeMap::from([
            (("0:999".to_owned(), "Read".to_owned()), transfer),
            (("0:999".to_owned(), "Discard".to_owned()), transfer),
        ]),
    };
    let traffic = Traffic { bytes: 1, packets: 2, errors: 3, dropped: 4 };
    let mut sheet = sheet();
    sheet.cpu(&usage, &detail);
    sheet.memory(&usage, &detail);
    sheet.pressure(&usage);
    sheet.io(&detail);
    sheet.interface(&network::Interface { name: "eth0".into(), received: traffic, sent: traffic });
    let limits =
        cri::LinuxContainerResources { cpu_shares: 2, memory_limit_in_bytes: 64, ..Default::default() };
    sheet.spec(&limits, &detail);
    sheet
}

#[test]
fn every_metric_has_a_descriptor_with_as_many_labels() {
    let keys: BTreeMap<String, usize> =
        descriptors().into_iter().map(|one| (one.name, one.label_keys.len())).collect();
    let sheet = filled_sheet();
    assert!(sheet.metrics.len() > 30, "{}", sheet.metrics.len());
    for metric in &sheet.metrics {
        assert_eq!(keys.get(&metric.name), Some(&metric.label_values.len()), "{metric:?}");
        assert_eq!(metric.label_values.get(..5).unwrap(), ["web", "default", "main", "abc", "image:1"]);
    }
}

#[test]
fn figures_go_by_their_names_in_whole_seconds_and_bytes() {
    let sheet = filled_sheet();
    for (name, extra, expected) in [
        ("container_cpu_usage_seconds_total", &[][..], 3),
        ("container_cpu_cfs_throttled_seconds_total", &[], 2),
        ("container_oom_events_total", &[], 1),
        ("container_memory_max_usage_bytes", &[], 11),
        ("container_pressure_io_waiting_seconds_total", &[], 8),
        ("container_pressure_io_stalled_seconds_total", &[], 4),
        ("container_fs_reads_bytes_total", &["0:999"], 4096),
        ("container_blkio_device_usage_total", &["0:999", "0", "999", "Discard"], 4096),
        ("container_network_receive_packets_dropped_total", &["eth0"], 4),
        ("container_spec_memory_limit_bytes", &[], 64),
    ] {
        let found = sheet
            .metrics
            .iter()
            .find(|metric| metric.name == name && metric.label_values.get(5..).unwrap() == extra);
        let found = found.unwrap_or_else(|| panic!("no {name} {extra:?}"));
        assert_eq!(found.value.as_ref().unwrap().value, expected, "{name}");
    }
    // What was not limited has no limit to tell.
    assert!(!sheet.metrics.iter().any(|metric| metric.name == "container_spec_cpu_period"));
}

#[test]
fn a_device_that_nobody_names_goes_by_its_number() {
    assert_eq!(device_name("0:999999"), "0:999999");
}

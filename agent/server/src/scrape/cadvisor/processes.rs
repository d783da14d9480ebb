//! `container_processes` and what they hold open, and `container_network_*`. Owns names and labels; never
//! measures but for the interfaces that a pod's process sees. Called by [`super::containers`].

use std::collections::HashMap;

use super::{CgroupDetails, Kind, MetricSubject, Of, Text, family, one};
use crate::stats::processes::{Processes, interfaces_of, most_open};
use crate::stats::summary::{InterfaceStats, NetworkStats};

/// Whose limits and network the machine has.
const INIT: u32 = 1;

/// Processes.
pub(super) fn write(rows: &[MetricSubject<'_>], looks: &[CgroupDetails], text: &mut Text) {
    type ProcessesMetric = fn(&Processes) -> Option<u64>;
    let families: [(&str, &str, ProcessesMetric); 3] = [
        ("container_processes", "Processes.", |found| Some(found.count)),
        ("container_file_descriptors", "Open file descriptors.", |found| found.open.map(|open| open.files)),
        ("container_sockets", "Open sockets.", |found| found.open.map(|open| open.sockets)),
    ];
    let members = |row: &MetricSubject<'_>| looks.get(row.at).and_then(|look| look.members.as_ref());
    for (name, help, pick) in families {
        family(text, rows, (name, help, Kind::Gauge), |row| one(members(row).and_then(pick), row.time()));
    }
    let name = ("container_ulimits_soft", "Limits of the first process; -1 is none.", Kind::Gauge);
    family(text, rows, name, |row| {
        let first = match &row.of {
            Of::Machine => Some(INIT),
            Of::Container(_) => members(row).and_then(|found| found.first),
            Of::Pod(_) | Of::Group => None,
        };
        #[expect(clippy::cast_precision_loss, reason = "a number of files")]
        let sample = |limit: i64| (vec![("ulimit", "max_open_files")], limit as f64, row.time());
        first.and_then(most_open).map(sample).into_iter().collect()
    });
}

/// The machine's, and a pod's: containers have none of their own.
pub(super) fn network(
    rows: &[MetricSubject<'_>],
    looks: &[CgroupDetails],
    machine: Option<&NetworkStats>,
    text: &mut Text,
) {
    type InterfaceMetric = fn(&InterfaceStats) -> Option<u64>;
    let families: [(&str, &str, InterfaceMetric); 8] = [
        ("receive_bytes_total", "Bytes received.", |i| i.rx_bytes),
        ("receive_packets_total", "Packets received.", |i| i.rx_packets),
        ("receive_packets_dropped_total", "Packets dropped on their way in.", |i| i.rx_dropped),
        ("receive_errors_total", "Errors of receiving.", |i| i.rx_errors),
        ("transmit_bytes_total", "Bytes sent.", |i| i.tx_bytes),
        ("transmit_packets_total", "Packets sent.", |i| i.tx_packets),
        ("transmit_packets_dropped_total", "Packets dropped on their way out.", |i| i.tx_dropped),
        ("transmit_errors_total", "Errors of sending.", |i| i.tx_errors),
    ];
    let seen = interfaces(rows, looks, machine);
    for (name, help, pick) in families {
        let name = format!("container_network_{name}");
        family(text, rows, (&name, help, Kind::Counter), |row| {
            let Some((found, time)) = seen.get(&row.at) else { return Vec::new() };
            let sample = |interface| {
                let interface: &InterfaceStats = interface;
                let (_, value, time) = one(pick(interface), *time).pop()?;
                Some((vec![("interface", interface.name.as_str())], value, time))
            };
            found.iter().filter_map(sample).collect()
        });
    }
}

/// By row, and when.
fn interfaces(
    rows: &[MetricSubject<'_>],
    looks: &[CgroupDetails],
    machine: Option<&NetworkStats>,
) -> HashMap<usize, (Vec<InterfaceStats>, i64)> {
    let mut seen = HashMap::new();
    for row in rows {
        match &row.of {
            Of::Machine => {
                if let Some(network) = machine {
                    seen.insert(row.at, (network.interfaces.clone(), network.time));
                }
            }
            // One in the network of the node has no network of its own, and the runtime tells none.
            Of::Pod(pod) => {
                let Some(network) = &pod.network else { continue };
                // The pod's containers follow it.
                let first = looks
                    .get(row.at + 1..)
                    .into_iter()
                    .flatten()
                    .take(pod.containers.len())
                    .find_map(|look| look.members.as_ref()?.first);
                let counted = first.and_then(interfaces_of).filter(|found| is_the_same(network, found));
                seen.insert(row.at, (counted.unwrap_or_else(|| network.interfaces.clone()), network.time));
            }
            Of::Container(_) | Of::Group => {}
        }
    }
    seen
}

/// A number of a process may be another's by now: then these are another's interfaces.
fn is_the_same(network: &NetworkStats, found: &[InterfaceStats]) -> bool {
    let follows = |told: &InterfaceStats| {
        found.iter().any(|now| {
            now.name == told.name && now.rx_bytes >= told.rx_bytes && now.tx_bytes >= told.tx_bytes
        })
    };
    network.interfaces.iter().all(follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_another_are_not_the_pods() {
        let eth0 = |rx: u64| InterfaceStats {
            name: "eth0".into(),
            rx_bytes: Some(rx),
            tx_bytes: Some(5),
            ..InterfaceStats::default()
        };
        let told = NetworkStats { interfaces: vec![eth0(10)], ..NetworkStats::default() };
        assert!(is_the_same(&told, &[eth0(10)]) && is_the_same(&told, &[eth0(11)]));
        assert!(!is_the_same(&told, &[eth0(9)]) && !is_the_same(&told, &[]));
    }
}

//! Counters of a pod's interfaces, from the view that /proc gives of pause's network namespace: no
//! namespace is entered. Called by `stats` and `metrics`.

use std::fs;
use std::io;

use gantry_proto::cri;
use gantry_proto::cri::UInt64Value;

use crate::config::IFNAME;
use crate::error::Error;
use crate::store::record::Process;

/// One interface's columns of /proc/net/dev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

/// One direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// Interfaces that are told of. A pod with NET_ADMIN may make 100,000, and the figures of all pods are one
/// message.
const MOST: usize = 256;

/// Interfaces but loopback, the pod's own among them.
pub(crate) fn interfaces(id: &str, pause: Process) -> Result<Vec<Interface>, Error> {
    let wrap = |source: io::Error| Error::Process { id: id.to_owned(), pid: pause.pid, source };
    let text = fs::read_to_string(format!("/proc/{}/net/dev", pause.pid)).map_err(wrap)?;
    // Looked at afterwards: had the pid been given to another meanwhile, it would show now.
    let ticks = gantry_monitor::monitor::start_time_ticks(pause.pid).map_err(|error| wrap(error.source))?;
    if ticks != pause.start_time_ticks {
        return Err(wrap(rustix::io::Errno::SRCH.into()));
    }
    Ok(parse(&text))
}

/// Interfaces but loopback; the default one is eth0, else the first.
pub(super) fn usage(id: &str, pause: Process, timestamp: i64) -> Result<cri::NetworkUsage, Error> {
    let told = |from: Interface| cri::NetworkInterfaceUsage {
        name: from.name,
        rx_bytes: Some(UInt64Value { value: from.received.bytes }),
        rx_errors: Some(UInt64Value { value: from.received.errors }),
        tx_bytes: Some(UInt64Value { value: from.sent.bytes }),
        tx_errors: Some(UInt64Value { value: from.sent.errors }),
    };
    let interfaces: Vec<_> = interfaces(id, pause)?.into_iter().map(told).collect();
    Ok(cri::NetworkUsage {
        timestamp,
        default_interface: interfaces
            .iter()
            .find(|interface| interface.name == IFNAME)
            .or(interfaces.first())
            .cloned(),
        interfaces,
    })
}

/// Lines `name: rx_bytes packets errs drop …(8 columns) tx_bytes packets errs drop …`.
fn parse(text: &str) -> Vec<Interface> {
    let line = |line: &str| -> Option<Interface> {
        let (name, columns) = line.split_once(':')?;
        let columns: Vec<&str> = columns.split_whitespace().collect();
        let column = |at: usize| columns.get(at)?.parse().ok();
        let traffic = |at: usize| {
            Some(Traffic {
                bytes: column(at)?,
                packets: column(at + 1)?,
                errors: column(at + 2)?,
                dropped: column(at + 3)?,
            })
        };
        let name = name.trim();
        let interface = Interface { name: name.to_owned(), received: traffic(0)?, sent: traffic(8)? };
        (name != "lo").then_some(interface)
    };
    let all = || text.lines().filter_map(line);
    let own = all().find(|interface| interface.name == IFNAME);
    // First, or it might be beyond the last that counts.
    let others = all().filter(|interface| interface.name != IFNAME);
    own.into_iter().chain(others).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_left_out_and_the_columns_are_the_kernels() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes …\n\
                    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n\
                  eth0: 1000 10 1 3 0 0 0 0 2000 20 2 4 0 0 0 0\n";
        let found = parse(text);
        let [eth0] = &found[..] else { panic!("{found:?}") };
        assert_eq!(eth0.name, "eth0");
        assert_eq!(eth0.received, Traffic { bytes: 1000, packets: 10, errors: 1, dropped: 3 });
        assert_eq!(eth0.sent, Traffic { bytes: 2000, packets: 20, errors: 2, dropped: 4 });
    }

    #[test]
    fn a_pod_of_many_interfaces_shows_its_own_and_not_all() {
        let line = |name: &str| format!("{name}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n");
        let text: String = (0..1000).map(|number| line(&format!("dummy{number}"))).collect();
        let found = parse(&(text + &line("eth0")));
        assert_eq!((found.len(), found[0].name.as_str()), (MOST, "eth0"));
    }
}

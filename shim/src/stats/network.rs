//! Counters of a pod's interfaces, from the view that /proc gives of pause's network namespace: no
//! namespace is entered. Called by `stats`.

use std::fs;
use std::io;

use gantry_proto::cri;
use gantry_proto::cri::UInt64Value;

use crate::error::Error;
use crate::sandbox::network::IFNAME;
use crate::store::record::Process;

/// All interfaces but loopback; the default one is eth0, else the first.
pub(super) fn usage(id: &str, pause: Process, timestamp: i64) -> Result<cri::NetworkUsage, Error> {
    let wrap = |source: io::Error| Error::Process { id: id.to_owned(), pid: pause.pid, source };
    let text = fs::read_to_string(format!("/proc/{}/net/dev", pause.pid)).map_err(wrap)?;
    // Looked at afterwards: had the pid been given to another meanwhile, it would show now.
    let ticks = crate::monitor::start_time_ticks(pause.pid).map_err(|error| wrap(error.source))?;
    if ticks != pause.start_time_ticks {
        return Err(wrap(rustix::io::Errno::SRCH.into()));
    }
    let interfaces = parse(&text);
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

/// Lines `name: rx_bytes packets errs …(8 columns) tx_bytes packets errs …`.
fn parse(text: &str) -> Vec<cri::NetworkInterfaceUsage> {
    let line = |line: &str| -> Option<cri::NetworkInterfaceUsage> {
        let (name, columns) = line.split_once(':')?;
        let columns: Vec<&str> = columns.split_whitespace().collect();
        let column = |at: usize| Some(UInt64Value { value: columns.get(at)?.parse().ok()? });
        let (name, rx_bytes) = (name.trim(), column(0)?);
        (name != "lo").then(|| cri::NetworkInterfaceUsage {
            name: name.to_owned(),
            rx_bytes: Some(rx_bytes),
            rx_errors: column(2),
            tx_bytes: column(8),
            tx_errors: column(10),
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_left_out_and_the_columns_are_the_kernels() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes …\n\
                    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n\
                  eth0: 1000 10 1 0 0 0 0 0 2000 20 2 0 0 0 0 0\n";
        let found = parse(text);
        let [eth0] = &found[..] else { panic!("{found:?}") };
        let value = |from: &Option<UInt64Value>| from.as_ref().unwrap().value;
        assert_eq!(eth0.name, "eth0");
        assert_eq!((value(&eth0.rx_bytes), value(&eth0.rx_errors)), (1000, 1));
        assert_eq!((value(&eth0.tx_bytes), value(&eth0.tx_errors)), (2000, 2));
    }
}

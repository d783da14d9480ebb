//! What a cgroup has read from and written to disks, device by device. Owns the files of both versions
//! and their forms; never adds devices up. Called by [`crate::scrape`]. Blocks.

use std::path::Path;

use super::machine::Machine;

/// What is counted, by cAdvisor's tables.
///
/// ```text
/// v1, scheduler BFQ:   Bytes, Serviced; with its debugging, Sectors, Time, Merged, Queued, too
/// v1, any other:       Bytes, Serviced
/// v2:                  Bytes, Serviced; with iocost, Usage, Wait, Indebt, Indelay, too
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Bytes,
    Serviced,
    Sectors,
    Time,
    Merged,
    Queued,
    Usage,
    Wait,
    Indebt,
    Indelay,
}

/// One number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlkioEntry {
    /// Of what.
    pub table: Table,
    /// Major and minor number.
    pub device: (u64, u64),
    /// `Read`, `Write`, `Sync`, `Async`, `Discard`, `Total`; `Count` of what has no direction.
    pub operation: String,
    /// Operations, bytes, nanoseconds, or microseconds of iocost.
    pub value: u64,
}

/// The first that says anything is taken whole, as runc's library does. Below them all nothing is counted.
const LEGACY: [&[(Table, &str)]; 4] = [
    &[
        (Table::Sectors, "blkio.bfq.sectors_recursive"),
        (Table::Time, "blkio.bfq.io_service_time_recursive"),
        (Table::Merged, "blkio.bfq.io_merged_recursive"),
        (Table::Queued, "blkio.bfq.io_queued_recursive"),
        (Table::Serviced, "blkio.bfq.io_serviced_recursive"),
        (Table::Bytes, "blkio.bfq.io_service_bytes_recursive"),
    ],
    &[
        (Table::Serviced, "blkio.bfq.io_serviced_recursive"),
        (Table::Bytes, "blkio.bfq.io_service_bytes_recursive"),
    ],
    &[
        (Table::Serviced, "blkio.throttle.io_serviced_recursive"),
        (Table::Bytes, "blkio.throttle.io_service_bytes_recursive"),
    ],
    &[(Table::Serviced, "blkio.throttle.io_serviced"), (Table::Bytes, "blkio.throttle.io_service_bytes")],
];

impl Machine {
    /// Of the cgroup at this path; a device that it never asked for anything is not there.
    pub(crate) fn disk_io(&self, path: &str) -> Vec<BlkioEntry> {
        if self.is_unified() {
            return parse_unified(&self.file("io", path, "io.stat").unwrap_or_default());
        }
        legacy(|name| self.file("blkio", path, name))
    }
}

fn legacy(read: impl Fn(&str) -> Option<String>) -> Vec<BlkioEntry> {
    let entries = |(table, name): &(Table, &str)| -> Vec<BlkioEntry> {
        let text = read(name).unwrap_or_default();
        text.lines().filter_map(|line| entry(*table, line)).collect()
    };
    let group =
        LEGACY.into_iter().find(|group| group.first().is_some_and(|first| !entries(first).is_empty()));
    group.into_iter().flatten().flat_map(entries).collect()
}

/// `8:0 Read 4096`; sectors have no direction. The sum at the end is of no device.
fn entry(table: Table, line: &str) -> Option<BlkioEntry> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (device, operation, value) = match words[..] {
        [device, operation, value] => (device, operation, value),
        [device, value] if device != "Total" => (device, "", value),
        _ => return None,
    };
    Some(BlkioEntry {
        table,
        device: numbers(device)?,
        operation: operation.to_owned(),
        value: value.parse().ok()?,
    })
}

fn numbers(device: &str) -> Option<(u64, u64)> {
    let (major, minor) = device.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
fn parse_unified(stat: &str) -> Vec<BlkioEntry> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let device = numbers(words.next()?)?;
        let word = move |word: &str| {
            let (name, value) = word.split_once('=')?;
            let (table, operation) = match name {
                "rbytes" => (Table::Bytes, "Read"),
                "wbytes" => (Table::Bytes, "Write"),
                "rios" => (Table::Serviced, "Read"),
                "wios" => (Table::Serviced, "Write"),
                "cost.usage" => (Table::Usage, "Count"),
                "cost.wait" => (Table::Wait, "Count"),
                "cost.indebt" => (Table::Indebt, "Count"),
                "cost.indelay" => (Table::Indelay, "Count"),
                _ => return None,
            };
            Some(BlkioEntry { table, device, operation: operation.to_owned(), value: value.parse().ok()? })
        };
        Some(words.filter_map(word).collect::<Vec<_>>())
    };
    stat.lines().filter_map(line).flatten().collect()
}

/// `/dev/NAME`; empty when the device is gone.
pub(crate) fn device_name((major, minor): (u64, u64)) -> String {
    let link = std::fs::read_link(Path::new("/sys/dev/block").join(format!("{major}:{minor}")));
    let name = link.ok().and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(entries: &[BlkioEntry]) -> Vec<String> {
        let line = |entry: &BlkioEntry| {
            let (major, minor) = entry.device;
            format!("{:?} {major}:{minor} {} {}", entry.table, entry.operation, entry.value)
        };
        entries.iter().map(line).collect()
    }

    #[test]
    fn what_the_scheduler_counts_comes_before_what_is_throttled() {
        let serviced = "254:0 Read 12\n254:0 Write 0\n254:0 Total 12\nTotal 12\n";
        let bytes = "254:0 Read 49152\n254:0 Write 0\nTotal 49152\n";
        let throttled = |name: &str| match name {
            "blkio.throttle.io_serviced_recursive" => Some(serviced.to_owned()),
            "blkio.throttle.io_service_bytes_recursive" => Some(bytes.to_owned()),
            // The kernel has the files of BFQ, whichever scheduler a disk has.
            name if name.contains("bfq.io_service") => Some("Total 0\n".to_owned()),
            _ => None,
        };
        let expected = [
            "Serviced 254:0 Read 12",
            "Serviced 254:0 Write 0",
            "Serviced 254:0 Total 12",
            "Bytes 254:0 Read 49152",
            "Bytes 254:0 Write 0",
        ];
        assert_eq!(written(&legacy(throttled)), expected);
        let debugged = |name: &str| match name {
            "blkio.bfq.sectors_recursive" => Some("254:0 96\n".to_owned()),
            "blkio.bfq.io_queued_recursive" => Some("254:0 Total 1\nTotal 1\n".to_owned()),
            name if name.starts_with("blkio.bfq.io_serviced") => Some(serviced.to_owned()),
            name => throttled(name),
        };
        let found = written(&legacy(debugged));
        assert_eq!(&found[..3], ["Sectors 254:0  96", "Queued 254:0 Total 1", "Serviced 254:0 Read 12"]);
        assert!(!found.iter().any(|line| line.starts_with("Bytes")), "{found:?}");
        assert_eq!(legacy(|_| None), []);
    }

    #[test]
    fn version_2_by_the_same_words() {
        let stat = "254:0 rbytes=49152 wbytes=8192 rios=12 wios=1 dbytes=5 dios=6 cost.usage=7\n7:0 \nx\n";
        let expected = [
            "Bytes 254:0 Read 49152",
            "Bytes 254:0 Write 8192",
            "Serviced 254:0 Read 12",
            "Serviced 254:0 Write 1",
            "Usage 254:0 Count 7",
        ];
        assert_eq!(written(&parse_unified(stat)), expected);
        assert_eq!(device_name((4095, 1_048_575)), "");
    }
}

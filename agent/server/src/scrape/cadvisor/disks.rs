//! `container_fs_*` and `container_blkio_*`. Owns names and labels; never measures. Called by
//! [`super::containers`].

use std::collections::BTreeMap;

use super::{CgroupDetails, Kind, MetricSubject, Of, Sample, Text, family};
use crate::stats::blkio::{BlkioEntry, Table, device_name};
use crate::stats::filesystems::{Done, FileSystem};
use crate::stats::summary::{ContainerStats, FsStats};

const NANOSECONDS: f64 = 1e9;
const MICROSECONDS: f64 = 1e6;
const MILLISECONDS: f64 = 1e3;

/// What a family says of a cgroup's devices: which table, which operation, what 1 is divided by.
type FromCgroup = Option<(Table, &'static str, f64)>;
/// And of the machine's file systems.
type FromDisk = Option<(fn(&Done) -> u64, f64)>;

const READ_AND_WRITTEN: [(&str, &str, Kind, FromCgroup, FromDisk); 17] = {
    use Table::{Bytes, Indebt, Indelay, Merged, Queued, Sectors, Serviced, Time, Usage, Wait};
    let count = Kind::Counter;
    [
        ("reads_bytes_total", "Bytes read.", count, Some((Bytes, "Read", 1.0)), None),
        ("reads_total", "Reads.", count, Some((Serviced, "Read", 1.0)), Some((|d| d.reads, 1.0))),
        (
            "sector_reads_total",
            "Sectors read.",
            count,
            Some((Sectors, "Read", 1.0)),
            Some((|d| d.sectors_read, 1.0)),
        ),
        (
            "reads_merged_total",
            "Reads merged.",
            count,
            Some((Merged, "Read", 1.0)),
            Some((|d| d.reads_merged, 1.0)),
        ),
        (
            "read_seconds_total",
            "Seconds of reading.",
            count,
            Some((Time, "Read", NANOSECONDS)),
            Some((|d| d.reading, MILLISECONDS)),
        ),
        ("writes_bytes_total", "Bytes written.", count, Some((Bytes, "Write", 1.0)), None),
        ("writes_total", "Writes.", count, Some((Serviced, "Write", 1.0)), Some((|d| d.writes, 1.0))),
        (
            "sector_writes_total",
            "Sectors written.",
            count,
            Some((Sectors, "Write", 1.0)),
            Some((|d| d.sectors_written, 1.0)),
        ),
        (
            "writes_merged_total",
            "Writes merged.",
            count,
            Some((Merged, "Write", 1.0)),
            Some((|d| d.writes_merged, 1.0)),
        ),
        (
            "write_seconds_total",
            "Seconds of writing.",
            count,
            Some((Time, "Write", NANOSECONDS)),
            Some((|d| d.writing, MILLISECONDS)),
        ),
        ("io_current", "Under way.", Kind::Gauge, Some((Queued, "Total", 1.0)), Some((|d| d.current, 1.0))),
        (
            "io_time_seconds_total",
            "Seconds with something under way.",
            count,
            Some((Time, "Total", NANOSECONDS)),
            Some((|d| d.busy, MILLISECONDS)),
        ),
        (
            "io_time_weighted_seconds_total",
            "The same, for each that was under way.",
            count,
            None,
            Some((|d| d.weighted, MILLISECONDS)),
        ),
        ("io_cost_usage_seconds_total", "Cost used.", count, Some((Usage, "Count", MICROSECONDS)), None),
        ("io_cost_wait_seconds_total", "Cost waited for.", count, Some((Wait, "Count", MICROSECONDS)), None),
        ("io_cost_indebt_seconds_total", "Cost owed.", count, Some((Indebt, "Count", MICROSECONDS)), None),
        (
            "io_cost_indelay_seconds_total",
            "Delay for debts.",
            count,
            Some((Indelay, "Count", MICROSECONDS)),
            None,
        ),
    ]
};

/// Everything of disks.
pub(super) fn write(
    rows: &[MetricSubject<'_>],
    looks: &[CgroupDetails],
    file_systems: &[FileSystem],
    text: &mut Text,
) {
    space(rows, file_systems, text);
    let names: BTreeMap<(u64, u64), String> = looks
        .iter()
        .flat_map(|look| &look.io)
        .map(|entry| (entry.device, device_name(entry.device)))
        .collect();
    for (name, help, kind, of_cgroup, of_disk) in READ_AND_WRITTEN {
        let name = format!("container_fs_{name}");
        family(text, rows, (&name, help, kind), |row| {
            let own = looks.get(row.at).into_iter().flat_map(|look| per_device(&look.io, of_cgroup));
            let mut samples: Vec<Sample<'_>> = own
                .map(|(device, value)| {
                    let device = names.get(&device).map_or("", String::as_str);
                    (vec![("device", device)], value, row.time())
                })
                .collect();
            if let (Of::Machine, Some((pick, unit))) = (&row.of, of_disk) {
                samples.extend(file_systems.iter().map(|found| {
                    (vec![("device", found.device.as_str())], float(pick(&found.done)) / unit, row.time())
                }));
            }
            samples
        });
    }
    devices(rows, looks, &names, text);
}

#[expect(clippy::cast_precision_loss, reason = "bytes and times, as upstream")]
fn float(value: u64) -> f64 {
    value as f64
}

/// A device that a table knows has each operation, if only as 0.
fn per_device(io: &[BlkioEntry], what: FromCgroup) -> BTreeMap<(u64, u64), f64> {
    let mut found = BTreeMap::new();
    let Some((table, operation, unit)) = what else { return found };
    for entry in io.iter().filter(|entry| entry.table == table) {
        let value = found.entry(entry.device).or_insert(0.0);
        if entry.operation == operation {
            *value = float(entry.value) / unit;
        }
    }
    found
}

fn devices<'a>(
    rows: &'a [MetricSubject<'a>],
    looks: &'a [CgroupDetails],
    names: &'a BTreeMap<(u64, u64), String>,
    text: &mut Text,
) {
    let numbers: BTreeMap<(u64, u64), (String, String)> = names
        .keys()
        .map(|(major, minor)| ((*major, *minor), (major.to_string(), minor.to_string())))
        .collect();
    let name = ("container_blkio_device_usage_total", "Bytes of a device.", Kind::Counter);
    family(text, rows, name, |row| {
        let bytes = looks.get(row.at).into_iter().flat_map(|look| &look.io);
        let sample = |entry: &'a BlkioEntry| {
            let (major, minor) = numbers.get(&entry.device)?;
            let device = names.get(&entry.device)?;
            let labels = vec![
                ("device", device.as_str()),
                ("major", major),
                ("minor", minor),
                ("operation", &entry.operation),
            ];
            Some((labels, float(entry.value), row.time()))
        };
        bytes.filter(|entry| entry.table == Table::Bytes).filter_map(sample).collect()
    });
}

/// How full: the machine's disks, and what a container has written to its image.
fn space(rows: &[MetricSubject<'_>], file_systems: &[FileSystem], text: &mut Text) {
    type FsMetric = fn(&FsStats) -> Option<u64>;
    let families: [(&str, &str, FsMetric); 4] = [
        ("container_fs_inodes_free", "Inodes left.", |fs| fs.inodes_free),
        ("container_fs_inodes_total", "Inodes.", |fs| fs.inodes),
        ("container_fs_limit_bytes", "Bytes of the file system.", |fs| fs.capacity_bytes),
        (
            "container_fs_usage_bytes",
            "Bytes in use; of a container, those that it has written to its image.",
            |fs| fs.used_bytes,
        ),
    ];
    for (name, help, pick) in families {
        family(text, rows, (name, help, Kind::Gauge), |row| match &row.of {
            Of::Machine => file_systems
                .iter()
                .filter_map(|fs| {
                    Some((vec![("device", fs.device.as_str())], float(pick(&fs.space)?), row.time()))
                })
                .collect(),
            // Its layer has no size and no inodes of its own.
            Of::Container(ContainerStats { rootfs: Some(fs), .. }) if name == "container_fs_usage_bytes" => {
                pick(fs).map(|used| (vec![("device", "")], float(used), fs.time)).into_iter().collect()
            }
            Of::Container(_) | Of::Pod(_) | Of::Group => Vec::new(),
        });
    }
}

//! `/metrics/cadvisor`: pods and containers by the names that cAdvisor made usual, from the runtime's
//! statistics and one look at each cgroup. Owns the names and labels; never measures. Called by
//! [`super::cadvisor`]. Blocks.

mod disks;
mod processes;

use std::collections::HashMap;
use std::sync::Arc;

use gantry_model::cgroup::names;
use k8s_openapi::api::core::v1::Pod;

use super::{Kind, Summary, Text};
use crate::deps::{OomCounts, SystemVersion};
use crate::stats::beside::Groups;
use crate::stats::blkio::BlkioEntry;
use crate::stats::filesystems;
use crate::stats::group::Detail;
use crate::stats::machine::Machine;
use crate::stats::processes::Processes;
use crate::stats::summary::{ContainerStats, CpuStats, IoStats, MemoryStats, PodStats, PsiStats};

/// What this is.
#[expect(clippy::cast_precision_loss, reason = "bytes of a machine")]
pub(super) fn machine(machine: &Machine, version: &SystemVersion, text: &mut Text) {
    let id = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let boot = id("/proc/sys/kernel/random/boot_id");
    let (machine_id, system) = (id("/etc/machine-id"), id("/sys/class/dmi/id/product_uuid"));
    let labels = [("boot_id", boot.as_str()), ("machine_id", &machine_id), ("system_uuid", &system)];
    let (cores, sockets) = machine.cores();
    for (name, help, value) in [
        ("machine_cpu_cores", "Logical processors.", machine.cpus as f64),
        ("machine_cpu_physical_cores", "Cores.", cores as f64),
        ("machine_cpu_sockets", "Sockets.", sockets as f64),
        ("machine_memory_bytes", "Memory.", machine.memory as f64),
        ("machine_swap_bytes", "Swap.", machine.swap as f64),
    ] {
        text.family(name, help, Kind::Gauge);
        text.sample(name, &labels, value);
    }
    let SystemVersion { kernel, os_image } = version;
    let labels = [
        // cAdvisor is no part of this, and Docker neither.
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", kernel),
        ("osVersion", os_image),
    ];
    text.family("cadvisor_version_info", "What runs here; always 1.", Kind::Gauge);
    text.sample("cadvisor_version_info", &labels, 1.0);
}

/// A pod, a container, or the whole machine, with cAdvisor's labels.
struct MetricSubject<'a> {
    /// Which row, and which look.
    at: usize,
    id: String,
    container: &'a str,
    image: String,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    start: i64,
    cpu: Option<&'a CpuStats>,
    memory: Option<&'a MemoryStats>,
    io: Option<&'a IoStats>,
    of: Of<'a>,
}

enum Of<'a> {
    Machine,
    /// Daemons', or a class of pods.
    Group,
    Pod(&'a PodStats),
    Container(&'a ContainerStats),
}

/// What the cgroup of a row says beyond the runtime's statistics.
struct CgroupDetails {
    members: Option<Processes>,
    io: Vec<BlkioEntry>,
}

impl<'a> MetricSubject<'a> {
    /// Without names and figures.
    fn new(at: usize, id: String, of: Of<'a>) -> Self {
        let image = String::new();
        Self {
            at,
            id,
            container: "",
            image,
            name: "",
            namespace: "",
            pod: "",
            start: 0,
            cpu: None,
            memory: None,
            io: None,
            of,
        }
    }

    fn time(&self) -> i64 {
        self.cpu.map_or(0, |cpu| cpu.time)
    }

    fn labels(&self) -> Vec<(&str, &str)> {
        vec![
            ("container", self.container),
            ("id", &self.id),
            ("image", &self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ]
    }
}

/// The pod's cgroup below that of all pods, as the driver names it.
fn cgroup(pods: &str, pod: Option<&Pod>, uid: &str) -> String {
    let class = pod.and_then(|pod| pod.status.as_ref()).and_then(|status| status.qos_class.as_deref());
    let own = format!("pod{uid}");
    match class {
        Some("Guaranteed") => names::below(pods, &[&own]),
        Some("Burstable") => names::below(pods, &["burstable", &own]),
        _ => names::below(pods, &["besteffort", &own]),
    }
}

fn image(pod: Option<&Pod>, container: &str) -> String {
    let Some(pod) = pod else { return String::new() };
    let statuses = pod.status.iter().flat_map(|status| {
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
            .into_iter()
            .flatten()
            .flatten()
    });
    statuses
        .into_iter()
        .find(|status| status.name == container)
        .map(|status| status.image.clone())
        .unwrap_or_default()
}

fn rows<'a>(
    summary: &'a Summary,
    pods: &'a [Arc<Pod>],
    beside: &'a [ContainerStats],
    tree: &str,
) -> Vec<MetricSubject<'a>> {
    let node = &summary.node;
    let mut rows = vec![MetricSubject {
        start: node.start_time,
        cpu: node.cpu.as_ref(),
        memory: node.memory.as_ref(),
        io: node.io.as_ref(),
        ..MetricSubject::new(0, "/".to_owned(), Of::Machine)
    }];
    rows.extend(beside.iter().enumerate().map(|(index, group)| MetricSubject {
        start: group.start_time,
        cpu: group.cpu.as_ref(),
        memory: group.memory.as_ref(),
        io: group.io.as_ref(),
        ..MetricSubject::new(1 + index, group.id.clone(), Of::Group)
    }));
    for stats in &summary.pods {
        let uid = stats.pod_ref.uid.as_str();
        let api = pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid)).map(AsRef::as_ref);
        let group = cgroup(tree, api, uid);
        rows.push(MetricSubject {
            namespace: &stats.pod_ref.namespace,
            pod: &stats.pod_ref.name,
            start: stats.start_time,
            cpu: stats.cpu.as_ref(),
            memory: stats.memory.as_ref(),
            io: stats.io.as_ref(),
            ..MetricSubject::new(rows.len(), group.clone(), Of::Pod(stats))
        });
        let next = rows.len();
        rows.extend(stats.containers.iter().enumerate().map(|(index, container)| MetricSubject {
            at: next + index,
            id: format!("{group}/{}", container.id),
            container: &container.name,
            image: image(api, &container.name),
            name: &container.id,
            namespace: &stats.pod_ref.namespace,
            pod: &stats.pod_ref.name,
            start: container.start_time,
            cpu: container.cpu.as_ref(),
            memory: container.memory.as_ref(),
            io: container.io.as_ref(),
            of: Of::Container(container),
        }));
    }
    rows
}

/// Extra labels, a value, when it was taken in Unix nanoseconds.
type Sample<'a> = (Vec<(&'a str, &'a str)>, f64, i64);

fn family<'a>(
    text: &mut Text,
    rows: &'a [MetricSubject<'a>],
    (name, help, kind): (&str, &str, Kind),
    pick: impl Fn(&'a MetricSubject<'a>) -> Vec<Sample<'a>>,
) {
    let mut begun = false;
    for row in rows {
        for (more, value, time) in pick(row) {
            if !std::mem::replace(&mut begun, true) {
                text.family(name, help, kind);
            }
            let labels: Vec<_> = row.labels().into_iter().chain(more).collect();
            text.sample_at(name, &labels, value, (time > 0).then_some(time / 1_000_000));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes and times, as upstream")]
fn one<'a>(value: Option<u64>, time: i64) -> Vec<Sample<'a>> {
    value.map(|value| (Vec::new(), value as f64, time)).into_iter().collect()
}

/// Everything of everybody; of `groups` the first is the cgroup of all pods, the rest are daemons'.
pub(super) fn containers(
    summary: Option<&Summary>,
    pods: &[Arc<Pod>],
    (machine, groups): (&Machine, &Groups),
    oom_counts: &OomCounts,
    text: &mut Text,
) {
    let failed = f64::from(u8::from(summary.is_none()));
    text.family("container_scrape_error", "1 when containers could not be looked at, else 0.", Kind::Gauge);
    text.sample("container_scrape_error", &[], failed);
    let Some(summary) = summary else { return };
    let beside = machine.beside_pods(groups);
    let mut rows = rows(summary, pods, &beside, &groups.pods);
    for row in rows.iter_mut().filter(|row| matches!(row.of, Of::Container(_))) {
        // In a scope of its own, or in the pod's: the runtime's choice.
        if let Some((group, id)) = row.id.rsplit_once('/')
            && let Some(found) = machine.in_scope(group, id)
        {
            row.id = found;
        }
    }
    processor(&rows, machine, text);
    memory(&rows, text);
    details(&rows, machine, oom_counts, text);
    let looks: Vec<CgroupDetails> = rows
        .iter()
        .map(|row| CgroupDetails { members: machine.members(&row.id), io: machine.disk_io(&row.id) })
        .collect();
    processes::write(&rows, &looks, text);
    processes::network(&rows, &looks, summary.node.network.as_ref(), text);
    disks::write(&rows, &looks, &filesystems::all(), text);
    rest(&rows, text);
    if machine.tells_pressure() {
        pressure(&rows, text);
    }
}

#[expect(clippy::cast_precision_loss, reason = "times, as upstream")]
fn processor(rows: &[MetricSubject<'_>], machine: &Machine, text: &mut Text) {
    let name = ("container_cpu_usage_seconds_total", "Processor time in seconds.", Kind::Counter);
    family(text, rows, name, |row| {
        let used = row.cpu.and_then(|cpu| Some((cpu.usage_core_nano_seconds?, cpu.time)));
        used.map(|(used, time)| (vec![("cpu", "total")], used as f64 / 1e9, time)).into_iter().collect()
    });
    let held: Vec<_> = rows.iter().map(|row| (&row.id, machine.throttling(&row.id))).collect();
    let of = |row: &MetricSubject<'_>| held.iter().find(|(id, _)| **id == row.id).and_then(|(_, held)| *held);
    for (name, help, pick) in [
        ("container_cpu_cfs_periods_total", "Periods of the quota.", 0),
        ("container_cpu_cfs_throttled_periods_total", "Periods in which it was held back.", 1),
        ("container_cpu_cfs_throttled_seconds_total", "Seconds it was held back.", 2),
    ] {
        family(text, rows, (name, help, Kind::Counter), |row| {
            let time = row.cpu.map_or(0, |cpu| cpu.time);
            // Without a quota there are no periods.
            let values = of(row).filter(|(periods, ..)| *periods > 0);
            let value =
                values.map(|(periods, throttled, seconds)| [periods as f64, throttled as f64, seconds]);
            value
                .and_then(|values| values.get(pick).copied())
                .map(|v| (Vec::new(), v, time))
                .into_iter()
                .collect()
        });
    }
}

fn memory(rows: &[MetricSubject<'_>], text: &mut Text) {
    type MemoryMetric = fn(&MemoryStats) -> Option<u64>;
    let families: [(&str, &str, MemoryMetric); 3] = [
        ("container_memory_rss", "Anonymous memory in bytes.", |memory| memory.rss_bytes),
        ("container_memory_usage_bytes", "Memory in bytes, with everything.", |memory| memory.usage_bytes),
        ("container_memory_working_set_bytes", "Working set in bytes.", |memory| memory.working_set_bytes),
    ];
    for (name, help, pick) in families {
        family(text, rows, (name, help, Kind::Gauge), |row| {
            row.memory.map(|memory| one(pick(memory), memory.time)).unwrap_or_default()
        });
    }
    let name = ("container_memory_failures_total", "Page faults.", Kind::Counter);
    family(text, rows, name, |row| {
        let Some(memory) = row.memory else { return Vec::new() };
        let kinds = [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)];
        let sample = |(kind, value): (&'static str, Option<u64>)| {
            let value = one(value, memory.time).into_iter().next()?;
            Some((vec![("failure_type", kind), ("scope", "container")], value.1, value.2))
        };
        kinds.into_iter().filter_map(sample).collect()
    });
}

/// A cgroup that cannot be seen from here (a virtual machine's) counts no kills: then it is what the
/// runtime tells.
fn detail(row: &MetricSubject<'_>, machine: &Machine, oom_counts: &OomCounts) -> Detail {
    let seen = machine.detail(&row.id);
    Detail { kills: seen.kills.or_else(|| oom_counts(row.name)), ..seen }
}

type DetailMetric = fn(&Detail) -> Option<f64>;

/// What a cgroup's own files say: name, help, kind, and how it is read.
#[expect(clippy::cast_precision_loss, reason = "bytes, as upstream")]
const DETAILS: [(&str, &str, Kind, DetailMetric); 19] = [
    ("container_cpu_system_seconds_total", "Processor time in the kernel.", Kind::Counter, |d| {
        d.system_seconds
    }),
    ("container_cpu_user_seconds_total", "Processor time in programs.", Kind::Counter, |d| d.user_seconds),
    ("container_memory_cache", "Page cache in bytes.", Kind::Gauge, |d| d.cache.map(|n| n as f64)),
    ("container_memory_failcnt", "Times the limit was hit.", Kind::Counter, |d| d.failures.map(|n| n as f64)),
    ("container_memory_kernel_usage", "Memory of the kernel in bytes.", Kind::Gauge, |d| {
        d.kernel.map(|n| n as f64)
    }),
    ("container_memory_mapped_file", "Mapped files in bytes.", Kind::Gauge, |d| d.mapped.map(|n| n as f64)),
    (
        "container_memory_total_active_file_bytes",
        "Files in memory that were used lately.",
        Kind::Gauge,
        |d| d.active_file.map(|n| n as f64),
    ),
    ("container_memory_total_inactive_file_bytes", "Files in memory that were not.", Kind::Gauge, |d| {
        d.inactive_file.map(|n| n as f64)
    }),
    ("container_memory_max_usage_bytes", "The most memory so far.", Kind::Gauge, |d| {
        d.most.map(|n| n as f64)
    }),
    ("container_memory_swap", "Swap in bytes.", Kind::Gauge, |d| d.swap.map(|n| n as f64)),
    ("container_oom_events_total", "Kills for lack of memory.", Kind::Counter, |d| d.kills.map(|n| n as f64)),
    ("container_spec_cpu_period", "Period of the quota.", Kind::Gauge, |d| d.period.map(|n| n as f64)),
    ("container_spec_cpu_quota", "The quota.", Kind::Gauge, |d| d.quota.map(|n| n as f64)),
    ("container_spec_cpu_shares", "Shares.", Kind::Gauge, |d| d.shares.map(|n| n as f64)),
    ("container_spec_memory_limit_bytes", "The most memory.", Kind::Gauge, |d| {
        d.memory_limit.map(|n| n as f64)
    }),
    ("container_spec_memory_reservation_limit_bytes", "Memory that is kept for it.", Kind::Gauge, |d| {
        d.reservation.map(|n| n as f64)
    }),
    ("container_spec_memory_swap_limit_bytes", "The most swap.", Kind::Gauge, |d| {
        d.swap_limit.map(|n| n as f64)
    }),
    ("container_threads", "Threads.", Kind::Gauge, |d| d.threads.map(|n| n as f64)),
    ("container_threads_max", "The most threads.", Kind::Gauge, |d| d.threads_most.map(|n| n as f64)),
];

/// What the runtime does not pass on, from the cgroups themselves.
fn details(rows: &[MetricSubject<'_>], machine: &Machine, oom_counts: &OomCounts, text: &mut Text) {
    let all: HashMap<&str, Detail> =
        rows.iter().map(|row| (row.id.as_str(), detail(row, machine, oom_counts))).collect();
    for (name, help, kind, pick) in DETAILS {
        family(text, rows, (name, help, kind), |row| {
            let value = all.get(row.id.as_str()).and_then(pick);
            // What is set is set, whenever it was looked at.
            let time =
                if name.starts_with("container_spec_") { 0 } else { row.cpu.map_or(0, |cpu| cpu.time) };
            value.map(|value| (Vec::new(), value, time)).into_iter().collect()
        });
    }
}

#[expect(clippy::cast_precision_loss, reason = "times, as upstream")]
fn rest(rows: &[MetricSubject<'_>], text: &mut Text) {
    family(text, rows, ("container_start_time_seconds", "Start in Unix time.", Kind::Gauge), |row| {
        (row.start > 0).then(|| (Vec::new(), (row.start / 1_000_000_000) as f64, 0)).into_iter().collect()
    });
    family(text, rows, ("container_last_seen", "When it was last looked at.", Kind::Gauge), |row| {
        row.cpu.map(|cpu| (Vec::new(), (cpu.time / 1_000_000_000) as f64, cpu.time)).into_iter().collect()
    });
}

fn pressure(rows: &[MetricSubject<'_>], text: &mut Text) {
    type PressureMetric = for<'a> fn(&MetricSubject<'a>) -> Option<(&'a PsiStats, i64)>;
    let kinds: [(&str, PressureMetric); 3] = [
        ("cpu", |row| row.cpu.and_then(|cpu| Some((cpu.psi.as_ref()?, cpu.time)))),
        ("memory", |row| row.memory.and_then(|memory| Some((memory.psi.as_ref()?, memory.time)))),
        ("io", |row| row.io.and_then(|io| Some((io.psi.as_ref()?, io.time)))),
    ];
    for (what, pick) in kinds {
        for (word, help) in [
            ("stalled", "Seconds in which nothing went on"),
            ("waiting", "Seconds in which something waited"),
        ] {
            let name = format!("container_pressure_{what}_{word}_seconds_total");
            family(text, rows, (&name, &format!("{help} for lack of {what}."), Kind::Counter), |row| {
                let Some((psi, time)) = pick(row) else { return Vec::new() };
                let micros = if word == "stalled" { psi.full.total } else { psi.some.total };
                one(Some(micros), time)
                    .into_iter()
                    .map(|(labels, value, time)| (labels, value / 1e6, time))
                    .collect()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summary::{InterfaceStats, NetworkStats, PodReference, PsiData};
    use serde_json::json;

    #[test]
    fn containers_by_the_usual_names() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "uid": "u", "name": "web", "namespace": "ns" },
            "status": { "qosClass": "Burstable", "containerStatuses": [
                { "name": "c", "image": "nginx:1", "imageID": "", "ready": true, "restartCount": 0 } ] },
        }))
        .unwrap();
        let time = 1_700_000_000_000_000_000;
        let psi =
            PsiStats { full: PsiData { total: 2_000_000, ..PsiData::default() }, some: PsiData::default() };
        let cpu = CpuStats {
            time,
            usage_core_nano_seconds: Some(2_000_000_000),
            psi: Some(psi),
            ..CpuStats::default()
        };
        let container = ContainerStats {
            name: "c".into(),
            id: "abc".into(),
            cpu: Some(cpu),
            ..ContainerStats::default()
        };
        let eth0 = InterfaceStats { name: "eth0".into(), rx_bytes: Some(7), ..InterfaceStats::default() };
        let stats = PodStats {
            pod_ref: PodReference { name: "web".into(), namespace: "ns".into(), uid: "u".into() },
            containers: vec![container],
            network: Some(NetworkStats { time, default: eth0.clone(), interfaces: vec![eth0] }),
            ..PodStats::default()
        };
        let summary = Summary { pods: vec![stats], ..Summary::default() };
        let mut text = Text::new();
        let machine = Machine::new().unwrap();
        let pods = [Arc::new(pod)];
        let oom_counts: OomCounts = Arc::new(|container| (container == "abc").then_some(2));
        let groups = Groups { pods: "/kubepods".to_owned(), daemons: Vec::new() };
        containers(Some(&summary), &pods, (&machine, &groups), &oom_counts, &mut text);
        let text = text.finish();
        let of = "container=\"c\",id=\"/kubepods/burstable/podu/abc\",image=\"nginx:1\",name=\"abc\",namespace=\"ns\",pod=\"web\"";
        let mut told = Text::new();
        pressure(&rows(&summary, &pods, &[], "/kubepods"), &mut told);
        let text = text + &told.finish();
        for line in [
            format!("container_cpu_usage_seconds_total{{{of},cpu=\"total\"}} 2 1700000000000"),
            format!("container_pressure_cpu_stalled_seconds_total{{{of}}} 2 1700000000000"),
            "container_network_receive_bytes_total{container=\"\",id=\"/kubepods/burstable/podu\",image=\"\",name=\"\",\
             namespace=\"ns\",pod=\"web\",interface=\"eth0\"} 7 1700000000000".to_owned(),
            // Its cgroup cannot be seen: what the runtime told counts.
            format!("container_oom_events_total{{{of}}} 2 1700000000000"),
            "container_scrape_error 0".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
    }

    /// With `cgroupRoot: /x` nothing was found below /kubepods.
    #[test]
    fn ids_are_cgroups_and_those_of_pods_are_below_the_root_of_pods() {
        let machine = Machine::new().unwrap();
        let group = |path: &str| machine.detail(path).user_seconds.is_some();
        // A tree that is there, wherever this runs: the machine's own cgroups.
        let (uid, tree) = ("u", "/x/kubepods");
        let ids: Vec<String> = ["Guaranteed", "Burstable", "BestEffort"]
            .map(|class| {
                let pod = json!({ "metadata": {}, "status": { "qosClass": class } });
                cgroup(tree, Some(&serde_json::from_value(pod).unwrap()), uid)
            })
            .into();
        assert_eq!(ids, ["/x/kubepods/podu", "/x/kubepods/burstable/podu", "/x/kubepods/besteffort/podu"]);
        assert!(group("/") && !group("/x/kubepods/podu"));
        let of_pod = PodStats {
            pod_ref: PodReference { name: "web".into(), namespace: "ns".into(), uid: "u".into() },
            containers: vec![ContainerStats { id: "abc".into(), ..ContainerStats::default() }],
            ..PodStats::default()
        };
        let summary = Summary { pods: vec![of_pod], ..Summary::default() };
        let service =
            ContainerStats { id: "/system.slice/kubelet.service".into(), ..ContainerStats::default() };
        let beside = [service];
        let rows = rows(&summary, &[], &beside, tree);
        assert!(rows.iter().enumerate().all(|(index, row)| row.at == index), "each has its own look");
        let rows: Vec<String> = rows.into_iter().map(|row| row.id).collect();
        let wanted = [
            "/",
            "/system.slice/kubelet.service",
            "/x/kubepods/besteffort/podu",
            "/x/kubepods/besteffort/podu/abc",
        ];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn the_machine_and_what_runs_on_it() {
        let mut text = Text::new();
        let system = SystemVersion { kernel: "6.1.0".into(), os_image: "Debian 12".into() };
        super::machine(&Machine::new().unwrap(), &system, &mut text);
        let text = text.finish();
        assert!(!text.contains("machine_scrape_error"), "{text}");
        let info = text.lines().find(|line| line.starts_with("cadvisor_version_info{")).unwrap();
        assert!(info.contains("kernelVersion=\"6.1.0\",osVersion=\"Debian 12\""), "{info}");
    }

    #[test]
    fn processes_and_disks_of_a_container() {
        use crate::stats::blkio::Table;
        use crate::stats::filesystems::{Done, FileSystem};
        use crate::stats::processes::Open;
        use crate::stats::summary::FsStats;

        let container = ContainerStats { name: "c".into(), id: "abc".into(), ..ContainerStats::default() };
        let stats = PodStats { containers: vec![container], ..PodStats::default() };
        let summary = Summary { pods: vec![stats], ..Summary::default() };
        let rows = rows(&summary, &[], &[], "/kubepods");
        let entry = |table, operation: &str, value| BlkioEntry {
            table,
            device: (4095, 7),
            operation: operation.into(),
            value,
        };
        let members = Processes { count: 2, open: Some(Open { files: 9, sockets: 3 }), first: None };
        let none = || CgroupDetails { members: None, io: Vec::new() };
        let io = vec![entry(Table::Bytes, "Read", 4096), entry(Table::Serviced, "Write", 1)];
        let looks = [none(), none(), CgroupDetails { members: Some(members), io }];
        let space = FsStats { inodes: Some(50), ..FsStats::default() };
        let done = Done { busy: 1500, ..Done::default() };
        let disk = FileSystem { device: "/dev/vda".into(), space, done };
        let mut text = Text::new();
        processes::write(&rows, &looks, &mut text);
        disks::write(&rows, &looks, &[disk], &mut text);
        let text = text.finish();
        let of = "container=\"c\",id=\"/kubepods/besteffort/pod/abc\",image=\"\",name=\"abc\",namespace=\"\",pod=\"\"";
        let root = "container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\",device=\"/dev/vda\"";
        for line in [
            format!("container_processes{{{of}}} 2"),
            format!("container_file_descriptors{{{of}}} 9"),
            format!("container_sockets{{{of}}} 3"),
            format!("container_fs_reads_bytes_total{{{of},device=\"\"}} 4096"),
            // What the device's table does not say is 0, as cAdvisor.
            format!("container_fs_writes_bytes_total{{{of},device=\"\"}} 0"),
            format!("container_fs_writes_total{{{of},device=\"\"}} 1"),
            format!(
                "container_blkio_device_usage_total{{{of},device=\"\",major=\"4095\",minor=\"7\",operation=\"Read\"}} 4096"
            ),
            format!("container_fs_inodes_total{{{root}}} 50"),
            format!("container_fs_io_time_seconds_total{{{root}}} 1.5"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
        let ulimits = text.lines().filter(|line| line.starts_with("container_ulimits_soft{"));
        // The machine's alone: this container has no process any more.
        assert!(
            ulimits.clone().count() == 1 && ulimits.clone().all(|line| line.contains("id=\"/\"")),
            "{text}"
        );
    }
}

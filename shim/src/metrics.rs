//! Metrics of pods and containers by cAdvisor's names, for ListMetricDescriptors and ListPodSandboxMetrics. Owns
//! which figure goes by which name; the reading is `cgroup`'s, `stats`' and `processes`'. Blocks: the RPC
//! handlers call it off the async threads.
//!
//! CRI's values are whole numbers, so times are whole seconds, as with containerd.

mod names;
mod processes;

use std::fs;

use gantry_base::error::chain;
use gantry_proto::cri;

use crate::cgroup::Cgroup;
use crate::cgroup::detail::{Detail, Transfer};
use crate::cgroup::stats::{Psi, Usage};
use crate::error::Error;
use crate::node::Node;
use crate::stats::disk;
use crate::stats::network::{self, Traffic};
use crate::store::record::{ContainerRecord, PodName};
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use gantry_base::timeline::unix_nanos;
use names::Family;

const NANOS: u64 = 1_000_000_000;
const MICROS: u64 = 1_000_000;

/// All metrics that there may be.
#[must_use]
pub(crate) fn descriptors() -> Vec<cri::MetricDescriptor> {
    names::ALL.iter().map(Family::descriptor).collect()
}

/// Metrics of all ready sandboxes and what runs in them. One that ends under our eyes is left out, and
/// spoils nothing for the others.
#[must_use]
pub(crate) fn sandboxes(node: &Node) -> Vec<cri::PodSandboxMetrics> {
    let ready = node.store.sandboxes().into_iter().filter(|pod| pod.state() == SandboxState::Ready);
    let ready: Vec<_> = ready.collect();
    let own: Vec<_> = ready.iter().flat_map(|pod| node.store.containers_of(&pod.id)).collect();
    // Those are shown here that run.
    let running = own.iter().filter(|container| matches!(container.state(), ContainerState::Running(_)));
    disk::measure(node, running.map(AsRef::as_ref));
    ready.iter().map(|pod| sandbox(node, pod)).collect()
}

fn sandbox(node: &Node, sandbox: &Sandbox) -> cri::PodSandboxMetrics {
    let record = sandbox.record();
    let mut sheet = Sheet::new(&record.pod, "", &sandbox.id, "");
    if let (true, Some(pause)) = (record.network.is_some(), record.pause) {
        match network::interfaces(&sandbox.id, pause) {
            Ok(interfaces) => interfaces.iter().for_each(|found| sheet.interface(found)),
            Err(error) => tracing::debug!(sandbox = sandbox.id, "no network metrics: {}", chain(&error)),
        }
    }
    let of_one = |container: &std::sync::Arc<Container>| match of_container(node, &record.pod, container) {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(container = container.id, "no metrics: {}", chain(&error));
            None
        }
    };
    cri::PodSandboxMetrics {
        pod_sandbox_id: sandbox.id.clone(),
        metrics: sheet.metrics,
        container_metrics: node.store.containers_of(&sandbox.id).iter().filter_map(of_one).collect(),
    }
}

/// None for one that does not run.
fn of_container(
    node: &Node,
    pod: &PodName,
    container: &Container,
) -> Result<Option<cri::ContainerMetrics>, Error> {
    if !matches!(container.state(), ContainerState::Running(_)) {
        return Ok(None);
    }
    let record = container.record();
    let cgroup = Cgroup::new(&node.layout, &record.cgroup)?;
    let (usage, detail) = (cgroup.usage()?, cgroup.detail()?);
    let mut sheet = Sheet::new(pod, &record.name, &container.id, &record.image);
    sheet.life(&record);
    sheet.cpu(&usage, &detail);
    sheet.memory(&usage, &detail);
    sheet.pressure(&usage);
    sheet.io(&detail);
    sheet.filesystem(node, container)?;
    sheet.processes(&cgroup, &usage, &detail, &record);
    sheet.spec(&record.linux_resources()?, &detail);
    Ok(Some(cri::ContainerMetrics { container_id: container.id.clone(), metrics: sheet.metrics }))
}

/// The metrics of one thing, which share labels and time.
struct Sheet {
    labels: [String; names::BASE.len()],
    at: i64,
    metrics: Vec<cri::Metric>,
}

impl Sheet {
    fn new(pod: &PodName, container: &str, id: &str, image: &str) -> Self {
        let labels = [&pod.name, &pod.namespace, container, id, image].map(str::to_owned);
        Self { labels, at: unix_nanos(), metrics: Vec::new() }
    }

    /// `extra` goes with the family's own labels.
    fn put_with<const N: usize>(&mut self, family: &Family, extra: [&str; N], value: u64) {
        let extra = extra.map(str::to_owned);
        self.metrics.push(cri::Metric {
            name: family.name.to_owned(),
            timestamp: self.at,
            metric_type: family.kind.into(),
            label_values: self.labels.iter().chain(&extra).cloned().collect(),
            value: Some(cri::UInt64Value { value }),
        });
    }

    /// Nothing where there is no figure.
    fn put(&mut self, family: &Family, value: impl Into<Option<u64>>) {
        if let Some(value) = value.into() {
            self.put_with(family, [], value);
        }
    }

    fn interface(&mut self, of: &network::Interface) {
        let directions: [(&Traffic, [Family; 4]); 2] = [
            (
                &of.received,
                [names::RECEIVE_BYTES, names::RECEIVE_PACKETS, names::RECEIVE_DROPPED, names::RECEIVE_ERRORS],
            ),
            (
                &of.sent,
                [
                    names::TRANSMIT_BYTES,
                    names::TRANSMIT_PACKETS,
                    names::TRANSMIT_DROPPED,
                    names::TRANSMIT_ERRORS,
                ],
            ),
        ];
        for (traffic, families) in directions {
            let figures = [traffic.bytes, traffic.packets, traffic.dropped, traffic.errors];
            for (family, figure) in families.iter().zip(figures) {
                self.put_with(family, [&of.name], figure);
            }
        }
    }

    fn life(&mut self, record: &ContainerRecord) {
        let seconds = |nanos: i64| u64::try_from(nanos).unwrap_or(0) / NANOS;
        self.put(&names::LAST_SEEN, seconds(self.at));
        self.put(&names::START_TIME, record.started.map(|started| seconds(started.at)));
    }

    fn cpu(&mut self, usage: &Usage, detail: &Detail) {
        let seconds = |nanos: Option<u64>| nanos.map(|nanos| nanos / NANOS);
        self.put(&names::CPU_USAGE, seconds(usage.cpu_nanos));
        self.put(&names::CPU_USER, seconds(detail.cpu_user));
        self.put(&names::CPU_SYSTEM, seconds(detail.cpu_system));
        if let Some(throttling) = detail.throttling {
            self.put(&names::CFS_PERIODS, throttling.periods);
            self.put(&names::CFS_THROTTLED, throttling.throttled);
            self.put(&names::CFS_THROTTLED_TIME, throttling.nanos / NANOS);
        }
    }

    fn memory(&mut self, usage: &Usage, detail: &Detail) {
        if let Some(memory) = &usage.memory {
            self.put(&names::MEMORY_USAGE, memory.usage);
            self.put(&names::MEMORY_WORKING_SET, memory.working_set);
            self.put(&names::MEMORY_RSS, memory.rss);
            self.put_with(&names::MEMORY_FAILURES, ["pgfault", "container"], memory.page_faults);
            self.put_with(&names::MEMORY_FAILURES, ["pgmajfault", "container"], memory.major_page_faults);
        }
        self.put(&names::MEMORY_SWAP, usage.swap.as_ref().map(|swap| swap.usage));
        if let Some(memory) = &detail.memory {
            self.put(&names::MEMORY_CACHE, memory.cache);
            self.put(&names::MEMORY_MAPPED, memory.mapped_file);
            self.put(&names::MEMORY_ACTIVE_FILE, memory.active_file);
            self.put(&names::MEMORY_INACTIVE_FILE, memory.inactive_file);
            self.put(&names::MEMORY_KERNEL, memory.kernel);
            self.put(&names::MEMORY_PEAK, memory.peak);
            self.put(&names::MEMORY_FAILCNT, memory.failures);
        }
        self.put(&names::OOM_EVENTS, detail.oom_kills);
    }

    fn pressure(&mut self, usage: &Usage) {
        let of = &usage.pressure;
        for (psi, waiting, stalled) in [
            (of.cpu, names::PRESSURE_CPU_WAITING, names::PRESSURE_CPU_STALLED),
            (of.memory, names::PRESSURE_MEMORY_WAITING, names::PRESSURE_MEMORY_STALLED),
            (of.io, names::PRESSURE_IO_WAITING, names::PRESSURE_IO_STALLED),
        ] {
            let Some(Psi { some, full }) = psi else { continue };
            self.put(&waiting, some.total / MICROS);
            self.put(&stalled, full.total / MICROS);
        }
    }

    fn io(&mut self, detail: &Detail) {
        for ((number, operation), Transfer { bytes, operations }) in &detail.io {
            let Some((major, minor)) = number.split_once(':') else { continue };
            let device = device_name(number);
            self.put_with(&names::BLKIO, [&device, major, minor, operation], *bytes);
            let (sums, counts) = match operation.as_str() {
                "Read" => (names::FS_READ_BYTES, names::FS_READS),
                "Write" => (names::FS_WRITTEN_BYTES, names::FS_WRITES),
                _ => continue,
            };
            self.put_with(&sums, [&device], *bytes);
            self.put_with(&counts, [&device], *operations);
        }
    }

    /// Of the container's root: what it has written itself, on the file system of the runtime's folder.
    fn filesystem(&mut self, node: &Node, container: &Container) -> Result<(), Error> {
        let written = disk::usage(node, container);
        let disk = rustix::fs::statvfs(&node.config.root).map_err(|errno| Error::Files {
            what: "look at the file system of",
            path: node.config.root.clone(),
            source: errno.into(),
        })?;
        if let Some(used) = written.used_bytes {
            self.put_with(&names::FS_USAGE, ["/"], used.value);
        }
        for (family, value) in [
            (names::FS_LIMIT, disk.f_blocks.saturating_mul(disk.f_frsize)),
            (names::FS_INODES, disk.f_files),
            (names::FS_INODES_FREE, disk.f_ffree),
        ] {
            self.put_with(&family, ["/"], value);
        }
        Ok(())
    }

    fn processes(&mut self, cgroup: &Cgroup, usage: &Usage, detail: &Detail, record: &ContainerRecord) {
        self.put(&names::THREADS, usage.pids);
        self.put(&names::THREADS_MAX, detail.task_limit);
        let pids = cgroup.processes(processes::MOST);
        self.put(&names::PROCESSES, pids.len() as u64);
        if let Some(open) = processes::open_files(&pids) {
            self.put(&names::FILE_DESCRIPTORS, open.files);
            self.put(&names::SOCKETS, open.sockets);
        }
        let limit = record.started.and_then(|started| processes::open_files_limit(started.process));
        if let Some(limit) = limit {
            self.put_with(&names::ULIMITS, ["RLIMIT_NOFILE"], limit);
        }
    }

    /// What the container was given; nothing for what is not limited.
    fn spec(&mut self, limits: &cri::LinuxContainerResources, detail: &Detail) {
        let set = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
        self.put(&names::SPEC_CPU_PERIOD, set(limits.cpu_period));
        self.put(&names::SPEC_CPU_SHARES, set(limits.cpu_shares));
        self.put(&names::SPEC_MEMORY, set(limits.memory_limit_in_bytes));
        self.put(&names::SPEC_SWAP, set(limits.memory_swap_limit_in_bytes));
        self.put(&names::SPEC_RESERVATION, detail.memory.and_then(|memory| memory.reservation));
    }
}

/// `/dev/NAME` of `MAJOR:MINOR`; the number where sysfs knows no name.
fn device_name(number: &str) -> String {
    let event = fs::read_to_string(format!("/sys/dev/block/{number}/uevent")).unwrap_or_default();
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map_or_else(|| number.to_owned(), |name| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests;

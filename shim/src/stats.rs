//! What containers and pods use, as CRI messages: cgroups, the writable layer, the pod's interfaces.
//! Owns when a number is measured anew and how rates come about; never a limit. Blocks: the RPC
//! handlers call it off the async threads, for half a second at most while layers are being measured.

pub(crate) mod disk;
pub(crate) mod network;

use gantry_base::error::chain;
use gantry_proto::cri;
use gantry_proto::cri::UInt64Value;

use crate::cgroup::rate::Rate;
use crate::cgroup::{Cgroup, stats as used};
use crate::error::Error;
use crate::node::Node;
use crate::status;
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use gantry_base::timeline::unix_nanos;

#[expect(clippy::unnecessary_wraps, reason = "the type of CRI's fields")]
fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

/// A container's usage, and how many tasks it has.
struct MeasuredContainer {
    stats: cri::ContainerStats,
    tasks: u64,
}

/// One running container.
///
/// # Errors
/// When it does not run, as containerd has it, or its cgroup can't be read.
pub(crate) fn container(node: &Node, container: &Container) -> Result<cri::ContainerStats, Error> {
    let state = container.state();
    if !matches!(state, ContainerState::Running(_)) {
        return Err(Error::WrongState {
            id: container.id.clone(),
            state: state.reason_text(),
            wanted: "running",
        });
    }
    disk::measure(node, [container]);
    measure(node, container).map(|measured| measured.stats)
}

/// All containers that the filter lets through; those that do not run show their writable layer only.
pub(crate) fn containers(node: &Node, filter: &cri::ContainerStatsFilter) -> Vec<cri::ContainerStats> {
    let full = |id: &str, found: Option<String>| found.unwrap_or_else(|| id.to_owned());
    let id = full(&filter.id, node.store.container(&filter.id).ok().map(|found| found.id.clone()));
    let sandbox = full(
        &filter.pod_sandbox_id,
        node.store.sandbox(&filter.pod_sandbox_id).ok().map(|found| found.id.clone()),
    );
    let wanted = node.store.containers().into_iter().filter(|container| {
        (id.is_empty() || container.id == id)
            && (sandbox.is_empty() || container.sandbox_id == sandbox)
            && status::matches_selector(&container.record().labels, &filter.label_selector)
    });
    let wanted: Vec<_> = wanted.collect();
    disk::measure(node, wanted.iter().map(AsRef::as_ref));
    wanted
        .iter()
        .filter_map(|container| measure_for_list(node, container))
        .map(|measured| measured.stats)
        .collect()
}

/// For a list: one that ended under our eyes must not spoil the others.
fn measure_for_list(node: &Node, container: &Container) -> Option<MeasuredContainer> {
    match measure(node, container) {
        Ok(measured) => Some(measured),
        Err(_) if container.is_final() => measure(node, container).ok(),
        Err(error) => {
            tracing::debug!(container = container.id, "no stats: {}", chain(&error));
            None
        }
    }
}

fn measure(node: &Node, container: &Container) -> Result<MeasuredContainer, Error> {
    let record = container.record();
    let mut stats = cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: record.id.clone(),
            metadata: Some(status::container_metadata(&record)),
            labels: record.labels.clone(),
            annotations: record.annotations.clone(),
        }),
        writable_layer: Some(disk::usage(node, container)),
        ..cri::ContainerStats::default()
    };
    if !matches!(container.state(), ContainerState::Running(_)) {
        return Ok(MeasuredContainer { stats, tasks: 0 });
    }
    let usage = Cgroup::new(&node.layout, &record.cgroup)?.usage()?;
    let at = unix_nanos();
    stats.cpu = cpu(&usage, at, &container.rate);
    stats.memory = memory(&usage, at);
    stats.swap = swap(&usage, at);
    stats.io = io(&usage, at);
    Ok(MeasuredContainer { stats, tasks: usage.pids.unwrap_or(0) })
}

/// A pod and its containers.
///
/// # Errors
/// When it is not ready, as containerd has it, or its cgroup can't be read.
pub(crate) fn sandbox(node: &Node, sandbox: &Sandbox) -> Result<cri::PodSandboxStats, Error> {
    if sandbox.state() != SandboxState::Ready {
        return Err(Error::NoPodStats(sandbox.id.clone()));
    }
    disk::measure(node, node.store.containers_of(&sandbox.id).iter().map(AsRef::as_ref));
    measure_pod(node, sandbox)
}

fn measure_pod(node: &Node, sandbox: &Sandbox) -> Result<cri::PodSandboxStats, Error> {
    let record = sandbox.record();
    let usage = Cgroup::new(&node.layout, &record.cgroup_parent)?.usage()?;
    let at = unix_nanos();
    let own: Vec<MeasuredContainer> = node
        .store
        .containers_of(&sandbox.id)
        .iter()
        .filter_map(|container| measure_for_list(node, container))
        .collect();
    let network = match (record.network.is_some(), record.pause) {
        (true, Some(pause)) => Some(network::usage(&sandbox.id, pause, at)?),
        _ => None,
    };
    Ok(cri::PodSandboxStats {
        linux: Some(cri::LinuxPodSandboxStats {
            cpu: cpu(&usage, at, &sandbox.rate),
            memory: memory(&usage, at),
            network,
            process: Some(cri::ProcessUsage {
                timestamp: at,
                process_count: value(own.iter().map(|container| container.tasks).sum()),
            }),
            containers: own.into_iter().map(|container| container.stats).collect(),
            io: io(&usage, at),
        }),
        attributes: Some(cri::PodSandboxAttributes {
            id: record.id.clone(),
            metadata: Some(status::pod_metadata(&record.pod)),
            labels: record.labels.clone(),
            annotations: record.annotations.clone(),
        }),
        windows: None,
    })
}

/// All ready pods that the filter lets through.
pub(crate) fn sandboxes(node: &Node, filter: &cri::PodSandboxStatsFilter) -> Vec<cri::PodSandboxStats> {
    let id = node.store.sandbox(&filter.id).map_or_else(|_| filter.id.clone(), |found| found.id.clone());
    let wanted = node.store.sandboxes().into_iter().filter(|sandbox| {
        sandbox.state() == SandboxState::Ready
            && (id.is_empty() || sandbox.id == id)
            && status::matches_selector(&sandbox.record().labels, &filter.label_selector)
    });
    let wanted: Vec<_> = wanted.collect();
    let own: Vec<_> = wanted.iter().flat_map(|pod| node.store.containers_of(&pod.id)).collect();
    disk::measure(node, own.iter().map(AsRef::as_ref));
    wanted
        .iter()
        .filter_map(|pod| match measure_pod(node, pod) {
            Ok(stats) => Some(stats),
            Err(error) => {
                tracing::debug!(sandbox = pod.id, "no stats: {}", chain(&error));
                None
            }
        })
        .collect()
}

fn cpu(usage: &used::Usage, timestamp: i64, rate: &Rate) -> Option<cri::CpuUsage> {
    let total = usage.cpu_nanos?;
    Some(cri::CpuUsage {
        timestamp,
        usage_core_nano_seconds: value(total),
        usage_nano_cores: rate.next(timestamp, total).map(|value| UInt64Value { value }),
        psi: usage.pressure.cpu.map(psi),
    })
}

fn memory(usage: &used::Usage, timestamp: i64) -> Option<cri::MemoryUsage> {
    let memory = usage.memory.as_ref()?;
    Some(cri::MemoryUsage {
        timestamp,
        working_set_bytes: value(memory.working_set),
        available_bytes: value(memory.limit.map_or(0, |limit| limit.saturating_sub(memory.working_set))),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.rss),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi: usage.pressure.memory.map(psi),
    })
}

fn swap(usage: &used::Usage, timestamp: i64) -> Option<cri::SwapUsage> {
    let swap = usage.swap.as_ref()?;
    Some(cri::SwapUsage {
        timestamp,
        swap_available_bytes: swap.limit.map(|limit| UInt64Value { value: limit.saturating_sub(swap.usage) }),
        swap_usage_bytes: value(swap.usage),
    })
}

fn io(usage: &used::Usage, timestamp: i64) -> Option<cri::IoUsage> {
    usage.pressure.io.map(|io| cri::IoUsage { timestamp, psi: Some(psi(io)) })
}

fn psi(from: used::Psi) -> cri::PsiStats {
    let data = |stall: used::Stall| cri::PsiData {
        // The kernel counts microseconds, CRI nanoseconds.
        total: stall.total.saturating_mul(1000),
        avg10: stall.averages[0],
        avg60: stall.averages[1],
        avg300: stall.averages[2],
    };
    cri::PsiStats { full: Some(data(from.full)), some: Some(data(from.some)) }
}

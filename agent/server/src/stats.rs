//! How much the machine, its pods and their volumes use: `/stats/summary`, and what the metrics
//! endpoints make of it. Owns the samples that rates are made from and the sizes of volumes, which are
//! measured now and then; pods' and containers' numbers are the runtime's. Called by [`super::serve`]
//! and [`super::scrape`].

pub mod beside;
pub mod blkio;
pub mod disk;
pub mod filesystems;
pub mod group;
pub mod machine;
mod pods;
pub mod processes;
mod rates;
mod runtime;
pub mod summary;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use gantry_base::error::chain;
use gantry_metrics::Metrics;
use gantry_model::cgroup::names::{self, Driver};
use gantry_model::drain::DrainWatcher;

use super::cri::{Cri, RuntimeConnection};
use super::node_pods::NodePods;
use beside::Groups;
use machine::Machine;
use rates::Rates;
use summary::{ContainerStats, NodeStats, PodStats, RuntimeStats, Summary, VolumeStats};
use volumes::How;

/// How often the machine itself is sampled, as cAdvisor's housekeeping.
const SAMPLE: Duration = Duration::from_secs(10);

/// A driver has so long to say how full a volume is.
const DRIVER_PATIENCE: Duration = Duration::from_secs(30);

/// How much is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// `only_cpu_and_memory`: cheap enough for every scrape.
    CpuAndMemory,
    /// Disks and networks, too.
    All,
}

/// Where to look.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// podLogsDir.
    pub pod_logs: PathBuf,
    /// cgroupRoot, `/` by default.
    pub cgroup_root: String,
    /// How cgroups are named below it.
    pub driver: Driver,
    /// `--runtime-cgroups`; may be empty.
    pub runtime_cgroups: String,
    /// systemCgroups; may be empty.
    pub system_cgroups: String,
    /// volumeStatsAggPeriod; nothing is measured when 0.
    pub volume_period: Duration,
}

/// What statistics are made of, beside the machine.
#[derive(Debug, Clone, Copy)]
pub struct StatsSources<'a> {
    /// The node's name.
    pub node_name: &'a str,
    /// The agent's pods.
    pub pods: &'a dyn NodePods,
    /// The runtime.
    pub runtime: &'a RuntimeConnection,
    /// What is counted of the measuring.
    pub metrics: &'a Arc<Metrics>,
}

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the machine.
    #[error("failed to get root cgroup stats")]
    Machine(#[source] machine::Error),
    /// Of the file system that pods' folders are on.
    #[error("failed to get rootFs stats")]
    RootFs(#[source] std::io::Error),
    /// Of pods, from the runtime.
    #[error("failed to list pod stats: {0}")]
    Pods(String),
    /// Of images, from the runtime.
    #[error("failed to get imageFs stats: {0}")]
    ImageFs(String),
    /// A task of ours broke off.
    #[error("reading broke off")]
    Task(#[source] tokio::task::JoinError),
}

/// What is kept between two questions.
#[derive(Debug)]
pub struct Stats {
    pub(super) settings: Settings,
    machine: Machine,
    rates: Mutex<Rates>,
    volumes: Mutex<BTreeMap<String, Vec<VolumeStats>>>,
    started: i64,
}

pub(super) fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

impl Stats {
    /// Of this machine.
    ///
    /// # Errors
    /// When its cgroups or `/proc` cannot be read.
    pub fn new(settings: Settings) -> Result<Arc<Self>, machine::Error> {
        let machine = Machine::new()?;
        let (rates, volumes) = (Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { settings, machine, rates, volumes, started: now() }))
    }

    /// Samples the machine and measures volumes until the drain.
    pub(super) async fn run(&self, sources: StatsSources<'_>, mut drain: DrainWatcher) {
        // Side by side: a driver that does not answer holds up volumes alone.
        let measure = async { tokio::join!(self.sample(), self.measure(sources)) };
        tokio::select! {
            _ = measure => {}
            () = drain.wait_started() => {}
        }
    }

    async fn sample(&self) {
        loop {
            if let Err(error) = self.node(Depth::CpuAndMemory).await {
                tracing::warn!(error = chain(&error), "cannot read what the machine uses");
            }
            tokio::time::sleep(SAMPLE).await;
        }
    }

    /// Not at all where the period is 0.
    async fn measure(&self, sources: StatsSources<'_>) {
        while !self.settings.volume_period.is_zero() {
            self.measure_volumes(sources).await;
            tokio::time::sleep(self.settings.volume_period).await;
        }
    }

    /// Walks all volumes now.
    pub(super) async fn measure_volumes(&self, sources: StatsSources<'_>) {
        let mut found: BTreeMap<String, Vec<VolumeStats>> = BTreeMap::new();
        let mut drivers = Vec::new();
        for pod in sources.pods.pods() {
            let Some(uid) = pod.metadata.uid.clone() else { continue };
            let places = volumes::places(&self.settings.root_dir, &pod, sources.pods);
            let (of_drivers, places): (Vec<_>, Vec<_>) =
                places.into_iter().partition(|place| place.how == How::AskDriver);
            if !of_drivers.is_empty() {
                drivers.push((uid.clone(), of_drivers));
            }
            let metrics = sources.metrics.clone();
            let measured = tokio::task::spawn_blocking(move || {
                places.into_iter().filter_map(|place| volumes::measure(place, &metrics)).collect()
            });
            match measured.await {
                Ok(measured) => drop(found.insert(uid, measured)),
                Err(error) => tracing::warn!(uid, %error, "measuring volumes broke off"),
            }
        }
        let of = (sources.pods, sources.metrics.as_ref());
        let ask = async |(uid, places): (String, _)| {
            let told = volumes::ask_drivers((&uid, places), of, DRIVER_PATIENCE).await;
            (uid, told)
        };
        for (uid, told) in join_all(drivers.into_iter().map(ask)).await {
            found.entry(uid).or_default().extend(told);
        }
        *self.volumes.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// The machine's own, and those of its system containers.
    pub(super) async fn node(&self, depth: Depth) -> Result<NodeStats, Error> {
        let (machine, settings, pods) = (self.machine.clone(), self.settings.clone(), self.pods_group());
        let read = move || -> Result<_, machine::Error> {
            let root = machine.root()?;
            let named = [
                // It stays where it was started, whatever kubeletCgroups says.
                ("kubelet", machine.own()),
                ("runtime", settings.runtime_cgroups.clone()),
                ("misc", settings.system_cgroups.clone()),
                ("pods", pods),
            ];
            let mut system = Vec::new();
            for (name, path) in named {
                if !path.is_empty() {
                    // One that is not there is left out, as upstream.
                    system.extend(machine.group(name, &path));
                }
            }
            Ok((root, system, machine.network(), machine.processes(), machine.boot_time()))
        };
        let read = tokio::task::spawn_blocking(read).await.map_err(Error::Task)?.map_err(Error::Machine)?;
        let (mut root, mut system, network, processes, booted) = read;
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.fill("/", root.cpu.as_mut());
        for container in &mut system {
            rates.fill(&format!("/system/{}", container.name), container.cpu.as_mut());
            if container.name == "kubelet" {
                container.start_time = self.started;
            }
        }
        drop(rates);
        let all = depth == Depth::All;
        Ok(NodeStats {
            node_name: String::new(),
            system_containers: system,
            start_time: booted,
            cpu: root.cpu,
            memory: root.memory,
            io: root.io.filter(|_| all),
            network: network.filter(|_| all),
            fs: None,
            runtime: None,
            rlimit: processes.filter(|_| all),
            swap: root.swap,
        })
    }

    /// Everything, now.
    ///
    /// # Errors
    /// When the machine or the runtime cannot be asked.
    pub async fn summary(&self, sources: StatsSources<'_>, depth: Depth) -> Result<Summary, Error> {
        let mut node = self.node(depth).await?;
        sources.node_name.clone_into(&mut node.node_name);
        let cri = Cri::new(sources.runtime, sources.metrics);
        let mut pods = cri.usage().await.map_err(|status| Error::Pods(super::cri::said(&status)))?;
        self.fill_rates(&mut pods);
        told(&mut node, &mut pods);
        if depth == Depth::CpuAndMemory {
            for pod in &mut pods {
                pod.only_cpu_and_memory();
            }
            return Ok(Summary { node, pods });
        }
        let fs = cri.image_fs().await.map_err(|status| Error::ImageFs(super::cri::said(&status)))?;
        node.runtime =
            Some(RuntimeStats { image_fs: Some(fs.images), container_fs: Some(fs.containers.clone()) });
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (logs, known) = (self.settings.pod_logs.clone(), sources.pods.pods());
        let root_dir = self.settings.root_dir.clone();
        let fill = move || {
            let root_fs = disk::space(&root_dir, now())?;
            let folders = pods::Folders { logs: &logs, pods: &root_dir.join("pods") };
            for pod in &mut pods {
                let api = known.iter().find(|known| known.metadata.uid.as_deref() == Some(&pod.pod_ref.uid));
                let volumes = volumes.get(&pod.pod_ref.uid).cloned().unwrap_or_default();
                pods::fill(pod, api.map(AsRef::as_ref), volumes, folders, &root_fs, &fs.containers);
            }
            Ok((pods, root_fs))
        };
        let filled = tokio::task::spawn_blocking(fill).await.map_err(Error::Task)?;
        let (pods, root_fs) = filled.map_err(Error::RootFs)?;
        node.fs = Some(root_fs);
        Ok(Summary { node, pods })
    }

    fn fill_rates(&self, pods: &mut [PodStats]) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen: Vec<String> = vec!["/".to_owned()];
        for pod in pods.iter_mut() {
            let key = format!("/pod/{}", pod.pod_ref.uid);
            rates.fill(&key, pod.cpu.as_mut());
            for container in &mut pod.containers {
                let key = format!("{key}/{}", container.name);
                rates.fill(&key, container.cpu.as_mut());
                seen.push(key);
            }
            seen.push(key);
        }
        rates.keep(|key| key.starts_with("/system/") || seen.iter().any(|seen| seen == key));
    }

    /// The cgroup of all pods.
    pub(super) fn pods_group(&self) -> String {
        names::path(self.settings.driver, &self.settings.cgroup_root, &["kubepods"])
    }

    /// The cgroups that are told of beside pods and containers.
    pub(super) fn groups(&self) -> Groups {
        let Settings { runtime_cgroups, system_cgroups, .. } = &self.settings;
        let daemons = vec![self.machine.own(), runtime_cgroups.clone(), system_cgroups.clone()];
        Groups { pods: self.pods_group(), daemons }
    }

    /// Whether volumes were measured since the last call.
    #[cfg(test)]
    pub(super) fn forget_volumes(&self) -> bool {
        !std::mem::take(&mut *self.volumes.lock().unwrap_or_else(PoisonError::into_inner)).is_empty()
    }

    /// Names of the cgroups that are told beside the pods'.
    #[cfg(test)]
    pub(super) async fn system_containers(&self) -> Vec<String> {
        let node = self.node(Depth::CpuAndMemory).await.unwrap();
        node.system_containers.into_iter().map(|container| container.name).collect()
    }

    /// What machine this is.
    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Claims' volumes as measured last, by namespace and claim.
    pub(super) fn claims(&self) -> Vec<VolumeStats> {
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.values().flatten().filter(|volume| volume.pvc_ref.is_some()).cloned().collect()
    }
}

/// Pressure is 0 where the kernel does not tell it, as upstream says it of cgroup v1.
fn told(node: &mut NodeStats, pods: &mut [PodStats]) {
    let containers = pods.iter_mut().flat_map(|PodStats { cpu, memory, containers, .. }| {
        let own = containers.iter_mut().map(|ContainerStats { cpu, memory, .. }| (cpu, memory));
        own.chain([(cpu, memory)])
    });
    let system = node.system_containers.iter_mut().map(|ContainerStats { cpu, memory, .. }| (cpu, memory));
    for (cpu, memory) in containers.chain(system).chain([(&mut node.cpu, &mut node.memory)]) {
        if let Some(cpu) = cpu {
            cpu.psi.get_or_insert_default();
        }
        if let Some(memory) = memory {
            memory.psi.get_or_insert_default();
        }
    }
}

impl PodStats {
    fn only_cpu_and_memory(&mut self) {
        let Self { io, network, volume, ephemeral_storage, process_stats, containers, .. } = self;
        (*io, *network, *ephemeral_storage, *process_stats) = (None, None, None, None);
        volume.clear();
        for container in containers {
            let ContainerStats { io, rootfs, logs, .. } = container;
            (*io, *rootfs, *logs) = (None, None, None);
        }
    }
}
